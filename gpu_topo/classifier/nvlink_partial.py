"""Bridges that join some GPUs and not others, or none: what NVLink is built as, judged by same-model GPUs."""

from __future__ import annotations

from gpu_topo.classifier.gpus import (
    UNKNOWN_MODEL,
    counts,
    expected,
    groups,
    has_nvlink,
    is_fault,
    is_sxm,
    model_of,
    name_of,
    short,
    soldered,
)
from gpu_topo.classifier.nvlink import IMPACT, SOURCES
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.address import pair_key
from gpu_topo.model.finding import CATALOGUE, CAUSE_NOT_RECORDED, INFO, PEERS, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Gpu, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.bonds import Bonds, bonds
from gpu_topo.topology.cube_mesh import in_cube_mesh
from gpu_topo.topology.interconnect import (
    CUBE_MESH,
    bridged,
    hidden_pair,
    interconnect,
    joined,
    needs_switch,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

PARTIAL = "nvlink-partial"
ABSENT = "nvlink-absent"

_NO_MODEL = (
    "it has no NVLink while others have, and whether they are of one model is not recorded: nvidia-smi -q would tell"
)
_FEW = 4  # pairs that a sentence names
_SEE_BRIDGES = (
    "look whether a bridge is missing or half seated on the GPUs named",
    "keep tensor-parallel groups to the bridged GPUs until then (CUDA_VISIBLE_DEVICES)",
    "accept it as designed: gpu-topo baseline accept",
)


def judge_partial(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvlink-partial."""
    told: set[str] = set()  # GPUs of which this rule has said something
    found = [count for count in counts(node) if not soldered(node, count.gpu)]
    for group in groups(node, found):
        joined_ones = [count for count in group if count.active]
        if not joined_ones or len(group) < 2:
            continue
        bare = [count for count in group if not count.active]
        numbers = sorted({count.active for count in joined_ones})
        wanted = expected(node, group)[0]
        if bare and model_of(node, group[0].gpu) == UNKNOWN_MODEL:
            # `nvidia-smi topo -m` alone: a display card beside the bridged ones is no twin of theirs.
            for count in bare:
                yield Unassessed(PARTIAL, count.gpu.address, _NO_MODEL, CAUSE_NOT_RECORDED)
            continue
        if bare:
            words = f"{len(joined_ones)} of {len(group)} {name_of(group)} are bridged by NVLink, {len(bare)} are not"
        elif (
            len(numbers) > 1
            and not any(is_fault(node, count, wanted) for count in joined_ones)
            and not _of_cube_mesh([count.gpu.address for count in group], bonds(node))
        ):
            words = f"{name_of(group)} have unequal numbers of NVLinks: {', '.join(map(str, numbers))}"
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
            IMPACT,
            _SEE_BRIDGES,
            "nvidia-smi topo -m; nvidia-smi nvlink -s",
            related=tuple(count.gpu.address for count in worse),
            observed={count.gpu.address: count.active for count in group},
            expected={"links_active": numbers[-1]},
        )
    yield from _unequal(node, told)
    yield from _islands(node)


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
        for members in groups(node, [judged[address] for address in group]):
            equals = [member.gpu.address for member in members]
            by_links = not switched and len({links[a] for a in equals}) > 1
            if not by_links and len({peers[a] for a in equals}) == 1:
                continue
            if short(node, members, expected(node, members)[0]) or _of_cube_mesh(group, found):
                continue
            figure = {a: links[a] if by_links else peers[a] for a in equals}
            yield _uneven(name_of(members), "links" if by_links else "peers", figure, found)


def _of_cube_mesh(gpus: Sequence[str], found: Bonds) -> bool:
    """Whether these GPUs are one group that is joined as a hybrid cube mesh is; two pairs apart prove nothing."""
    return len(joined(gpus, found)) == 1 and in_cube_mesh(gpus, found)


def _uneven(name: str, what: str, figure: Mapping[str, int], found: Bonds) -> Finding:
    """what: "links" or "peers", of which each GPU has its figure."""
    most = max(figure.values())
    worse = [a for a, number in figure.items() if number < most]
    equals = list(figure)
    apart = [f"{a}~{b}" for i, a in enumerate(equals) for b in equals[i + 1 :] if pair_key(a, b) not in found]
    words = "the others by unequal numbers of links" if what == "links" else "unequal numbers of the others directly"
    return Finding(
        PARTIAL,
        WARNING,
        worse[0] if len(worse) == 1 else "node",
        f"over NVLink {len(figure)} {name} reach {words}: {', '.join(map(str, sorted(set(figure.values()))))}"
        + (f" (no NVLink between {', '.join(apart)})" if 0 < len(apart) <= _FEW else ""),
        PEERS,
        IMPACT,
        _SEE_BRIDGES,
        "nvidia-smi topo -m; nvidia-smi nvlink -s",
        related=tuple(worse),
        observed=dict(figure),
        expected={what: most},
    )


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
    for group in groups(node, found):
        if len(group) < 2 or any(count.active for count in group):
            continue
        yield Finding(
            ABSENT,
            INFO,
            "node",
            f"{len(group)} {name_of(group)} could be joined by NVLink bridges and are not",
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


RULES = (
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
        SOURCES,
        judge_absent,
        reads=("pcie", "nvml"),
    ),
)
