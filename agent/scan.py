"""Asking every source of a machine, each within its time: one that hangs is left behind and the rest still come."""

from __future__ import annotations

import _thread
import time

from gpu_topo.collectors import COLLECTORS
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import TIMEOUT, Facts, SourceStatus
from gpu_topo.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Asks(Protocol):
        """A Collector, or what stands before one."""

        @property
        def name(self) -> str: ...

        def collect(self, source: Source, context: Context) -> Facts: ...


# A source that hangs may use this share of what is left, so that the ones after it still get their turn.
_SHARE = 0.6


class _Round:
    """A thread that asks one collector after another: a read that hangs in the kernel cannot be interrupted, only left.

    It goes through all of them by itself, since each hand-over between threads costs as much as reading five devices.
    """

    def __init__(self, source: Source, collectors: Sequence[Asks], ends: float, context: Context) -> None:
        self.found: list[Facts] = []
        self.limit = 0.0  # seconds that the collector in turn may take
        self._late_at = 0.0  # and when they are over
        self._ends = ends
        self._left = False
        self._error: BaseException | None = None
        self._turn, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._done.acquire()
        self._begin_turn()
        _thread.start_new_thread(self._run, (source, collectors, context))

    def _begin_turn(self) -> None:
        now = time.monotonic()
        self.limit = max(0.05, (self._ends - now) * _SHARE)
        self._late_at = now + self.limit

    def _run(self, source: Source, collectors: Sequence[Asks], context: Context) -> None:
        try:
            for collector in collectors:
                deadline = self._late_at - 0.1 * self.limit
                facts = collector.collect(source, context._replace(deadline=deadline))
                with self._turn:
                    if self._left:
                        return
                    self.found.append(facts)
                    self._begin_turn()
        except BaseException as error:
            self._error = error
        self._done.release()

    def wait(self) -> None:
        """Until all have answered, or the one in turn is late: then the thread is left to itself. A bug in a collector
        is raised here."""
        while not self._done.acquire(timeout=max(0.0, self._late_at - time.monotonic())):
            with self._turn:
                if self._late_at <= time.monotonic():
                    self._left = True
                    return
        if self._error is not None:
            raise self._error


def scan(
    source: Source,
    timeout: float,
    exclude: frozenset[str] = frozenset(),
    collectors: Sequence[Asks] = COLLECTORS,
    counters: bool = True,
) -> list[Facts]:
    """The facts of all sources, in the order of `collectors`, within `timeout` seconds; counters as in Context."""
    ends = time.monotonic() + timeout
    context = Context(ends, exclude, counters)
    found: list[Facts] = []
    while len(found) < len(collectors):
        asked = _Round(source, collectors[len(found) :], ends, context)
        asked.wait()
        found += asked.found
        if len(found) < len(collectors):
            source = _beside(source)
            detail = f"no answer in {asked.limit:.1f} s"
            if source.live:
                detail += ": a read hangs in the kernel"
            found.append(Facts(SourceStatus(collectors[len(found)].name, TIMEOUT, detail, asked.limit)))
    return found


def _beside(source: Source) -> Source:
    """The source without what the thread that was left behind may still use of it: see Kept.successor."""
    successor: Callable[[], Source] | None = getattr(source, "successor", None)
    return source if successor is None else successor()
