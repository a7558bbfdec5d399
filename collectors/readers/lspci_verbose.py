"""What `lspci -vvv` prints of a device's capabilities, old and new pciutils, as configuration space says it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_topo.collectors.config_space import ConfigSpace, Sriov, width
from gpu_topo.collectors.readers.lspci_names import identify
from gpu_topo.model import pci
from gpu_topo.model.pci import Aer, LinkEnd
from gpu_topo.model.reading import DENIED, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.units import GENERATION_OF_GTS

# Titles of the capabilities that are looked into (lspci's words), by how they begin.
_POWER = "Power Management"
_EXPRESS = "Express"
_AER = "Advanced Error Reporting"
_ACS = "Access Control Services"
_SRIOV = "Single Root I/O Virtualization"
_SUBSYSTEM = "Subsystem:"
WANTED = (_POWER, _EXPRESS, _AER, _ACS, _SRIOV, _SUBSYSTEM)
DENIED_TEXT = "<access denied>"
# Where a line belongs whose capability's own line somebody's grep has removed.
HOMES = {
    "DevCap": _EXPRESS,
    "DevCtl": _EXPRESS,
    "LnkCap": _EXPRESS,
    "LnkSta": _EXPRESS,
    "LnkCtl2": _EXPRESS,
    "SltSta": _EXPRESS,
    "ACSCtl": _ACS,
    "UESta": _AER,
    "UESvrt": _AER,
    "CESta": _AER,
}
_NOT_PRINTED = Unknown(NOT_RECORDED, "lspci -vvv")

_PORT_TYPES = {
    "endpoint": pci.ENDPOINT,
    "legacy endpoint": pci.LEGACY_ENDPOINT,
    "root port": pci.ROOT_PORT,
    "upstream port": pci.UPSTREAM_PORT,
    "downstream port": pci.DOWNSTREAM_PORT,
    "pci-express to pci/pci-x bridge": pci.PCIE_TO_PCI,
    "pci/pci-x to pci-express bridge": pci.PCI_TO_PCIE,
    "pci/pci-x bridge": pci.PCIE_TO_PCI,
    "root complex integrated endpoint": pci.INTEGRATED_ENDPOINT,
    "root complex event collector": pci.EVENT_COLLECTOR,
}
_LINKLESS = (pci.INTEGRATED_ENDPOINT, pci.EVENT_COLLECTOR)

_TITLE = re.compile(r"Express (?:\(v\d+\) )?(.*?)(?: \(Slot([+-])\))?(?:,.*| IRQ.*| MSI.*)?$")
_SPEED = re.compile(r"Speed:? (?:([0-9.,]+) ?G[Tb]/s|unknown)", re.IGNORECASE)
_WIDTH = re.compile(r"Width x([0-9]+)")
_PAYLOAD = re.compile(r"MaxPayload ([0-9]+)")
_BUS = re.compile(r"primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_SLOT = re.compile(r"Slot #([0-9]+)")
_PRESENT = re.compile(r"PresDet([+-])")
_SET = re.compile(r"(\w+)\+")
_STATE = re.compile(r"D[0-3]\b")
_NUMBER_OF_VFS = re.compile(r"Number of VFs: ([0-9]+)")
_VF_PLACE = re.compile(r"([0-9]+), stride: ([0-9]+), Device ID: [0-9a-f]{4}")

# Spellings of older pciutils -> today's.
_OLD_ERRORS = {"NonFatalErr": "AdvNonFatalErr"}


class Capability(NamedTuple):
    """One "Capabilities: [..]" entry: its title and its "Key: value" lines, continuation lines joined."""

    title: str
    fields: Mapping[str, str]


class Text(NamedTuple):
    """Everything that lspci printed of one device, by key."""

    fields: Mapping[str, str]
    capabilities: tuple[Capability, ...]
    denied: bool = False  # "Capabilities: <access denied>"
    dead: bool = False  # "!!! Unknown header type 7f"
    detailed: bool = False  # control and status registers are printed (-vv or more), and capabilities not denied

    def capability(self, title: str) -> Capability | None:
        """The first capability whose title begins so."""
        return next((c for c in self.capabilities if c.title.startswith(title)), None)


def decode(text: Text) -> ConfigSpace:
    """The configuration space that the text describes. What -vvv would print and this text lacks is Unknown."""
    space = ConfigSpace(answers=True if text.detailed or text.fields or text.capabilities else None)
    if found := _BUS.search(text.fields.get("Bus", "")):
        space = space._replace(header_type=1, secondary_bus=int(found[1], 16), subordinate_bus=int(found[2], 16))
    if "Subsystem" in text.fields:
        space = _subsystem(space, text.fields["Subsystem"])
    elif bridge := text.capability(_SUBSYSTEM):
        space = _subsystem(space, bridge.title[len(_SUBSYSTEM) :])
    if not text.detailed:
        hidden = Unknown(DENIED, f"lspci: Capabilities: {DENIED_TEXT}") if text.denied else _NOT_PRINTED
        space = space._replace(port_type=hidden, payload_bytes=hidden, acs=hidden, power=hidden)
    if text.denied:
        space = space._replace(link=LinkEnd(hidden, hidden, hidden, hidden, hidden))
    return _extended(_express(_power(space, text), text), text)


def _subsystem(space: ConfigSpace, what: str) -> ConfigSpace:
    identity = identify(what)
    return space._replace(subsystem_vendor_id=identity.vendor_id, subsystem_device_id=identity.device_id)


def _power(space: ConfigSpace, text: Text) -> ConfigSpace:
    """lspci names only the state that can be read: D3 is D3hot."""
    capability = text.capability(_POWER)
    if capability is None:
        return space
    found = _STATE.search(capability.fields.get("Status", ""))
    state = found[0] if found else ""
    return space._replace(power=("D3hot" if state == "D3" else state) or Unknown(NOT_RECORDED, "PMCSR"))


def _express(space: ConfigSpace, text: Text) -> ConfigSpace:
    """Port type, payload, link, slot."""
    capability = text.capability(_EXPRESS)
    if capability is None:
        return space
    found = _TITLE.match(capability.title)
    port_type = _PORT_TYPES.get(found[1].strip().lower()) if found else None
    fields = capability.fields
    space = space._replace(
        port_type=port_type or Unknown(NO_DATA, "lspci: Express"),
        payload_bytes=_number(_PAYLOAD, fields, "DevCtl"),
    )
    if port_type not in _LINKLESS:
        space = space._replace(link=_link(fields))
    if found and found[2] == "+":
        number = _SLOT.search(fields.get("SltCap", ""))
        present = _PRESENT.search(fields.get("SltSta", ""))
        space = space._replace(
            slot_implemented=True,
            slot_number=int(number[1]) if number else None,
            present=present[1] == "+" if present else None,
        )
    return space


def _number(pattern: re.Pattern[str], fields: Mapping[str, str], key: str) -> Reading[int]:
    found = pattern.search(fields.get(key, ""))
    return int(found[1][:9]) if found else Unknown(NOT_RECORDED, key)


def _link(fields: Mapping[str, str]) -> LinkEnd:
    """Speeds and widths, now and at most. What lspci itself thinks of them, "(downgraded)", is not taken over."""
    now, able = fields.get("LnkSta"), fields.get("LnkCap")
    target = fields.get("LnkCtl2")
    return LinkEnd(
        speed_gts=_speed(now, "LnkSta"),
        width=_width(now, "LnkSta"),
        max_speed_gts=_speed(able, "LnkCap"),
        max_width=_width(able, "LnkCap"),
        target_speed_gts=None if target is None else _speed(target, "LnkCtl2"),
    )


def _speed(text: str | None, where: str) -> Reading[float]:
    if text is None:
        return Unknown(NOT_RECORDED, where)
    found = _SPEED.search(text)
    if not found:
        return Unknown(NO_DATA, where)
    try:
        gts = float((found[1] or "0").replace(",", "."))
    except ValueError:
        return Unknown(NO_DATA, where)
    return gts if gts in GENERATION_OF_GTS else Unknown(NO_DATA, where)


def _width(text: str | None, where: str) -> Reading[int]:
    if text is None:
        return Unknown(NOT_RECORDED, where)
    found = _WIDTH.search(text)
    return width(int(found[1][:4]), where) if found else Unknown(NO_DATA, where)


def _extended(space: ConfigSpace, text: Text) -> ConfigSpace:
    """ACS, AER, SR-IOV. A function whose capabilities were all listed and that has none has none."""
    if acs := text.capability(_ACS):
        control = acs.fields.get("ACSCtl")
        space = space._replace(
            acs=Unknown(NOT_RECORDED, "ACSCtl") if control is None else frozenset(_SET.findall(control))
        )
    if aer := text.capability(_AER):
        space = space._replace(aer=_errors(aer.fields))
    if sriov := text.capability(_SRIOV):
        space = space._replace(sriov=_virtual_functions(sriov.fields))
    return space


def _errors(fields: Mapping[str, str]) -> Aer:
    """Errors whose status bit is set. Without the severity register they are not told apart, and count as non-fatal."""
    missing = Unknown(NOT_RECORDED, "lspci: UESta")
    correctable, uncorrectable = fields.get("CESta"), fields.get("UESta")
    severity = fields.get("UESvrt")
    seen = _SET.findall(uncorrectable or "")
    severe = frozenset(_SET.findall(severity or ""))
    return Aer(
        correctable=Unknown(NOT_RECORDED, "lspci: CESta")
        if correctable is None
        else {_OLD_ERRORS.get(name, name): 1 for name in _SET.findall(correctable)},
        nonfatal=missing if uncorrectable is None else {name: 1 for name in seen if name not in severe},
        fatal=missing if uncorrectable is None or severity is None else {name: 1 for name in seen if name in severe},
        sticky=True,
    )


def _virtual_functions(fields: Mapping[str, str]) -> Sriov | None:
    """The virtual functions that are enabled; None where there are none."""
    number = _NUMBER_OF_VFS.search(fields.get("Initial VFs", ""))
    place = _VF_PLACE.search(fields.get("VF offset", ""))
    if "Enable+" not in fields.get("IOVCtl", "") or not number or not place or not int(number[1][:6]):
        return None
    return Sriov(int(number[1][:6]), int(place[1][:6]), int(place[2][:6]))
