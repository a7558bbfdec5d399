"""Recordings as people send them, decompressed as a stream: gzip, bzip2 and xz, bounded in size, nesting and time.

Nothing trusts a header: what comes out is counted, and a stream that ends early or is damaged is refused with a
sentence that says so, since half a recording would pass for a whole machine.
"""

from __future__ import annotations

import io
import os
import select
import stat
import time
from collections.abc import Callable
from typing import BinaryIO, Protocol

MAX_BYTES = 256 << 20  # what one recording may hold, on disk and unpacked; the largest honest ones are a tenth of it
MAX_MEMBERS = 20_000  # nvidia-bug-report.sh compresses each of its sections for itself
MAX_LAYERS = 2
_CHUNK = 1 << 16
_XZ_MEMORY = 128 << 20  # xz -9 needs 65 MiB to unpack; a hostile header may ask for 4 GiB


class Unreadable(Exception):
    """A recording that cannot be used; the message says why, without its name."""


class TooLate(Unreadable):
    """A recording that was not read to its end in time. It is refused whole: see above."""


class _Engine(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's object with the manners of bz2's and lzma's."""

    def __init__(self) -> None:
        import zlib

        self._zlib = zlib.decompressobj(wbits=31)
        self._pending = b""

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._pending and not self._zlib.eof

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._zlib.decompress(self._pending + data, max_length)
        self._pending = self._zlib.unconsumed_tail
        return out


def _bzip2() -> _Engine:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> _Engine:
    import lzma

    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


_FORMATS: tuple[tuple[str, bytes, Callable[[], _Engine]], ...] = (
    ("gzip", b"\x1f\x8b\x08", _Gzip),
    ("bzip2", b"BZh", _bzip2),
    ("xz", b"\xfd7zXZ\x00", _xz),
)

# What people attach and this program does not unpack: the magic, and what to do.
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "is a zip archive: unzip it and name the files in it"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd: unpack it with `zstd -d` first"),
    (b"\x04\x22\x4d\x18", "is compressed with lz4: unpack it with `lz4 -d` first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it and name the files in it"),
)


class Awaited:
    """A pipe, a FIFO or a terminal: what comes of it in time. Nobody may be at its other end."""

    def __init__(self, descriptor: int, ends: float) -> None:
        """ends: time.monotonic() at which waiting is over."""
        self._descriptor = descriptor
        self._ends = ends
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def fileno(self) -> int:
        return self._descriptor

    def read(self, size: int) -> bytes:
        """At least one byte, b"" at the end. What is there is read however late it is; raises Unreadable otherwise."""
        if not self._poll.poll(max(0.0, self._ends - time.monotonic()) * 1000):
            raise Unreadable("nothing came in time; --timeout SECONDS waits longer")
        return os.read(self._descriptor, size)


def in_time(file: BinaryIO, ends: float) -> BinaryIO | Awaited:
    """The file itself where it is one, else what of it comes in time: see Awaited."""
    try:
        descriptor = file.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file
    except (OSError, ValueError, AttributeError):  # a stand-in that has no descriptor
        return file
    return Awaited(descriptor, ends)


class _Counted(io.RawIOBase):
    """A raw stream that refuses to give more than MAX_BYTES, or to go on when the time is over.

    Lines, members and compressed data all come through here, some thousand lines at a time. A small recording is read
    however late it is, so that a large one does not keep it from being read.
    """

    def __init__(self, raw: BinaryIO | Awaited, ends: float) -> None:
        self._raw = raw
        self._ends = ends
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._fetch(len(buffer))
        self._given += len(data)
        if data and self._given > _CHUNK and time.monotonic() > self._ends:
            raise TooLate("is not read to its end in time")
        if self._given > MAX_BYTES:
            raise Unreadable(f"holds more than {MAX_BYTES >> 20} MiB, which no recording does")
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, size: int) -> bytes:
        return self._raw.read(size)


class _Unpacked(_Counted):
    """What a compressed stream holds, all of its members one after the other."""

    def __init__(
        self, raw: io.BufferedReader, ends: float, name: str, magic: bytes, start: Callable[[], _Engine]
    ) -> None:
        super().__init__(raw, ends)
        self._packed = raw
        self._format = name
        self._magic = magic
        self._start = start
        self._engine = start()
        self._members = 1

    def _fetch(self, size: int) -> bytes:
        carried = b""
        while True:
            if self._engine.eof:
                carried = self._engine.unused_data or self._packed.read1(_CHUNK)
                carried = carried.lstrip(b"\0")  # tapes and `dd` pad with zeros
                # gzip ignores what follows its last member, and so do its users.
                if not carried.startswith(self._magic[: len(carried)]) or not carried:
                    return b""
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise Unreadable(f"has more than {MAX_MEMBERS} compressed members")
                self._engine = self._start()
            if not carried and self._engine.needs_input:
                carried = self._packed.read1(_CHUNK)
                if not carried:
                    raise Unreadable(
                        f"is cut off: its {self._format} data ends early; copy it again, or unpack what there is of it"
                    )
            try:
                out = self._engine.decompress(carried, size)
            except (OSError, EOFError, ValueError, MemoryError) as error:
                raise Unreadable(f"is damaged: its {self._format} data makes no sense ({error})") from error
            except Exception as error:  # zlib.error and lzma.LZMAError have no common base
                if type(error).__name__ not in ("error", "LZMAError"):
                    raise
                raise Unreadable(f"is damaged: its {self._format} data makes no sense ({error})") from error
            carried = b""
            if out:
                return out


def unpacked(raw: BinaryIO | Awaited, ends: float) -> io.BufferedReader:
    """The stream behind every layer of compression, at most MAX_LAYERS; raises Unreadable, TooLate after `ends`."""
    stream: io.BufferedReader = io.BufferedReader(_Counted(raw, ends), _CHUNK)
    for layer in range(MAX_LAYERS + 1):
        head = stream.peek(8)[:8]
        for magic, advice in _REFUSED:
            if head.startswith(magic):
                raise Unreadable(advice)
        for name, magic, start in _FORMATS:
            if head.startswith(magic):
                if layer == MAX_LAYERS:
                    raise Unreadable(f"is compressed more than {MAX_LAYERS} times over")
                stream = io.BufferedReader(_Unpacked(stream, ends, name, magic, start), _CHUNK)
                break
        else:
            return stream
    raise AssertionError("every layer returns or raises")
