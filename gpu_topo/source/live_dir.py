"""A directory of the running machine or of a copy, by descriptor, and the way to where its links lead."""

from __future__ import annotations

import errno
import os

from gpu_topo.source.base import MAX_READ, NOT_THERE, Answer, Names, Refusal, Target, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_topo.source.live import Live

# Looked up once: a scan calls each ten thousand times.
_open, _pread, _close, _readlink, _access = os.open, os.pread, os.close, os.readlink, os.access

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PATH_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW_FLAGS = PATH_FLAGS | os.O_NOFOLLOW
NO_STEP = frozenset(("", ".", ".."))  # parts of a link's text that are no name of a directory
# Attributes are nearly all shorter, and bytes of so few take none of the C library's memory.
_SHORT = 479
_CHUNK = 1 << 16


def rest(fd: int, data: bytes) -> bytes:
    """A whole file that begins with `data`, at most MAX_READ bytes of it."""
    chunks = [data]
    size = len(data)
    while size < MAX_READ and (more := _pread(fd, min(_CHUNK, MAX_READ - size), size)):
        chunks.append(more)
        size += len(more)
    return b"".join(chunks)


def listed(fd: int) -> Names:
    """Sorted names in the directory that was opened as `fd`, which is closed; OSError where it cannot be listed."""
    try:
        return tuple(sorted(os.listdir(fd)))
    finally:
        os.close(fd)


class LiveDir:
    """A directory by descriptor."""

    # As most directories leave them: a scan opens thousands.
    _word_name = ""
    _word_fd = -1
    _trail: Trail | None = None
    _asked: tuple[str, Target] = "", NOT_THERE  # the last link: who asks where it leads, mostly goes there next

    def __init__(self, owner: Live, path: str, fd: int) -> None:
        self.path = path
        self._owner = owner
        self._fd = fd
        self._flags = owner.file_flags

    @property
    def copied(self) -> bool:
        """Whether it is no kernel's, so that a file costs by the call and not by its size."""
        return not self._owner.live

    def read(self, name: str) -> Answer:
        try:
            fd = _open(name, self._flags, dir_fd=self._fd)
        except OSError as error:
            return refusal(error)
        try:
            # At a stated offset, which spares the kernel the lock of the file's own.
            data = _pread(fd, _SHORT, 0)
            return data if len(data) < _SHORT else rest(fd, data)
        except OSError as error:
            return refusal(error)
        finally:
            _close(fd)

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        # The descriptor stays open for the next double word: a capability chain is walked in a dozen reads.
        try:
            if self._word_name != name:
                self._close_words()
                self._word_fd = _open(name, self._flags, dir_fd=self._fd)
                self._word_name = name
            return _pread(self._word_fd, size, offset)
        except OSError as error:
            return refusal(error)

    def _close_words(self) -> None:
        if self._word_fd >= 0:
            _close(self._word_fd)
            self._word_fd, self._word_name = -1, ""

    def list(self, name: str = ".") -> Names:
        try:
            return listed(os.open(name, DIR_FLAGS, dir_fd=self._fd))
        except OSError as error:
            return refusal(error)

    def link(self, name: str) -> Target:
        try:
            target: Target = _readlink(name, dir_fd=self._fd)
        except OSError as error:
            target = refusal(error)
        self._asked = name, target
        return target

    def has(self, name: str) -> bool:
        return _access(name, os.F_OK, dir_fd=self._fd)

    def dir(self, name: str, near: bool = False) -> LiveDir | Refusal:
        """A directory that a link leads to is opened from the one that it lies in: see Trail."""
        path = f"{self.path}/{name}"
        trail = self._trail
        if near and trail is not None and (found := trail.beside(name, path)) is not None:
            return found
        asked, target = self._asked
        if asked != name:
            target = self.link(name)
        if isinstance(target, Refusal):
            return self.below(name, path)
        folder, _, step = target.rpartition("/")
        if not folder or folder[0] == "/" or step in NO_STEP:
            return self._owner.dir(path)
        if trail is None:
            trail = self._trail = Trail(self._owner, self.path)
        place = trail.to(folder)
        return place if isinstance(place, Refusal) else place.below(step, path)

    def below(self, name: str, path: str) -> LiveDir | Refusal:
        """The directory of that name in this one, known by the path it was asked for with."""
        try:
            return LiveDir(self._owner, path, _open(name, _BELOW_FLAGS, dir_fd=self._fd))
        except OSError as error:
            # A link that leads to another link is followed by its path.
            return self._owner.dir(path) if error.errno in (errno.ENOTDIR, errno.ELOOP) else refusal(error)

    def close(self) -> None:
        if self._word_fd >= 0:
            self._close_words()
        if self._trail is not None:
            self._trail.leave()
        if self._fd >= 0:
            _close(self._fd)
            self._fd = -1

    def __enter__(self) -> LiveDir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Trail:
    """The directories on the way to where the last link of a folder led, all still open.

    Class folders of sysfs hold nothing but links, and most lead beside the one before or a step further. From there a
    directory is opened by its name alone: a fifth of resolving the whole path, and what is opened without following a
    link needs no look at whether it led out of a copy.
    """

    def __init__(self, owner: Live, start: str) -> None:
        self._owner = owner
        self._start = start  # the folder of the links
        self._steps: list[tuple[str, LiveDir]] = []  # text of a link up to here, slash included

    def beside(self, name: str, path: str) -> LiveDir | Refusal | None:
        """The directory beside the last one; None where it is not there."""
        found = self._steps[-1][1].below(name, path) if self._steps else NOT_THERE
        return None if found is NOT_THERE else found

    def to(self, folder: str) -> LiveDir | Refusal:
        """The directory that the text `folder` leads to."""
        steps, way = self._steps, folder + "/"
        while steps and not way.startswith(steps[-1][0]):
            steps.pop()[1].close()
        if not steps:
            return self._afresh(folder)
        text, place = steps[-1]
        names = way[len(text) : -1].split("/") if way != text else []
        if not NO_STEP.isdisjoint(names):
            return self._afresh(folder)
        for name in names:
            text += name + "/"
            found = place.below(name, f"{self._start}/{text[:-1]}")
            if isinstance(found, Refusal):
                return found
            place = found
            steps.append((text, place))
        return place

    def _afresh(self, folder: str) -> LiveDir | Refusal:
        self.leave()
        place = self._owner.dir(f"{self._start}/{folder}")
        if not isinstance(place, Refusal):
            self._steps.append((folder + "/", place))
        return place

    def leave(self) -> None:
        """Close them."""
        while self._steps:
            self._steps.pop()[1].close()
