"""PCI configuration space, decoded as lspci does: identity, buses, port type, link, ACS, error status, power, SR-IOV.

Registers: PCI Local Bus Specification 3.0 (6.1), PCI Express Base Specification 6.0 (7.5, 7.7, 7.8), and
linux/pci_regs.h. Whatever bytes come in, decoding ends: chains are bounded, and what is not there is Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpu_topo.model import pci
from gpu_topo.model.pci import Aer, LinkEnd
from gpu_topo.model.reading import DENIED, LOST, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.units import GTS_OF_GENERATION

# Header (type 0 unless said otherwise). Everything is read by the double word, as the hardware answers.
IDS = 0x00
STATUS = 0x04  # status in the upper half
STATUS_CAPABILITIES = 1 << 20
CLASS = 0x08  # revision in the lowest byte
HEADER_TYPE = 0x0C  # third byte
BUSES = 0x18  # type 1: primary, secondary, subordinate
SUBSYSTEM = 0x2C
POINTER = 0x34
POINTER_CARDBUS = 0x14
SUBSYSTEM_CARDBUS = 0x40
HEADER_SIZE = 0x40
ORDINARY_SIZE = 0x100

# Capability ids.
POWER_MANAGEMENT = 0x01
PCI_X = 0x07
BRIDGE_SUBSYSTEM = 0x0D
EXPRESS = 0x10

# PCI Express capability, from its start.
DEVCAP = 0x04
DEVCTL = 0x08
LNKCAP = 0x0C
LNKSTA = 0x10  # upper half
SLTCAP = 0x14
SLTSTA = 0x18  # upper half
LNKCTL2 = 0x30
FLAG_SLOT = 1 << 24
SLOT_PRESENT = 1 << 22

# Extended capability ids, and registers from the capability's start.
EXT_AER = 0x0001
EXT_ACS = 0x000D
EXT_SRIOV = 0x0010
AER_UNCORRECTABLE = 0x04
AER_SEVERITY = 0x0C
AER_CORRECTABLE = 0x10
ACS_CONTROL = 0x04  # upper half
SRIOV_CONTROL = 0x08
SRIOV_NUMBER = 0x10
SRIOV_PLACE = 0x14  # first offset, stride
SRIOV_DEVICE = 0x18  # upper half

WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
_NO_LINK = frozenset((pci.INTEGRATED_ENDPOINT, pci.EVENT_COLLECTOR))
_POWER_STATES = ("D0", "D1", "D2", "D3hot")
_ALL_ONES = 0xFFFFFFFF

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
CORRECTABLE_BITS: Mapping[int, str] = {
    0: "RxErr",
    6: "BadTLP",
    7: "BadDLLP",
    8: "Rollover",
    12: "Timeout",
    13: "AdvNonFatalErr",
    14: "CorrIntErr",
    15: "HeaderOF",
}
UNCORRECTABLE_BITS: Mapping[int, str] = {
    4: "DLP",
    5: "SDES",
    12: "TLP",
    13: "FCP",
    14: "CmpltTO",
    15: "CmpltAbrt",
    16: "UnxCmplt",
    17: "RxOF",
    18: "MalfTLP",
    19: "ECRC",
    20: "UnsupReq",
    21: "ACSViol",
    22: "UncorrIntErr",
    23: "BlockedTLP",
    24: "AtomicOpBlocked",
    25: "TLPBlockedErr",
    26: "PoisonTLPBlocked",
    27: "DMWrReqBlocked",
    28: "IDECheck",
    29: "MisIDETLP",
    30: "PCRC_CHECK",
    31: "TLPXlatBlocked",
}


class Sriov(NamedTuple):
    """Where a physical function's virtual functions are: number of VFs that are on, routing id of the first relative
    to the physical function's, distance between two, and their device id."""

    number: int
    first_offset: int
    stride: int
    vf_device_id: int | None = None


class ConfigSpace(NamedTuple):
    """What one function's configuration space says. None: it has no such thing; Unknown: not in what was read."""

    vendor_id: int | None = None
    device_id: int | None = None
    class_code: int | None = None  # 24 bits
    revision: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    answers: bool | None = None  # False: all ones
    header_type: int | None = None  # 0 function, 1 bridge, 2 CardBus bridge
    primary_bus: int | None = None
    secondary_bus: int | None = None
    subordinate_bus: int | None = None
    capabilities: tuple[tuple[int, int], ...] = ()  # (id, offset of the first such), in chain order
    extended: tuple[tuple[int, int], ...] = ()
    port_type: Reading[str] = None
    slot_implemented: bool | None = None
    slot_number: int | None = None
    present: bool | None = None  # presence detect of the slot
    link: LinkEnd | None = None
    payload_bytes: Reading[int] = None
    max_payload_bytes: Reading[int] = None
    acs: Reading[frozenset[str]] = None
    aer: Aer | None = None
    power: Reading[str] = None
    sriov: Sriov | None = None


