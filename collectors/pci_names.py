"""Names of PCI vendors and devices from the lists that distributions install: pci.ids, else the udev database.

They are reference data and not facts of the inspected machine, so they are read from this machine even for a
recording of another. pci.ids holds 35,000 names in order; it is mapped and searched by halving for the few that are
wanted, which costs a hundredth of reading it.
"""

from __future__ import annotations

import mmap

from gpu_topo.collectors.readers.reader import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Debian and Ubuntu; Fedora, RHEL and SUSE; where update-pciids writes.
PATHS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")

Ids = tuple[int, int]
_Line = tuple[int, bytes]  # where it begins, and its number

_VENDOR = b"\n"  # what stands before the number of a vendor, and of a device of that vendor
_DEVICE = b"\n\t"
_HEX = frozenset(b"0123456789abcdef")
_MARK = 8  # bytes that identify a line: newline, tab, four digits, two spaces
_NEAR = 4096  # bytes within which looking through is quicker than halving
_CHUNK, _MOST = 512, 8192  # bytes looked through at once for the next line of a kind: first, and at most


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
    before: bytes,
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
            line = looked[middle, high] = _next(data, before, middle, high) or after
        if line[1] > digits:
            high, after = middle, line
        else:
            low = line[0]
    at = data[low : high + _MARK - 1].find(before + digits + b"  ")
    if at < 0:
        return -1, after[0]
    return low + at, (_next(data, before, low + at + 1, high) or after)[0]


def _next(data: mmap.mmap, before: bytes, low: int, high: int) -> _Line | None:
    """The first numbered line of one kind that begins between low and high. A regular expression would say it in one
    line, but its module takes longer to load than all names to find."""
    size = _CHUNK
    while low < high:
        end = min(low + size, high)
        first, *parts = data[low : end + _MARK - 1].split(before)
        # What belongs to a vendor or device is indented further, and sorts before every digit.
        if parts and max(parts) >= b"0":
            at = low + len(first)
            for part in parts:
                if part[4:6] == b"  " and _HEX.issuperset(part[:4]) and at < end:
                    return at, part[:4]
                at += len(before) + len(part)
        low = end
        size = min(size * 2, _MOST)
    return None


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
