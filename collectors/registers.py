"""The few registers of configuration space that every audit reads, double word by double word.

On hardware each double word costs, so only these are asked for: port type, payload sizes, target link speed, and a
bridge's access control. Link speed and width are left to sysfs, which has them for less. Everything that configuration
space says is decoded by `config_space`, which builds on this module.

Registers: PCI Local Bus Specification 3.0 (6.1), PCI Express Base Specification 6.0 (7.5, 7.7), linux/pci_regs.h.
Whatever bytes come in, decoding ends: chains are bounded, and what is not there is Unknown.
"""

from __future__ import annotations

import sys

from gpu_topo.model import pci
from gpu_topo.model.reading import DENIED, LOST, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple, often
from gpu_topo.model.units import GTS_OF_GENERATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Word = Callable[[int], "int | None"]  # the aligned double word at an offset, None where it was not read

# Header. Everything is read by the double word, as the hardware answers.
STATUS = 0x04  # status in the upper half
STATUS_CAPABILITIES = 1 << 20
HEADER_TYPE = 0x0C  # third byte
POINTER = 0x34
POINTER_CARDBUS = 0x14
HEADER_SIZE = 0x40
ORDINARY_SIZE = 0x100

# PCI Express capability: its id, and registers from its start.
EXPRESS = 0x10
DEVCTL = 0x08
LNKCTL2 = 0x30

# Access control services: extended capability id, and the register from its start.
EXT_ACS = 0x000D
ACS_CONTROL = 0x04  # upper half

ALL_ONES = 0xFFFFFFFF
NO_LINK = frozenset((pci.INTEGRATED_ENDPOINT, pci.EVENT_COLLECTOR))

# Bit -> name, as lspci prints them.
ACS_BITS: Mapping[int, str] = {
    0: "SrcValid",
    1: "TransBlk",
    2: "ReqRedir",
    3: "CmpltRedir",
    4: "UpstreamFwd",
    5: "EgressCtrl",
    6: "DirectTrans",
}

_BRIDGE_HEADER = 1
_MOST_CAPABILITIES = (ORDINARY_SIZE - HEADER_SIZE) // 4  # so many have room: more is a loop
_MOST_EXTENDED = 128  # no function has half as many: more is a loop


@often
class Registers(NamedTuple):
    """What an audit needs of one function. None: it has no such thing."""

    answers: bool  # False: all ones
    port_type: Reading[str] = None  # one of pci.PORT_TYPES
    target_speed_gts: Reading[float] = None
    payload_bytes: Reading[int] = None  # in use
    acs: Reading[frozenset[str]] = None  # of a bridge: enabled control bits


_lost = Unknown(LOST, "configuration space reads all ones")
_hidden = Unknown(DENIED, "config beyond 64 bytes")
SILENT = Registers(False, _lost, _lost, _lost, _lost)
HIDDEN = Registers(True, _hidden, None, _hidden, _hidden)
_cut = Unknown(NOT_RECORDED, "config within its header")
CUT = Registers(True, _cut, None, _cut, _cut)
CONVENTIONAL = Registers(True)


class Layouts:
    """Where functions of each kind were found to have their capabilities, so that the next one of that kind is looked
    at there first: the walk along its chains is two thirds of the double words."""

    def __init__(self) -> None:
        self.express: dict[object, int] = {}
        self.acs: dict[object, int] = {}


def registers(
    read: Callable[[int, int], bytes | None], kind: object = None, layouts: Layouts | None = None
) -> Registers | None:
    """The registers of a function, asking for few double words and for each once.

    read(offset, size) gives bytes (fewer past the 64 that the kernel shows to non-root) or None on failure. kind: what
    functions alike have in common, layouts: what was learned of them. The result is None where even the header fails.
    """
    words: dict[int, int | None] = {}

    def word(offset: int) -> int | None:
        if offset not in words:
            data = read(offset, 4)
            words[offset] = int.from_bytes(data, "little") if data is not None and len(data) == 4 else None
        return words[offset]

    return _registers(word, kind, layouts or Layouts())


def registers_in(data: bytes, kind: object = None, layouts: Layouts | None = None) -> Registers | None:
    """The same of bytes that are there already."""
    return _registers(words_of(data), kind, layouts or Layouts())


def words_of(data: bytes) -> Word:
    """Access to the double words of some bytes."""
    size = len(data) & ~3
    if sys.byteorder == "big":
        data = b"".join(data[offset : offset + 4][::-1] for offset in range(0, size, 4))
    words = memoryview(data)[:size].cast("I")

    def word(offset: int) -> int | None:
        return words[offset >> 2] if offset < size else None

    return word


