"""NVLinks that are down, unequal or not there, judged against same-model GPUs first and the catalogue second."""

from __future__ import annotations

from gpu_topo.classifier.gpus import (
    NOT_TOLD,
    Count,
    counts,
    has_nvlink,
    is_sxm,
    model_of,
    nvidia_gpus,
    soldered,
    stated_links,
    whole_board,
    why_not,
)
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CATALOGUE,
    CAUSE_DRIVER,
    COUNTERS,
    CRITICAL,
    INFO,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.gpu import INACTIVE
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import NVSWITCH, Gpu, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.bonds import bonds, link_gbs
from gpu_topo.topology.interconnect import CUBE_MESH, interconnect, on_switches
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INACTIVE_CODE = "nvlink-inactive"
PARTIAL = "nvlink-partial"
ABSENT = "nvlink-absent"
ERRORS = "nvlink-errors"

_IMPACT = (
    "tensor-parallel traffic takes the slowest path of its group: NCCL rings fall back to fewer links or to PCIe, and "
    "every step waits for it"
)
_REMEDY = (
    "look for NVLink errors and XIDs: nvidia-smi nvlink -e; dmesg | grep -iE 'Xid|NVLink|nvswitch'",
    "drain the node and reset all GPUs (nvidia-smi -r), with the fabric manager stopped and started again on NVSwitch "
    "machines",
    "power-cycle the node",
    "have the board or bridge replaced if the same link stays down",
)


def _groups(node: Node, found: Sequence[Count]) -> list[list[Count]]:
    groups: dict[str, list[Count]] = {}
    for count in found:
        groups.setdefault(model_of(node, count.gpu), []).append(count)
    return list(groups.values())


def _expected(node: Node, group: Sequence[Count]) -> tuple[int, str]:
    """How many links a GPU of this group should have up, and the basis of it."""
    most = max(count.active for count in group)
    part = group[0].gpu.part
    sure = part is not None and part.fabric == "nvlink" and part.fabric_confidence in ("verified", "one_source")
    sure = sure and (node.platform.kind != VIRTUAL_MACHINE or whole_board(node, group[0].gpu))
    if sure and part is not None and is_sxm(group[0].gpu) and (part.fabric_links or 0) > most and group[0].by_link:
        return part.fabric_links or 0, CATALOGUE
    return most, PEERS


def _on_nvswitches(node: Node, group: Sequence[Count]) -> bool:
    """Whether GPUs hang from NVSwitches: seen, told, or inferred, since up to four of them may be wired directly."""
    if lookup(node).of(NVSWITCH) or on_switches(node):
        return True
    part = group[0].gpu.part
    return part is not None and is_sxm(group[0].gpu) and "nvswitch" in part.fabric_attach.lower() and len(group) > 4


