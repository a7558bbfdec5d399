"""PCI Express endpoints of any make for a stock QEMU: the far side of its `x-pci-proxy-dev`.

QEMU forwards every read and write of the configuration space, so the 256 bytes live here and a test changes them while
the machine runs: a link that retrains to less, a device that fell off the bus (all ones). Wire format: QEMU's
hw/remote/mpqemu-link.h, a header of command and size, then so many bytes.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from typing import NamedTuple

_RET, _CONFIG_WRITE, _CONFIG_READ, _BAR_WRITE, _BAR_READ, _RESET = 1, 2, 3, 4, 5, 7
_HEADER = struct.Struct("<i4xQ")
_ACCESS = struct.Struct("<IIi")  # address, value, length
_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s -> code of the link registers

# Offsets, PCI Express Base Specification 7.5
_COMMAND, _STATUS, _REVISION, _CLASS, _BAR0, _SUBSYSTEM, _POINTER, _IRQ = 4, 6, 8, 9, 0x10, 0x2C, 0x34, 0x3C
_POWER, _EXPRESS = 0x60, 0x78
_LINK_CAP, _LINK_CONTROL, _LINK_STATUS, _LINK_CAP2, _LINK_CONTROL2 = 0x0C, 0x10, 0x12, 0x2C, 0x30
_WRITABLE = frozenset(
    {_COMMAND, _COMMAND + 1, 0x0C, _IRQ, _POWER + 4, _POWER + 5}
    | {_EXPRESS + offset for offset in (8, 9, _LINK_CONTROL, _LINK_CONTROL + 1, _LINK_CONTROL2)}
)


class Card(NamedTuple):
    """What a fake device is; speeds in GT/s. class_code has six hex digits."""

    vendor: int
    device: int
    class_code: int
    subsystem: tuple[int, int]
    speed: float = 16.0
    width: int = 16
    revision: int = 0xA1
    bar0: int = 0x10000


L40S = Card(0x10DE, 0x26B9, 0x030200, (0x10DE, 0x1851))
CONNECTX6 = Card(0x15B3, 0x101B, 0x020700, (0x15B3, 0x0006), revision=0)


class FakeCard:
    """One such device: `theirs` is QEMU's end of the wire, to be passed to it and closed here."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.dead = False
        self._space = bytearray(256)
        self._describe()
        self._ours, self.theirs = socket.socketpair()
        threading.Thread(target=self._serve, name="fake card", daemon=True).start()

    def set_link(self, speed: float, width: int) -> None:
        """The link retrains: what the status register shows from now on."""
        self._put("<H", _EXPRESS + _LINK_STATUS, _SPEEDS[speed] | width << 4)

    def close(self) -> None:
        """Hang up: QEMU reads all ones from then on."""
        for end in (self._ours, self.theirs):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _put(self, layout: str, offset: int, *values: int) -> None:
        struct.pack_into(layout, self._space, offset, *values)

    def _describe(self) -> None:
        card = self.card
        self._put("<HH", 0, card.vendor, card.device)
        self._put("<H", _STATUS, 0x10)  # has a list of capabilities
        self._put("<B", _REVISION, card.revision)
        self._space[_CLASS : _CLASS + 3] = card.class_code.to_bytes(3, "little")
        self._put("<HH", _SUBSYSTEM, *card.subsystem)
        self._put("<B", _POINTER, _POWER)
        self._put("<BBHB", _POWER, 0x01, _EXPRESS, 0x0003, 0x08)  # power management, no soft reset
        self._put("<BBH", _EXPRESS, 0x10, 0, 0x0002)  # PCI Express, version 2, endpoint
        self._put("<I", _EXPRESS + 4, 1 << 28 | 0x8001)  # function reset, role-based errors, payload of 256
        code = _SPEEDS[card.speed]
        self._put("<I", _EXPRESS + _LINK_CAP, code | card.width << 4)
        self._put("<I", _EXPRESS + _LINK_CAP2, (1 << code) - 1 << 1)
        self._put("<H", _EXPRESS + _LINK_CONTROL2, code)
        self.set_link(card.speed, card.width)

    def _read(self, address: int, length: int) -> int:
        if self.dead:
            return (1 << 8 * length) - 1
        return int.from_bytes(self._space[address : address + length], "little")

    def _write(self, address: int, value: int, length: int) -> None:
        if address == _BAR0 and length == 4:
            self._put("<I", _BAR0, value & ~(self.card.bar0 - 1) & 0xFFFFFFF0)
            return
        for i, byte in enumerate((value & (1 << 8 * length) - 1).to_bytes(length, "little")):
            if address + i in _WRITABLE:
                self._space[address + i] = byte

    def _serve(self) -> None:
        try:
            while (header := self._header()) is not None:
                command, size = _HEADER.unpack(header)
                answer = self._answer(command, self._exactly(size))
                if answer is not None:
                    self._ours.sendall(_HEADER.pack(_RET, 8) + struct.pack("<Q", answer))
        except (OSError, EOFError):
            pass  # QEMU has gone, or the test hung up

    def _answer(self, command: int, data: bytes) -> int | None:
        if command in (_CONFIG_READ, _CONFIG_WRITE):
            address, value, length = _ACCESS.unpack_from(data)
            if command == _CONFIG_READ:
                return self._read(address, length)
            self._write(address, value, length)
            return 0
        if command == _BAR_READ:
            return 0xFFFFFFFF if self.dead else 0
        return 0 if command in (_BAR_WRITE, _RESET) else None  # memory maps and interrupts want no answer

    def _header(self) -> bytes | None:
        """The next header; the descriptors of guest memory that come with some are not wanted."""
        data, ancillary, *_ = self._ours.recvmsg(_HEADER.size, socket.CMSG_SPACE(64))
        for _level, _type, raw in ancillary:
            fds = array.array("i")
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
            for fd in fds:
                os.close(fd)
        return data + self._exactly(_HEADER.size - len(data)) if data else None

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._ours.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
