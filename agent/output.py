"""Writing what a command made: to standard output, or to a file that is whole or not there."""

from __future__ import annotations

import os
import sys

from gpu_topo.agent.errors import UserError


def write(data: str | bytes, path: str | None = None) -> None:
    """Write to `path` atomically, or to standard output."""
    if path is None or path == "-":
        try:
            if isinstance(data, bytes):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                _to_stdout(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # What is still in the buffer has nowhere to go either, and must not fail once more on the way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise UserError(f"standard output: cannot be written: {error.strerror}") from None
        return
    content = data.encode() if isinstance(data, str) else data
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        # Devices and pipes (/dev/stderr, a FIFO) are written, not replaced.
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


def _to_stdout(text: str) -> None:
    end = "" if text.endswith("\n") else "\n"
    try:
        sys.stdout.write(text + end)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write((text + end).encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
