"""Events come from udev where it runs, else from the kernel, else there are none; a burst is one piece of news."""

from __future__ import annotations

import glob
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_topo.agent.loop import READ, Loop
from gpu_topo.agent.udev import CLOCK, KERNEL, UDEV, Events


class Watching:
    """Events on a loop that a test turns."""

    def __init__(self, control: str) -> None:
        self.loop = Loop()
        self.news = 0
        self.told: list[str] = []
        self.events = Events(self.loop, self._changed, self.told.append, control)

    def _changed(self) -> None:
        self.news += 1

    def turn(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.loop.turn(left)

    def close(self) -> None:
        self.events.close()
        self.loop.close()


@pytest.fixture
def watching() -> Watching:
    found = Watching("/nonexistent")
    if found.events.origin != KERNEL:
        found.close()
        pytest.skip(f"no events from the kernel here: {found.told}")
    return found


def announce(pattern: str) -> None:
    """Let the kernel announce a change of a device, which changes nothing."""
    for path in sorted(glob.glob(pattern))[:1]:
        try:
            with open(path, "w") as file:
                file.write("change")
            return
        except OSError:
            break
    pytest.skip(f"cannot write {pattern}: needs root on a machine that has such a device")


def test_without_udevd_the_kernel_is_asked(watching: Watching) -> None:
    """Where udevd does not run its events never come, so the kernel's are taken: several at once are one."""
    for _ in range(5):
        announce("/sys/bus/pci/devices/*/uevent")
    deadline = time.monotonic() + 10
    while not watching.news and time.monotonic() < deadline:
        watching.loop.turn(0.1)
    watching.turn(0.2)
    assert 1 <= watching.news <= 5
    assert watching.told == ["udevd does not answer here: events are taken from the kernel"]
    watching.close()


def test_virtual_interfaces_are_no_news(watching: Watching) -> None:
    """Containers make and unmake virtual network interfaces all day long."""
    announce("/sys/devices/virtual/net/lo/uevent")
    watching.turn(0.3)
    assert watching.news == 0
    watching.close()


def test_with_udevd_its_events_are_taken(tmp_path: Path) -> None:
    """Where udevd's control socket is there, its events are taken: they come when the device is ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(tmp_path / "control"))
        found = Watching(str(tmp_path / "control"))
        assert found.events.origin == UDEV
        found.close()


def test_without_any_events_there_is_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no events can be had, that is said, and the daemon goes by its clock."""
    import pyudev  # type: ignore[import-untyped,unused-ignore]

    def refused(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(pyudev.Monitor, "from_netlink", refused)
    found = Watching("/nonexistent")
    assert found.events.origin == CLOCK
    assert found.told == [
        "no events from kernel: [Errno 1] Operation not permitted",
        "no events: devices that come or go are noticed at the next scan",
    ]
    found.close()


def test_closing_gives_the_descriptors_back(watching: Watching) -> None:
    """After closing, nothing is watched."""
    watching.close()
    watching.events.close()


# --- the loop ---------------------------------------------------------------------------------------------------------


def turned(loop: Loop, times: int = 3) -> None:
    for _ in range(times):
        loop.turn(0.05)


def test_timers_run_in_order() -> None:
    """Timers fire when their time has come, earliest first, and not before."""
    now = [0.0]
    loop = Loop(lambda: now[0])
    fired: list[str] = []
    loop.at(2.0, lambda: fired.append("b"))
    loop.at(1.0, lambda: fired.append("a"))
    loop.at(9.0, lambda: fired.append("c"))
    loop.turn(0)
    assert fired == []
    now[0] = 2.0
    loop.turn(0)
    assert fired == ["a", "b"]
    loop.close()


def test_a_callback_may_close_what_is_due_next() -> None:
    """Two descriptors are ready; the first callback closes the second: it is not called."""
    loop = Loop()
    pairs = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def callback(own: int, other: int) -> Callable[[int], None]:
        def run(_: int) -> None:
            called.append(own)
            loop.unwatch(pairs[other][0])

        return run

    for n in range(2):
        loop.watch(pairs[n][0], READ, callback(n, 1 - n))
        os.write(pairs[n][1], b"x")
    loop.turn(0)
    assert len(called) == 1
    loop.close()
    for pair in pairs:
        os.close(pair[0])
        os.close(pair[1])


def test_words_from_other_threads_are_heard() -> None:
    """What is said with soon() runs in the loop, however often it is said; after closing it harms nobody."""
    loop = Loop()
    heard: list[int] = []
    for n in range(100_000):
        loop.soon(lambda n=n: heard.append(n))  # type: ignore[misc]
    turned(loop)
    assert heard == list(range(100_000))
    loop.close()
    loop.soon(lambda: None)
