"""What every collector is given besides its source."""

from __future__ import annotations

from gpu_topo.model.record import NamedTuple


class Context(NamedTuple):
    """deadline: time.monotonic() by which an answer is worth having; exclude: addresses and device names that
    must not be opened at all; counters: whether those are wanted too that one look alone says nothing of (metrics, and
    rules that watch them grow)."""

    deadline: float
    exclude: frozenset[str] = frozenset()
    counters: bool = True