Word = Callable[[int], "int | None"]  # the aligned double word at an offset, None where it was not read


def speed(code: int, where: str) -> Reading[float]:
    """GT/s of a link speed code (PCI Express Base Specification 7.5.3.6); code 0 and reserved ones are Unknown."""
    return GTS_OF_GENERATION.get(code) or Unknown(NO_DATA, where)


def width(lanes: int, where: str) -> Reading[int]:
    """Lanes of a link width field: 0 is no link, and other numbers than the specification's mean nothing."""
    return lanes if lanes in WIDTHS else Unknown(NO_DATA, where)


def payload(code: int, where: str) -> Reading[int]:
    """Bytes of a maximum payload size code; 6 and 7 are reserved."""
    return 128 << code if code < 6 else Unknown(MALFORMED, where)


def decode(data: bytes, why: str = NOT_RECORDED) -> ConfigSpace:
    """Configuration space of 64, 256 or 4096 bytes, or cut off anywhere. why: the reason that what is beyond the end
    is Unknown for."""

    word = _words_of(data)
    if len(data) < HEADER_SIZE:
        missing = Unknown(why, "configuration space")
        return ConfigSpace(
            port_type=missing, acs=missing, power=missing, payload_bytes=missing, max_payload_bytes=missing
        )
    if data.count(b"\xff", 0, HEADER_SIZE) == HEADER_SIZE:
        return dead()
    space = _header(word)
    offsets, cut = _chain(word, space.header_type)
    space = space._replace(capabilities=tuple(offsets.items()))
    beyond = Unknown(why, f"configuration space beyond {len(data)} bytes") if cut else None
    space = _power(space, word, offsets.get(POWER_MANAGEMENT), beyond)
    subsystem = offsets.get(BRIDGE_SUBSYSTEM) if space.header_type == 1 else None
    if subsystem is not None and (ids := word(subsystem + 4)) is not None:
        space = space._replace(subsystem_vendor_id=ids & 0xFFFF, subsystem_device_id=ids >> 16)
    space = _express(space, word, offsets.get(EXPRESS), beyond)
    if EXPRESS in offsets or PCI_X in offsets:
        return _extended(space, word, Unknown(why, f"configuration space beyond {len(data)} bytes"))
    return space._replace(acs=beyond, aer=None)


def dead() -> ConfigSpace:
    """What a function says that no longer answers: nothing, and that all of it is lost."""
    lost = Unknown(LOST, "configuration space reads all ones")
    return ConfigSpace(
        answers=False,
        port_type=lost,
        link=LinkEnd(lost, lost, lost, lost, lost),
        payload_bytes=lost,
        max_payload_bytes=lost,
        acs=lost,
        power=lost,
    )


def _header(word: Word) -> ConfigSpace:
    """Identity and buses, from the first 64 bytes."""
    ids, kind = word(IDS) or 0, word(CLASS) or 0
    header_type = ((word(HEADER_TYPE) or 0) >> 16) & 0x7F
    buses = word(BUSES) or 0
    subsystem = word(SUBSYSTEM if header_type == 0 else SUBSYSTEM_CARDBUS) if header_type != 1 else None
    # A virtual function's own ids read as ones: they stand in its physical function's SR-IOV capability.
    vendor, device = ids & 0xFFFF, ids >> 16
    bridge = header_type in (1, 2)
    return ConfigSpace(
        vendor_id=None if vendor == 0xFFFF else vendor,
        device_id=None if vendor == 0xFFFF else device,
        class_code=kind >> 8,
        revision=kind & 0xFF,
        subsystem_vendor_id=(subsystem & 0xFFFF) if subsystem else None,
        subsystem_device_id=(subsystem >> 16) if subsystem else None,
        answers=True,
        header_type=header_type,
        primary_bus=buses & 0xFF if bridge else None,
        secondary_bus=(buses >> 8) & 0xFF if bridge else None,
        subordinate_bus=(buses >> 16) & 0xFF if bridge else None,
    )


