"""Settings of the RDMA side that cost bandwidth or surprise: firmware that differs, small MTU, no GPUDirect."""

from __future__ import annotations

from gpu_topo.classifier.links import many, why_unknown
from gpu_topo.classifier.ports import by_board, judged, listed
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_DENIED,
    CAUSE_NOT_RECORDED,
    CAUSE_UNREADABLE,
    CONFIG,
    INFO,
    PEERS,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import DENIED, Unknown, known
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.adapters import fabric
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.ports import netdev_of
from gpu_topo.topology.roles import FABRIC, STORAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FIRMWARE = "firmware-mismatch"
MTU = "roce-mtu-small"
GPUDIRECT = "gpudirect-missing"

# RoCE takes the largest of InfiniBand's packet sizes (256 to 4096 bytes) that fits the Ethernet frame with its headers.
_FULL_MTU = 4096
_INTERFACE_FOR_FULL_MTU = 4200
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


def judge_firmware(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """firmware-mismatch."""
    groups: dict[str, dict[str, str]] = {}
    for (identity, _), ports in by_board(judged(node, policy)).items():
        for item in ports:
            version = known(item.port.firmware)
            if version:
                groups.setdefault(identity, {})[item.name] = version
    for identity, versions in groups.items():
        if len(set(versions.values())) < 2:
            continue
        from collections import Counter  # seldom needed, and slow to load

        counts = Counter(versions.values())
        usual = max(counts, key=lambda version: (counts[version], version))
        odd = [name for name, version in versions.items() if version != usual]
        yield Finding(
            FIRMWARE,
            INFO,
            odd[0],
            f"boards {identity} run different firmware: {', '.join(f'{v} ({n})' for v, n in counts.most_common())}",
            PEERS,
            "usually none; a job that fails on some ports only is hard to explain with two firmwares",
            ("bring all boards of one type to one release at the next maintenance (mlxfwmanager)",),
            "grep . /sys/class/infiniband/*/{board_id,fw_ver}",
            related=tuple(odd[1:]),
            observed={name: versions[name] for name in odd},
            expected={"firmware": usual},
        )


def judge_mtu(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """roce-mtu-small."""
    for item in judged(node, policy):
        if item.port.transport != "roce" or not item.up or item.role not in (FABRIC, STORAGE):
            continue
        device = netdev_of(node, item.port)
        frame, packet = known(device.mtu) if device else None, known(item.port.mtu)
        if frame is None and packet is None:
            reading = device.mtu if device and isinstance(device.mtu, Unknown) else item.port.mtu
            yield Unassessed(MTU, item.name, *why_unknown(reading, "MTU of the port's interface"))
            continue
        small = frame < _INTERFACE_FOR_FULL_MTU if frame is not None else (packet or 0) < _FULL_MTU
        if not small:
            continue
        name = device.name if device else item.name
        what = f"interface {name} has an MTU of {frame}" if frame is not None else f"the active MTU is {packet}"
        yield Finding(
            MTU,
            INFO,
            item.name,
            f"RoCE port {item.name}: {what}, so that RDMA packets stay below {_FULL_MTU} bytes",
            CONFIG,
            "more packets and headers for the same data: some per cent of bandwidth, and more work for the adapter",
            (
                "check that every switch on the way forwards jumbo frames",
                f"set the MTU of {name} to 9000 on all nodes of the fabric, the switches first",
            ),
            f"ip link show {name}",
            observed={"mtu": frame, "active_mtu": packet},
            expected={"mtu": 9000, "active_mtu": _FULL_MTU},
        )


def judge_gpudirect(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """gpudirect-missing."""
    gpus = [d for d in accelerators(node) if d.function.vendor_id == NVIDIA]
    adapters = [nic for nic in fabric(node, policy.roles) if nic.ports]
    if not gpus or not adapters:
        return
    if any(port.transport == "efa" for nic in adapters for port in nic.ports):
        return  # EFA's own driver brings peer memory
    modules = node.platform.modules
    if isinstance(modules, Unknown) or modules is None:
        denied = isinstance(modules, Unknown) and modules.why == DENIED
        cause = CAUSE_DENIED if denied else CAUSE_UNREADABLE if modules is not None else CAUSE_NOT_RECORDED
        yield Unassessed(GPUDIRECT, "node", "which kernel modules are loaded is not recorded", cause)
        return
    if "nvidia" not in modules or any(name in modules for name in _PEER_MEMORY):
        return
    dmabuf = known(node.platform.dmabuf)
    if dmabuf:
        return
    if dmabuf is None:
        reason = "nvidia_peermem is not loaded, and whether driver and kernel offer dma-buf instead is not known"
        yield Unassessed(GPUDIRECT, "node", reason, CAUSE_NOT_RECORDED)
        return
    yield Finding(
        GPUDIRECT,
        INFO,
        "node",
        f"neither nvidia_peermem nor dma-buf is there: {many(len(adapters), 'adapter')} "
        f"({listed([n.name for n in adapters])}) cannot reach GPU memory",
        CONFIG,
        "NCCL copies through host memory: about half the bandwidth between nodes, and load on CPU and memory",
        (
            "load it: modprobe nvidia_peermem (it comes with the NVIDIA driver and needs an RDMA stack when built)",
            "or use the open kernel modules on Linux 5.12 and later, which offer dma-buf",
            "see what NCCL says: NCCL_DEBUG=INFO, 'GPU Direct RDMA Enabled'",
        ),
        "lsmod | grep -E 'nvidia_peermem|nv_peer_mem'; cat /proc/driver/nvidia/version",
        observed={"peer_memory": False, "dma_buf": False},
    )


RULES = (
    Rule(
        FIRMWARE,
        (INFO,),
        "equal RDMA boards run different firmware",
        "firmware version of boards with the same board id",
        "all versions are the same, or the board id is not known: other cards have other versions",
        ("bring all boards of one type to one release",),
        ("linux: /sys/class/infiniband/*/fw_ver, board_id", "scitix/sichek (firmware checks by board id)"),
        judge_firmware,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
    ),
    Rule(
        MTU,
        (INFO,),
        "a RoCE port sends packets smaller than RDMA allows",
        "MTU of the interface behind each active RoCE port of the fabric or of storage",
        "the MTU is 4200 or more, or the port serves management",
        ("set the MTU of interfaces and switches to 9000",),
        ("InfiniBand Architecture Specification annex A17 (RoCEv2)", "linux: include/rdma/ib_addr.h (iboe_get_mtu)"),
        judge_mtu,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie",),
    ),
    Rule(
        GPUDIRECT,
        (INFO,),
        "RDMA adapters cannot reach the memory of NVIDIA GPUs",
        "loaded kernel modules and the driver's dma-buf support, where GPUs and a fabric adapter are present",
        "nvidia_peermem is loaded, the driver offers dma-buf, the driver is not loaded, or there is no fabric adapter",
        ("modprobe nvidia_peermem",),
        ("NVIDIA GPUDirect RDMA documentation", "NVIDIA GPU Operator documentation, GPUDirect RDMA"),
        judge_gpudirect,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
        late=True,
    ),
)
