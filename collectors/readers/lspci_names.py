"""The first line of a device in lspci output: address, class, vendor and device by number (-n), name, or both (-nn)."""

from __future__ import annotations

import re

from gpu_topo.collectors.pci_classes import class_code_of
from gpu_topo.model.address import normalise
from gpu_topo.model.record import NamedTuple

# An address at the start of the line (quoted or indented as a whole), then "CLASS: DEVICE".
_LINE = re.compile(
    r"(?P<before>[>\s]*)(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7])[ \t]+"
    r"(?P<kind>[0-9a-z][^:\n]{1,80}): ?(?P<what>.*)",
    re.IGNORECASE,
)
_PROG_IF = re.compile(r" \(prog-if ([0-9a-f]{2})\b.*$")
_REVISION = re.compile(r" \(rev ([0-9a-f]{2})\)$")
_IDS = re.compile(r"\[?\b([0-9a-f]{4}):([0-9a-f]{4})\]?$")
_UNNAMED = re.compile(r"(?:^|\s)(?:Unknown )?device ([0-9a-f]{4})$", re.IGNORECASE)
# What names of companies end in: "Huawei Technologies Co., Ltd.", "Chengdu Haiguang IC Design Co., Ltd. [Hygon]".
_COMPANY = re.compile(
    r"(?:\b(?:inc|incorporated|corp|corporation|co|company|ltd|limited|llc|plc|gmbh|ag|ab|bv|sa|group|labs|laboratories"
    r"|technology|technologies|electronics|semiconductor|systems|communications|networks|enterprise|subsidiaries)\b\.?"
    r"|[\])])\Z"
)
_DIGIT = re.compile(r"\d")
_VIRTUAL_FUNCTION = re.compile(r"\bVirtual Function\b|\bVF\b")

# Names of vendors whose parts matter here, as editions of pci.ids spell them (the start of the name) -> id.
# Source: https://pci-ids.ucw.cz. Where one name stands for several ids, the rest of the name tells.
_VENDORS = {
    "3pardata": 0x1590,
    "advanced micro devices, inc. [amd/ati]": 0x1002,
    "advanced micro devices [amd/ati]": 0x1002,
    "advanced micro devices, inc. [amd]": 0x1022,
    "advanced micro devices [amd]": 0x1022,
    "advanced micro devices nee ati": 0x1002,
    "amd pensando": 0x1DD8,
    "amazon.com, inc.": 0x1D0F,
    "asmedia technology": 0x1B21,
    "aspeed technology": 0x1A03,
    "ati technologies": 0x1002,
    "broadcom / lsi": 0x1000,
    "broadcom corporation": 0x14E4,
    "broadcom inc. and subsidiaries": 0x14E4,
    "broadcom limited": 0x14E4,
    "chelsio communications": 0x1425,
    "chengdu haiguang": 0x1D94,
    "emulex corporation": 0x10DF,
    "google, inc.": 0x1AE0,
    "habana labs": 0x1DA3,
    "huawei technologies": 0x19E5,
    "integrated device technology": 0x111D,
    "intel corporation": 0x8086,
    "kingston technology": 0x2646,
    "kioxia corporation": 0x1E0F,
    "lsi logic / symbios logic": 0x1000,
    "marvell technology group": 0x1B4B,
    "matrox electronics": 0x102B,
    "matrox graphics": 0x102B,
    "mellanox technologies": 0x15B3,
    "micron technology": 0x1344,
    "micron/crucial": 0xC0A9,
    "microsemi / pmc / idt": 0x111D,
    "microsoft corporation": 0x1414,
    "moore threads": 0x1ED5,
    "nec corporation": 0x1BCF,
    "nvidia corporation": 0x10DE,
    "pensando systems": 0x1DD8,
    "phison electronics": 0x1987,
    "plx technology": 0x10B5,
    "pmc-sierra": 0x11F8,
    "qlogic corp": 0x1077,
    "realtek semiconductor": 0x10EC,
    "red hat, inc. virtio": 0x1AF4,
    "red hat, inc.": 0x1B36,
    "samsung electronics": 0x144D,
    "sandisk corp": 0x15B7,
    "seagate technology": 0x1BB1,
    "shanghai enflame": 0x1E36,
    "sk hynix": 0x1C5C,
    "solarflare communications": 0x1924,
    "toshiba": 0x1179,
    "vmware": 0x15AD,
    "xensource": 0x5853,
    "xilinx corporation": 0x10EE,
}
_by_first_word: dict[str, list[tuple[str, int]]] = {}


