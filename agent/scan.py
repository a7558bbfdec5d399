"""Asking every source of a machine, each within its time: one that hangs is left behind and the rest still come."""

from __future__ import annotations

import _thread
import time
from collections.abc import Sequence

from gpu_topo.collectors import COLLECTORS, Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import TIMEOUT, Facts, SourceStatus
from gpu_topo.source import Source

# A source that hangs may use this share of what is left, so that the ones after it still get their turn.
_SHARE = 0.6


class _Answer:
    """What a worker thread brings back."""

    def __init__(self) -> None:
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self.facts: Facts | None = None
        self.error: BaseException | None = None


def scan(
    source: Source,
    timeout: float,
    exclude: frozenset[str] = frozenset(),
    collectors: Sequence[Collector] = COLLECTORS,
) -> list[Facts]:
    """The facts of all sources, in the order of `collectors`, within `timeout` seconds.

    Each collector runs in a thread of its own: a read that hangs in the kernel cannot be interrupted, only left. A bug
    in a collector is raised here.
    """
    ends = time.monotonic() + timeout
    found = []
    for collector in collectors:
        limit = max(0.05, (ends - time.monotonic()) * _SHARE)
        found.append(_ask(collector, source, Context(time.monotonic() + limit * 0.9, exclude), limit))
    return found


def _ask(collector: Collector, source: Source, context: Context, limit: float) -> Facts:
    answer = _Answer()

    def work() -> None:
        try:
            answer.facts = collector.collect(source, context)
        except BaseException as error:
            answer.error = error
        answer.done.release()

    _thread.start_new_thread(work, ())
    if not answer.done.acquire(timeout=limit):
        detail = f"no answer in {limit:.1f} s: a read hangs in the kernel"
        return Facts(SourceStatus(collector.name, TIMEOUT, detail, limit))
    if answer.error is not None:
        raise answer.error
    assert answer.facts is not None
    return answer.facts
