"""What each network adapter and port is for: the fabric of the GPUs, storage, management, NVSwitches, or nothing."""

from __future__ import annotations

from gpu_topo.model.address import slot_of
from gpu_topo.model.facts import OK, PARTIAL
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, Device, Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import PIX, PXB
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FABRIC = "fabric"
STORAGE = "storage"
MANAGEMENT = "management"
NVSWITCH = "nvswitch"
UNUSED = "unused"
UNKNOWN = "unknown"

_UP = ("ACTIVE", "ACTIVE_DEFER")
# Ethernet below this carries no training traffic: it is what on-board ports do. InfiniBand counts at any rate.
_FABRIC_GBPS = 25.0
# An adapter that no RDMA source speaks of counts when it can do at least this.
_FAST_ADAPTER_GBPS = 100.0
_INFINIBAND_CLASSES = (0x0207, 0x0208)  # InfiniBand and Omni-Path
_MANAGER_TYPES = ("MT4129",)  # ConnectX-7, which HGX B200 and B300 boards manage their NVSwitches through
_MOST_MANAGERS = 4


class Nic(NamedTuple):
    """One network adapter: a PCI function with its ports, or a device whose function is not recorded.

    Each function counts, as in `nvidia-smi topo -m`: NCCL drives the two functions of a two-port card as two adapters.

    rate_gbps: line rates of its active ports together; None where one of them is not known.
    """

    address: str | None
    name: str  # mlx5_0, or the device's own name
    role: str
    ports: tuple[Port, ...] = ()
    rate_gbps: float | None = None


def port_name(port: Port) -> str:
    """mlx5_0/1, as findings name it."""
    return f"{port.device}/{port.port}"


def netdev_of(node: Node, port: Port) -> NetDevice | None:
    """The network interface of a port."""
    name = known(port.netdev)
    if not name:
        return None
    near = lookup(node).netdevs(known(port.address) or "")
    return next((device for device in (*near, *node.netdevs) if device.name == name), None)


def line_rate(node: Node, port: Port) -> float | None:
    """Gb/s that a port really runs at, None where that is not known.

    RDMA drivers print a fallback for Ethernet speeds that they do not know, so the interface's own speed counts first.
    A bond's interface speaks for one member.
    """
    if known(port.link_layer) == "Ethernet":
        device = netdev_of(node, port)
        speed = known(device.speed_mbps) if device else None
        if speed:
            return speed / 1000
    return known(port.rate_gbps)


def is_up(port: Port) -> bool:
    """Whether the port carries data."""
    return known(port.state) in _UP


def serves_no_one(node: Node, port: Port) -> bool:
    """Soft-RoCE, and a virtual function beside its visible physical function."""
    if port.software:
        return True
    device = node.devices.get(known(port.address) or "")
    physical = port.physical_function or (device.function.physical_function if device else None)
    virtual = port.virtual_function or (device is not None and device.function.virtual_function)
    return virtual and physical is not None and physical in node.devices


def accelerators(node: Node) -> tuple[Device, ...]:
    """The GPUs and accelerators that a job would use: no integrated graphics, no virtual function beside its own, and
    of the accelerator class only what the catalogue knows (the class also holds compression engines)."""
    return tuple(
        device
        for device in lookup(node).of(GPU, ACCELERATOR)
        if (device.kind == GPU or device.part is not None) and not device.integrated and not _spare(node, device)
    )


def _spare(node: Node, device: Device) -> bool:
    physical = device.function.physical_function
    return device.function.virtual_function and physical is not None and physical in node.devices


def roles(node: Node, overrides: Mapping[str, str] = EMPTY) -> Mapping[str, str]:
    """The role of every port by its name (mlx5_0/1), worked out together, since peers are evidence.

    overrides: port (mlx5_0/1), device (mlx5_0), interface or address -> role, from the configuration. The last answer
    is kept, because rules and reports ask for the same Node again and again.
    """
    global _last
    if _last is None or _last[0] is not node or _last[1] is not overrides:
        _last = (node, overrides, _roles(node, overrides))
    return _last[2]


_last: tuple[Node, Mapping[str, str], Mapping[str, str]] | None = None


def _roles(node: Node, overrides: Mapping[str, str]) -> dict[str, str]:
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


def nics(node: Node, overrides: Mapping[str, str] = EMPTY) -> tuple[Nic, ...]:
    """Every network adapter with its role. A virtual function counts only where its physical function is hidden.

    The last answer is kept, as that of `roles` is.
    """
    global _last_nics
    if _last_nics is None or _last_nics[0] is not node or _last_nics[1] is not overrides:
        _last_nics = (node, overrides, _nics(node, overrides))
    return _last_nics[2]


