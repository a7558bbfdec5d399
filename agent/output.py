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
    """Write to `path` atomically, or to standard output; pieces that come one by one are written as they come.

    A reader that leaves (head, a pager) has what it wanted: the rest is dropped without a word. Anything else that
    keeps it from being written is a UserError.
    """
    name = "standard output" if path is None or path == "-" else path
    try:
        if path is None or path == "-":
            _to_stdout(data)
        else:
            _to_path(data if isinstance(data, bytes) else "".join(data).encode(), path)
    except BrokenPipeError:
        pass
    except OSError as error:
        raise UserError(f"{name}: cannot be written: {error.strerror}") from None


def _to_stdout(data: str | bytes | Iterator[str]) -> None:
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _put_all(iter((data,)) if isinstance(data, str) else data)
    except OSError:
        # What is still in the buffer has nowhere to go either, and must not fail once more on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def _to_path(content: bytes, path: str) -> None:
    own = own_descriptor(path)
    # Devices and pipes (a terminal, a FIFO) are written, not replaced.
    if own is not None or (os.path.exists(path) and not os.path.isfile(path)):
        with open(path if own is None else os.dup(own), "wb") as out:
            out.write(content)
    else:
        write_atomically(path, content)


def write_atomically(path: str, data: bytes) -> None:
    """Replace a file by a whole new one: whatever happens there is the old one or the new one. Raises OSError.

    Its folder may be one in which others write, such as /tmp: what is there by the name of the new file, a link or a
    pipe, is neither followed nor opened.
    """
    path = os.path.realpath(path)  # a link stays one
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(4).hex()}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # one in which files may be made and not listed: the new file is there all the same
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def own_descriptor(path: str) -> int | None:
    """The descriptor of this process that a path stands for (/dev/stdout), None for every other path.

    Such a path is no name of a file to be replaced, although it leads to one where a shell redirects.
    """
    number = _STANDARD.get(path)
    if number is None and path.startswith(_DESCRIPTORS):
        last = path.rpartition("/")[2]
        number = int(last) if last.isdecimal() else None
    return number


def columns() -> int:
    """The terminal's width in characters, 80 where there is none; never so wide or narrow that it is unreadable.

    As shutil has it, which takes long to load.
    """
    try:
        width = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        width = 0
    if width <= 0:
        try:
            width = os.get_terminal_size(1).columns
        except OSError:
            width = 0
    return max(40, min(width or 80, 250))


def _put_all(pieces: Iterator[str]) -> None:
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
