"""What time adds: an immutable past for the rules, empty in a one-off audit."""

from __future__ import annotations

from gpu_topo.model.finding import Acceptance
from gpu_topo.model.node import LinkSample
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Past(NamedTuple):
    """Keys are (subject, counter or field) as the rules name them. Empty: a one-off audit knows no past.

    Growth is what was counted within the last hour: what a minute brings is not extrapolated.
    """

    counters: Mapping[tuple[str, str], int] = EMPTY  # growth
    best_rate_gbps: Mapping[str, float] = EMPTY  # port -> highest rate seen since start
    was_up: frozenset[str] = frozenset()  # ports seen ACTIVE before
    seen_devices: Mapping[str, str] = EMPTY  # address -> name (or kind), of devices seen before
    flaps: Mapping[str, int] = EMPTY  # port -> down/up transitions within the last hour
    samples: Mapping[str, tuple[LinkSample, ...]] = EMPTY  # GPU address -> earlier looks, oldest first
    uptime_seconds: float | None = None
    baseline: Mapping[str, Any] = EMPTY  # the saved baseline document, empty where none
    watching: bool = False  # True in the daemon: counters are judged by growth


class Policy(NamedTuple):
    """What the operator decided: thresholds, roles, exclusions, expectations, accepted findings."""

    expect: Mapping[str, int] = EMPTY  # "gpus" -> 8, "nics" -> 8, "nvswitches", "storage"
    roles: Mapping[str, str] = EMPTY  # port or netdev -> role
    exclude: frozenset[str] = frozenset()  # addresses and device names, applied before anything is read
    accepted: Mapping[tuple[str, str], Acceptance] = EMPTY  # (code, subject) -> acceptance
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    correctable_per_hour: float = 100.0
    replays_per_hour: float = 100.0
    port_errors_per_hour: float = 10.0
    flaps_per_hour: float = 2.0
    nvlink_errors_per_hour: float = 10.0
    boot_grace_seconds: float = 900.0
    now: str = ""  # RFC 3339 date, to expire acceptances

    def asks(self, code: str) -> bool:
        """Whether the rule of this code is to judge: neither left out by `only` nor by `skip`."""
        return (not self.only or code in self.only) and code not in self.skip
