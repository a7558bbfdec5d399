"""What every source answers with, and what it can be asked: bytes or a Refusal, never an exception."""

from __future__ import annotations

import errno

from gpu_topo.model.reading import DENIED, FAILED
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol
else:
    Protocol = object  # nothing asks at run time, and making a protocol takes longer than reading a device

ABSENT = "absent"
MAX_READ = 1 << 20  # no file that a scan reads is larger; a hostile tree may hold anything


class Refusal(NamedTuple):
    """Why a file could not be read: absent, denied or failed; error is the errno's name, "" where none applies."""

    why: str
    error: str = ""


NOT_THERE = Refusal(ABSENT, "ENOENT")

Answer = bytes | Refusal
Names = tuple[str, ...] | Refusal
Target = str | Refusal


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

    def has(self, name: str) -> bool:
        """Whether there is a file of that name, where this directory's files can be opened at all. It is not opened."""

    def dir(self, name: str, near: bool = False) -> Dir | Refusal:
        """Open a directory in this one, or the one that a link in it leads to. `name` holds no slash.

        near: a hint that the link leads beside the directory that was opened last, where it is then looked for first.
        """

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
    return NOT_THERE if error.errno == errno.ENOENT else _refusal(error)


def _refusal(error: OSError) -> Refusal:
    name = errno.errorcode.get(error.errno or 0, "")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
        return Refusal(ABSENT, name)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refusal(DENIED, name)
    return Refusal(FAILED, name)
