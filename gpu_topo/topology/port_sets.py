"""Sets of equal RDMA ports, and which of them are the fabric of the GPUs."""

from __future__ import annotations

from gpu_topo.model.host import VIRTUAL_MACHINE, Port
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import card_of, has_link, is_up, line_rate
from gpu_topo.topology.tree import is_complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Ethernet below this carries no training traffic: it is what on-board ports do. InfiniBand counts at any rate.
FABRIC_GBPS = 25.0
_MANAGER_TYPES = ("MT4129",)  # ConnectX-7, which HGX B200 and B300 boards manage their NVSwitches through
_MOST_MANAGERS = 4
_MANAGER_LANES = 4  # the most that a manager's function is built for; adapters with this chip have 8 or 16
_OWN_BOARDS = "NVD"  # PSIDs of boards that NVIDIA builds into its own products
_ADAPTER_BOARDS = ("NVD0000000079",)  # of these the ConnectX-7 that the catalogue (psids.csv) knows as adapters
_DPU_TYPES = ("MT41682", "MT41686", "MT41692")  # BlueField, BlueField-2, BlueField-3


class PortSet(NamedTuple):
    """What is known of one set of equal ports: the same board, else the same type of chip, and the same link layer."""

    ports: tuple[Port, ...]
    rate: float | None  # highest of the ports that are up
    near: frozenset[str]  # GPUs that have one of them on their own switch
    crowd: Mapping[str, int]  # each of these GPUs -> how many cards it has there
    cards: int
    infiniband: bool
    alive: bool  # a port has a link, or may have one
    integrated: bool  # ports of the accelerators themselves
    idle_cards: int  # cards of which no port, of this set or another, has a link
    idle_near: frozenset[str]  # GPUs that have one of these cards on their own switch


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
    cards = {card_of(port) for port in members}
    return PortSet(
        tuple(members),
        max(rates, default=None),
        _beside(members, neighbours),
        _crowd(members, neighbours),
        len(cards),
        members[0].transport == "infiniband",
        any(has_link(port) or known(port.state) is None for port in members),
        all(is_integrated(node, port) for port in members),
        len(cards - busy),
        _beside([port for port in members if card_of(port) not in busy], neighbours),
    )


