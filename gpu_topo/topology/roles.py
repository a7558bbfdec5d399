"""What each RDMA port is for: the fabric of the GPUs, storage, management, NVSwitches, or nothing."""

from __future__ import annotations

from gpu_topo.model.cached import of_last
from gpu_topo.model.host import Port
from gpu_topo.model.node import NIC, Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.structure import PIX, PXB
from gpu_topo.topology.counted import accelerators, is_spare
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.port_sets import (
    FABRIC_GBPS,
    PortSet,
    carries_default_route,
    fabric_sets,
    is_integrated,
    is_placed,
    port_sets,
    switch_managers,
)
from gpu_topo.topology.ports import card_of, has_link, line_rate, port_name, position, serves_no_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FABRIC = "fabric"
STORAGE = "storage"
MANAGEMENT = "management"
NVSWITCH = "nvswitch"
UNUSED = "unused"
UNKNOWN = "unknown"


@of_last
def roles(node: Node, overrides: Mapping[str, str] = EMPTY) -> Mapping[str, str]:
    """The role of every port by its name (mlx5_0/1), worked out together, since peers are evidence.

    overrides: port (mlx5_0/1), device (mlx5_0), interface or address -> role, from the configuration.
    """
    found: dict[str, str] = {}
    rest: list[Port] = []
    for port in node.ports:
        told = overridden(port, overrides)
        if told is not None:
            found[port_name(port)] = told
        elif port.management:
            found[port_name(port)] = NVSWITCH
        elif serves_no_one(node, port):
            found[port_name(port)] = UNKNOWN
        else:
            rest.append(port)
    found.update(_by_evidence(node, rest))
    return found


def role(node: Node, port: Port, overrides: Mapping[str, str]) -> str:
    """The role of one port."""
    return roles(node, overrides).get(port_name(port), UNKNOWN)


def overridden(port: Port, overrides: Mapping[str, str]) -> str | None:
    """The role that the configuration gives to a port, by any of its names."""
    for name in (port_name(port), port.device, known(port.netdev), port.bond, known(port.address)):
        if name and name in overrides:
            return overrides[name]
    return None


# --- evidence -------------------------------------------------------------------------------------------------


def _by_evidence(node: Node, ports: Sequence[Port]) -> dict[str, str]:
    if not ports:
        return {}
    neighbours = near_gpus(node)
    for port in ports:
        if is_integrated(node, port) and (own := known(port.address)):
            neighbours[own] = frozenset((own,))
    routes = frozenset(device.name for device in node.netdevs if device.default_route)
    sets = port_sets(node, ports, neighbours)
    found: dict[str, str] = {}
    for kind, members_of_kind in zip((NVSWITCH, UNKNOWN), switch_managers(node, sets), strict=True):
        for members in members_of_kind:
            sets.remove(members)
            found.update({port_name(port): kind for port in members.ports})
    chosen = fabric_sets(node, sets, routes)
    taken = {id(members) for members in chosen}
    for members in sets:
        if id(members) not in taken:
            found.update({port_name(port): _away_from_fabric(node, port, routes) for port in members.ports})
    found.update(_within_fabric(node, chosen, neighbours, routes))
    return found


def _within_fabric(
    node: Node, sets: Sequence[PortSet], neighbours: Mapping[str, frozenset[str]], routes: frozenset[str]
) -> dict[str, str]:
    """Equal ports: those that are known to be beside no GPU while most GPUs have one beside them serve storage, unless
    they are no more than the GPUs without one, in whose stead they may be in a wrong slot; one that the fabric can do
    without may carry the default route; ports that nobody cabled are not used."""
    ports = [port for members in sets for port in members.ports]
    beside = {port_name(port): neighbours.get(known(port.address) or port.device, frozenset()) for port in ports}
    near = {name for name, gpus in beside.items() if gpus}
    served = frozenset(gpu for gpus in beside.values() for gpu in gpus)
    gpus = len(accelerators(node))
    full = bool(near) and len(served) == gpus and len(near) >= gpus
    away = set(beside) if full else set()
    left = {port_name(port) for port in ports if is_placed(node, port)} - near
    if len(served) * 2 > gpus and len(left) > gpus - len(served):
        away.update(left)
    uncabled = {port_name(port) for members in sets for port in _uncabled(members.ports)}
    front = set(_front_ends(node, [port for port in ports if port_name(port) not in uncabled], beside, routes))
    found = {}
    for name in beside:
        if name in uncabled:
            found[name] = UNUSED
        elif name in front:
            found[name] = MANAGEMENT
        else:
            found[name] = STORAGE if name in away and name not in near else FABRIC
    return found