def _registers(word: Word, kind: object, layouts: Layouts) -> Registers | None:
    header = word(HEADER_TYPE)
    if header is None:
        return None
    if header == ALL_ONES:
        return SILENT
    header_type = (header >> 16) & 0x7F
    cut = False  # whether a chain leads to where nothing was read
    offset = layouts.express.get(kind)
    if offset is None or (word(offset) or 0) & 0xFF != EXPRESS:
        found, cut = chain(word, header_type, EXPRESS)
        offset = found.get(EXPRESS)
        if offset is None:
            # The kernel shows everybody the header: what ends within it is a copy that was cut.
            return CONVENTIONAL if not cut else CUT if word(POINTER) is None else HIDDEN
        layouts.express[kind] = offset
    flags = word(offset) or 0
    port_type, payload_bytes = port(word, offset, flags)
    target = None if port_type in NO_LINK else target_speed(word, offset, flags)
    acs: Reading[frozenset[str]] = None
    if header_type == _BRIDGE_HEADER:  # only bridges redirect
        at = layouts.acs.get(kind)
        if at is None or (word(at) or 0) & 0xFFFF != EXT_ACS:
            at, cut = _extended(word, EXT_ACS)
            if at is not None:
                layouts.acs[kind] = at
        acs = missing("config beyond what was read") if cut else access_control(word, at)
    return Registers(True, port_type, target, payload_bytes, acs)


def chain(word: Word, header_type: int | None, until: int | None = None) -> tuple[dict[int, int], bool]:
    """The first offset of each capability by id, and whether the chain leads to where nothing was read. A loop or a
    broken link (id ff) ends it, as does the capability `until`."""
    found: dict[int, int] = {}
    if not (word(STATUS) or 0) & STATUS_CAPABILITIES:
        return found, False
    pointer = word(POINTER_CARDBUS if header_type == 2 else POINTER)
    offset = (pointer or 0) & 0xFC
    for _ in range(_MOST_CAPABILITIES):
        if offset < HEADER_SIZE:
            break
        head = word(offset)
        if head is None:
            return found, True
        capability = head & 0xFF
        if capability == 0xFF:
            break
        found.setdefault(capability, offset)
        if capability == until:
            break
        offset = (head >> 8) & 0xFC
    return found, pointer is None


def extended_chain(word: Word) -> tuple[dict[int, int], bool]:
    """The first offset of each extended capability by id, in chain order, and whether the chain leads to where nothing
    was read. What is not there, and a loop, ends it."""
    found: dict[int, int] = {}
    offset, seen = ORDINARY_SIZE, set[int]()
    while offset >= ORDINARY_SIZE and offset not in seen:
        seen.add(offset)
        head = word(offset)
        if head is None:
            return found, True
        if not head or head == ALL_ONES:
            break
        found.setdefault(head & 0xFFFF, offset)
        offset = (head >> 20) & 0xFFC
    return found, False


def _extended(word: Word, wanted: int) -> tuple[int | None, bool]:
    """The same for one extended capability, looking no further along the chain than to it."""
    offset = ORDINARY_SIZE
    for _ in range(_MOST_EXTENDED):
        head = word(offset)
        if head is None:
            return None, True
        if not head or head == ALL_ONES:
            break
        if head & 0xFFFF == wanted:
            return offset, False
        offset = (head >> 20) & 0xFFC
        if offset < ORDINARY_SIZE:
            break
    return None, False


def port(word: Word, offset: int, flags: int) -> tuple[Reading[str], Reading[int]]:
    """Port type and payload size in use, of the PCI Express capability at `offset` (`flags` is its first word)."""
    kind = (flags >> 20) & 0xF
    devctl = word(offset + DEVCTL)
    return (
        pci.PORT_TYPES.get(kind) or Unknown(MALFORMED, f"PCI Express port type {kind}"),
        missing("DevCtl") if devctl is None else payload((devctl >> 5) & 7, "DevCtl: MaxPayload"),
    )


def target_speed(word: Word, offset: int, flags: int) -> Reading[float]:
    """Target link speed in GT/s; capability version 1 has no such register."""
    if (flags >> 16) & 0xF < 2:
        return None
    control = word(offset + LNKCTL2)
    return missing("LnkCtl2") if control is None else speed(control & 0xF, "LnkCtl2: Target Link Speed")


def access_control(word: Word, offset: int | None) -> Reading[frozenset[str]]:
    """Enabled access control bits; None where the function has no such capability."""
    if offset is None:
        return None
    control = word(offset + ACS_CONTROL)
    return missing("ACSCtl") if control is None else _acs_names(control >> 16)


_acs_named: dict[int, frozenset[str]] = {}  # of the few values that occur


def _acs_names(control: int) -> frozenset[str]:
    control &= (1 << len(ACS_BITS)) - 1
    names = _acs_named.get(control)
    if names is None:
        names = _acs_named[control] = frozenset(set_bits(control, ACS_BITS))
    return names


def speed(code: int, where: str) -> Reading[float]:
    """GT/s of a link speed code (PCI Express Base Specification 7.5.3.6); code 0 and reserved ones are Unknown."""
    return GTS_OF_GENERATION.get(code) or Unknown(NO_DATA, where)


def payload(code: int, where: str) -> Reading[int]:
    """Bytes of a maximum payload size code; 6 and 7 are reserved."""
    return 128 << code if code < 6 else Unknown(MALFORMED, where)


def set_bits(value: int, names: Mapping[int, str]) -> Iterator[str]:
    """The names of the bits that are set."""
    return (name for bit, name in names.items() if value >> bit & 1)


def missing(where: str) -> Unknown:
    """A register that was not read."""
    return Unknown(NOT_RECORDED, where)
