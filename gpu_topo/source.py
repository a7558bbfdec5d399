"""The one door to the machine: Live reads it, Tree reads a copy in memory, Recording remembers, Replay gives back.

Every path is absolute and in the inspected machine's own terms (/sys/bus/pci/devices). A Dir is opened once and
its files are read relative to it, which costs a third of opening full paths. Whoever reads gets bytes or a Refusal,
never an exception: one broken file must not hide the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, Union

from gpu_topo.model.reading import DENIED, FAILED

ABSENT = "absent"
MAX_READ = 1 << 20  # no file that a scan reads is larger; a hostile tree may hold anything


class Refusal(NamedTuple):
    """Why a file could not be read: absent, denied or failed; error is the errno's name, "" where none applies."""

    why: str
    error: str = ""


NOT_THERE = Refusal(ABSENT, "ENOENT")

Answer = Union[bytes, Refusal]
Names = Union["tuple[str, ...]", Refusal]
Target = Union[str, Refusal]


class Dir(Protocol):
    """An open directory of the inspected machine. Use as a context manager, or close it."""

    path: str

    def read(self, name: str) -> Answer:
        """The content of a file, at most MAX_READ bytes. `name` may hold slashes."""

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        """`size` bytes from `offset`: for configuration space, where every double word costs."""

    def list(self, name: str = ".") -> Names:
        """Sorted names in this directory or one below it."""

    def link(self, name: str) -> Target:
        """Where a symbolic link points, as it is written."""

    def close(self) -> None:
        """Give the descriptor back (a source that keeps descriptors may hold on to it)."""

    def __enter__(self) -> Dir: ...

    def __exit__(self, *exc: object) -> None: ...


class Source(Protocol):
    """A machine, a copy of one, or what was recorded of one."""

    live: bool  # the machine this process runs on

    def dir(self, path: str) -> Dir | Refusal:
        """Open a directory by its absolute path."""

    def read(self, path: str) -> Answer:
        """The content of one file by its absolute path."""

    def list(self, path: str) -> Names:
        """Sorted names in one directory."""

    def link(self, path: str) -> Target:
        """Where a symbolic link points, as it is written."""

    def real(self, path: str) -> Target:
        """The path with every symbolic link followed, in the machine's own terms."""

    def ask(self, name: str) -> Iterator[str] | None:
        """The recorded transcript of a program-like source (NVML), line by line; None where it must be asked live."""

    def heard(self, name: str, line: str) -> None:
        """Remember one line of such a transcript (only Recording does)."""


def refusal(error: OSError) -> Refusal:
    """The Refusal that an OSError stands for."""
    name = errno.errorcode.get(error.errno or 0, "")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
        return Refusal(ABSENT, name)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refusal(DENIED, name)
    return Refusal(FAILED, name)


