"""Names of PCI vendors and devices from the lists that distributions install: pci.ids, else the udev database.

They are reference data and not facts of the inspected machine, so they are read from this machine even for a
recording of another. pci.ids holds 35,000 names in order; it is mapped and searched by halving for the few that are
wanted, which costs a hundredth of reading it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping

from gpu_topo.collectors.readers.reader import clean

# Debian and Ubuntu; Fedora, RHEL and SUSE; where update-pciids writes.
PATHS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")

Ids = tuple[int, int]

_VENDOR = re.compile(rb"\n([0-9a-f]{4})  ")
_DEVICE = re.compile(rb"\n\t([0-9a-f]{4})  ")
_END = re.compile(rb"\n[0-9a-fC]")  # another vendor, or the list of classes
_MARK = 8  # bytes that identify a line: newline, tab, four digits, two spaces
_NEAR = 4096  # bytes within which looking through is quicker than halving


def lookup(ids: Iterable[Ids], paths: tuple[str, ...] = PATHS) -> dict[Ids, str]:
    """(vendor id, device id) -> "Vendor Device", cleaned, for those that the list names; {} where there is no list."""
    wanted: dict[int, list[int]] = {}
    for vendor, device in ids:
        wanted.setdefault(vendor, []).append(device)
    if not wanted:
        return {}
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _search(data, wanted)
        except (OSError, ValueError):  # missing, or empty
            continue
    return _from_udev(wanted)


def _search(data: mmap.mmap, wanted: Mapping[int, list[int]]) -> dict[Ids, str]:
    names: dict[Ids, str] = {}
    looked: dict[tuple[int, int], re.Match[bytes] | None] = {}  # the first halvings are the same for every vendor
    for vendor, devices in wanted.items():
        start = _find(data, _VENDOR, b"\n", vendor, 0, len(data), looked)
        if start is None:
            continue
        after = _END.search(data, start + 1)
        end = after.start() if after else len(data)
        brand = _line(data, start + _MARK - 1)
        for device in devices:
            at = _find(data, _DEVICE, b"\n\t", device, start, end, {})
            if at is not None:
                names[vendor, device] = f"{brand} {_line(data, at + _MARK)}"
    return names


def _find(
    data: mmap.mmap,
    lines: re.Pattern[bytes],
    before: bytes,
    number: int,
    low: int,
    high: int,
    looked: dict[tuple[int, int], re.Match[bytes] | None],
) -> int | None:
    """Where the line with this number begins, among the lines of one kind between low and high.

    looked: what earlier halvings of the same lines came upon, by where they looked and how far.
    """
    digits = b"%04x" % number
    while high - low > _NEAR:
        middle = (low + high) // 2
        if (middle, high) not in looked:
            looked[middle, high] = lines.search(data, middle, high + _MARK)
        match = looked[middle, high]
        if match is None or match[1] > digits:
            high = middle
        else:
            low = match.start()
    at = data[low : high + _MARK].find(before + digits + b"  ")
    return None if at < 0 else low + at


def _line(data: mmap.mmap, start: int) -> str:
    """The rest of a line, cleaned."""
    end = data.find(b"\n", start)
    return clean(data[start : end if end >= 0 else len(data)].decode("utf-8", "replace")).strip()


def _from_udev(wanted: Mapping[int, list[int]]) -> dict[Ids, str]:
    """The same from the udev database, for functions of this machine: systems without pci.ids may have it."""
    try:
        import pyudev  # type: ignore[import-untyped]  # ten milliseconds: only where there is no list

        return names_of(wanted, (device.properties for device in pyudev.Context().list_devices(subsystem="pci")))
    except (ImportError, OSError, UnicodeDecodeError):
        return {}


def names_of(wanted: Mapping[int, list[int]], devices: Iterable[Mapping[str, str]]) -> dict[Ids, str]:
    """The names that udev's properties of PCI functions hold (PCI_ID, ID_VENDOR_..., ID_MODEL_FROM_DATABASE)."""
    names: dict[Ids, str] = {}
    for properties in devices:
        vendor, _, device = properties.get("PCI_ID", "").partition(":")
        model = properties.get("ID_MODEL_FROM_DATABASE")
        try:
            ids = int(vendor, 16), int(device, 16)
        except ValueError:
            continue
        if model and ids[1] in wanted.get(ids[0], ()):
            names[ids] = clean(f"{properties.get('ID_VENDOR_FROM_DATABASE', '')} {model}").strip()
    return names