_last_nics: tuple[Node, Mapping[str, str], tuple[Nic, ...]] | None = None


def _nics(node: Node, overrides: Mapping[str, str]) -> tuple[Nic, ...]:
    by_address: dict[str, list[Port]] = {}
    placeless: list[Port] = []
    for port in node.ports:
        address = known(port.address)
        if serves_no_one(node, port):
            continue
        if address:
            by_address.setdefault(address, []).append(port)
        else:
            placeless.append(port)
    told = roles(node, overrides)
    by_device = {port.device: port for port in placeless}
    result = []
    for device in lookup(node).of(NIC):
        if _spare(node, device):
            continue
        # A recording without addresses calls its devices by the names that ports have.
        own = by_address.pop(device.address, None) or (
            [by_device.pop(device.address)] if _named(device, by_device) else []
        )
        result.append(_nic(node, device, own, told, overrides))
    left = [port for ports in by_address.values() for port in ports] + list(by_device.values())
    by_name: dict[str, list[Port]] = {}
    for port in left:
        by_name.setdefault(port.device, []).append(port)
    result += [
        Nic(known(own[0].address), name, _strongest(own, told), tuple(own), _sum(node, own))
        for name, own in by_name.items()
    ]
    return tuple(result)


def fabric(node: Node, overrides: Mapping[str, str] = EMPTY) -> tuple[Nic, ...]:
    """The adapters that carry the GPUs' traffic to other nodes."""
    return tuple(nic for nic in nics(node, overrides) if nic.role == FABRIC)


def _named(device: Device, by_device: Mapping[str, Port]) -> bool:
    return device.address in by_device


def _nic(
    node: Node, device: Device, ports: Sequence[Port], told: Mapping[str, str], overrides: Mapping[str, str]
) -> Nic:
    if ports:
        return Nic(device.address, ports[0].device, _strongest(ports, told), tuple(ports), _sum(node, ports))
    interface = next(iter(lookup(node).netdevs(device.address)), None)
    names = (device.address, interface.name if interface else "")
    own = next((overrides[name] for name in names if name in overrides), None)
    speed = known(interface.speed_mbps) if interface else None
    rate = speed / 1000 if speed else None
    name = interface.name if interface else device.name
    return Nic(device.address, name, own or _role_without_ports(node, device, interface, rate), (), rate)


def _role_without_ports(node: Node, device: Device, interface: NetDevice | None, rate: float | None) -> str:
    """The role of an adapter that no RDMA source speaks of."""
    if interface and interface.default_route:
        return MANAGEMENT
    if node.ports or any(s.name == "rdma" and s.status in (OK, PARTIAL) for s in node.sources):
        return UNKNOWN  # the RDMA devices are known, and this is none of them
    if device.part and device.part.management:
        return UNKNOWN
    kind = (device.function.class_code or 0) >> 8
    if kind in _INFINIBAND_CLASSES or ":" not in device.address:
        return FABRIC  # `nvidia-smi topo -m`, which names no addresses, lists RDMA adapters only
    most = rate if rate is not None else (device.part.port_max_gbps if device.part else None)
    return FABRIC if most is not None and most >= _FAST_ADAPTER_GBPS else UNKNOWN


def _strongest(ports: Iterable[Port], told: Mapping[str, str]) -> str:
    """The role of a card with several ports: the fabric's first, an unused port last."""
    mine = {told.get(port_name(port), UNKNOWN) for port in ports}
    return next(r for r in (FABRIC, STORAGE, NVSWITCH, MANAGEMENT, UNUSED, UNKNOWN) if r in mine)


def _sum(node: Node, ports: Iterable[Port]) -> float | None:
    rates = [line_rate(node, port) for port in ports if is_up(port)]
    return sum(r for r in rates if r is not None) if rates and None not in rates else None


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
    up_cards = {_card(port) for port in ports if is_up(port)}
    found = {}
    for port in ports:
        name = port_name(port)
        if known(port.state) is not None and not is_up(port) and _card(port) in up_cards:
            found[name] = UNUSED
        else:
            found[name] = STORAGE if full and name not in near else FABRIC
    return found


def _card(port: Port) -> str:
    address = known(port.address)
    return slot_of(address) if address else port.device


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
            if len(device.path) > 1 and device.path[0] in below and not _spare(node, device):
                found.setdefault(device.address, set()).update(below[device.path[0]])
    wanted = {gpu.address for gpu in gpus}
    for (a, b), kind in node.stated_paths.items():
        if kind in (PIX, PXB):
            for one, other in ((a, b), (b, a)):
                if one in wanted and other not in wanted:
                    found.setdefault(other, set()).add(one)
    return {nic: frozenset(members) for nic, members in found.items()}