def _front_ends(
    node: Node, ports: Sequence[Port], beside: Mapping[str, frozenset[str]], routes: frozenset[str]
) -> list[str]:
    """Ports of the default route that differ from the rest, or that the rest is complete without. Among ports equal in
    board, rate and place a route is no reason: it may lead over any of the GPUs' own."""
    routed = [port for port in ports if carries_default_route(port, routes)]
    others = [port for port in ports if not carries_default_route(port, routes)]
    if not routed or not others:
        return []
    served = frozenset(gpu for port in others for gpu in beside[port_name(port)])
    everyone = served.union(*(beside[port_name(port)] for port in routed))
    alike = [port for port in others if beside[port_name(port)] or not everyone]
    if len(alike) >= len(accelerators(node)) and served == everyone:
        return [port_name(port) for port in routed]
    if everyone:
        return [port_name(port) for port in routed if not beside[port_name(port)]]
    rates = {rate for port in others if (rate := line_rate(node, port)) is not None}
    return [port_name(p) for p in routed if rates and line_rate(node, p) not in {None, *rates}]


def _uncabled(ports: Sequence[Port]) -> list[Port]:
    """Ports of a set that are down because nobody uses them: second ports of cards that are cabled once, as their
    twins on other cards show, or the other ports of the card where the twins show nothing."""
    linked: dict[tuple[str, int], int] = {}
    total: dict[tuple[str, int], int] = {}
    cards: dict[str, list[Port]] = {}
    for port in ports:
        at = position(port)
        total[at] = total.get(at, 0) + 1
        linked[at] = linked.get(at, 0) + has_link(port)
        cards.setdefault(card_of(port), []).append(port)

    def is_usual(port: Port) -> bool:
        """Whether most other cards have a link at this place."""
        at = position(port)
        return (linked[at] - has_link(port)) * 2 > total[at] - 1

    found: list[Port] = []
    for members in cards.values():
        down = [port for port in members if known(port.state) is not None and not has_link(port)]
        up = [port for port in members if has_link(port)]
        if up:
            # With a cable where the other cards have none, it is in the wrong socket, or this card is alone.
            apart = not all(is_usual(port) for port in up)
            found += [port for port in down if apart or not is_usual(port)]
            continue
        most = max(linked[position(port)] for port in members)
        first = min(members, key=lambda port: (len(position(port)[0]), position(port)))
        found += [port for port in down if linked[position(port)] < most or (not most and port is not first)]
    return found


def _away_from_fabric(node: Node, port: Port, routes: frozenset[str]) -> str:
    """The role of a port that is not the fabric's."""
    if known(port.state) is not None and not has_link(port):
        return UNUSED
    if carries_default_route(port, routes):
        return MANAGEMENT
    rate = line_rate(node, port)
    if port.transport == "infiniband":
        return STORAGE
    # Without a routing table nobody knows what else an Ethernet port does.
    return STORAGE if routes and rate is not None and rate >= FABRIC_GBPS else UNKNOWN


def near_gpus(node: Node) -> dict[str, frozenset[str]]:
    """NIC address (or name) -> the GPUs that share a bridge with it, so that traffic needs no host bridge.

    Empty where a hypervisor hides the tree.
    """
    gpus = accelerators(node)
    found: dict[str, set[str]] = {}
    if node.platform.kind != "virtual-machine":
        below: dict[str, set[str]] = {}
        for gpu in gpus:
            if len(gpu.path) > 1:
                below.setdefault(gpu.path[0], set()).add(gpu.address)
        for device in lookup(node).of(NIC) if below else ():
            if len(device.path) > 1 and device.path[0] in below and not is_spare(node, device):
                found.setdefault(device.address, set()).update(below[device.path[0]])
    wanted = {gpu.address for gpu in gpus}
    for (a, b), kind in node.stated_paths.items():
        if kind in (PIX, PXB):
            for one, other in ((a, b), (b, a)):
                if one in wanted and other not in wanted:
                    found.setdefault(other, set()).add(one)
    return {nic: frozenset(members) for nic, members in found.items()}
