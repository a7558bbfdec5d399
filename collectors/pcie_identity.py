"""What a PCI function is, from its uevent file, which says most in one read; else from the single attributes.

The kernel writes uevent in drivers/pci/pci-driver.c (pci_uevent): DRIVER, PCI_CLASS, PCI_ID, PCI_SUBSYS_ID,
PCI_SLOT_NAME, MODALIAS.
"""

from __future__ import annotations

from gpu_topo.collectors.pcie_values import Values, number
from gpu_topo.model.reading import Reading, Unknown
from gpu_topo.model.record import NamedTuple, often
from gpu_topo.source import ABSENT, Dir, Refusal

_ADDRESS_KEY = b"PCI_SLOT_NAME="


# Base classes (PCI Code and ID Assignment Specification).
_STORAGE, _NETWORK, _DISPLAY, _BRIDGE, _PROCESSING, _ACCELERATOR = 0x01, 0x02, 0x03, 0x06, 0x0B, 0x12
_COMPUTING = frozenset({_DISPLAY, _PROCESSING, _ACCELERATOR})
_ENDPOINTS = _COMPUTING | {_NETWORK, _STORAGE}
_WITH_REGISTERS = _COMPUTING | {_NETWORK, _BRIDGE}
# System peripherals and performance counters: on a root bus they are the hundreds of small parts of a processor.
_OF_PROCESSORS = frozenset({0x08, 0x11})
_TO_OTHER_BUSES = frozenset({0x0604, 0x0609})  # classes of bridges to PCI; the others are parts of a processor


@often
class Identity(NamedTuple):
    """Ids and driver of a function, None where nothing says, and what follows for what is read of it."""

    # Vendor, device, class (24 bits), subsystem vendor, subsystem device, in the order of model.pci.Function.
    ids: tuple[int | None, int | None, int | None, int | None, int | None]
    driver: Reading[str]
    has_class: bool
    is_bridge: bool
    is_endpoint: bool  # of the classes that an audit is about
    is_computing: bool
    is_system_part: bool  # on a root bus it is a part of a processor
    has_registers: bool  # its configuration space holds what a rule looks at: ACS of bridges, payload of endpoints


def identify(folder: Dir, known: dict[tuple[bytes, bytes], Identity], values: Values) -> Identity:
    """What the function in a folder is. known: what was found of functions alike, whose uevent is the same but for the
    address; filled here, since a machine has thousands of functions of a few dozen kinds."""
    data = folder.read("uevent")
    if isinstance(data, Refusal):
        return _of({}, folder, values)
    before, _, after = data.partition(_ADDRESS_KEY)
    key = before, after.partition(b"\n")[2]
    identity = known.get(key)
    if identity is None:
        event = _pairs(data)
        identity = _of(event, folder, values)
        if "PCI_ID" in event and "PCI_CLASS" in event:
            known[key] = identity  # else it comes from this function's own attributes
    return identity


def _of(event: dict[str, str], folder: Dir, values: Values) -> Identity:
    class_code = number(event.get("PCI_CLASS")) if "PCI_CLASS" in event else values.id(folder, "class")
    vendor, device = _two_hex(event.get("PCI_ID"))
    if vendor is None:
        vendor, device = values.id(folder, "vendor"), values.id(folder, "device")
    sub_vendor, sub_device = _two_hex(event.get("PCI_SUBSYS_ID"))
    if sub_vendor is None and "PCI_ID" not in event:
        sub_vendor, sub_device = values.id(folder, "subsystem_vendor"), values.id(folder, "subsystem_device")
    driver: Reading[str] = event.get("DRIVER")
    if driver is None and "PCI_ID" not in event:
        driver = _driver(folder)
    base = -1 if class_code is None else class_code >> 16
    return Identity(
        (vendor, device, class_code, sub_vendor, sub_device),
        driver,
        class_code is not None,
        class_code is not None and class_code >> 8 in _TO_OTHER_BUSES,
        base in _ENDPOINTS,
        base in _COMPUTING,
        base in _OF_PROCESSORS,
        base in _WITH_REGISTERS,
    )


def _driver(folder: Dir) -> Reading[str]:
    target = folder.link("driver")
    if isinstance(target, Refusal):
        return None if target.why == ABSENT else Unknown(target.why, "driver")
    return target.rsplit("/", 1)[-1]


def _pairs(data: bytes) -> dict[str, str]:
    """The KEY=value lines of a uevent file."""
    found = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        key, mark, value = line.partition("=")
        if mark:
            found[key] = value
    return found


def _two_hex(text: str | None) -> tuple[int | None, int | None]:
    """'10DE:2330' as two numbers."""
    if not text or ":" not in text:
        return None, None
    first, second = text.split(":", 1)
    return number(first), number(second)
