"""NVLinks that are down or err, judged against same-model GPUs first and the catalogue second."""

from __future__ import annotations

from gpu_topo.classifier.gpus import (
    NOT_TOLD,
    Count,
    counts,
    expected,
    groups,
    has_nvlink,
    nvidia_gpus,
    short,
    soldered,
    stated_links,
    why_not,
)
from gpu_topo.classifier.rule import BONDS, Conclusion, Rule
from gpu_topo.model.finding import CAUSE_DRIVER, COUNTERS, CRITICAL, WARNING, Finding, Unassessed
from gpu_topo.model.gpu import INACTIVE
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import NVSWITCH, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.bonds import built_on_switches, link_gbs
from gpu_topo.topology.interconnect import on_switches
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INACTIVE_CODE = "nvlink-inactive"
ERRORS = "nvlink-errors"

IMPACT = (
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
_RESEAT = "switch off, and reseat the bridge on both cards"


def _on_nvswitches(node: Node, group: Sequence[Count]) -> bool:
    """Whether GPUs hang from NVSwitches: seen, told, or all that boards with so many of this part are built on."""
    if lookup(node).of(NVSWITCH) or on_switches(node):
        return True
    direct = any(link.remote_kind == "gpu" for count in group for link in known(count.gpu.nvlinks) or ())
    return not direct and any(built_on_switches(node, count.gpu) for count in group)


def judge_inactive(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-inactive."""
    yield from _unassessed(node, INACTIVE_CODE)
    for group in groups(node, counts(node)):
        wanted, basis = expected(node, group)
        severity = CRITICAL if _on_nvswitches(node, group) else WARNING
        for count in short(node, group, wanted):
            remedy = _REMEDY if soldered(node, count.gpu) else (*_REMEDY[:-1], _RESEAT, _REMEDY[-1])
            yield _inactive(count, wanted, basis, severity, remedy)


def _inactive(count: Count, wanted: int, basis: str, severity: str, remedy: tuple[str, ...]) -> Finding:
    gpu = count.gpu
    links = known(gpu.nvlinks) or ()
    down = [link.number for link in links if link.state == INACTIVE]
    rate = next((gbs for link in links if (gbs := link_gbs(gpu, link)) is not None), None)
    if rate is None and gpu.part is not None and gpu.part.fabric == "nvlink":
        rate = gpu.part.fabric_gbs_per_link
    missing = wanted - count.active
    # Links that no bridge joins are down too, and which of them should be up nobody says.
    numbers = f" (down: {', '.join(map(str, down))})" if len(down) == missing else ""
    model = known(gpu.model)
    name = f"{model} at {gpu.address}" if model else gpu.address
    return Finding(
        INACTIVE_CODE,
        severity,
        gpu.address,
        f"{name} has {count.active} of {wanted} NVLinks up{numbers}",
        basis,
        IMPACT,
        remedy,
        f"nvidia-smi nvlink -s -i {gpu.ordinal if gpu.ordinal is not None else gpu.address}",
        observed={"links_active": count.active, "links_down": down, "gbs": rate * count.active if rate else None},
        expected={"links_active": wanted, "gbs": rate * wanted if rate else None},
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


def judge_errors(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-errors: only growth says anything; totals since the driver was loaded are no rate."""
    for gpu in nvidia_gpus(node):
        grown = {
            name.removeprefix("nvlink_"): number
            for (address, name), number in past.counters.items()
            if address == gpu.address and name.startswith("nvlink_") and number
        }
        all_kinds = sum(grown.values())
        if all_kinds <= policy.nvlink_errors_per_hour:
            continue
        kinds = ", ".join(f"{name} +{number}" for name, number in sorted(grown.items()))
        yield Finding(
            ERRORS,
            WARNING,
            gpu.address,
            f"NVLink errors of {known(gpu.model) or gpu.address} grow by {all_kinds} an hour: {kinds}",
            COUNTERS,
            "errors are sent again and cost bandwidth; growing ones announce a link that goes down",
            _REMEDY,
            f"nvidia-smi nvlink -e -i {gpu.ordinal if gpu.ordinal is not None else gpu.address}",
            observed={"per_hour": all_kinds, **grown},
            expected={"per_hour": policy.nvlink_errors_per_hour},
        )


SOURCES = (
    "Azure/azhpc-diagnostics#73, leptonai/gpud#1085 (links down), leptonai/gpud#1227 and "
    "Azure/azurehpc-health-checks#162 (fewer links than NVML's maximum by design)",
    "NVIDIA/NVSentinel#1481 (an unpopulated bridge is no fault)",
)

RULES = (
    Rule(
        INACTIVE_CODE,
        (CRITICAL, WARNING),
        "a GPU has fewer NVLinks up than its same-model peers, or than its board or bridge joins",
        "links that are up, against GPUs of the same model in the node; on SXM boards, superchips in NVLink racks and "
        "cards with one bridge also against the catalogue for exactly this part; never against NVML's maximum",
        "MIG is on, the GPU is passed through, a guest sees one GPU of a larger board (unassessed); PCIe cards without "
        "a bridge (nvlink-absent, nvlink-partial), superchips that stand alone",
        _REMEDY,
        SOURCES,
        judge_inactive,
        reads=("pcie", "nvml"),
        late=True,
        about=BONDS,
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
