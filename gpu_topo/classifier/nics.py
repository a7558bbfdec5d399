"""GPUs and network adapters together: enough adapters, near enough, on the same socket."""

from __future__ import annotations

from gpu_topo.classifier.links import called
from gpu_topo.classifier.ports import listed
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_BY_DESIGN,
    CAUSE_NOT_RECORDED,
    CAUSE_VM,
    INFO,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.structure import PXB, SYS, Path
from gpu_topo.topology.adapters import Nic, fabric, uncounted
from gpu_topo.topology.capacity import is_c2c
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.nearness import Nearest, nearest_adapters, rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RATIO = "nic-gpu-ratio-low"
NEAR = "gpu-without-near-nic"
CROSS = "cross-numa-nic"
_HALF = 0.5
_BOARDS = ("SXM", "OAM")


def judge_ratio(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nic-gpu-ratio-low."""
    gpus, adapters = accelerators(node), fabric(node, policy.roles)
    if not gpus or not adapters:
        return
    count = len(adapters)
    ratio = count / len(gpus)
    if ratio >= 1:
        return
    on_board = any(d.part is not None and d.part.form_factor.upper().startswith(_BOARDS) for d in gpus)
    severity = WARNING if on_board and ratio < _HALF else INFO
    doubt = _doubt(node, policy, adapters, len(gpus) * (_HALF if severity == WARNING else 1.0))
    if doubt is not None:
        yield Unassessed(RATIO, "node", doubt, CAUSE_NOT_RECORDED)
        return
    yield Finding(
        RATIO,
        severity,
        "node",
        f"{count} fabric adapter{'s' if count > 1 else ''} for {len(gpus)} GPUs",
        PEERS,
        "GPUs share adapters: gradients and expert traffic to other nodes wait for each other",
        (
            "where the count should be higher, look for adapters that are missing or down (inventory-short, port-down)",
            "set NCCL_IB_HCA and NCCL_CROSS_NIC so that each pair of GPUs uses its nearest adapter",
            "else plan for it: keep communication-heavy parallelism inside the node",
        ),
        "nvidia-smi topo -m",
        related=tuple(nic.address or nic.name for nic in adapters),
        observed={"adapters": count, "gpus": len(gpus), "ratio": round(ratio, 3)},
        expected={"ratio": 1.0},
    )


_NO_EVIDENCE = "neither ports nor rates are recorded, which would tell what the adapters are for: ibv_devinfo -v would"


def _doubt(node: Node, policy: Policy, adapters: Sequence[Nic], wanted: float) -> str | None:
    """Why an inventory does not tell that there are fewer fabric adapters than wanted; None where it does."""
    if not _are_evident(node, policy, adapters):
        return _NO_EVIDENCE
    more = len(uncounted(node, policy.roles))
    if more and len(adapters) + more >= wanted:
        return f"{more} more devices may be fabric adapters: neither their rates nor their parts are known"
    return None


def _are_evident(node: Node, policy: Policy, adapters: Sequence[Nic]) -> bool:
    """Whether something says that adapters serve the fabric, more than what their parts could do: a port, a rate, the
    class of one, or that most GPUs have one beside them."""
    if any(nic.evident for nic in adapters):
        return True
    found = nearest_adapters(node, policy.roles).values()
    return sum(_is_near(nearest.paths) for nearest in found) * 2 > len(found)


def judge_near(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """gpu-without-near-nic."""
    gpus, adapters = accelerators(node), fabric(node, policy.roles)
    if len(gpus) < 2 or not adapters:
        return
    paths = nearest_adapters(node, policy.roles)
    models: dict[tuple[object, ...], list[Device]] = {}
    for gpu in gpus:
        function = gpu.function
        models.setdefault((function.vendor_id, function.device_id, gpu.name), []).append(gpu)
    if not any(found.paths for found in paths.values()):
        yield _hidden(NEAR, node)
        return
    evident = _are_evident(node, policy, adapters)
    doubtful = {device.path[0]: device.address for device in uncounted(node, policy.roles) if len(device.path) > 1}
    for peers in models.values():
        if len(peers) < 2:
            continue
        near = [gpu for gpu in peers if _is_near(paths[gpu.address].paths)]
        for gpu in peers:
            found = paths[gpu.address]
            if gpu in near:
                continue
            if found.hidden is not None:
                yield _in_doubt(NEAR, node, gpu, found)
            elif near and not evident:
                yield Unassessed(NEAR, gpu.address, _NO_EVIDENCE, CAUSE_NOT_RECORDED)
            elif near and (other := doubtful.get(gpu.path[0])) is not None:
                reason = f"whether {other} is a fabric adapter is not known: neither its rate nor its part is"
                yield Unassessed(NEAR, gpu.address, reason, CAUSE_NOT_RECORDED)
            elif near:
                yield _without(gpu, near, found.paths)


def _is_near(paths: Sequence[Path]) -> bool:
    return bool(paths) and rank(paths[0].kind) <= rank(PXB)


def _without(gpu: Device, near: Sequence[Device], found: Sequence[Path]) -> Finding:
    path = found[0]
    return Finding(
        NEAR,
        WARNING,
        gpu.address,
        f"{called(gpu)} has no fabric adapter below its switch (the nearest, {path.b}, is {path.kind}); "
        f"{len(near)} equal {'GPU has' if len(near) == 1 else 'GPUs have'} one",
        PEERS,
        "its RDMA traffic crosses the processor: slower than its peers', and collectives wait for it",
        (
            "look for an adapter of this switch that is missing or down (inventory-short, port-down)",
            "compare the slots with the vendor's layout: an adapter may sit in the wrong one",
            "give this GPU's rank the part of the job that talks least to other nodes",
        ),
        "nvidia-smi topo -m",
        related=(path.b,),
        observed={"kind": path.kind, "nearest": path.b},
        expected={"kind": PXB},
    )


def judge_cross(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """cross-numa-nic."""
    gpus, adapters = accelerators(node), fabric(node, policy.roles)
    if not gpus or not adapters:
        return
    if known(node.platform.numa_count) == 1:
        return
    paths = nearest_adapters(node, policy.roles)
    if not any(found.paths for found in paths.values()):
        yield _hidden(CROSS, node)
        return
    evident = _are_evident(node, policy, adapters)
    if all(_is_across(found.paths) for found in paths.values()) and all(is_c2c(node, gpu) for gpu in gpus):
        # The driver calls every path SYS there, since each GPU's memory is a NUMA node of its own.
        reason = "on chip-to-chip machines the driver does not tell near adapters from far ones"
        yield Unassessed(CROSS, "node", reason, CAUSE_BY_DESIGN)
        return
    for gpu in gpus:
        found = paths[gpu.address]
        if found.paths and not _is_across(found.paths):
            continue  # another may be nearer still: it is on this side all the same
        if found.hidden is not None:
            yield _in_doubt(CROSS, node, gpu, found)
            continue
        if not evident:
            yield Unassessed(CROSS, gpu.address, _NO_EVIDENCE, CAUSE_NOT_RECORDED)
            continue
        if _shares_socket(node, gpu, found.paths):
            continue
        names = [path.b for path in found.paths]
        yield Finding(
            CROSS,
            INFO,
            gpu.address,
            f"the nearest fabric adapter of {called(gpu)} hangs from another NUMA node ({listed(names)})",
            PEERS,
            "its RDMA traffic crosses the link between sockets: less bandwidth, more delay",
            (
                "where each socket should have an adapter, look for one that is missing or down",
                "move an adapter to a slot of this socket",
                "pin the process to the GPU's socket all the same: data loading gains more than the network loses",
            ),
            "nvidia-smi topo -m; grep . /sys/bus/pci/devices/*/numa_node",
            related=tuple(names),
            observed={"kind": SYS},
            expected={"kind": "NODE"},
        )


def _shares_socket(node: Node, gpu: Device, paths: Sequence[Path]) -> bool:
    """Whether one of these adapters hangs from the GPU's own socket: with NPS4 or SNC that has several NUMA nodes."""
    sockets = {numa.number: known(numa.package) for numa in known(node.platform.numa) or ()}
    numa_node = lookup(node).numa_node
    at = [numa_node(device) for device in (gpu, *(node.devices[path.b] for path in paths if path.b in node.devices))]
    own, *others = [sockets.get(number) if number is not None else None for number in at]
    return own is not None and own in others


def _is_across(paths: Sequence[Path]) -> bool:
    return bool(paths) and paths[0].kind == SYS


def _in_doubt(code: str, node: Node, gpu: Device, found: Nearest) -> Unassessed:
    reason = f"how {found.hidden} is connected to this GPU is not known"
    if found.paths:
        reason += f": it may be nearer than {found.paths[0].b} ({found.paths[0].kind})"
    return Unassessed(
        code, gpu.address, reason, CAUSE_VM if node.platform.kind == VIRTUAL_MACHINE else CAUSE_NOT_RECORDED
    )


def _hidden(code: str, node: Node) -> Unassessed:
    if node.platform.kind == VIRTUAL_MACHINE:
        return Unassessed(code, "node", "the hypervisor hides where GPUs and adapters hang", CAUSE_VM)
    return Unassessed(code, "node", "where GPUs and adapters hang is not recorded", CAUSE_NOT_RECORDED)


RULES = (
    Rule(
        RATIO,
        (WARNING, INFO),
        "fewer fabric adapters than GPUs",
        "PCI functions with a port of the fabric, as nvidia-smi topo -m counts them, against GPUs and accelerators",
        "there is at least one for each GPU, or no fabric adapter at all: then the node trains alone. An inventory "
        "without ports and rates, or with devices that may be adapters too, is unassessed",
        ("look for adapters that are missing or down", "plan for it"),
        ("perplexityai/pplx-garden#2, uccl-project/uccl#160", "NVIDIA DGX and HGX reference designs (1:1)"),
        judge_ratio,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie", "rdma"),
    ),
    Rule(
        NEAR,
        (WARNING,),
        "a GPU has no fabric adapter below its switch while equal GPUs have one",
        "path kinds from each GPU to its nearest fabric adapter, against GPUs of the same model",
        "no equal GPU has one either. Where an adapter whose place is hidden (virtual machine) or not recorded may be "
        "nearer, or an inventory does not tell what the adapters are for, it is unassessed",
        ("look for an adapter that is missing or down",),
        ("NVIDIA/nccl#1343, sgl-project/sglang#8324 (affinity of GPUs and adapters)",),
        judge_near,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie", "rdma"),
    ),
    Rule(
        CROSS,
        (INFO,),
        "the nearest fabric adapter of a GPU is on another socket",
        "NUMA nodes and host bridges of each GPU and of the fabric adapters",
        "an adapter hangs from the same NUMA node, or from another of the same socket (NPS4, sub-NUMA clustering), or "
        "the machine has only one. Where an adapter whose place is not known may be nearer, or an inventory does not "
        "tell what the adapters are for, it is unassessed",
        ("move an adapter to a slot of this socket",),
        ("NVIDIA/nccl#1435, kvcache-ai/Mooncake#429",),
        judge_cross,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie", "rdma"),
    ),
)
