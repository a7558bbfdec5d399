"""What sources state of pairs of devices: the way between them, peer-to-peer, links that are not NVLink."""

from __future__ import annotations

from gpu_topo.assemble.merge import fill
from gpu_topo.model.address import pair_key
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, AcceleratorLink
from gpu_topo.model.host import Port
from gpu_topo.model.reading import known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def nic_names(ports: Sequence[Port]) -> dict[str, str]:
    """RDMA device -> address of its function, where known."""
    return {port.device: address for port in ports if (address := known(port.address))}


def stated_of(
    facts: Sequence[Facts], rename: Mapping[str, str]
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], Mapping[str, str]]]:
    """By pair of names: the path kind (PIX, NV18), and peer-to-peer by capability ("read" -> "OK")."""
    stated: dict[tuple[str, str], str] = {}
    p2p: dict[tuple[str, str], Mapping[str, str]] = {}
    for fact in facts:
        for peer in fact.peers:
            pair = pair_key(rename.get(peer.a, peer.a), rename.get(peer.b, peer.b))
            if pair[0] == pair[1]:
                continue  # two chips behind one function
            if peer.kind is not None:
                stated[pair] = peer.kind
            if peer.p2p:
                p2p[pair] = {**p2p.get(pair, {}), **peer.p2p}
    return stated, p2p


def accelerator_links(facts: Sequence[Facts], rename: Mapping[str, str]) -> tuple[AcceleratorLink, ...]:
    """Each pair once. A later sample of a source takes the place of the one before; what one source does not know,
    another completes, and where one says that links are down, those that merely list them do not deny it."""
    found: dict[tuple[str, str, str], tuple[str, AcceleratorLink]] = {}
    for fact in facts:
        if fact.accelerator_links:
            found = {pair: of for pair, of in found.items() if of[0] != fact.source.name}
        for link in fact.accelerator_links:
            a, b = pair_key(rename.get(link.a, link.a), rename.get(link.b, link.b))
            if a == b:
                continue  # two chips behind one function
            source, before = found.get((link.kind, a, b), (fact.source.name, link))
            state = link.state
            if source != fact.source.name and (state == UNKNOWN_STATE or before.state == INACTIVE):
                state = before.state
            found[link.kind, a, b] = fact.source.name, fill(before, link)._replace(a=a, b=b, state=state)
    return tuple(link for _, link in found.values())


def once(links: tuple[AcceleratorLink, ...], numbered: Collection[str]) -> tuple[AcceleratorLink, ...]:
    """Without the links of GPUs known by number that are told by address too. numbered: GPUs that are listed so too."""
    twice = {link.kind for link in links if link.a not in numbered and link.b not in numbered}
    return tuple(
        link
        for link in links
        if link.kind not in twice or (link.a not in numbered and link.b not in numbered) or link.state == INACTIVE
    )