class Header(NamedTuple):
    """One device as its first line names it. before: quoting or indentation that the whole paste shares."""

    before: str
    address: str
    class_code: int | None
    vendor_id: int | None
    device_id: int | None
    name: str | None
    revision: int | None
    answers: bool | None  # False: revision ff, which is what a device that is gone reads as


class Identity(NamedTuple):
    """Vendor and device of a name, as far as it tells them."""

    vendor_id: int | None
    device_id: int | None
    name: str | None


def header(line: str) -> Header | None:
    """The parts of a device's first line, None for any other line."""
    if len(line) > 2000:
        return None
    match = _LINE.match(line)
    address = normalise(match["address"]) if match else None
    if match is None or address is None:
        return None
    what, prog_if, revision = match["what"].strip(), 0, None
    if found := _PROG_IF.search(what):
        prog_if, what = int(found[1], 16), what[: found.start()]
    if found := _REVISION.search(what):
        revision, what = int(found[1], 16), what[: found.start()]
    gone = revision == 0xFF
    identity = identify(what)
    # The kernel remembers the ids of a device that is gone; lspci -b and -F show the ones that it reads.
    class_code = class_code_of(match["kind"], 0 if gone else prog_if)
    return Header(
        before=match["before"],
        address=address,
        class_code=None if gone and class_code == 0xFFFF00 else class_code,
        vendor_id=None if gone and identity.vendor_id == 0xFFFF else identity.vendor_id,
        device_id=None if gone and identity.device_id == 0xFFFF else identity.device_id,
        name=identity.name,
        revision=None if gone else revision,
        answers=False if gone else None,
    )


def identify(what: str) -> Identity:
    """Numbers and name of "NVIDIA Corporation GH100 [10de:2330]", "10de:2330" or "Dell Device 0b73"."""
    what = what.strip()
    if found := _IDS.search(what):
        name = what[: found.start()].strip()
        return Identity(int(found[1], 16), int(found[2], 16), name if name and not _is_placeholder(name) else None)
    device = None
    if found := _UNNAMED.search(what):
        device = int(found[1], 16)
    return Identity(vendor_of(what), device, what or None)


def _is_placeholder(name: str) -> bool:
    """Whether this is what -nn prints in the place of a name: "Device", "Intel Corporation Device".

    "XenSource, Inc. Xen Platform Device" is a name.
    """
    vendor, _, last = name.lower().rpartition(" ")
    if last != "device":
        return False
    return (
        len(vendor.split()) <= 2  # a name has the vendor before it, and more than one word
        or vendor in _VENDORS
        or (_COMPANY.search(vendor) is not None and not _DIGIT.search(vendor))
    )


def vendor_of(name: str) -> int | None:
    """The vendor id that a name begins with, None where this table does not have it."""
    if not _by_first_word:
        for vendor in sorted(_VENDORS, key=len, reverse=True):
            _by_first_word.setdefault(vendor.split(" ", 1)[0], []).append((vendor, _VENDORS[vendor]))
    lower = name.lower()
    first = lower.split(" ", 1)[0]
    return next((number for vendor, number in _by_first_word.get(first, ()) if lower.startswith(vendor)), None)


def names_virtual_function(name: str | None) -> bool:
    """Whether a part is a virtual function by its name, which is all that a guest sees of it."""
    return name is not None and _VIRTUAL_FUNCTION.search(name) is not None
