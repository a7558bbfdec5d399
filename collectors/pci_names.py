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
_Line = tuple[int, bytes]  # where it begins, and its number

_VENDOR = re.compile(rb"\n([0-9a-f]{4})  ")
_DEVICE = re.compile(rb"\n\t([0-9a-f]{4})  ")
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
    vendors: dict[tuple[int, int], _Line] = {}
    for vendor, numbers in wanted.items():
        start, end = _find(data, _VENDOR, vendor, 0, len(data), vendors)
        if start < 0:
            continue
        brand = _line(data, start + _MARK - 1)
        devices: dict[tuple[int, int], _Line] = {}
        for number in numbers:
            at, _ = _find(data, _DEVICE, number, start, end, devices)
            if at >= 0:
                names[vendor, number] = f"{brand} {_line(data, at + _MARK)}"
    return names


def _find(
    data: mmap.mmap,
    lines: re.Pattern[bytes],
    number: int,
    low: int,
    high: int,
    looked: dict[tuple[int, int], _Line],
) -> tuple[int, int]:
    """Where the line with this number begins among the lines of one kind between low and high, -1 where there is
    none, and where the line after it does.

    looked: what earlier halvings came upon, by where they looked and how far: the first are the same for every number.
    """
    digits = b"%04x" % number
    after: _Line = high, b"g"  # the first line from high on: at the end one that comes after every number
    while high - low > _NEAR:
        middle = (low + high) // 2
        line = looked.get((middle, high))
        if line is None:
            match = lines.search(data, middle, high + _MARK - 1)
            line = looked[middle, high] = (match.start(), match[1]) if match else after
        if line[1] > digits:
            high, after = middle, line
        else:
            low = line[0]
    at = -1
    for match in lines.finditer(data[low : high + _MARK - 1]):
        if at >= 0:
            return at, low + match.start()
        if match[1] == digits:
            at = low + match.start()
    return at, after[0]


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
