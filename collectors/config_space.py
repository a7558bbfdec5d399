"""PCI configuration space, decoded as lspci does: identity, buses, port type, link, ACS, error status, power, SR-IOV.

Registers: PCI Local Bus Specification 3.0 (6.1), PCI Express Base Specification 6.0 (7.5, 7.7, 7.8), and
linux/pci_regs.h. Whatever bytes come in, decoding ends: chains are bounded, and what is not there is Unknown.
"""

from __future__ import annotations

from gpu_topo.collectors.registers import (
    EXPRESS,
    EXT_ACS,
    HEADER_SIZE,
    HEADER_TYPE,
    NO_LINK,
    access_control,
    chain,
    extended_chain,
    missing,
    port,
    set_bits,
    speed,
    target_speed,
    words_of,
)
from gpu_topo.model import pci
from gpu_topo.model.pci import Aer, LinkEnd
from gpu_topo.model.reading import LOST, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_topo.collectors.registers import Word

# Header (type 0 unless said otherwise).
IDS = 0x00
CLASS = 0x08  # revision in the lowest byte
BUSES = 0x18  # type 1: primary, secondary, subordinate
SUBSYSTEM = 0x2C
SUBSYSTEM_CARDBUS = 0x40

# Capability ids.
POWER_MANAGEMENT = 0x01
PCI_X = 0x07
BRIDGE_SUBSYSTEM = 0x0D

# PCI Express capability, from its start.
LNKCAP = 0x0C
LNKSTA = 0x10  # upper half
SLTCAP = 0x14
SLTSTA = 0x18  # upper half
FLAG_SLOT = 1 << 24
SLOT_PRESENT = 1 << 22

# Extended capability ids, and registers from the capability's start.
EXT_AER = 0x0001
EXT_SRIOV = 0x0010
AER_UNCORRECTABLE = 0x04
AER_SEVERITY = 0x0C
AER_CORRECTABLE = 0x10
SRIOV_CONTROL = 0x08
SRIOV_NUMBER = 0x10
SRIOV_PLACE = 0x14  # first offset, stride

WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
_POWER_STATES = ("D0", "D1", "D2", "D3hot")

# Bit -> name, as lspci prints them.
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
    to the physical function's, and distance between two."""

    number: int
    first_offset: int
    stride: int


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
    secondary_bus: int | None = None
    subordinate_bus: int | None = None
    capabilities: tuple[tuple[int, int], ...] = ()  # (id, offset of the first such), in chain order
    port_type: Reading[str] = None
    slot_implemented: bool | None = None
    slot_number: int | None = None
    present: bool | None = None  # presence detect of the slot
    link: LinkEnd | None = None
    payload_bytes: Reading[int] = None
    acs: Reading[frozenset[str]] = None
    aer: Aer | None = None
    power: Reading[str] = None
    sriov: Sriov | None = None


def width(lanes: int, where: str) -> Reading[int]:
    """Lanes of a link width field: 0 is no link, and other numbers than the specification's mean nothing."""
    return lanes if lanes in WIDTHS else Unknown(NO_DATA, where)


def decode(data: bytes, why: str = NOT_RECORDED) -> ConfigSpace:
    """Configuration space of 64, 256 or 4096 bytes, or cut off anywhere. why: the reason that what is beyond the end
    is Unknown for."""

    word = words_of(data)
    if len(data) < HEADER_SIZE:
        missing = Unknown(why, "configuration space")
        return ConfigSpace(port_type=missing, acs=missing, power=missing, payload_bytes=missing)
    if data.count(b"\xff", 0, HEADER_SIZE) == HEADER_SIZE:
        return dead()
    space = _header(word)
    offsets, cut = chain(word, space.header_type)
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
        secondary_bus=(buses >> 8) & 0xFF if bridge else None,
        subordinate_bus=(buses >> 16) & 0xFF if bridge else None,
    )


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
        return space._replace(port_type=beyond, link=link, payload_bytes=beyond)
    flags = word(offset) or 0
    port_type, payload_bytes = port(word, offset, flags)
    space = space._replace(port_type=port_type, payload_bytes=payload_bytes)
    if space.port_type not in NO_LINK:
        able, now = word(offset + LNKCAP), word(offset + LNKSTA)
        link = LinkEnd(
            speed_gts=missing("LnkSta") if now is None else speed((now >> 16) & 0xF, "LnkSta: Speed"),
            width=missing("LnkSta") if now is None else width((now >> 20) & 0x3F, "LnkSta: Width"),
            max_speed_gts=missing("LnkCap") if able is None else speed(able & 0xF, "LnkCap: Speed"),
            max_width=missing("LnkCap") if able is None else width((able >> 4) & 0x3F, "LnkCap: Width"),
            target_speed_gts=target_speed(word, offset, flags),
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


def _extended(space: ConfigSpace, word: Word, beyond: Unknown) -> ConfigSpace:
    """What only the extended capabilities say: ACS, AER, SR-IOV."""
    offsets, cut = extended_chain(word)
    acs: Reading[frozenset[str]] = access_control(word, offsets.get(EXT_ACS))
    aer = _aer(word, offsets.get(EXT_AER))
    if cut:  # what was not come upon may lie further on
        acs = acs if EXT_ACS in offsets else beyond
        aer = aer or Aer(beyond, beyond, beyond, sticky=True)
    return space._replace(acs=acs, aer=aer, sriov=_sriov(word, offsets.get(EXT_SRIOV)))


def _aer(word: Word, offset: int | None) -> Aer | None:
    """Error status bits that are set, the uncorrectable ones told apart by the severity register."""
    if offset is None:
        return None
    uncorrectable, severity = word(offset + AER_UNCORRECTABLE), word(offset + AER_SEVERITY)
    correctable = word(offset + AER_CORRECTABLE)
    unknown = uncorrectable is None or severity is None
    return Aer(
        correctable=missing("CESta")
        if correctable is None
        else dict.fromkeys(set_bits(correctable, CORRECTABLE_BITS), 1),
        nonfatal=missing("UESta")
        if unknown
        else dict.fromkeys(set_bits((uncorrectable or 0) & ~(severity or 0), UNCORRECTABLE_BITS), 1),
        fatal=missing("UESta")
        if unknown
        else dict.fromkeys(set_bits((uncorrectable or 0) & (severity or 0), UNCORRECTABLE_BITS), 1),
        sticky=True,
    )


def _sriov(word: Word, offset: int | None) -> Sriov | None:
    """The virtual functions that are enabled; None where there are none."""
    if offset is None:
        return None
    control, number = word(offset + SRIOV_CONTROL), word(offset + SRIOV_NUMBER)
    place = word(offset + SRIOV_PLACE)
    if control is None or number is None or place is None or not control & 1 or not number & 0xFFFF:
        return None
    return Sriov(number & 0xFFFF, place & 0xFFFF, place >> 16)