def judge_inactive(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-inactive."""
    found = counts(node)
    yield from _unassessed(node, INACTIVE_CODE)
    for group in _groups(node, found):
        expected, basis = _expected(node, group)
        severity = CRITICAL if _on_nvswitches(node, group) else WARNING
        for count in group:
            if count.active >= expected or not _is_fault(node, count, group):
                continue
            yield _inactive(count, expected, basis, severity)


def _is_fault(node: Node, count: Count, group: Sequence[Count]) -> bool:
    """Whether fewer links mean that a link is down. On bridged cards a GPU without any has no bridge, and bridges of
    different kinds are nvlink-partial; but a link that the driver lists as inactive beside active ones is down."""
    if soldered(node, count.gpu):
        return True
    if count.active == 0 or not count.by_link:
        return False
    most = max(other.active for other in group)
    return count.total >= most and count.active < most


def _inactive(count: Count, expected: int, basis: str, severity: str) -> Finding:
    gpu = count.gpu
    links = known(gpu.nvlinks) or ()
    down = [link.number for link in links if link.state == INACTIVE]
    rate = next((gbs for link in links if (gbs := link_gbs(gpu, link)) is not None), None)
    if rate is None and gpu.part is not None and gpu.part.fabric == "nvlink":
        rate = gpu.part.fabric_gbs_per_link
    missing = expected - count.active
    numbers = f" (down: {', '.join(map(str, down))})" if down and len(down) <= expected else ""
    model = known(gpu.model)
    name = f"{model} at {gpu.address}" if model else gpu.address
    return Finding(
        INACTIVE_CODE,
        severity,
        gpu.address,
        f"{name} has {count.active} of {expected} NVLinks up{numbers}",
        basis,
        _IMPACT,
        _REMEDY,
        f"nvidia-smi nvlink -s -i {gpu.ordinal if gpu.ordinal is not None else gpu.address}",
        observed={"links_active": count.active, "links_down": down, "gbs": rate * count.active if rate else None},
        expected={"links_active": expected, "gbs": rate * expected if rate else None},
        lost_gbs=round(rate * missing, 2) if rate else None,
    )


def _unassessed(node: Node, code: str) -> Iterator[Unassessed]:
    """Every GPU with NVLink (or of an unlisted model) of which nothing can be said."""
    stated = stated_links(node)
    for gpu in nvidia_gpus(node):
        able = has_nvlink(gpu)
        if able is False:
            continue
        reason = why_not(node, gpu)
        if reason is None and gpu.nvlinks is None and gpu.address not in stated:
            if node.live and node.drivers.get("nvml") is not None and node.drivers["nvml"].status == "ok":
                continue  # asked, and this card has none
            reason = NOT_TOLD
            if node.live:
                reason = ("NVLink state needs the NVIDIA driver and its library", CAUSE_DRIVER)
        if reason is not None:
            yield Unassessed(code, gpu.address, *reason)


def judge_partial(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-partial."""
    found = [count for count in counts(node) if not soldered(node, count.gpu)]
    for group in _groups(node, found):
        bridged = [count for count in group if count.active]
        if not bridged or len(group) < 2:
            continue
        bare = [count for count in group if not count.active]
        numbers = sorted({count.active for count in bridged})
        if bare:
            words = f"{len(bridged)} of {len(group)} {_name(group)} are bridged by NVLink, {len(bare)} are not"
        elif len(numbers) > 1 and not any(_is_fault(node, count, group) for count in bridged):
            words = f"{_name(group)} have unequal numbers of NVLinks: {', '.join(map(str, numbers))}"
        else:
            continue
        worse = bare or [count for count in bridged if count.active < numbers[-1]]
        yield Finding(
            PARTIAL,
            WARNING,
            worse[0].gpu.address if len(worse) == 1 else "node",
            words,
            PEERS,
            _IMPACT,
            (
                "look whether a bridge is missing or half seated on the GPUs named",
                "keep tensor-parallel groups to the bridged GPUs until then (CUDA_VISIBLE_DEVICES)",
                "accept it as designed: gpu-topo baseline accept",
            ),
            "nvidia-smi topo -m; nvidia-smi nvlink -s",
            related=tuple(count.gpu.address for count in worse),
            observed={count.gpu.address: count.active for count in group},
            expected={"links_active": numbers[-1]},
        )
    yield from _islands(node)


def _name(group: Sequence[Count]) -> str:
    gpu = group[0].gpu
    return known(gpu.model) or (gpu.part.name if gpu.part is not None else "GPUs")


def _islands(node: Node) -> Iterator[Finding]:
    """Equal islands smaller than the node: by design, and worth knowing for whoever places a job."""
    net = interconnect(node)
    sizes = {len(island) for island in net.islands}
    bonded = bonds(node)
    if net.shape == CUBE_MESH or len(net.islands) < 2 or len(sizes) != 1 or sizes == {1}:
        return
    if not all(bond.kind.startswith("NV") for bond in bonded.values()):
        return
    yield Finding(
        PARTIAL,
        INFO,
        "node",
        f"NVLink joins {len(net.islands)} equal islands of {net.max_tensor_parallel} GPUs: tensor parallelism stays on "
        f"NVLink up to {net.max_tensor_parallel}",
        PEERS,
        "larger tensor-parallel groups cross PCIe",
        ("place tensor-parallel groups inside an island: gpu-topo inspect prints the order",),
        "nvidia-smi topo -m",
        related=tuple(a for island in net.islands for a in island),
        observed={"islands": [list(island) for island in net.islands]},
        expected={},
    )


def judge_absent(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-absent."""
    found = [c for c in counts(node) if has_nvlink(c.gpu) and not is_sxm(c.gpu) and not _c2c(c.gpu)]
    for group in _groups(node, found):
        if len(group) < 2 or any(count.active for count in group):
            continue
        yield Finding(
            ABSENT,
            INFO,
            "node" if len(group) > 1 else group[0].gpu.address,
            f"{len(group)} {_name(group)} could be joined by NVLink bridges and are not",
            CATALOGUE,
            "peer-to-peer traffic between them crosses PCIe",
            ("nothing, if bought without bridges; a bridge joins neighbouring cards",),
            "nvidia-smi nvlink -s",
            related=tuple(count.gpu.address for count in group),
            observed={"links_active": 0},
            expected={},
        )


def _c2c(gpu: Gpu) -> bool:
    return bool(known(gpu.c2c)) or (gpu.part is not None and gpu.part.c2c)


def judge_errors(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-errors: only growth says anything; totals since the driver was loaded are no rate."""
    for gpu in nvidia_gpus(node):
        grown = {
            name.removeprefix("nvlink_"): growth
            for (address, name), growth in past.counters.items()
            if address == gpu.address and name.startswith("nvlink_") and growth.delta > 0
        }
        rate = sum(g.delta * 3600 / g.seconds for g in grown.values() if g.seconds > 0)
        if rate <= policy.nvlink_errors_per_hour:
            continue
        kinds = ", ".join(f"{name} +{growth.delta}" for name, growth in sorted(grown.items()))
        yield Finding(
            ERRORS,
            WARNING,
            gpu.address,
            f"NVLink errors of {known(gpu.model) or gpu.address} grow by {rate:.0f} an hour: {kinds}",
            COUNTERS,
            "errors are sent again and cost bandwidth; growing ones announce a link that goes down",
            _REMEDY,
            f"nvidia-smi nvlink -e -i {gpu.ordinal if gpu.ordinal is not None else gpu.address}",
            observed={"per_hour": round(rate, 1), **{name: growth.delta for name, growth in grown.items()}},
            expected={"per_hour": policy.nvlink_errors_per_hour},
        )


_SOURCES = (
    "Azure/azhpc-diagnostics#73, leptonai/gpud#1085 (links down), leptonai/gpud#1227 and "
    "Azure/azurehpc-health-checks#162 (fewer links than NVML's maximum by design)",
    "NVIDIA/NVSentinel#1481 (an unpopulated bridge is no fault)",
)

RULES = (
    Rule(
        INACTIVE_CODE,
        (CRITICAL, WARNING),
        "a GPU has fewer NVLinks up than its same-model peers, or than its SXM board has",
        "links that are up, against GPUs of the same model in the node, and on SXM boards against the catalogue for "
        "exactly this part; never against NVML's maximum",
        "MIG is on, the GPU is passed through, a guest sees one GPU of a larger board (unassessed); PCIe cards without "
        "a bridge (nvlink-absent, nvlink-partial)",
        _REMEDY,
        _SOURCES,
        judge_inactive,
        reads=("pcie", "nvml"),
    ),
    Rule(
        PARTIAL,
        (WARNING, INFO),
        "GPUs of one model are bridged unequally, or in islands smaller than the node",
        "whether all GPUs of one model are bridged, and by as many links",
        "hybrid cube meshes; SXM boards (nvlink-inactive); GPUs that cannot be assessed",
        ("look whether a bridge is missing or half seated", "accept it as designed: gpu-topo baseline accept"),
        ("NVIDIA/nccl-tests#320, NVIDIA/nccl#340 and #557 (half-seated bridge), NVIDIA/dcgm-exporter#316",),
        judge_partial,
        reads=("pcie", "nvml"),
    ),
    Rule(
        ABSENT,
        (INFO,),
        "NVLink-capable cards stand side by side without a bridge",
        "PCIe cards whose model has NVLink and of which none has a link up",
        "one card alone; models without NVLink; link state that is not known",
        ("nothing, if bought without bridges",),
        _SOURCES,
        judge_absent,
        reads=("pcie", "nvml"),
    ),
    Rule(
        ERRORS,
        (WARNING,),
        "NVLink errors grow",
        "the growth of replay, recovery, CRC and ECC counters of all links of a GPU over the last hour",
        "a one-off audit: totals since the driver was loaded are no rate",
        _REMEDY,
        ("leptonai/gpud#943 (a counter at its ceiling carries no rate)",),
        judge_errors,
        reads=("pcie", "nvml"),
    ),
)
