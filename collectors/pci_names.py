"""Names of PCI vendors and devices from the lists that distributions install: pci.ids, else the udev database.

They are reference data and not facts of the inspected machine, so they are read from this machine even for a
recording of another. pci.ids holds 35,000 names in order; it is searched by halving for the few that are wanted, which
costs a hundredth of reading it.
"""

from __future__ import annotations

import os

from gpu_topo.collectors.plain_text import clean

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
_CHUNK, _MOST = 512, 1 << 16  # bytes looked through at once for the next line of a kind: first, and at most
_LONG = 512  # bytes that no line exceeds


def lookup(ids: Iterable[Ids], paths: tuple[str, ...] = PATHS) -> dict[Ids, str]:
    """(vendor id, device id) -> "Vendor Device", cleaned, for those that the list names; {} where there is no list."""
    wanted: dict[int, list[int]] = {}
    for vendor, device in ids:
        wanted.setdefault(vendor, []).append(device)
    if not wanted:
        return {}
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            size = os.fstat(file).st_size
            if size:
                return _search(file, size, wanted)
        except OSError:  # a directory, a disk that fails
            continue
        finally:
            os.close(file)
    return _from_udev(wanted)


def _search(file: int, size: int, wanted: Mapping[int, list[int]]) -> dict[Ids, str]:
    names: dict[Ids, str] = {}
    vendors: dict[tuple[int, int], _Line] = {}
    for vendor, numbers in wanted.items():
        start, end = _find(file, _VENDOR, vendor, 0, size, vendors)
        if start < 0:
            continue
        brand = _line(file, start + _MARK - 1)
        devices: dict[tuple[int, int], _Line] = {}
        for number in numbers:
            at, _ = _find(file, _DEVICE, number, start, end, devices)
            if at >= 0:
                names[vendor, number] = f"{brand} {_line(file, at + _MARK)}"
    return names


def _find(
    file: int,
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
            line = looked[middle, high] = _next(file, before, middle, high) or after
        if line[1] > digits:
            high, after = middle, line
        else:
            low = line[0]
    at = os.pread(file, high - low + _MARK - 1, low).find(before + digits + b"  ")
    if at < 0:
        return -1, after[0]
    return low + at, (_next(file, before, low + at + 1, high) or after)[0]


def _next(file: int, before: bytes, low: int, high: int) -> _Line | None:
    """The first numbered line of one kind that begins between low and high. A regular expression would say it in one
    line, but its module takes longer to load than all names to find."""
    # What belongs to a vendor or device stands in lines that are indented further: hundreds of them, put out of the way
    # at once.
    further = before + b"\t"
    tabs = b"\t" * len(further)
    size = _CHUNK
    while low < high:
        end = min(low + size, high)
        lines = os.pread(file, end - low + _MARK - 1, low).replace(further, tabs)
        at = lines.find(before)
        while 0 <= at < end - low:
            number = lines[at + len(before) : at + len(before) + 4]
            if _HEX.issuperset(number) and lines[at + len(before) + 4 : at + len(before) + 6] == b"  ":
                return low + at, number
            at = lines.find(before, at + 1)
        low = end
        size = min(size * 4, _MOST)
    return None


def _line(file: int, start: int) -> str:
    """The rest of a line, cleaned."""
    line = os.pread(file, _LONG, start).partition(b"\n")[0]
    return clean(line.decode("utf-8", "replace")).strip()


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