# --- the machine itself, or a copied tree on disk -----------------------------------------------------------------

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PATH_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK so that a FIFO in a copied tree cannot stop the audit.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class LiveDir:
    """A directory by descriptor."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._word_name = ""
        self._word_fd = -1

    def read(self, name: str) -> Answer:
        try:
            fd = os.open(name, _FILE_FLAGS, dir_fd=self._fd)
        except OSError as error:
            return refusal(error)
        try:
            data = os.read(fd, 4096)
            # sysfs answers in one page; anything longer (transcripts, mountinfo, copied files) is read to its end.
            if len(data) == 4096:
                chunks = [data]
                size = len(data)
                while size < MAX_READ and (more := os.read(fd, MAX_READ - size)):
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
                self._word_fd = os.open(name, _FILE_FLAGS, dir_fd=self._fd)
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
        real = os.path.realpath(full)
        return real if real == self.root or real.startswith(self.root + os.sep) else None

    def dir(self, path: str) -> LiveDir | Refusal:
        full = self._inside(path)
        if full is None:
            return NOT_THERE
        try:
            return LiveDir(path, os.open(full, _PATH_FLAGS))
        except OSError as error:
            return refusal(error)

    def read(self, path: str) -> Answer:
        parent, _, name = path.rpartition("/")
        if self._inside(path) is None:
            return NOT_THERE
        folder = self.dir(parent or "/")
        if isinstance(folder, Refusal):
            return folder
        with folder:
            return folder.read(name)

    def list(self, path: str) -> Names:
        full = self._inside(path)
        if full is None:
            return NOT_THERE
        try:
            return tuple(sorted(os.listdir(full)))
        except OSError as error:
            return refusal(error)

    def link(self, path: str) -> Target:
        try:
            return os.readlink(self._prefix + path)
        except OSError as error:
            return refusal(error)

    def real(self, path: str) -> Target:
        real = os.path.realpath(self._prefix + path)
        if self.live:
            return real
        if real == self.root:
            return "/"
        return real[len(self.root) :] if real.startswith(self.root + os.sep) else NOT_THERE

    def ask(self, name: str) -> Iterator[str] | None:
        return None if self.live else iter(())

    def heard(self, name: str, line: str) -> None:
        pass


def is_readable_tree(path: str) -> bool:
    """Whether a directory looks like the root of a machine: it holds sys/ or proc/."""
    return any(_is_dir(os.path.join(path, name)) for name in ("sys", "proc"))


def _is_dir(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


# --- a tree in memory ---------------------------------------------------------------------------------------------

Entry = Union[bytes, str, Refusal]  # file content, link target, or why it could not be read
_MAX_LINKS = 40  # as the kernel: more is a loop


class TreeDir:
    """A directory of a Tree."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.path = path
        self._tree = tree

    def read(self, name: str) -> Answer:
        return self._tree.read(f"{self.path}/{name}")

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        data = self._tree.read(f"{self.path}/{name}")
        return data if isinstance(data, Refusal) else data[offset : offset + size]

    def list(self, name: str = ".") -> Names:
        return self._tree.list(self.path if name == "." else f"{self.path}/{name}")

    def link(self, name: str) -> Target:
        return self._tree.link(f"{self.path}/{name}")

    def close(self) -> None:
        pass

    def __enter__(self) -> TreeDir:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Tree:
    """A file tree in memory: an unpacked archive or a capture. Links are followed inside it, and nowhere else."""

    live = False

    def __init__(self, entries: Mapping[str, Entry], transcripts: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """entries: absolute path without trailing slash -> content (bytes), link target (str) or Refusal."""
        self._entries = dict(entries)
        self._transcripts = dict(transcripts or {})
        children: dict[str, set[str]] = {"": set()}
        for path in self._entries:
            while path:
                parent, _, name = path.rpartition("/")
                known = parent in children
                children.setdefault(parent, set()).add(name)
                if known:
                    break
                path = parent
        self._children = {path: tuple(sorted(names)) for path, names in children.items()}

    def real(self, path: str) -> Target:
        resolved: list[str] = []
        pending = [part for part in reversed(path.split("/")) if part]
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                if resolved:
                    resolved.pop()
                continue
            resolved.append(part)
            entry = self._entries.get("/" + "/".join(resolved))
            if isinstance(entry, str):
                links += 1
                if links > _MAX_LINKS:
                    return Refusal(FAILED, "ELOOP")
                resolved.pop()
                if entry.startswith("/"):
                    resolved = []
                pending.extend(part for part in reversed(entry.split("/")) if part)
        return "/" + "/".join(resolved)

    def _missing(self, path: str) -> Refusal:
        return NOT_THERE

    def read(self, path: str) -> Answer:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        entry = self._entries.get(real)
        if isinstance(entry, Refusal):
            return entry
        return entry if isinstance(entry, bytes) else self._missing(real)

    def dir(self, path: str) -> TreeDir | Refusal:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        if real.rstrip("/") in self._children:
            return TreeDir(self, real.rstrip("/"))
        entry = self._entries.get(real)
        return entry if isinstance(entry, Refusal) else self._missing(real)

    def list(self, path: str) -> Names:
        real = self.real(path)
        if isinstance(real, Refusal):
            return real
        names = self._children.get(real.rstrip("/"))
        if names is not None:
            return names
        entry = self._entries.get(real)
        return entry if isinstance(entry, Refusal) else self._missing(real)

    def link(self, path: str) -> Target:
        parent, _, name = path.rpartition("/")
        real = self.real(parent or "/")
        if isinstance(real, Refusal):
            return real
        entry = self._entries.get(f"{real.rstrip('/')}/{name}")
        if isinstance(entry, str):
            return entry
        return entry if isinstance(entry, Refusal) else self._missing(path)

    def ask(self, name: str) -> Iterator[str] | None:
        return iter(self._transcripts.get(name, ()))

    def heard(self, name: str, line: str) -> None:
        pass