def _beside(ports: Sequence[Port], neighbours: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset(gpu for port in ports for gpu in neighbours.get(known(port.address) or port.device, ()))


def could_be_fabric(node: Node, found: PortSet) -> bool:
    """Whether ports of this kind are fast enough for the GPUs' traffic, as far as is known."""
    if found.infiniband or found.ports[0].transport == "efa":
        return True
    if found.rate is not None:
        return found.rate >= FABRIC_GBPS
    device = node.devices.get(known(found.ports[0].address) or "")
    most = device.part.port_max_gbps if device and device.part else None
    return most is None or most >= FABRIC_GBPS


def _crowd(ports: Sequence[Port], neighbours: Mapping[str, frozenset[str]]) -> dict[str, int]:
    cards: dict[str, set[str]] = {}
    for port in ports:
        for gpu in neighbours.get(known(port.address) or port.device, ()):
            cards.setdefault(gpu, set()).add(card_of(port))
    return {gpu: len(there) for gpu, there in cards.items()}


def switch_managers(node: Node, sets: Sequence[PortSet]) -> tuple[list[PortSet], list[PortSet]]:
    """The NVSwitch managers of an HGX B200 or B300 board where their product data could not be read, and sets of which
    that is in doubt.

    A manager is one of a few ConnectX-7 beside no GPU, and something has to say so: a board of NVIDIA's own that is not
    known as an adapter, or a PCIe function that was built narrower than any adapter with this chip. A few ports of
    another board alone are an ordinary pair for storage. Managers have no link of their own, or one inside the board.
    """
    boards = [d.part for d in lookup(node).of(GPU) if d.part is not None]
    blackwell = [p for p in boards if p.arch.startswith("Blackwell") and p.form_factor.startswith("SXM")]
    if len(blackwell) < 2 or any(port.management for port in node.ports):
        return [], []
    certain: list[PortSet] = []
    doubtful: list[PortSet] = []
    for found in sets:
        if not _could_manage(found):
            continue
        lanes = _lanes(node, found)
        narrow = lanes is not None and lanes <= _MANAGER_LANES
        if not narrow and not (known(found.ports[0].board_id) or "").startswith(_OWN_BOARDS):
            continue
        most = max((len(other.ports) for other in sets if other is not found), default=0)
        few = len(found.ports) < most
        placed = all(is_placed(node, port) for port in found.ports)
        if (narrow or lanes is None) and (placed or (few and node.platform.kind != VIRTUAL_MACHINE)):
            certain.append(found)
        elif few or (lanes is None and len(found.ports) == most):
            doubtful.append(found)  # as wide as an adapter, or it is not known where they hang
    if sum(len(found.ports) for found in certain) > _MOST_MANAGERS:
        return [], [*certain, *doubtful]
    return certain, doubtful


def _could_manage(found: PortSet) -> bool:
    return (
        found.infiniband
        and len(found.ports) <= _MOST_MANAGERS
        and known(found.ports[0].hca_type) in _MANAGER_TYPES
        and not found.near
        and known(found.ports[0].board_id) not in _ADAPTER_BOARDS
    )


def _lanes(node: Node, found: PortSet) -> int | None:
    """The widest PCIe link that any of these functions was built for, None where one is not known."""
    devices = [node.devices.get(known(port.address) or "") for port in found.ports]
    widths = [known(d.link.max_width) if d is not None and d.link is not None else None for d in devices]
    if node.platform.kind == VIRTUAL_MACHINE or None in widths:
        return None
    return max(width for width in widths if width is not None)


def is_placed(node: Node, port: Port) -> bool:
    """Whether it is known where a port hangs and so what is beside it: all bridges above it are recorded, or the paths
    to it are stated."""
    if node.platform.kind == VIRTUAL_MACHINE:
        return False
    name = known(port.address) or port.device
    if node.stated_paths:
        return any(name in pair for pair in node.stated_paths)
    device = node.devices.get(name)
    return device is not None and len(device.path) > 1 and is_complete(lookup(node).functions, device.path)


def fabric_sets(node: Node, sets: Sequence[PortSet], routes: frozenset[str]) -> list[PortSet]:
    """The sets that carry the GPUs' traffic to other nodes. routes: interfaces of the default route."""
    gpus = len(accelerators(node))
    able = [found for found in sets if could_be_fabric(node, found) and not _is_front_end(found, gpus, routes)]
    own = [found for found in able if found.integrated]
    others = [found for found in able if found.alive and not found.integrated]
    if not own and not any(_is_complete(found, gpus) for found in others):
        # A fabric that is down altogether is the fabric still: what is up beside it did not take its place.
        others += [found for found in able if not found.alive and _is_idle_fabric(found, gpus, others)]
    if own:
        others = [found for found in others if _level(found, gpus)]  # else accelerators with ports need no more
    others = [found for found in others if not _is_second_to_infiniband(node, found, others)]
    if not others:
        return own
    first = max(others, key=lambda found: _strength(found, gpus, routes))
    chosen = [first]
    usual = max(first.crowd.values(), default=0)
    rest = [found for found in others if found is not first and found.near and found.infiniband == first.infiniband]
    # Boards of another revision beside their GPUs belong to the fabric too: those as fast as the rest as long as there
    # are GPUs left for them, and any that are where cards of the first kind are missing.
    for found in sorted(rest, key=lambda found: (found.rate != first.rate, -found.cards)):
        beside = {gpu: sum(s.crowd.get(gpu, 0) for s in chosen) for gpu in found.crowd}
        completes = all(beside[gpu] + cards <= usual for gpu, cards in found.crowd.items())
        equal = found.rate == first.rate and (sum(s.cards for s in chosen) < gpus or _level(found, gpus) == 2)
        if equal or (completes and not _is_routed(found.ports, routes)):
            chosen.append(found)
    return own + [found for found in others if any(found is s for s in chosen)]


def _is_routed(ports: Sequence[Port], routes: frozenset[str]) -> bool:
    """Whether each port with a link carries the default route."""
    linked = [port for port in ports if has_link(port)]
    return bool(linked) and all(carries_default_route(port, routes) for port in linked)


def _is_front_end(found: PortSet, gpus: int, routes: frozenset[str]) -> bool:
    """Whether each Ethernet card with a link carries the default route, beside no GPU and fewer than these: nothing
    says that it does more than that, although it may be the only adapter with RDMA."""
    if found.infiniband or found.near or found.integrated or found.ports[0].transport == "efa" or found.cards >= gpus:
        return False
    cards: dict[str, list[Port]] = {}
    for port in found.ports:
        if has_link(port):
            cards.setdefault(card_of(port), []).append(port)
    return bool(cards) and all(any(carries_default_route(port, routes) for port in card) for card in cards.values())


def _is_second_to_infiniband(node: Node, found: PortSet, others: Sequence[PortSet]) -> bool:
    """Whether these are DPUs on Ethernet where as many InfiniBand adapters serve as many of the GPUs: then they lead
    to storage and users, however fast they are."""
    return (
        not found.infiniband
        and _are_dpus(node, found)
        and any(
            other.infiniband
            and other.cards >= found.cards
            and len(other.near) >= len(found.near)
            and not _are_dpus(node, other)
            for other in others
        )
    )


def _are_dpus(node: Node, found: PortSet) -> bool:
    port = found.ports[0]
    device = node.devices.get(known(port.address) or "")
    name = (device.part.name if device.part else device.name) if device else ""
    return known(port.hca_type) in _DPU_TYPES or "BlueField" in name


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
    front = _is_routed(found.ports, routes)
    together = (found.rate or 0.0) * found.cards  # one fast adapter is less than several that are nearly as fast
    return _level(found, gpus), len(found.near), not front, together, found.infiniband, len(found.ports)


def _is_complete(found: PortSet, gpus: int) -> bool:
    return found.cards >= gpus or len(found.near) == gpus


def _is_idle_fabric(found: PortSet, gpus: int, live: Sequence[PortSet]) -> bool:
    """Whether a set without any link is as large as a fabric and placed like one: beside every GPU, or InfiniBand, a
    card for each. A single card, the second ports of cards whose first are in use, Ethernet that is not beside the
    GPUs, and fewer cards than GPUs where as many others beside GPUs are in use were more likely never cabled."""
    if gpus < 2 or found.idle_cards < 2:
        return False
    if len(found.idle_near) == gpus:
        return found.idle_cards >= gpus or all(found.idle_cards > s.cards or not s.near for s in live)
    return found.infiniband and found.idle_cards >= gpus and not found.near
