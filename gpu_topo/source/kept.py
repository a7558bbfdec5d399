"""The running machine as the daemon reads it: descriptors stay open, and what cannot change is read once.

sysfs makes an attribute's text anew at each pread of offset 0, so a kept descriptor costs a sixth of opening the file.
What a device is (ids, slot, what its link could do, configuration space) is remembered until the machine changes: a PCI
function came or went, its uevent reads otherwise (another driver), a kept descriptor answers ENODEV, an event arrived,
or simply ten minutes have passed. Collectors see no difference.
"""

from __future__ import annotations

import os
import resource
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_topo.source.base import Answer, Names, Refusal, Target, refusal
from gpu_topo.source.kept_dir import KeptDir
from gpu_topo.source.live import Live
from gpu_topo.source.live_dir import PATH_FLAGS, LiveDir

_REFRESH_SECONDS = 600.0
_MOST_DESCRIPTORS = 16384  # each holds a page in the kernel once it was read
_RESERVE = 256  # descriptors for everything else
_MEMBERS = "/sys/bus/pci/devices"
# Files outside of devices that stay as they are until the machine changes.
_STATIC_PATHS = (
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
    "/proc/xen/",
    "/proc/device-tree/",
    "/etc/hostname",
    "/sys/hypervisor/",
)


