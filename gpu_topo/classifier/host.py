"""Small facts of the host that a reader should know: NUMA nodes that nobody tells, payload sizes that differ."""

from __future__ import annotations

from gpu_topo.classifier.links import called, many, why_unknown
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_DENIED,
    CAUSE_NOT_RECORDED,
    CAUSE_UNREADABLE,
    CAUSE_VM,
    INFO,
    LINK_PARTNERS,
    PEERS,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, STORAGE, Device, Node
from gpu_topo.model.reading import DENIED, NO_DATA, NOT_RECORDED, Unknown, known
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NUMA = "numa-unknown"
PAYLOAD = "payload-size-mismatch"


def judge_numa(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """numa-unknown."""
    missing = [
        d
        for d in lookup(node).of(GPU, ACCELERATOR, NIC)
        if known(d.function.numa_node) is None and not d.function.physical_function
    ]
    count = known(node.platform.numa_count)
    if not missing or (count is not None and count < 2):
        return
    stated = _stated(node)
    if count is None and len({number for numbers in stated.values() for number in numbers}) < 2:
        return
    lost = []
    for d in missing:
        own = d.function.numa_node
        above = _above(node, d)
        why = own.why if isinstance(own, Unknown) else None
        if why in (None, NOT_RECORDED) and d.kind in stated:
            # lspci prints no line where the kernel knows none, so that a lost line looks the same.
            reason = "its NUMA node is not recorded, or the kernel knows none"
            reason += f"; {above} above it has one" if above is not None else ""
            yield Unassessed(NUMA, d.address, reason, CAUSE_NOT_RECORDED)
        elif above is not None:
            if why == NO_DATA:
                reason = f"the firmware does not say its NUMA node; {above} above it has one"
                yield Unassessed(NUMA, d.address, reason, CAUSE_UNREADABLE)
        elif why in (None, NO_DATA):
            if count is not None or why is not None:
                lost.append(d)
        elif count is not None or why != NOT_RECORDED:
            yield Unassessed(NUMA, d.address, *why_unknown(own, "NUMA node"))
    if not lost:
        return
    guest = node.platform.kind == VIRTUAL_MACHINE
    yield Finding(
        NUMA,
        INFO,
        "node",
        f"the {'hypervisor' if guest else 'firmware'} does not say which of the {'' if count is None else f'{count} '}"
        f"NUMA nodes {_counted(lost)}",
        PEERS,
        "processes cannot be pinned next to their GPU; placement and paths across sockets stay unknown",
        ("ask for a machine type that shows where its devices hang",)
        if guest
        else (
            "look for a firmware setting or update that describes PCIe locality (ACPI _PXM)",
            "pin by the board's manual instead",
        ),
        "grep . /sys/bus/pci/devices/*/numa_node",
        related=tuple(d.address for d in lost),
        observed={"devices": len(lost)},
        expected={} if count is None else {"numa_nodes": count},
    )


def _counted(lost: Sequence[Device]) -> str:
    return f"{called(lost[0])} belongs to" if len(lost) == 1 else f"{len(lost)} GPUs and NICs belong to"


def _stated(node: Node) -> Mapping[str, set[int]]:
    """The NUMA nodes that devices of each kind say they belong to."""
    numbers: dict[str, set[int]] = {}
    for device in lookup(node).of(GPU, ACCELERATOR, NIC):
        number = known(device.function.numa_node)
        if number is not None:
            numbers.setdefault(device.kind, set()).add(number)
    return numbers


def _above(node: Node, device: Device) -> str | None:
    """The nearest bridge above a device whose NUMA node is known."""
    for step in reversed(device.path[:-1]):
        bridge = node.devices.get(step)
        if bridge is not None and known(bridge.function.numa_node) is not None:
            return step
    return None


_EMULATED = ("in a virtual machine configuration space is emulated", CAUSE_VM)
_UNREAD = {
    DENIED: ("reading payload sizes needs root (CAP_SYS_ADMIN)", CAUSE_DENIED),
    NOT_RECORDED: ("payload sizes are not recorded", CAUSE_NOT_RECORDED),
}


def judge_payload(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """payload-size-mismatch."""
    unread: dict[tuple[str, str], int] = {}  # why, and of how many devices
    for device in lookup(node).of(GPU, ACCELERATOR, NIC, STORAGE):
        if not device.address.endswith(".0") or device.integrated:
            continue
        payload = device.function.payload_bytes
        own = known(payload)
        hidden = device.address in node.hidden_links
        if own is None or hidden:
            why = _EMULATED if hidden else _UNREAD.get(payload.why) if isinstance(payload, Unknown) else None
            if why is not None:
                unread[why] = unread.get(why, 0) + 1
            continue
        for step in reversed(device.path[:-1]):
            above = node.devices.get(step)
            other = known(above.function.payload_bytes) if above is not None else None
            if above is None or other is None or other == own:
                continue
            yield Finding(
                PAYLOAD,
                INFO,
                device.address,
                f"{called(device)} uses payloads of {own} bytes, {step} above it {other}",
                LINK_PARTNERS,
                "packets larger than the smaller end accepts are malformed; where both work, small payloads cost some "
                "per cent of throughput",
                (
                    "leave it if the device works: the kernel chose what both ends can do",
                    "boot with pci=pcie_bus_safe to have the kernel set one size for each path",
                ),
                "lspci -vv | grep -E '^[0-9a-f]|MaxPayload'",
                related=(step,),
                observed={"payload_bytes": own},
                expected={"payload_bytes": other},
            )
            break
    for (reason, cause), count in unread.items():
        yield Unassessed(PAYLOAD, "node", f"{reason}: {many(count, 'device')}", cause)


RULES = (
    Rule(
        NUMA,
        (INFO,),
        "the firmware does not say which NUMA node a GPU or NIC belongs to",
        "numa_node of GPUs, accelerators and NICs and of the bridges above them",
        "the machine has one NUMA node, or a bridge above knows it. Where others of its kind tell theirs and nothing "
        "is recorded of this one's, it is unassessed",
        ("look for a firmware setting or update that describes PCIe locality (ACPI _PXM)",),
        ("linux: Documentation/ABI/testing/sysfs-bus-pci (numa_node)", "AMDESE/AMDSEV#135, open-mpi/hwloc#712"),
        judge_numa,
        reads=("pcie",),
    ),
    Rule(
        PAYLOAD,
        (INFO,),
        "a device and a bridge above it use different payload sizes",
        "the maximum payload size in use of both, where configuration space is readable",
        "both use the same size, or one is not recorded",
        ("boot with pci=pcie_bus_safe",),
        ("PCI Express Base Specification 7.5.3.4 (Device Control), linux: Documentation/PCI/pci.rst",),
        judge_payload,
        reads=("pcie",),
    ),
)
