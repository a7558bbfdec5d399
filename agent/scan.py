"""Asking every source of a machine, each within its time: one that hangs is left behind and the rest still come."""

from __future__ import annotations

import _thread
import time

from gpu_topo.collectors import COLLECTORS, Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import TIMEOUT, Facts, SourceStatus
from gpu_topo.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A source that hangs may use this share of what is left, so that the ones after it still get their turn.
_SHARE = 0.6


class _Worker:
    """A thread that asks one collector after another: a read that hangs in the kernel cannot be interrupted, only left.

    Starting a thread costs as much as reading five devices, so there is a new one only where the last one hangs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._job: tuple[Collector, Context] | None = None
        self._facts: Facts | None = None
        self._error: BaseException | None = None
        self._asked, self._answered = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._answered.acquire()
        _thread.start_new_thread(self._run, ())

    def ask(self, collector: Collector, context: Context, limit: float) -> Facts | None:
        """What the collector says, None where it does not within `limit` seconds. A bug in it is raised here."""
        self._job = collector, context
        self._asked.release()
        if not self._answered.acquire(timeout=limit):
            return None
        if self._error is not None:
            raise self._error
        return self._facts

    def leave(self) -> None:
        """Let the thread end, now or when what it hangs in returns."""
        self._job = None
        if self._asked.locked():  # else the thread has not even begun, and will find no job
            self._asked.release()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            job = self._job
            if job is None:
                return
            collector, context = job
            try:
                self._facts = collector.collect(self._source, context)
            except BaseException as error:
                self._error = error
            self._answered.release()


def scan(
    source: Source,
    timeout: float,
    exclude: frozenset[str] = frozenset(),
    collectors: Sequence[Collector] = COLLECTORS,
    counters: bool = True,
) -> list[Facts]:
    """The facts of all sources, in the order of `collectors`, within `timeout` seconds; counters as in Context."""
    ends = time.monotonic() + timeout
    found = []
    worker = _Worker(source)
    try:
        for collector in collectors:
            limit = max(0.05, (ends - time.monotonic()) * _SHARE)
            facts = worker.ask(collector, Context(time.monotonic() + limit * 0.9, exclude, counters), limit)
            if facts is None:
                worker.leave()
                worker = _Worker(source)
                detail = f"no answer in {limit:.1f} s: a read hangs in the kernel"
                facts = Facts(SourceStatus(collector.name, TIMEOUT, detail, limit))
            found.append(facts)
    finally:
        worker.leave()
    return found
