"""Small facts of the host that a reader should know: NUMA nodes that nobody tells, payload sizes that differ."""

from __future__ import annotations

from gpu_topo.classifier.links import called
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import CAUSE_DENIED, INFO, LINK_PARTNERS, PEERS, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, STORAGE, Device, Node
from gpu_topo.model.reading import DENIED, Unknown, known
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NUMA = "numa-unknown"
PAYLOAD = "payload-size-mismatch"


def numa_nodes(node: Node) -> int | None:
    """How many NUMA nodes the machine has, None where it is not known."""
    listed = known(node.platform.numa)
    return len(listed) if listed is not None else known(node.platform.numa_count)


def judge_numa(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """numa-unknown."""
    count = numa_nodes(node)
    if count is None or count < 2:
        return
    lost = [
        d
        for d in lookup(node).of(GPU, ACCELERATOR, NIC)
        if not d.function.physical_function and not any(_numa_known(node.devices.get(step)) for step in d.path)
    ]
    if not lost:
        return
    yield Finding(
        NUMA,
        INFO,
        "node",
        f"the firmware does not say which of the {count} NUMA nodes {len(lost)} GPUs and NICs belong to",
        PEERS,
        "processes cannot be pinned next to their GPU; placement and paths across sockets stay unknown",
        (
            "look for a firmware setting or update that describes PCIe locality (ACPI _PXM)",
            "pin by the board's manual instead",
        ),
        "grep . /sys/bus/pci/devices/*/numa_node",
        related=tuple(d.address for d in lost),
        observed={"devices": len(lost)},
        expected={"numa_nodes": count},
    )


def _numa_known(device: Device | None) -> bool:
    return device is not None and known(device.function.numa_node) is not None


def judge_payload(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """payload-size-mismatch."""
    denied = 0
    for device in lookup(node).of(GPU, ACCELERATOR, NIC, STORAGE):
        if not device.address.endswith(".0") or device.integrated or device.address in node.hidden_links:
            continue
        payload = device.function.payload_bytes
        own = known(payload)
        if own is None:
            denied += isinstance(payload, Unknown) and payload.why == DENIED
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
    if denied:
        devices = f"{denied} device{'' if denied == 1 else 's'}"
        reason = f"reading payload sizes needs root (CAP_SYS_ADMIN): {devices}"
        yield Unassessed(PAYLOAD, "node", reason, CAUSE_DENIED)


RULES = (
    Rule(
        NUMA,
        (INFO,),
        "the firmware does not say which NUMA node a GPU or NIC belongs to",
        "numa_node of GPUs, accelerators and NICs and of the bridges above them",
        "the machine has one NUMA node, or a bridge above knows it",
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
