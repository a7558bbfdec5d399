"""The running machine, or a copied file tree on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from gpu_topo.source.base import MAX_READ, NOT_THERE, Answer, Names, Refusal, Target, refusal

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PATH_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK so that a FIFO in a copied tree cannot stop the audit.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_PAGE = 4096
_CHUNK = 1 << 16


class LiveDir:
    """A directory by descriptor. copied: it is no kernel's, so that a file costs by the call and not by its size."""

    def __init__(self, path: str, fd: int, copied: bool = False) -> None:
        self.path = path
        self._fd = fd
        self.copied = copied
        # No attribute of sysfs is a link, and in a copy one might lead to a file of the local machine.
        self._flags = _FILE_FLAGS | os.O_NOFOLLOW if copied else _FILE_FLAGS
        self._word_name = ""
        self._word_fd = -1

    def read(self, name: str) -> Answer:
        try:
            fd = os.open(name, self._flags, dir_fd=self._fd)
        except OSError as error:
            return refusal(error)
        try:
            data = os.read(fd, _PAGE)
            # sysfs answers in one page; anything longer (transcripts, mountinfo, copied files) is read to its end.
            if len(data) == _PAGE:
                chunks = [data]
                size = len(data)
                while size < MAX_READ and (more := os.read(fd, min(_CHUNK, MAX_READ - size))):
                    chunks.append(more)
                    size += len(more)
                data = b"".join(chunks)
            return data
        except OSError as error:
            return refusal(error)
        finally:
            os.close(fd)

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        # The descriptor stays open for the next double word: a capability chain is walked in a dozen reads.
        try:
            if self._word_name != name:
                self._close_words()
                self._word_fd = os.open(name, self._flags, dir_fd=self._fd)
                self._word_name = name
            return os.pread(self._word_fd, size, offset)
        except OSError as error:
            return refusal(error)

    def _close_words(self) -> None:
        if self._word_fd >= 0:
            os.close(self._word_fd)
        self._word_fd, self._word_name = -1, ""

    def list(self, name: str = ".") -> Names:
        try:
            fd = os.open(name, _DIR_FLAGS, dir_fd=self._fd)
        except OSError as error:
            return refusal(error)
        try:
            return tuple(sorted(os.listdir(fd)))
        except OSError as error:
            return refusal(error)
        finally:
            os.close(fd)

    def link(self, name: str) -> Target:
        try:
            return os.readlink(name, dir_fd=self._fd)
        except OSError as error:
            return refusal(error)

    def close(self) -> None:
        self._close_words()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LiveDir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Live:
    """This machine ("/") or a copied file tree. A copy never leads out of itself: what its links point to
    outside of it is the local machine's, and is absent."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self.live = self.root == "/"
        self._prefix = "" if self.live else self.root

    def _inside(self, path: str) -> str | None:
        full = self._prefix + path
        if self.live:
            return full
        real = _realpath(full)
        return real if real is not None and self._holds(real) else None

    def _holds(self, real: str) -> bool:
        return real == self.root or real.startswith(self.root + os.sep)

    def _open(self, path: str, flags: int) -> int | Refusal:
        """A descriptor of a directory. Opening one outside of a copy harms nothing, so it is looked at afterwards:
        the kernel has resolved the path by then, in a tenth of the time."""
        try:
            fd = os.open(self._prefix + path, flags)
        except OSError as error:
            return refusal(error)
        if self.live:
            return fd
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no /proc here
            real = _realpath(self._prefix + path) or ""
        if self._holds(real):
            return fd
        os.close(fd)
        return NOT_THERE

    def dir(self, path: str) -> LiveDir | Refusal:
        fd = self._open(path, _PATH_FLAGS)
        return fd if isinstance(fd, Refusal) else LiveDir(path, fd, copied=not self.live)

    def read(self, path: str) -> Answer:
        parent, _, name = path.rpartition("/")
        folder = self.dir(parent or "/")
        if isinstance(folder, Refusal):
            return folder
        with folder:
            if not self.live and isinstance(folder.link(name), str):
                # A file that is a link (/proc/mounts) is followed only where it stays inside.
                real = self._inside(path)
                return NOT_THERE if real is None else self.read(real[len(self._prefix) :])
            return folder.read(name)

    def list(self, path: str) -> Names:
        fd = self._open(path, _DIR_FLAGS)
        if isinstance(fd, Refusal):
            return fd
        try:
            return tuple(sorted(os.listdir(fd)))
        except OSError as error:
            return refusal(error)
        finally:
            os.close(fd)

    def link(self, path: str) -> Target:
        try:
            return os.readlink(self._prefix + path)
        except OSError as error:
            return refusal(error)

    def real(self, path: str) -> Target:
        real = _realpath(self._prefix + path)
        if real is None:
            return NOT_THERE
        if self.live:
            return real
        if real == self.root:
            return "/"
        return real[len(self.root) :] if real.startswith(self.root + os.sep) else NOT_THERE

    def ask(self, name: str) -> Iterator[str] | None:
        return None if self.live else iter(())

    def heard(self, name: str, line: str) -> None:
        pass


def _realpath(path: str) -> str | None:
    """The path with every link followed, None where it vanishes under way: devices come and go while we look."""
    try:
        return os.path.realpath(path)
    except OSError:
        return None


def is_readable_tree(path: str) -> bool:
    """Whether a directory looks like the root of a machine: it holds sys/ or proc/."""
    return any(_is_dir(os.path.join(path, name)) for name in ("sys", "proc"))


def _is_dir(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
