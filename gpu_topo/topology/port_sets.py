"""Sets of equal RDMA ports, and which of them are the fabric of the GPUs."""

from __future__ import annotations

from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import card_of, has_link, is_up, line_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Ethernet below this carries no training traffic: it is what on-board ports do. InfiniBand counts at any rate.
FABRIC_GBPS = 25.0
_MANAGER_TYPES = ("MT4129",)  # ConnectX-7, which HGX B200 and B300 boards manage their NVSwitches through
_MOST_MANAGERS = 4


class PortSet(NamedTuple):
    """What is known of one set of equal ports: the same board, else the same type of chip, and the same link layer."""

    ports: tuple[Port, ...]
    rate: float | None  # highest of the ports that are up
    near: frozenset[str]  # GPUs that have one of them on their own switch
    cards: int
    infiniband: bool
    alive: bool  # a port has a link, or may have one
    integrated: bool  # ports of the accelerators themselves
    idle_cards: int  # cards of which no port, of this set or another, has a link


def is_integrated(node: Node, port: Port) -> bool:
    """Whether a port is the accelerator's own and on its chip, as Gaudi's are: no PCIe link is between the two."""
    device = node.devices.get(known(port.address) or "")
    return device is not None and device.kind in (GPU, ACCELERATOR)


def port_sets(node: Node, ports: Sequence[Port], neighbours: Mapping[str, frozenset[str]]) -> list[PortSet]:
    """The ports by what they are. neighbours: NIC -> the GPUs that it shares a switch with."""
    groups: dict[tuple[str, ...], list[Port]] = {}
    for port in ports:
        groups.setdefault(_kind(node, port), []).append(port)
    busy = {card_of(port) for port in ports if has_link(port)}
    return [_weigh(node, members, neighbours, busy) for members in groups.values()]


def _kind(node: Node, port: Port) -> tuple[str, ...]:
    device = node.devices.get(known(port.address) or "")
    chip = known(port.hca_type) or (device.name if device else "")
    return (known(port.board_id) or chip, known(port.link_layer) or "", port.transport or "")


def _weigh(node: Node, members: Sequence[Port], neighbours: Mapping[str, frozenset[str]], busy: set[str]) -> PortSet:
    rates = [rate for port in members if is_up(port) and (rate := line_rate(node, port)) is not None]
    near = frozenset(gpu for port in members for gpu in neighbours.get(known(port.address) or port.device, ()))
    cards = {card_of(port) for port in members}
    return PortSet(
        tuple(members),
        max(rates, default=None),
        near,
        len(cards),
        members[0].transport == "infiniband",
        any(has_link(port) or known(port.state) is None for port in members),
        all(is_integrated(node, port) for port in members),
        len(cards - busy),
    )


def could_be_fabric(node: Node, found: PortSet) -> bool:
    """Whether ports of this kind are fast enough for the GPUs' traffic, as far as is known."""
    if found.infiniband or found.ports[0].transport == "efa":
        return True
    if found.rate is not None:
        return found.rate >= FABRIC_GBPS
    device = node.devices.get(known(found.ports[0].address) or "")
    most = device.part.port_max_gbps if device and device.part else None
    return most is None or most >= FABRIC_GBPS


def switch_managers(node: Node, sets: Sequence[PortSet]) -> PortSet | None:
    """The NVSwitch managers of an HGX B200 or B300 board where their product data could not be read: a few ConnectX-7
    of a board type of their own, none of them beside a GPU, next to a larger set of adapters. They have no link of
    their own, or one inside the board."""
    boards = [d.part for d in lookup(node).of(GPU) if d.part is not None]
    blackwell = [p for p in boards if p.arch.startswith("Blackwell") and p.form_factor.startswith("SXM")]
    if len(blackwell) < 2 or any(port.management for port in node.ports):
        return None
    most = max((len(found.ports) for found in sets), default=0)
    fitting = [
        found
        for found in sets
        if found.infiniband
        and len(found.ports) <= _MOST_MANAGERS
        and len(found.ports) < most
        and known(found.ports[0].hca_type) in _MANAGER_TYPES
        and known(found.ports[0].board_id) is not None
        and not found.near
    ]
    return max(fitting, key=lambda found: (len(found.ports), not found.alive), default=None)


def fabric_sets(node: Node, sets: Sequence[PortSet], routes: frozenset[str]) -> list[PortSet]:
    """The sets that carry the GPUs' traffic to other nodes. routes: interfaces of the default route."""
    gpus = len(accelerators(node))
    able = [found for found in sets if could_be_fabric(node, found)]
    own = [found for found in able if found.integrated]
    others = [found for found in able if found.alive and not found.integrated]
    if not own and not any(_is_complete(found, gpus) for found in others):
        # A fabric that is down altogether is the fabric still: what is up beside it did not take its place.
        others += [found for found in able if not found.alive and _is_idle_fabric(found, gpus)]
    if own:
        others = [found for found in others if _level(found, gpus)]  # else accelerators with ports need no more
    if not others:
        return own
    first = max(others, key=lambda found: _strength(found, gpus, routes))
    # Boards of another revision beside their GPUs and as fast as the rest belong to the fabric too.
    return own + [
        found
        for found in others
        if found is first or (found.near and found.infiniband == first.infiniband and found.rate == first.rate)
    ]


def carries_default_route(port: Port, routes: frozenset[str]) -> bool:
    """Whether the port's interface, or the bond that it is part of, is that of the default route."""
    return known(port.netdev) in routes or port.bond in routes


def _level(found: PortSet, gpus: int) -> int:
    """2 for a card beside each GPU, 1 for as many InfiniBand cards as GPUs: sets that serve nothing else."""
    if found.cards < gpus:
        return 0
    if len(found.near) == gpus:
        return 2
    return 1 if found.infiniband and gpus > 1 else 0


def _strength(found: PortSet, gpus: int, routes: frozenset[str]) -> tuple[int, int, bool, float, bool, int]:
    linked = [port for port in found.ports if has_link(port)]
    front = bool(linked) and all(carries_default_route(port, routes) for port in linked)
    together = (found.rate or 0.0) * found.cards  # one fast adapter is less than several that are nearly as fast
    return _level(found, gpus), len(found.near), not front, together, found.infiniband, len(found.ports)


def _is_complete(found: PortSet, gpus: int) -> bool:
    return found.cards >= gpus or len(found.near) == gpus


def _is_idle_fabric(found: PortSet, gpus: int) -> bool:
    """Whether a set without any link is as large as a fabric and placed like one. A single card, the second ports of
    cards whose first are in use, and Ethernet that is not beside the GPUs were more likely never cabled."""
    level = _level(found._replace(cards=found.idle_cards), gpus)
    return gpus > 1 and (level == 2 or (level == 1 and not found.near))
