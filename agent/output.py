"""Writing what a command made: to standard output, or to a file that is whole or not there."""

from __future__ import annotations

import os
import sys

from gpu_topo.agent.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")


def write(data: str | bytes | Iterator[str], path: str | None = None) -> None:
    """Write to `path` atomically, or to standard output; pieces that come one by one are written as they come."""
    if path is None or path == "-":
        try:
            if isinstance(data, bytes):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                _to_stdout(iter((data,)) if isinstance(data, str) else data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # What is still in the buffer has nowhere to go either, and must not fail once more on the way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise UserError(f"standard output: cannot be written: {error.strerror}") from None
        return
    content = data if isinstance(data, bytes) else "".join(data).encode()
    own = own_descriptor(path)
    if own is None:
        path = os.path.realpath(path)  # a link stays one
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        if own is not None:
            with open(os.dup(own), "wb") as out:
                out.write(content)
            return
        # Devices and pipes (a terminal, a FIFO) are written, not replaced.
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as out:
                out.write(content)
            return
        with open(temporary, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def own_descriptor(path: str) -> int | None:
    """The descriptor of this process that a path stands for (/dev/stdout), None for every other path.

    Such a path is no name of a file to be replaced, although it leads to one where a shell redirects.
    """
    number = _STANDARD.get(path)
    if number is None and path.startswith(_DESCRIPTORS):
        last = path.rpartition("/")[2]
        number = int(last) if last.isdecimal() else None
    return number


def _to_stdout(pieces: Iterator[str]) -> None:
    last = ""
    for last in pieces:
        _put(last)
    if not last.endswith("\n"):
        _put("\n")
    sys.stdout.flush()


def _put(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
