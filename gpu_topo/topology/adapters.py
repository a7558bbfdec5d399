"""The network adapters of a node: each function with its ports, what it is for, and the rate it brings."""

from __future__ import annotations

from gpu_topo.model.cached import of_last
from gpu_topo.model.facts import OK, PARTIAL
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import NIC, OTHER, Device, Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import is_spare
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.port_sets import is_integrated
from gpu_topo.topology.ports import card_of, is_up, line_rate, port_name, serves_no_one
from gpu_topo.topology.roles import FABRIC, MANAGEMENT, NVSWITCH, STORAGE, UNKNOWN, UNUSED, overridden, roles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# An adapter that no RDMA source speaks of counts when it can do at least this.
_FAST_ADAPTER_GBPS = 100.0
_AMAZON = 0x1D0F
_INFINIBAND_CLASSES = (0x0207, 0x0208)  # InfiniBand and Omni-Path


class Nic(NamedTuple):
    """One network adapter: a PCI function with its ports, or a device whose function is not recorded.

    Each function counts, as in `nvidia-smi topo -m`: NCCL drives the two functions of a two-port card as two adapters.

    rate_gbps: line rates of its active ports together; None where one of them is not known. Of an accelerator's own
    ports only those count that the configuration calls the fabric's: its others lead to its neighbours.
    evident: whether its role is told by a port, an interface, its class or the configuration, and not merely by what
    its part could do.
    """

    address: str | None
    name: str  # mlx5_0, or the device's own name
    role: str
    ports: tuple[Port, ...] = ()
    rate_gbps: float | None = None
    integrated: bool = False  # on the chip of an accelerator: its traffic crosses no PCIe link
    evident: bool = True


@of_last
def nics(node: Node, overrides: Mapping[str, str] = EMPTY) -> tuple[Nic, ...]:
    """Every network adapter with its role. A virtual function counts only where its physical function is hidden."""
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
        if is_spare(node, device):
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
    result += [_without_function(node, name, own, told, overrides) for name, own in by_name.items()]
    return tuple(result)


def fabric(node: Node, overrides: Mapping[str, str] = EMPTY) -> tuple[Nic, ...]:
    """The adapters that carry the GPUs' traffic to other nodes."""
    return tuple(nic for nic in nics(node, overrides) if nic.role == FABRIC)


@of_last
def uncounted(node: Node, overrides: Mapping[str, str] = EMPTY) -> tuple[Device, ...]:
    """More functions that may serve the fabric: NICs of which neither a rate nor what they could do is known, and what
    hangs below a bridge and a recording without classes does not tell from NICs."""
    if _rdma_is_known(node) and not _ports_are_aside(node, roles(node, overrides)):
        return ()
    unknown = {nic.address for nic in nics(node, overrides) if nic.role == UNKNOWN and not nic.evident}
    return tuple(
        device
        for device in node.devices.values()
        if device.address in unknown
        or (
            device.kind == OTHER and device.part is None and device.function.class_code is None and len(device.path) > 1
        )
    )


def _rdma_is_known(node: Node) -> bool:
    return bool(node.ports) or any(s.name == "rdma" and s.status in (OK, PARTIAL) for s in node.sources)


def _ports_are_aside(node: Node, told: Mapping[str, str]) -> bool:
    """Whether there are RDMA ports and none of their cards is for the GPUs or storage: then the fabric may be one that
    shows no RDMA devices, as Slingshot's adapters do, beside on-board adapters that do."""
    cards: dict[str, set[str]] = {}
    for port in node.ports:
        if not serves_no_one(node, port):
            cards.setdefault(card_of(port), set()).add(told.get(port_name(port), UNKNOWN))
    return bool(cards) and all(
        not mine & {FABRIC, STORAGE} and (MANAGEMENT in mine or UNUSED not in mine) for mine in cards.values()
    )


def _shares_driver(node: Node, device: Device) -> bool:
    """Whether adapters of the same maker have RDMA devices: then this one would, too."""
    vendors = {d.function.vendor_id for port in node.ports if (d := node.devices.get(known(port.address) or ""))}
    return device.function.vendor_id is not None and device.function.vendor_id in vendors


def _without_function(
    node: Node, name: str, ports: Sequence[Port], told: Mapping[str, str], overrides: Mapping[str, str]
) -> Nic:
    """An adapter whose function is not recorded, or is an accelerator's."""
    integrated = is_integrated(node, ports[0])
    counted = ports
    if integrated:
        # Only the configuration can tell the ports that leave the node from those between the accelerators.
        named = all(overridden(port, overrides) for port in ports)
        counted = [port for port in ports if told.get(port_name(port)) == FABRIC] if named else ()
    return Nic(known(ports[0].address), name, _strongest(ports, told), tuple(ports), _sum(node, counted), integrated)


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
    role, evident = (own, True) if own else _role_without_ports(node, device, interface, rate, told)
    return Nic(device.address, name, role, (), rate, evident=evident)


def _role_without_ports(
    node: Node, device: Device, interface: NetDevice | None, rate: float | None, told: Mapping[str, str]
) -> tuple[str, bool]:
    """The role of an adapter that no RDMA source speaks of, and whether it is evident."""
    if interface and (interface.default_route or _leads_out(node, interface.master)):
        return MANAGEMENT, True
    if _rdma_is_known(node) and (_shares_driver(node, device) or not _ports_are_aside(node, told)):
        return UNKNOWN, True  # the RDMA devices are known, and this is none of them
    if device.part and device.part.management:
        return UNKNOWN, True
    kind = (device.function.class_code or 0) >> 8
    if kind in _INFINIBAND_CLASSES or _is_efa(device) or ":" not in device.address:
        return FABRIC, True  # `nvidia-smi topo -m`, which names no addresses, lists RDMA adapters only
    if rate is not None:
        return FABRIC if rate >= _FAST_ADAPTER_GBPS else UNKNOWN, True
    most = device.part.port_max_gbps if device.part else None
    if most is None or most < _FAST_ADAPTER_GBPS:
        return UNKNOWN, most is not None
    return FABRIC, False


def _leads_out(node: Node, bond: str | None) -> bool:
    """Whether the default route goes over this bond."""
    return bond is not None and any(device.default_route for device in node.netdevs if device.name == bond)


def _is_efa(device: Device) -> bool:
    """Amazon's Elastic Fabric Adapter, an Ethernet class function that is for RDMA alone."""
    return device.function.vendor_id == _AMAZON and (device.function.device_id or 0) >> 4 == 0xEFA


def _strongest(ports: Iterable[Port], told: Mapping[str, str]) -> str:
    """The role of a card with several ports: the fabric's first, an unused port last."""
    mine = {told.get(port_name(port), UNKNOWN) for port in ports}
    return next(r for r in (FABRIC, STORAGE, NVSWITCH, MANAGEMENT, UNUSED, UNKNOWN) if r in mine)


def _sum(node: Node, ports: Iterable[Port]) -> float | None:
    rates = [line_rate(node, port) for port in ports if is_up(port)]
    return sum(r for r in rates if r is not None) if rates and None not in rates else None
