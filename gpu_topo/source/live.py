"""The running machine, or a copied file tree on disk."""

from __future__ import annotations

import os
import stat

from gpu_topo.source.base import NOT_THERE, Answer, Names, Refusal, Target, refusal
from gpu_topo.source.live_dir import DIR_FLAGS, PATH_FLAGS, LiveDir, listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# O_NONBLOCK so that a FIFO in a copied tree cannot stop the audit.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Live:
    """This machine ("/") or a copied file tree. A copy never leads out of itself: what its links point to
    outside of it is the local machine's, and is absent."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self.live = self.root == "/"
        # No attribute of sysfs is a link, and in a copy one might lead to a file of the local machine.
        self.file_flags = _FILE_FLAGS if self.live else _FILE_FLAGS | os.O_NOFOLLOW
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
        fd = self._open(path, PATH_FLAGS)
        return fd if isinstance(fd, Refusal) else LiveDir(self, path, fd)

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
        fd = self._open(path, DIR_FLAGS)
        if isinstance(fd, Refusal):
            return fd
        try:
            return listed(fd)
        except OSError as error:
            return refusal(error)

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
