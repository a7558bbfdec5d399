"""What each RDMA port is for: the fabric of the GPUs, storage, management, NVSwitches, or nothing."""

from __future__ import annotations

from gpu_topo.model.cached import of_last
from gpu_topo.model.host import Port
from gpu_topo.model.node import GPU, NIC, Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import PIX, PXB
from gpu_topo.topology.counted import accelerators, is_spare
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import card_of, is_up, line_rate, port_name, serves_no_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FABRIC = "fabric"
STORAGE = "storage"
MANAGEMENT = "management"
NVSWITCH = "nvswitch"
UNUSED = "unused"
UNKNOWN = "unknown"

# Ethernet below this carries no training traffic: it is what on-board ports do. InfiniBand counts at any rate.
_FABRIC_GBPS = 25.0
_MANAGER_TYPES = ("MT4129",)  # ConnectX-7, which HGX B200 and B300 boards manage their NVSwitches through
_MOST_MANAGERS = 4


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

_Group = tuple[str, ...]


class _Evidence(NamedTuple):
    """What is known of one group of equal ports."""

    ports: tuple[Port, ...]
    rate: float | None  # highest of the ports that are up
    near: frozenset[str]  # GPUs that have one of them on their own switch
    infiniband: bool


def _group_of(node: Node, port: Port) -> _Group:
    """Ports of one kind: the same board, else the same type of chip, and the same link layer."""
    device = node.devices.get(known(port.address) or "")
    chip = known(port.hca_type) or (device.name if device else "")
    return (known(port.board_id) or chip, known(port.link_layer) or "", port.transport or "")


def _by_evidence(node: Node, ports: Sequence[Port]) -> dict[str, str]:
    if not ports:
        return {}
    groups: dict[_Group, list[Port]] = {}
    for port in ports:
        groups.setdefault(_group_of(node, port), []).append(port)
    neighbours = near_gpus(node)
    routes = frozenset(device.name for device in node.netdevs if device.default_route)
    found: dict[str, str] = {}
    candidates: list[_Evidence] = []
    for members in groups.values():
        evidence = _weigh(node, members, neighbours)
        if not any(is_up(port) or known(port.state) is None for port in members):
            found.update({port_name(port): UNUSED for port in members})
        elif _could_be_fabric(node, evidence):
            candidates.append(evidence)
        else:
            found.update({port_name(port): _away_from_fabric(node, port, routes) for port in members})
    managers = _switch_managers(node, candidates)
    if managers is not None:
        candidates.remove(managers)
        found.update({port_name(port): NVSWITCH for port in managers.ports})
    if candidates:
        found.update(_split(node, candidates, neighbours, routes))
    return found


def _weigh(node: Node, members: Sequence[Port], neighbours: Mapping[str, frozenset[str]]) -> _Evidence:
    rates = [rate for port in members if is_up(port) and (rate := line_rate(node, port)) is not None]
    near = frozenset(gpu for port in members for gpu in neighbours.get(known(port.address) or port.device, ()))
    return _Evidence(tuple(members), max(rates, default=None), near, members[0].transport == "infiniband")


def _could_be_fabric(node: Node, evidence: _Evidence) -> bool:
    if evidence.infiniband or evidence.ports[0].transport == "efa":
        return True
    if evidence.rate is not None:
        return evidence.rate >= _FABRIC_GBPS
    device = node.devices.get(known(evidence.ports[0].address) or "")
    most = device.part.port_max_gbps if device and device.part else None
    return most is None or most >= _FABRIC_GBPS


def _split(
    node: Node, candidates: Sequence[_Evidence], neighbours: Mapping[str, frozenset[str]], routes: frozenset[str]
) -> dict[str, str]:
    """Fabric, storage or management for ports that are fast enough to be the fabric."""
    first = max(candidates, key=lambda e: (len(e.near), e.rate or 0.0, e.infiniband, len(e.ports)))
    found: dict[str, str] = {}
    chosen: list[Port] = []
    for evidence in candidates:
        # Boards of another revision beside their GPUs and as fast as the rest belong to the fabric too.
        equal = evidence.near and evidence.infiniband == first.infiniband and evidence.rate == first.rate
        if evidence is first or equal:
            chosen += evidence.ports
        else:
            found.update({port_name(port): _away_from_fabric(node, port, routes) for port in evidence.ports})
    others = [port for port in chosen if not _carries_default_route(port, routes)]
    if others:
        found.update({port_name(port): MANAGEMENT for port in chosen if _carries_default_route(port, routes)})
        chosen = others
    found.update(_within_fabric(node, chosen, neighbours))
    return found


def _within_fabric(node: Node, ports: Sequence[Port], neighbours: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Equal ports: those that are left over beside a full set near the GPUs serve storage; a second port that is down
    on a card whose first is up is not used."""
    near = {port_name(port) for port in ports if neighbours.get(known(port.address) or port.device)}
    served = {gpu for port in ports for gpu in neighbours.get(known(port.address) or port.device, ())}
    full = bool(near) and len(served) == len(accelerators(node)) and len(near) >= len(served)
    up_cards = {card_of(port) for port in ports if is_up(port)}
    found = {}
    for port in ports:
        name = port_name(port)
        if known(port.state) is not None and not is_up(port) and card_of(port) in up_cards:
            found[name] = UNUSED
        else:
            found[name] = STORAGE if full and name not in near else FABRIC
    return found


def _away_from_fabric(node: Node, port: Port, routes: frozenset[str]) -> str:
    """The role of a port that is not the fabric's."""
    if known(port.state) is not None and not is_up(port):
        return UNUSED
    if _carries_default_route(port, routes):
        return MANAGEMENT
    rate = line_rate(node, port)
    if port.transport == "infiniband":
        return STORAGE
    # Without a routing table nobody knows what else an Ethernet port does.
    return STORAGE if routes and rate is not None and rate >= _FABRIC_GBPS else UNKNOWN


def _carries_default_route(port: Port, routes: frozenset[str]) -> bool:
    return known(port.netdev) in routes or port.bond in routes


def _switch_managers(node: Node, candidates: Sequence[_Evidence]) -> _Evidence | None:
    """The NVSwitch managers of an HGX B200 or B300 board where their product data could not be read: a few ConnectX-7
    of a board type of their own, none of them beside a GPU, next to a larger set of adapters."""
    boards = [d.part for d in lookup(node).of(GPU) if d.part is not None]
    blackwell = [p for p in boards if p.arch.startswith("Blackwell") and p.form_factor.startswith("SXM")]
    if len(blackwell) < 2 or any(port.management for port in node.ports):
        return None
    for evidence in candidates:
        if (
            evidence.infiniband
            and len(evidence.ports) <= _MOST_MANAGERS
            and known(evidence.ports[0].hca_type) in _MANAGER_TYPES
            and known(evidence.ports[0].board_id) is not None
            and not evidence.near
            and any(len(other.ports) > len(evidence.ports) for other in candidates)
        ):
            return evidence
    return None


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