def _chain(word: Word, header_type: int | None, until: int | None = None) -> tuple[dict[int, int], bool]:
    """The first offset of each capability by id, and whether the chain leads to where nothing was read. A loop or a
    broken link (id ff) ends it, as does the capability `until`."""
    found: dict[int, int] = {}
    if not (word(STATUS) or 0) & STATUS_CAPABILITIES:
        return found, False
    pointer = word(POINTER_CARDBUS if header_type == 2 else POINTER)
    offset, seen = (pointer or 0) & 0xFC, set[int]()
    while offset >= HEADER_SIZE and offset not in seen and until not in found:
        seen.add(offset)
        head = word(offset)
        if head is None:
            return found, True
        if head & 0xFF == 0xFF:
            break
        found.setdefault(head & 0xFF, offset)
        offset = (head >> 8) & 0xFC
    return found, pointer is None


def _extended_chain(word: Word) -> Iterator[tuple[int, int]]:
    """Extended capabilities (id, offset) in chain order, ending at the first that is not there or seen before."""
    offset, seen = ORDINARY_SIZE, set[int]()
    while offset >= ORDINARY_SIZE and offset not in seen:
        seen.add(offset)
        head = word(offset)
        if not head or head == _ALL_ONES:
            return
        yield head & 0xFFFF, offset
        offset = (head >> 20) & 0xFFC


def _power(space: ConfigSpace, word: Word, offset: int | None, beyond: Unknown | None) -> ConfigSpace:
    """The power state of the power management capability."""
    if offset is None:
        return space._replace(power=beyond)
    status = word(offset + 4)
    return space._replace(
        power=Unknown(NOT_RECORDED, "PMCSR") if status is None else _POWER_STATES[status & 3],
    )


def _express(space: ConfigSpace, word: Word, offset: int | None, beyond: Unknown | None) -> ConfigSpace:
    """Port type, payload, link and slot of the PCI Express capability at `offset`."""
    if offset is None:
        link = None if beyond is None else LinkEnd(beyond, beyond, beyond, beyond, beyond)
        return space._replace(port_type=beyond, link=link, payload_bytes=beyond, max_payload_bytes=beyond)
    port_type, payload_bytes, max_payload_bytes = _port(word, offset)
    space = space._replace(port_type=port_type, payload_bytes=payload_bytes, max_payload_bytes=max_payload_bytes)
    flags = word(offset) or 0
    if space.port_type not in _NO_LINK:
        able, now = word(offset + LNKCAP), word(offset + LNKSTA)
        link = LinkEnd(
            speed_gts=_missing("LnkSta") if now is None else speed((now >> 16) & 0xF, "LnkSta: Speed"),
            width=_missing("LnkSta") if now is None else width((now >> 20) & 0x3F, "LnkSta: Width"),
            max_speed_gts=_missing("LnkCap") if able is None else speed(able & 0xF, "LnkCap: Speed"),
            max_width=_missing("LnkCap") if able is None else width((able >> 4) & 0x3F, "LnkCap: Width"),
            target_speed_gts=_target(word, offset, flags),
        )
        space = space._replace(link=link)
    if flags & FLAG_SLOT and space.port_type in (pci.ROOT_PORT, pci.DOWNSTREAM_PORT):
        number, status = word(offset + SLTCAP), word(offset + SLTSTA)
        space = space._replace(
            slot_implemented=True,
            slot_number=None if number is None else number >> 19,
            present=None if status is None else bool(status & SLOT_PRESENT),
        )
    return space


def _port(word: Word, offset: int) -> tuple[Reading[str], Reading[int], Reading[int]]:
    """Port type, the payload size in use and the largest."""
    kind = ((word(offset) or 0) >> 20) & 0xF
    devcap, devctl = word(offset + DEVCAP), word(offset + DEVCTL)
    return (
        pci.PORT_TYPES.get(kind) or Unknown(MALFORMED, f"PCI Express port type {kind}"),
        _missing("DevCtl") if devctl is None else payload((devctl >> 5) & 7, "DevCtl: MaxPayload"),
        _missing("DevCap") if devcap is None else payload(devcap & 7, "DevCap: MaxPayload"),
    )


def _target(word: Word, offset: int, flags: int) -> Reading[float]:
    """Target speed; capability version 1 has no such register."""
    if (flags >> 16) & 0xF < 2:
        return None
    control = word(offset + LNKCTL2)
    return _missing("LnkCtl2") if control is None else speed(control & 0xF, "LnkCtl2: Target Link Speed")


def _missing(where: str) -> Unknown:
    return Unknown(NOT_RECORDED, where)


def _extended(space: ConfigSpace, word: Word, beyond: Unknown) -> ConfigSpace:
    """What only the extended capabilities say: ACS, AER, SR-IOV."""
    if word(ORDINARY_SIZE) is None:
        return space._replace(acs=beyond, aer=Aer(beyond, beyond, beyond, sticky=True))
    offsets: dict[int, int] = {}
    for capability, offset in _extended_chain(word):
        offsets.setdefault(capability, offset)
    return space._replace(
        extended=tuple(offsets.items()),
        acs=_acs(word, offsets.get(EXT_ACS)),
        aer=_aer(word, offsets.get(EXT_AER)),
        sriov=_sriov(word, offsets.get(EXT_SRIOV)),
    )


