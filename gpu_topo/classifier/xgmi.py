"""Links between accelerators that are not NVLink: xGMI and HCCS, judged by the accelerators' peers."""

from __future__ import annotations

from gpu_topo.classifier.links import called, many
from gpu_topo.classifier.ports import listed
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import CAUSE_UNREADABLE, PEERS, WARNING, Finding, Unassessed
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, AcceleratorLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import accelerators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NAMES = {"xgmi": "xGMI", "hccs": "HCCS"}
_CODES = {"xgmi": "xgmi-degraded", "hccs": "hccs-degraded"}
_VERIFY = {"xgmi": "rocm-smi --showtopo", "hccs": "npu-smi info -t topo"}
_SMALLEST_MESH = 4  # of three, one broken connection looks like a chain that was built so
_REMEDY = (
    "look for link errors of the driver: dmesg | grep -iE 'xgmi|ras|hccs'",
    "reset the accelerators together, or power-cycle the node: a link trains at start only",
    "reseat the modules or bridges; then replace the board",
)


class _Ends(NamedTuple):
    """What one accelerator has: partners, links to all of them together (None: not known), partners whose links are
    inactive."""

    device: Device
    partners: frozenset[str]
    links: int | None
    inactive: frozenset[str]

    @property
    def address(self) -> str:
        """The accelerator's address."""
        return self.device.address


class _Usual(NamedTuple):
    """What an accelerator of this model should have; None where its twins do not tell."""

    partners: int | None
    links: int | None


def _judge(kind: str) -> Callable[[Node, Past, Policy], Iterator[Conclusion]]:
    def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
        links = [link for link in node.accelerator_links if link.kind.lower() == kind]
        unknown = sum(link.state == UNKNOWN_STATE for link in links)
        if unknown:
            reason = f"the state of {unknown} {_NAMES[kind]} connections is not known"
            yield Unassessed(_CODES[kind], "node", reason, CAUSE_UNREADABLE)
        if not links:
            return
        ends = _ends(node, links)
        models: dict[tuple[object, ...], list[_Ends]] = {}
        for end in ends:
            models.setdefault((end.device.function.vendor_id, end.device.function.device_id), []).append(end)
        for peers in models.values():
            yield from _among(kind, peers)

    return judge


def _ends(node: Node, links: Sequence[AcceleratorLink]) -> list[_Ends]:
    found = []
    for device in accelerators(node):
        mine = [link for link in links if device.address in (link.a, link.b)]
        up = [link for link in mine if link.state != INACTIVE]
        counts = [known(link.links) for link in up]
        total = None if None in counts else sum(count for count in counts if count is not None)
        other = {id(link): link.b if link.a == device.address else link.a for link in mine}
        found.append(
            _Ends(
                device,
                frozenset(other[id(link)] for link in up),
                total,
                frozenset(other[id(link)] for link in mine if link.state == INACTIVE),
            )
        )
    return found


def _among(kind: str, peers: Sequence[_Ends]) -> Iterator[Finding]:
    usual = _Usual(
        _most([len(end.partners) for end in peers]), _most([end.links for end in peers if end.links is not None])
    )
    for end in peers:
        group = _mesh(end, peers)
        wanted = usual if usual.partners is not None else usual._replace(partners=_nearly_full(group))
        fewer_peers = wanted.partners is not None and len(end.partners) < wanted.partners
        fewer_links = wanted.links is not None and end.links is not None and end.links < wanted.links
        if end.inactive or fewer_peers or fewer_links:
            missing = sorted(end.inactive | ({o.address for o in group} - end.partners - {end.address}))
            yield _fewer(kind, end, wanted, missing)


def _most(numbers: Sequence[int]) -> int | None:
    """The number that at least two thirds of three or more have. Designs whose members differ (the two dies of a
    package, uneven hives) have no such majority and are left alone."""
    if len(numbers) < 3:
        return None
    number = max(numbers, key=numbers.count)
    return number if numbers.count(number) * 3 >= len(numbers) * 2 else None


def _mesh(end: _Ends, peers: Sequence[_Ends]) -> list[_Ends]:
    """The accelerators that are connected with this one, directly or through others, itself included."""
    by_address = {other.address: other for other in peers}
    group, pending = {end.address}, [end]
    while pending:
        for partner in pending.pop().partners & by_address.keys():
            if partner not in group:
                group.add(partner)
                pending.append(by_address[partner])
    return [by_address[address] for address in sorted(group)]


def _nearly_full(group: Sequence[_Ends]) -> int | None:
    """The partners that each should have where half of a mesh or more reaches all others: a single connection is
    broken, since nobody builds meshes with a hole."""
    full = sum(len(end.partners) == len(group) - 1 for end in group)
    return len(group) - 1 if len(group) >= _SMALLEST_MESH and full * 2 >= len(group) else None


def _counts(partners: int | None, links: int | None) -> str:
    """3 peers over 6 links"""
    parts = [many(count, what) for count, what in ((partners, "peer"), (links, "link")) if count is not None]
    return " over ".join(parts)


def _fewer(kind: str, end: _Ends, usual: _Usual, missing: Sequence[str]) -> Finding:
    name = _NAMES[kind]
    says = f"its twins have {_counts(usual.partners, usual.links)}" if any(usual) else "the others are inactive"
    lacks = f"; nothing to {listed(missing)}" if missing else ""
    return Finding(
        _CODES[kind],
        WARNING,
        end.address,
        f"{called(end.device)} has {name} to {_counts(len(end.partners), end.links)}, {says}{lacks}",
        PEERS,
        "collectives inside the node run at the rate of the weakest connection: tensor parallel jobs slow down",
        _REMEDY,
        _VERIFY[kind],
        related=tuple(missing),
        observed={"peers": len(end.partners), "links": end.links},
        expected={"peers": usual.partners, "links": usual.links},
    )


def _rule(kind: str, reference: str, reads: tuple[str, ...] = ()) -> Rule:
    name = _NAMES[kind]
    return Rule(
        _CODES[kind],
        (WARNING,),
        f"an accelerator has fewer {name} links than its twins",
        f"{name} partners and links of each accelerator against those of the same model in this node",
        "nearly all have the same, there is no clear majority (some designs are uneven), or there is no such link",
        _REMEDY,
        (reference,),
        _judge(kind),
        reads=reads,
    )


RULES = (
    _rule("xgmi", "linux: drivers/gpu/drm/amd/amdkfd (topology of /sys/class/kfd); ROCm/rocm-systems", ("kfd",)),
    _rule("hccs", "Huawei: npu-smi command reference (info -t topo)"),
)
