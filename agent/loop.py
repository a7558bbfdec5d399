"""One thread that waits for everything: sockets, timers, and words from signals and other threads.

asyncio would do the same for 2 MiB more beside prometheus_client (9 MiB on its own); what the daemon uses of it fits
on this page.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol


class HasFileno(Protocol):
    """A socket or anything else with a descriptor."""

    def fileno(self) -> int: ...


READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Loop:
    """Calls back when a descriptor is ready or a time has come. Everything but `soon` belongs to the loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waiting: deque[Callable[[], None]] = deque()
        self._ear, self._mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._ear, READ, self._hear)
        self._running = False

    def watch(self, what: int | HasFileno, events: int, callback: Callable[[int], None]) -> None:
        """Call back with the events (READ, WRITE) that a descriptor is ready for; again to change them."""
        try:
            self._selector.modify(what, events, callback)
        except KeyError:
            self._selector.register(what, events, callback)

    def unwatch(self, what: int | HasFileno) -> None:
        """Stop watching; nothing happens where it was not watched."""
        try:
            self._selector.unregister(what)
        except (KeyError, ValueError):
            pass

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back once at a time of this loop's clock."""
        heapq.heappush(self._timers, (when, next(self._order), callback))

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the loop's thread as soon as it can: for other threads and for signal handlers."""
        self._waiting.append(callback)
        try:
            os.write(self._mouth, b"\0")
        except (BlockingIOError, OSError):
            pass  # full: it will wake anyway; closed: nobody is listening any more

    def run(self) -> None:
        """Until stop()."""
        self._running = True
        while self._running:
            self.turn(None)

    def turn(self, longest: float | None) -> None:
        """Wait once, at most so many seconds, and call back whatever is due."""
        if self._timers:
            due = max(0.0, self._timers[0][0] - self.clock())
            longest = due if longest is None else min(due, longest)
        for key, events in self._selector.select(longest):
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.fileobj == key.fileobj:  # an earlier callback may have closed it
                now.data(events)
        while self._timers and self._timers[0][0] <= self.clock():
            heapq.heappop(self._timers)[2]()
        for _ in range(len(self._waiting)):  # what they add has its turn next
            self._waiting.popleft()()

    def stop(self) -> None:
        """Leave run() after this turn."""
        self._running = False

    def close(self) -> None:
        """Give the descriptors back."""
        self._selector.close()
        os.close(self._ear)
        os.close(self._mouth)

    def _hear(self, _: int) -> None:
        try:
            while len(os.read(self._ear, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
