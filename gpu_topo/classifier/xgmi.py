"""Links between accelerators that are not NVLink: xGMI and HCCS, judged by the accelerators' peers."""

from __future__ import annotations

from gpu_topo.classifier.links import called, many
from gpu_topo.classifier.ports import listed
from gpu_topo.classifier.rule import BONDS, Conclusion, Rule
from gpu_topo.model.finding import CAUSE_NOT_RECORDED, CAUSE_UNREADABLE, PEERS, WARNING, Finding, Unassessed
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, AcceleratorLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NAMES = {"xgmi": "xGMI", "hccs": "HCCS"}
_KINDS = {"xgmi": ("xgmi",), "hccs": ("hccs", "sio")}  # SIO joins the two dies of one Ascend package
_CODES = {"xgmi": "xgmi-degraded", "hccs": "hccs-degraded"}
_VERIFY = {"xgmi": "rocm-smi --showtopo", "hccs": "npu-smi info -t topo"}
_BOARDS = (4, 8, 16)  # accelerators that a board or a host carries
_PLACES = {"xgmi": "rocm-smi --showbus", "hccs": "npu-smi info"}
_SMALLEST_MESH = 4  # of three, one broken connection looks like a chain that was built so
_ALIKE = 0.99  # links whose rates differ by less carry the same
_REMEDY = (
    "look for link errors of the driver: dmesg | grep -iE 'xgmi|ras|hccs'",
    "reset the accelerators together, or power-cycle the node: a link trains at start only",
    "reseat the modules or bridges; then replace the board",
)


class _Ends(NamedTuple):
    """What one accelerator has: partners, links to all of them together (None: not known), partners whose links are
    inactive. A link of unknown state counts as a partner, so that nobody is blamed for it. certain: there is no such
    link. per_link, per_peer: GB/s of one link, and of all links to one partner, as far as they are told."""

    device: Device
    partners: frozenset[str]
    links: int | None
    inactive: frozenset[str]
    certain: bool = True
    per_link: tuple[float, ...] = ()
    per_peer: tuple[float, ...] = ()

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
        links = [link for link in node.accelerator_links if link.kind.lower() in _KINDS[kind]]
        if links and all(link.a not in node.devices for link in links):
            reason = f"which accelerator of the matrix is which device is not recorded; {_PLACES[kind]} tells"
            yield Unassessed(_CODES[kind], "node", reason, CAUSE_NOT_RECORDED)
            return
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
            for twins in _comparable(node, peers):
                yield from _among(kind, twins)

    return judge


def _ends(node: Node, links: Sequence[AcceleratorLink]) -> list[_Ends]:
    found = []
    for device in accelerators(node):
        mine = [link for link in links if device.address in (link.a, link.b)]
        up = [link for link in mine if link.state != INACTIVE]
        counts = [known(link.links) for link in up]
        total = None if None in counts else sum(count for count in counts if count is not None)
        rates = [(gbs, known(link.links)) for link in up if (gbs := known(link.gbs)) is not None]
        other = {id(link): link.b if link.a == device.address else link.a for link in mine}
        found.append(
            _Ends(
                device,
                frozenset(other[id(link)] for link in up),
                total,
                frozenset(other[id(link)] for link in mine if link.state == INACTIVE),
                all(link.state != UNKNOWN_STATE for link in mine),
                tuple(gbs / count for gbs, count in rates if count),
                tuple(gbs for gbs, _ in rates),
            )
        )
    return found


def _comparable(node: Node, peers: Sequence[_Ends]) -> Iterator[Sequence[_Ends]]:
    """Groups within which one accelerator tells what another should have: all that a whole board carries, else those
    that are connected. A container or a job that is shown five of two groups of four sees one without partners."""
    numbers = {gpu.ordinal for end in peers if (gpu := lookup(node).gpus.get(end.address)) is not None}
    first = min((number for number in numbers if number is not None), default=0)
    in_a_row = None in numbers or not numbers or numbers == set(range(first, first + len(peers)))
    if len(peers) in _BOARDS and in_a_row and first % len(peers) == 0:
        yield peers
        return
    left = {end.address: end for end in peers}
    while left:
        mesh = _mesh(next(iter(left.values())), peers)
        yield mesh
        for end in mesh:
            left.pop(end.address, None)


