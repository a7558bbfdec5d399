"""Devices that are on the bus and no longer answer, or that were there before and are gone."""

from __future__ import annotations

from gpu_topo.catalogue.words import is_laptop_part
from gpu_topo.classifier.links import called
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.classifier.silent import silent
from gpu_topo.model.address import slot_of
from gpu_topo.model.finding import (
    BASELINE,
    CAUSE_ASLEEP,
    CAUSE_UNREADABLE,
    CRITICAL,
    LINK_PARTNERS,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import GPU, KINDS, NIC, NVSWITCH, OTHER, STORAGE, Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.vendors import AMD, NVIDIA
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOST = "pcie-device-lost"

_WORDS = {kind: kind for kind in KINDS} | {GPU: "GPU", NIC: "NIC", NVSWITCH: "NVSwitch", STORAGE: "storage device"}
_IDENTITY = (": class", ": device folder")  # readings without which nobody knows what a function is
_PORTABLE = frozenset({8, 9, 10, 14, 30, 31, 32})  # DMI chassis types of laptops and tablets (SMBIOS 7.4.1)
_UNSAID = frozenset({1, 2})  # other, unknown
_REMEDY = (
    "look for what came before: dmesg | grep -iE 'Xid|AER|pcieport|fallen off'",
    "drain the node and power-cycle it, not only reboot: the device needs its power removed",
    "reseat the card and its power cables",
    "if it happens again, have the card replaced",
)


def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-device-lost."""
    for device in node.devices.values():
        if device.function.answers is not False or device.function.physical_function:
            continue
        if device.function.power in ("suspended", "D3cold"):
            continue
        gpu = lookup(node).gpus.get(device.address)
        known_lost = gpu is not None and gpu.lost
        if not known_lost and _is_beside(node, device):
            continue  # a GPU's sound or USB sleeps and wakes on its own; where the GPU itself is gone, that is said
        if not known_lost and _may_be_off(node, device):
            yield Unassessed(
                LOST,
                device.address,
                "its configuration reads all ones: lost, or only switched off as hybrid graphics do; its power state "
                f"is not recorded (cat /sys/bus/pci/devices/{device.address}/power_state)",
                CAUSE_ASLEEP,
            )
            continue
        yield Finding(
            LOST,
            CRITICAL,
            device.address,
            f"{called(device)} is on the bus but no longer answers: its configuration reads all ones",
            LINK_PARTNERS,
            "jobs that use this device hang or fail; whoever opens it may hang in the driver",
            _REMEDY,
            f"lspci -s {device.address} -xxx | head -3",
            observed={"configuration": "all ones"},
            expected={"configuration": "readable"},
            witness="what the device answers",
        )
    yield from _unidentified(node)
    if "pcie" in silent(node):
        return  # what was not read is not gone
    for address, what in _gone(node, past, policy).items():
        yield Finding(
            LOST,
            CRITICAL,
            address,
            f"{what} at {address} was there before and is gone from the bus",
            BASELINE,
            "jobs that use this device fail; the node is smaller than the scheduler believes",
            ("if it was removed on purpose: gpu-topo baseline save", *_REMEDY),
            f"lspci -s {address}",
            observed={"present": False},
            expected={"present": True},
        )


def _unidentified(node: Node) -> Iterator[Unassessed]:
    """Devices on the bus of which not even the class is known: nothing else would say that no rule looks at them."""
    if not any(what.endswith(_IDENTITY) for what in node.unread):
        return
    for device in node.devices.values():
        if device.kind == OTHER and device.function.class_code is None:
            reason = "what kind of device this is could not be read: no rule can judge it"
            yield Unassessed(LOST, device.address, reason, CAUSE_UNREADABLE)


def _gone(node: Node, past: Past, policy: Policy) -> dict[str, str]:
    """The devices that an earlier scan or the baseline knows and the bus no longer has: address -> what it is."""
    found = {
        address: _called(what)
        for address, what in past.seen_devices.items()
        if address not in node.devices and address not in policy.exclude
    }
    if not past.baseline:
        return found
    from gpu_topo.topology.baseline import MISSING, differences

    for change in differences(node, past.baseline, policy.exclude):
        if change.kind == MISSING and "kind" in change.was:  # else it is a port
            name = change.was.get("name")
            if name or change.subject not in found:
                found[change.subject] = _called(str(name or change.was["kind"]))
    return found


def _called(what: str) -> str:
    """A device that is gone, for a sentence: its name, or where only its kind is known, "the GPU"."""
    return f"the {_WORDS[what]}" if what in _WORDS else what


def _is_beside(node: Node, device: Device) -> bool:
    """Whether this is a further function of a GPU that is on the bus, whose own state is what counts."""
    if device.kind != OTHER or device.address.endswith(".0"):
        return False
    first = node.devices.get(f"{slot_of(device.address)}.0")
    return first is not None and first.kind == GPU


def _may_be_off(node: Node, device: Device) -> bool:
    """Whether this looks like hybrid graphics: a portable machine, a GPU built for such, or where nobody says what it
    is, a second GPU beside an integrated one. No laptop has a data-centre GPU."""
    if known(device.function.power) in ("D0", "active"):
        return False
    if device.kind != GPU:
        return _is_of_an_unseen_gpu(node, device)
    if device.part is not None and "datacenter" in device.part.market:
        return False
    chassis = known(node.platform.chassis)
    if chassis is not None and chassis not in _UNSAID:
        return chassis in _PORTABLE
    return is_laptop_part(device.name) or any(d.integrated for d in lookup(node).of(GPU))


def _is_of_an_unseen_gpu(node: Node, device: Device) -> bool:
    """Whether this is the sound, USB or UCSI of a GPU of which the recording holds no other function."""
    function = device.function
    if device.kind != OTHER or device.address.endswith(".0") or function.vendor_id not in (NVIDIA, AMD):
        return False
    base = None if function.class_code is None else function.class_code >> 16
    return base in (None, 0x04, 0x0C) and f"{slot_of(device.address)}.0" not in node.devices


RULES = (
    Rule(
        LOST,
        (CRITICAL,),
        "a device on the bus no longer answers, or one that was there is gone",
        "configuration space that reads all ones (revision ff, a link of 63 lanes) while the device is not suspended; "
        "devices that an earlier scan or the baseline knows",
        "the device is suspended or in D3cold, or a GPU's sound or USB function. On hybrid-graphics machines and of "
        "GPUs built for laptops, without the power state, it is unassessed, and so is a device of which not even the "
        "class could be read: no other rule looks at such a one",
        _REMEDY,
        ("PCI Express Base Specification 2.3.2 (completions with unsupported request read as all ones)",),
        judge,
        reads=("pcie",),
    ),
)