def _acs(word: Word, offset: int | None) -> Reading[frozenset[str]]:
    """Enabled access control bits; None where the function has no such capability."""
    if offset is None:
        return None
    control = word(offset + ACS_CONTROL)
    return _missing("ACSCtl") if control is None else frozenset(_set_bits(control >> 16, ACS_BITS))


def _aer(word: Word, offset: int | None) -> Aer | None:
    """Error status bits that are set, the uncorrectable ones told apart by the severity register."""
    if offset is None:
        return None
    uncorrectable, severity = word(offset + AER_UNCORRECTABLE), word(offset + AER_SEVERITY)
    correctable = word(offset + AER_CORRECTABLE)
    unknown = uncorrectable is None or severity is None
    return Aer(
        correctable=_missing("CESta")
        if correctable is None
        else dict.fromkeys(_set_bits(correctable, CORRECTABLE_BITS), 1),
        nonfatal=_missing("UESta")
        if unknown
        else dict.fromkeys(_set_bits((uncorrectable or 0) & ~(severity or 0), UNCORRECTABLE_BITS), 1),
        fatal=_missing("UESta")
        if unknown
        else dict.fromkeys(_set_bits((uncorrectable or 0) & (severity or 0), UNCORRECTABLE_BITS), 1),
        sticky=True,
    )


def _set_bits(value: int, names: Mapping[int, str]) -> Iterator[str]:
    return (name for bit, name in names.items() if value >> bit & 1)


def _sriov(word: Word, offset: int | None) -> Sriov | None:
    """The virtual functions that are enabled; None where there are none."""
    if offset is None:
        return None
    control, number = word(offset + SRIOV_CONTROL), word(offset + SRIOV_NUMBER)
    place, device = word(offset + SRIOV_PLACE), word(offset + SRIOV_DEVICE)
    if control is None or number is None or place is None or not control & 1 or not number & 0xFFFF:
        return None
    return Sriov(number & 0xFFFF, place & 0xFFFF, place >> 16, None if device is None else device >> 16)


def needed(read: Callable[[int, int], bytes | None]) -> ConfigSpace | None:
    """Port type, payload, target speed and a bridge's ACS of a live function by single double words, since each costs.

    read(offset, size) gives bytes (fewer past the 64 that the kernel shows to non-root) or None on failure. The result
    is None where even the header fails. Link values are left out: sysfs has them for less.
    """
    words: dict[int, int | None] = {}

    def word(offset: int) -> int | None:
        if offset not in words:
            data = read(offset, 4)
            words[offset] = int.from_bytes(data, "little") if data is not None and len(data) == 4 else None
        return words[offset]

    return _needed(word)


def needed_of(data: bytes) -> ConfigSpace | None:
    """The same of bytes that are there already."""
    return _needed(_words_of(data))


def _words_of(data: bytes) -> Word:
    size, number = len(data), int.from_bytes

    def word(offset: int) -> int | None:
        return number(data[offset : offset + 4], "little") if offset + 4 <= size else None

    return word


def _needed(word: Word) -> ConfigSpace | None:
    header = word(HEADER_TYPE)
    if header is None:
        return None
    if header == _ALL_ONES:
        return dead()
    header_type = (header >> 16) & 0x7F
    chain, cut = _chain(word, header_type, EXPRESS)
    offset = chain.get(EXPRESS)
    if offset is None:
        hidden = Unknown(DENIED, "config beyond 64 bytes") if cut else None
        return ConfigSpace(
            answers=True,
            header_type=header_type,
            port_type=hidden,
            payload_bytes=hidden,
            max_payload_bytes=hidden,
            acs=hidden,
        )
    port_type, payload_bytes, max_payload_bytes = _port(word, offset)
    has_link = port_type not in _NO_LINK
    # Extended capabilities lie one behind the other: the walk to ACS is the longest part, and only bridges redirect.
    bridge = header_type == 1
    acs = next((at for kind, at in _extended_chain(word) if kind == EXT_ACS), None) if bridge else None
    return ConfigSpace(
        answers=True,
        header_type=header_type,
        port_type=port_type,
        link=LinkEnd(target_speed_gts=_target(word, offset, word(offset) or 0)) if has_link else None,
        payload_bytes=payload_bytes,
        max_payload_bytes=max_payload_bytes,
        acs=_acs(word, acs),
    )
