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
from gpu_topo.classifier.rule import BONDS, Conclusion, Rule
from gpu_topo.model.finding import (
    CATALOGUE,
    CAUSE_DRIVER,
    CAUSE_NOT_RECORDED,
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
from gpu_topo.topology.bonds import Bonds, bonds, key, link_gbs
from gpu_topo.topology.interconnect import (
    CUBE_MESH,
    bridged,
    hidden_pair,
    in_cube_mesh,
    interconnect,
    joined,
    needs_switch,
    on_switches,
)
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

INACTIVE_CODE = "nvlink-inactive"
PARTIAL = "nvlink-partial"
ABSENT = "nvlink-absent"
ERRORS = "nvlink-errors"

_FEW = 4  # pairs that a sentence names
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
    yield from _unassessed(node, INACTIVE_CODE)
    for group in _groups(node, counts(node)):
        expected, basis = _expected(node, group)
        severity = CRITICAL if _on_nvswitches(node, group) else WARNING
        for count in _short(node, group, expected):
            yield _inactive(count, expected, basis, severity)


def _short(node: Node, group: Sequence[Count], expected: int) -> list[Count]:
    """Those of a group that lack links which are there and down."""
    return [count for count in group if count.active < expected and _is_fault(node, count, group)]


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
    told: set[str] = set()  # GPUs of which this rule has said something
    found = [count for count in counts(node) if not soldered(node, count.gpu)]
    for group in _groups(node, found):
        joined_ones = [count for count in group if count.active]
        if not joined_ones or len(group) < 2:
            continue
        bare = [count for count in group if not count.active]
        numbers = sorted({count.active for count in joined_ones})
        if bare:
            words = f"{len(joined_ones)} of {len(group)} {_name(group)} are bridged by NVLink, {len(bare)} are not"
        elif (
            len(numbers) > 1
            and not any(_is_fault(node, count, group) for count in joined_ones)
            and not _of_cube_mesh([count.gpu.address for count in group], bonds(node))
        ):
            words = f"{_name(group)} have unequal numbers of NVLinks: {', '.join(map(str, numbers))}"
        else:
            continue
        worse = bare or [count for count in joined_ones if count.active < numbers[-1]]
        told.update(count.gpu.address for count in group)
        yield Finding(
            PARTIAL,
            WARNING,
            worse[0].gpu.address if len(worse) == 1 else "node",
            words,
            PEERS,
            _IMPACT,
            _SEE_BRIDGES,
            "nvidia-smi topo -m; nvidia-smi nvlink -s",
            related=tuple(count.gpu.address for count in worse),
            observed={count.gpu.address: count.active for count in group},
            expected={"links_active": numbers[-1]},
        )
    yield from _unequal(node, told)
    yield from _islands(node)


_SEE_BRIDGES = (
    "look whether a bridge is missing or half seated on the GPUs named",
    "keep tensor-parallel groups to the bridged GPUs until then (CUDA_VISIBLE_DEVICES)",
    "accept it as designed: gpu-topo baseline accept",
)


def _unequal(node: Node, told: Set[str]) -> Iterator[Conclusion]:
    """GPUs that NVLink joins and of which some reach fewer others than their equals, or by fewer links: the ends of a
    chain, two GPUs of a mesh without links between them."""
    found = {pair: bond for pair, bond in bonds(node).items() if bond.kind.startswith("NV")}
    peers: dict[str, int] = {}
    links: dict[str, int] = {}
    for pair, bond in found.items():
        for gpu in pair:
            peers[gpu] = peers.get(gpu, 0) + 1
            links[gpu] = links.get(gpu, 0) + (bond.links or 0)
    for group in joined(peers, found):
        hidden = hidden_pair(node, group)
        if len(group) < 3 or (hidden is None and len({(peers[a], links[a]) for a in group}) == 1):
            continue
        judged = {count.gpu.address: count for count in counts(node)}
        if not judged.keys() >= set(group) or not told.isdisjoint(group):
            continue
        if hidden is not None:
            reason = f"how {hidden[0]} and {hidden[1]} are connected is not recorded"
            yield Unassessed(PARTIAL, "node", reason, CAUSE_NOT_RECORDED)
            continue
        # Links to switches are each GPU's own, and nvlink-inactive counts them.
        switched = needs_switch(group, found)
        for members in _groups(node, [judged[address] for address in group]):
            equals = [member.gpu.address for member in members]
            by_links = not switched and len({links[a] for a in equals}) > 1
            if not by_links and len({peers[a] for a in equals}) == 1:
                continue
            if _short(node, members, _expected(node, members)[0]) or _of_cube_mesh(group, found):
                continue
            figure = {a: links[a] if by_links else peers[a] for a in equals}
            yield _uneven(_name(members), "links" if by_links else "peers", figure, found)


def _of_cube_mesh(gpus: Sequence[str], found: Bonds) -> bool:
    """Whether these GPUs are one group that is joined as a hybrid cube mesh is; two pairs apart prove nothing."""
    return len(joined(gpus, found)) == 1 and in_cube_mesh(gpus, found)


def _uneven(name: str, what: str, figure: Mapping[str, int], found: Bonds) -> Finding:
    """what: "links" or "peers", of which each GPU has its figure."""
    most = max(figure.values())
    worse = [a for a, number in figure.items() if number < most]
    equals = list(figure)
    apart = [f"{a}~{b}" for i, a in enumerate(equals) for b in equals[i + 1 :] if key(a, b) not in found]
    words = "the others by unequal numbers of links" if what == "links" else "unequal numbers of the others directly"
    return Finding(
        PARTIAL,
        WARNING,
        worse[0] if len(worse) == 1 else "node",
        f"over NVLink {len(figure)} {name} reach {words}: {', '.join(map(str, sorted(set(figure.values()))))}"
        + (f" (no NVLink between {', '.join(apart)})" if 0 < len(apart) <= _FEW else ""),
        PEERS,
        _IMPACT,
        _SEE_BRIDGES,
        "nvidia-smi topo -m; nvidia-smi nvlink -s",
        related=tuple(worse),
        observed=dict(figure),
        expected={what: most},
    )


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
    if not all(bond.kind.startswith("NV") for bond in bonded.values()) or bridged(net.islands, bonded):
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
            "node",
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
        late=True,
        about=BONDS,
    ),
    Rule(
        PARTIAL,
        (WARNING, INFO),
        "GPUs of one model are bridged unequally, or in islands smaller than the node",
        "whether all GPUs of one model are bridged, and by as many links; whether those that NVLink joins reach as "
        "many others directly: the ends of a chain and two GPUs of a mesh without links between them do not",
        "a ring, a hybrid cube mesh or some GPUs of one; links that are down (nvlink-inactive); GPUs that cannot be "
        "assessed",
        ("look whether a bridge is missing or half seated", "accept it as designed: gpu-topo baseline accept"),
        ("NVIDIA/nccl-tests#320, NVIDIA/nccl#340 and #557 (half-seated bridge), NVIDIA/dcgm-exporter#316",),
        judge_partial,
        reads=("pcie", "nvml"),
        late=True,
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
