"""The configuration spaces of made-up functions, which lspci decodes: header, PCI Express, extended capabilities."""

from __future__ import annotations

import struct
from typing import NamedTuple

# Port types of the PCI Express capability; CONVENTIONAL has none.
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, TO_PCI, INTEGRATED, CONVENTIONAL = 0, 4, 5, 6, 7, 9, -1


class Chip(NamedTuple):
    """What all functions of one kind have in common: ids, class, port type, and what the link can do."""

    vendor: int
    device: int
    class_code: int
    port_type: int = ENDPOINT
    generation: int = 0
    lanes: int = 0
    driver: str = ""
    subsystem: tuple[int, int] | None = None


class Space(NamedTuple):
    """A configuration space in the making (PCI Local Bus 3.0, 6.1; PCI Express Base 7.5, 7.7, 7.8)."""

    chip: Chip
    bus: int
    below: tuple[int, int] | None
    slot: int
    port: int
    multi: bool
    virtual_functions: tuple[int, int] | None
    acs: int
    subsystem: tuple[int, int]

    def encode(self, generation: int, lanes: int) -> bytes:
        """256 bytes for a conventional function, 4096 for the others."""
        chip = self.chip
        express = chip.port_type != CONVENTIONAL
        space = bytearray(4096 if express else 256)
        struct.pack_into("<HHHH", space, 0x00, chip.vendor, chip.device, 0x0406, 0x0010)
        struct.pack_into("<I", space, 0x08, chip.class_code << 8 | 0xA1)
        space[0x0E] = (0x80 if self.multi else 0) | (1 if self.below else 0)
        if self.below:
            space[0x18:0x1B] = bytes((self.bus, *self.below))
        else:
            struct.pack_into("<I", space, 0x10, 0x0000000C)
            struct.pack_into("<HH", space, 0x2C, *self.subsystem)
        space[0x34] = 0x40
        struct.pack_into("<BBHHH", space, 0x40, 0x01, 0x50, 0x4803, 0x0008, 0)  # power management
        struct.pack_into("<BBH", space, 0x50, 0x05, 0x60 if express else 0, 0x0080)  # MSI
        if express:
            self._express(space, generation, lanes)
            self._extended(space)
        return bytes(space)

    def _express(self, space: bytearray, generation: int, lanes: int) -> None:
        chip = self.chip
        downwards = chip.port_type in (ROOT_PORT, DOWNSTREAM)
        flags = 2 | chip.port_type << 4 | (0x100 if downwards else 0)
        struct.pack_into("<BBH", space, 0x60, 0x10, 0, flags)
        struct.pack_into("<IHH", space, 0x64, 0x00008FE1, 0x5936, 0x0000)
        if chip.port_type == INTEGRATED:
            return
        can = chip.generation | chip.lanes << 4 | 3 << 10 | 1 << 20 | self.port << 24
        runs = generation | lanes << 4 | (0x2000 if lanes else 0)
        struct.pack_into("<IHH", space, 0x6C, can, 0x0040, runs)
        if downwards:
            struct.pack_into("<IHH", space, 0x74, 0x00080060 | self.slot << 19, 0x03C0, 0x0040 if lanes else 0)
        struct.pack_into("<IHH", space, 0x84, 0x00000C10, 0x0006, 0)
        struct.pack_into("<IHH", space, 0x8C, (2 << chip.generation) - 2, chip.generation, 0x001E)

    def _extended(self, space: bytearray) -> None:
        """The chain from 0x100: AER, serial number, link layers, and what ports and physical functions have."""
        kind = self.chip.port_type
        chain = [(0x0001, 2, bytes(0x44)), (0x0003, 1, struct.pack("<Q", 0x48B02D0300000000 | self.bus))]
        if kind != INTEGRATED:
            chain += [
                (0x0019, 1, bytes(40)),
                (0x0026, 1, bytes(0x2C)),
                (0x002A, 1, bytes(0x2C)),
                (0x001E, 1, bytes(12)),
            ]
        if kind in (ROOT_PORT, DOWNSTREAM, UPSTREAM):
            chain.append((0x000D, 1, struct.pack("<HH", 0x5F, self.acs)))
            if kind != UPSTREAM:
                chain.append((0x001D, 1, bytes(12)))
        if self.virtual_functions is not None:
            most, on = self.virtual_functions
            sriov = struct.pack(
                "<IHHHHHBBHHHHII", 2, 0x19 if on else 0, 0, most, most, on, 0, 0, 8, 1, 0, 0x101E, 0x553, 1
            )
            chain += [(0x0010, 1, sriov + bytes(24)), (0x000E, 1, bytes(4))]
        offset = 0x100
        for number, (capability, version, body) in enumerate(chain, 1):
            after = offset + (len(body) + 7 & ~3) if number < len(chain) else 0
            struct.pack_into("<I", space, offset, capability | version << 16 | after << 20)
            space[offset + 4 : offset + 4 + len(body)] = body
            offset = after