def _among(kind: str, peers: Sequence[_Ends]) -> Iterator[Finding]:
    sure = [end for end in peers if end.certain]
    counts = [end.links for end in sure if end.links is not None]
    # What nearly all have shows only where nearly all are known.
    usual = _Usual(
        _most([len(end.partners) for end in sure], len(peers)),
        _most(counts, len(peers) if len(sure) < len(peers) else len(counts)),
    )
    joined = sum(end.certain and bool(end.partners) for end in peers)
    for end in peers:
        group = _mesh(end, peers)
        wanted = usual if usual.partners is not None else usual._replace(partners=_nearly_full(group))
        fewer_peers = wanted.partners is not None and len(end.partners) < wanted.partners
        # Hives of several sizes, as one is that lost a member: that one still differs by having none at all.
        alone = not end.partners and len(peers) >= _SMALLEST_MESH and joined * 3 >= len(peers) * 2
        fewer_links = wanted.links is not None and end.links is not None and end.links < wanted.links
        if end.inactive or fewer_peers or fewer_links or alone:
            missing = sorted(end.inactive | ({o.address for o in group} - end.partners - {end.address}))
            yield _fewer(kind, end, wanted, missing, _lost(end, wanted, peers))


def _lost(end: _Ends, wanted: _Usual, peers: Sequence[_Ends]) -> float | None:
    """GB/s per direction of the links that an accelerator lacks; None where what one carries, or how many there should
    be, is not told."""
    missing = wanted.links - end.links if wanted.links is not None and end.links is not None else 0
    rates = {rate for peer in peers for rate in peer.per_link}
    if missing <= 0:
        missing = max(len(end.inactive), (wanted.partners or 0) - len(end.partners))
        rates = {rate for peer in peers for rate in peer.per_peer}
    each = max(rates, default=0.0)
    if missing <= 0 or not each or min(rates) < each * _ALIKE:
        return None
    return round(missing * each, 2)


def _most(numbers: Sequence[int], among: int) -> int | None:
    """The number that at least two thirds of three or more have, of so many in all. Designs whose members differ (the
    two dies of a package, uneven hives) have no such majority and are left alone."""
    if len(numbers) < 3:
        return None
    number = max(numbers, key=numbers.count)
    return number if numbers.count(number) * 3 >= among * 2 else None


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
    full = sum(end.certain and len(end.partners) == len(group) - 1 for end in group)
    return len(group) - 1 if len(group) >= _SMALLEST_MESH and full * 2 >= len(group) else None


def _counts(partners: int | None, links: int | None) -> str:
    """3 peers over 6 links"""
    parts = [many(count, what) for count, what in ((partners, "peer"), (links, "link")) if count is not None]
    return " over ".join(parts)


def _fewer(kind: str, end: _Ends, usual: _Usual, missing: Sequence[str], lost_gbs: float | None) -> Finding:
    name = _NAMES[kind]
    says = "the others are inactive" if end.inactive else "nearly all its twins have some"
    if any(usual):
        says = f"its twins have {_counts(usual.partners, usual.links)}"
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
        lost_gbs=lost_gbs,
    )


def _rule(kind: str, reference: str, reads: tuple[str, ...] = ()) -> Rule:
    name = _NAMES[kind]
    return Rule(
        _CODES[kind],
        (WARNING,),
        f"an accelerator has fewer {name} links than its twins",
        f"{name} partners and links of each accelerator against those of the same model in this node",
        "nearly all have the same, there is no clear majority (some designs are uneven), there is no such link, or a"
        " container is shown a part of the board; a connection of which nothing is known is no missing one",
        _REMEDY,
        (reference,),
        _judge(kind),
        reads=reads,
        late=True,
        about=BONDS,
    )


RULES = (
    _rule("xgmi", "linux: drivers/gpu/drm/amd/amdkfd (topology of /sys/class/kfd); ROCm/rocm-systems", ("kfd",)),
    _rule("hccs", "Huawei: npu-smi command reference (info -t topo); Ascend driver (soc_get_dev_topology)"),
)