def raise_limit() -> int:
    """Let this process open as many files as it may; the number that it can now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        except (OSError, ValueError):
            return soft
    return soft if soft != resource.RLIM_INFINITY else wanted


class Journal:
    """What was read in one go and may be otherwise next time, so that `Kept.unchanged` can compare it cheaply."""

    def __init__(self, source: Kept) -> None:
        self.source = source  # whose descriptors these are
        self.files: list[tuple[int, bytes]] = []  # kept descriptors
        self.dirs: dict[KeptDir, int] = {}  # and how often their descriptors had been given back
        self.lists: list[tuple[str, Names]] = []
        self.links: list[tuple[KeptDir, str, Target]] = []
        self.texts: list[tuple[str, Answer]] = []
        self.repeatable = True  # False: something was read that cannot be looked at again


class _Room:
    """How many more descriptors may be kept, by a Kept and its successors together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Kept(Live):
    """Live with a memory. Call `begin` before each scan; `forget` when an event says that something changed.

    Its descriptors are one thread's at a time. A thread whose read hangs in the kernel may go on with them whenever
    that returns, so it is left this object whole, and everybody else goes on with its `successor`.
    """

    def __init__(self, root: str = "/", most: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(root)
        self._room = _Room(most if most is not None else max(0, min(raise_limit() - _RESERVE, _MOST_DESCRIPTORS)))
        self._readers = 0  # threads that are within `reading`
        self._successor: Kept | None = None
        self._lock = allocate_lock()  # of these two
        self._clock = clock
        self._dirs: dict[str, KeptDir] = {}
        self._links: dict[str, Target] = {}
        self._texts: dict[str, Answer] = {}
        self._journals: dict[int, Journal] = {}  # by thread: one that hangs must not write into another's
        self._members: Names = ()
        self._read_at = 0.0
        self._stale = True

    @property
    def left(self) -> int:
        """How many more descriptors may be kept."""
        return self._room.left

    @left.setter
    def left(self, number: int) -> None:
        self._room.left = number

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read through this object. The last to leave one that has a successor gives its descriptors back."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                abandoned = self._successor is not None and not self._readers
            if abandoned:
                self.close()

    def successor(self) -> Kept:
        """What is to be read through from now on: this object, or a fresh one where a thread was left behind in it."""
        with self._lock:
            if self._successor is None and self._readers:
                self._successor = Kept(self.root, 0, self._clock)
                self._successor._room = self._room
            following = self._successor
        return self if following is None else following.successor()

    def begin(self) -> None:
        """A scan begins: what is remembered goes where the machine is no longer the same."""
        members = super().list(_MEMBERS)
        if self._stale or members != self._members or self._clock() - self._read_at > _REFRESH_SECONDS:
            self.close()
            self._members = members
            self._read_at = self._clock()
            self._stale = False

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Note what this thread reads."""
        noted = self._journals[get_ident()] = Journal(self)
        try:
            yield noted
        finally:
            self._journals.pop(get_ident(), None)

    def noted(self) -> Journal | None:
        """The journal of this thread, where it keeps one."""
        return self._journals.get(get_ident())

    def unchanged(self, journal: Journal) -> bool:
        """Whether everything that was noted still reads the same: a few hundred system calls, and nothing is parsed."""
        if not journal.repeatable or journal.source is not self:
            return False
        for kept, generation in journal.dirs.items():
            if kept.generation != generation or not kept.fresh():
                return False  # their descriptors were given back
        pread = os.pread
        try:
            for fd, data in journal.files:
                if pread(fd, len(data) + 1, 0) != data:  # one byte more tells whether there is more
                    return False
        except OSError:
            return False
        return (
            all(self._listed(path) == names for path, names in journal.lists)
            and all(kept.look_at(name) == target for kept, name, target in journal.links)
            and all(super(Kept, self).read(path) == text for path, text in journal.texts)
        )

    def _listed(self, path: str) -> Names:
        """The names in a directory now, through its kept descriptor where there is one."""
        kept = self._dirs.get(path)
        return super().list(path) if kept is None else kept.look_into()

    def forget(self) -> None:
        """The next scan reads everything anew."""
        self._stale = True

    def close(self) -> None:
        """Give all descriptors back."""
        # A thread of an earlier scan that hung may go on in the meantime, and open more.
        dirs, self._dirs = self._dirs, {}
        for kept in list(dirs.values()):
            kept.release()
        self._links = {}
        self._texts = {}

    def dir(self, path: str) -> LiveDir | Refusal:
        found = self._dir(path)
        journal = self.noted()
        if journal is not None:
            if isinstance(found, KeptDir):
                journal.dirs[found] = found.generation
            elif isinstance(found, Refusal):
                journal.lists.append((path, super().list(path)))
            else:
                journal.repeatable = False
        return found

    def _dir(self, path: str) -> LiveDir | Refusal:
        if not path.startswith("/sys/"):
            return super().dir(path)
        kept = self._dirs.get(path)
        if kept is not None and kept.usable():
            return kept
        if self.left <= 0:
            return super().dir(path)
        fd = self.open_dir(path)
        if isinstance(fd, Refusal):
            return fd
        kept = KeptDir(self, path, fd)
        self._dirs[path] = kept
        self.left -= 1
        return kept

    def list(self, path: str) -> Names:
        names = super().list(path)
        journal = self.noted()
        if journal is not None:
            journal.lists.append((path, names))
        return names

    def open_dir(self, path: str) -> int | Refusal:
        """A descriptor of a directory."""
        return self._open(path, PATH_FLAGS)

    def real(self, path: str) -> Target:
        try:
            return super().real(path)
        except OSError as error:
            return refusal(error)  # a link went away while it was followed

    def _inside(self, path: str) -> str | None:
        try:
            return super()._inside(path)
        except OSError:
            return None

    def read(self, path: str) -> Answer:
        if path.startswith(_STATIC_PATHS):
            text = self._texts.get(path)
            if text is None:
                text = self._texts[path] = super().read(path)
            return text
        journal = self.noted()
        if journal is None or path.startswith("/sys/"):
            return super().read(path)  # by way of its directory, which notes it
        self._journals.pop(get_ident())  # what is in between needs no note of its own
        try:
            text = super().read(path)
        finally:
            self._journals[get_ident()] = journal
        journal.texts.append((path, text))
        return text

    def link(self, path: str) -> Target:
        if not path.startswith("/sys/"):
            return super().link(path)
        target = self._links.get(path)
        if target is None:
            target = self._links[path] = super().link(path)
        return target
