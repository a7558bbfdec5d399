"""Links between accelerators that are not NVLink: xGMI and HCCS, judged by the accelerators' peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import CAUSE_UNREADABLE, PEERS, WARNING, Finding, Unassessed
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, AcceleratorLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.roles import accelerators

_CODES = {"xgmi": "xgmi-degraded", "hccs": "hccs-degraded"}
_VERIFY = {"xgmi": "rocm-smi --showtopo", "hccs": "npu-smi info -t topo"}


class _Ends(NamedTuple):
    """What one accelerator has: partners, and links to all of them together (None where not known)."""

    device: Device
    partners: frozenset[str]
    links: int | None


def _judge(kind: str) -> Callable[[Node, Past, Policy], Iterator[Conclusion]]:
    def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
        links = [link for link in node.accelerator_links if link.kind.lower() == kind]
        if not links:
            return
        told: set[str] = set()
        for link in links:
            if link.state == INACTIVE:
                told |= {link.a, link.b}
                yield _inactive(kind, link)
        unknown = [link for link in links if link.state == UNKNOWN_STATE]
        if unknown:
            reason = f"the state of {len(unknown)} links is not known"
            yield Unassessed(_CODES[kind], "node", reason, CAUSE_UNREADABLE)
        yield from _against_peers(kind, _ends(node, links), told)

    return judge


def _ends(node: Node, links: Sequence[AcceleratorLink]) -> list[_Ends]:
    up = [link for link in links if link.state != INACTIVE]
    found = []
    for device in accelerators(node):
        mine = [link for link in up if device.address in (link.a, link.b)]
        counts = [known(link.links) for link in mine]
        total = None if None in counts else sum(count for count in counts if count is not None)
        partners = frozenset(link.b if link.a == device.address else link.a for link in mine)
        found.append(_Ends(device, partners, total))
    return found


def _against_peers(kind: str, ends: Sequence[_Ends], told: set[str]) -> Iterator[Finding]:
    """Accelerators with fewer partners or links than nearly all of their model. Meshes whose members differ by
    design (the two dies of a package, hives of different reach) have no such majority and are left alone."""
    models: dict[tuple[object, ...], list[_Ends]] = {}
    for end in ends:
        function = end.device.function
        models.setdefault((function.vendor_id, function.device_id), []).append(end)
    for peers in models.values():
        usual = _usual([len(end.partners) for end in peers])
        links = _usual([end.links for end in peers if end.links is not None]) if peers else None
        short = [e for e in peers if usual is not None and len(e.partners) < usual]
        fewer = [e for e in peers if links is not None and e.links is not None and e.links < links]
        odd = [e for e in peers if e in short or e in fewer]
        addresses = {e.device.address for e in odd}
        if not odd or addresses <= told:
            continue
        # Two accelerators that miss only each other are one broken connection.
        if len(odd) == 2 and not short[2:] and _miss_each_other(odd, peers):
            yield _pair(kind, odd, usual, links)
            continue
        for end in odd:
            if end.device.address not in told:
                yield _fewer(kind, end, usual, links)


def _usual(numbers: Sequence[int]) -> int | None:
    """The number that most peers have; None without a majority of at least two thirds among three or more."""
    if len(numbers) < 3:
        return None
    number, count = Counter(numbers).most_common(1)[0]
    return number if count * 3 >= len(numbers) * 2 else None


def _miss_each_other(odd: Sequence[_Ends], peers: Sequence[_Ends]) -> bool:
    a, b = odd
    if b.device.address not in a.partners:
        return True
    # Both still reach each other and both lack links: the bond between them is the weaker one.
    whole = {e.links for e in peers if e not in odd}
    return a.links == b.links and len(whole) == 1 and len(a.partners) == len(b.partners)


def _counts(end: _Ends) -> str:
    links = f" over {end.links} links" if end.links is not None else ""
    return f"{len(end.partners)} peers{links}"


def _expected(usual: int | None, links: int | None) -> dict[str, int | None]:
    return {"peers": usual, "links": links}


def _words(kind: str) -> str:
    return {"xgmi": "xGMI", "hccs": "HCCS"}[kind]


_REMEDY = (
    "look for link errors of the driver: dmesg | grep -iE 'xgmi|ras|hccs'",
    "reset the accelerators together, or power-cycle the node: a link trains at start only",
    "reseat the modules or bridges; then replace the board",
)
_IMPACT = "collectives inside the node run at the rate of the weakest connection: tensor parallel jobs slow down"


def _inactive(kind: str, link: AcceleratorLink) -> Finding:
    return Finding(
        _CODES[kind],
        WARNING,
        f"{link.a}~{link.b}",
        f"the {_words(kind)} links between {link.a} and {link.b} are inactive",
        PEERS,
        _IMPACT,
        _REMEDY,
        _VERIFY[kind],
        related=(link.a, link.b),
        observed={"state": link.state},
        expected={"state": "active"},
    )


def _pair(kind: str, odd: Sequence[_Ends], usual: int | None, links: int | None) -> Finding:
    a, b = odd
    first, second = a.device.address, b.device.address
    return Finding(
        _CODES[kind],
        WARNING,
        f"{first}~{second}",
        f"{first} and {second} lack {_words(kind)} links to each other: {_counts(a)}, their twins have "
        f"{_twin_counts(usual, links)}",
        PEERS,
        _IMPACT,
        _REMEDY,
        _VERIFY[kind],
        related=(first, second),
        observed={"peers": len(a.partners), "links": a.links},
        expected=_expected(usual, links),
    )


def _fewer(kind: str, end: _Ends, usual: int | None, links: int | None) -> Finding:
    return Finding(
        _CODES[kind],
        WARNING,
        end.device.address,
        f"{end.device.name} at {end.device.address} has {_words(kind)} to {_counts(end)}, its twins have "
        f"{_twin_counts(usual, links)}",
        PEERS,
        _IMPACT,
        _REMEDY,
        _VERIFY[kind],
        related=tuple(sorted(end.partners)),
        observed={"peers": len(end.partners), "links": end.links},
        expected=_expected(usual, links),
    )


def _twin_counts(usual: int | None, links: int | None) -> str:
    parts = [f"{usual} peers" if usual is not None else "", f"{links} links" if links is not None else ""]
    return " over ".join(part for part in parts if part)


def _rule(kind: str, reference: str) -> Rule:
    return Rule(
        _CODES[kind],
        (WARNING,),
        f"an accelerator has fewer {_words(kind)} links than its twins",
        f"{_words(kind)} partners and links of each accelerator against those of the same model in this node",
        "nearly all have the same, there is no clear majority (some designs are uneven), or there is no such link",
        _REMEDY,
        (reference,),
        _judge(kind),
    )


RULES = (
    _rule("xgmi", "linux: drivers/gpu/drm/amd/amdkfd (topology of /sys/class/kfd); ROCm/rocm-systems"),
    _rule("hccs", "Huawei: npu-smi command reference (info -t topo)"),
)
