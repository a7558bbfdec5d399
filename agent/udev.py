"""Events that say that a device came, went or changed: from udev where it runs, else from the kernel, else none.

A link that degrades and a port that goes down bring no event at all, so events only make the daemon look sooner; its
clock is never optional.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_topo.agent.loop import READ, Loop

if TYPE_CHECKING:
    import pyudev  # type: ignore[import-untyped,unused-ignore]

SUBSYSTEMS = ("pci", "infiniband", "net", "nvme")
UDEV = "udev"
KERNEL = "kernel"
CLOCK = "clock"  # no events: only the daemon's own clock
_CONTROL = "/run/udev/control"
_AT_ONCE = 256  # events taken in one go; a burst of more is the same news

Log = Callable[[str], None]


class Events:
    """Watches for events and calls back once for each burst of them."""

    def __init__(self, loop: Loop, changed: Callable[[], None], log: Log, control: str = _CONTROL) -> None:
        """log is told where the events come from, or why there are none."""
        self._loop = loop
        self._changed = changed
        self._monitor: pyudev.Monitor | None = None
        self.origin = CLOCK
        # Without udevd its event source starts without an error and stays silent for ever.
        for origin in (UDEV, KERNEL) if os.path.exists(control) else (KERNEL,):
            problem = self._open(origin)
            if not problem:
                self.origin = origin
                if origin == KERNEL:
                    log("udevd does not answer here: events are taken from the kernel")
                return
            log(f"no events from {origin}: {problem}")
        log("no events: devices that come or go are noticed at the next scan")

    def close(self) -> None:
        """Stop watching."""
        if self._monitor is not None:
            self._loop.unwatch(self._monitor)
            self._monitor = None

    def _open(self, origin: str) -> str:
        """Start; "" or why it cannot."""
        try:
            import pyudev

            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source=origin)
            for subsystem in SUBSYSTEMS:
                monitor.filter_by(subsystem)
            monitor.start()
        except (ImportError, OSError, ValueError) as error:
            return str(error) or type(error).__name__
        self._monitor = monitor
        self._loop.watch(monitor, READ, self._drain)
        return ""

    def _drain(self, _: int) -> None:
        """Take what is there: what the events say is read from sysfs, so that they came is all that counts."""
        assert self._monitor is not None
        found = 0
        try:
            for _ in range(_AT_ONCE):
                device = self._monitor.poll(timeout=0)
                if device is None:
                    break
                # Containers make and unmake virtual interfaces all day long.
                found += not (device.subsystem == "net" and "/virtual/" in device.device_path)
        except OSError:
            found += 1  # the kernel dropped events (ENOBUFS): something happened
        if found:
            self._changed()
