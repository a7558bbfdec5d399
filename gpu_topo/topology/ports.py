"""What rules and reports ask of one RDMA port: its name, whether it is up, and the rate that it really runs at."""

from __future__ import annotations

from gpu_topo.model.address import slot_of
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import Node
from gpu_topo.model.reading import known
from gpu_topo.topology.lookup import lookup

_UP = ("ACTIVE", "ACTIVE_DEFER")
_WAITING = ("INIT", "ARMED")


def port_name(port: Port) -> str:
    """mlx5_0/1, as findings name it."""
    return f"{port.device}/{port.port}"


def netdev_of(node: Node, port: Port) -> NetDevice | None:
    """The network interface of a port."""
    name = known(port.netdev)
    if not name:
        return None
    for near in (lookup(node).netdevs(known(port.address) or ""), node.netdevs):
        for device in near:
            if device.name == name:
                return device
    return None


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


def has_link(port: Port) -> bool:
    """Whether the port has a partner: it is up, or waits for a subnet manager."""
    return is_up(port) or known(port.state) in _WAITING


def card_of(port: Port) -> str:
    """What the functions and ports of one card share."""
    address = known(port.address)
    return slot_of(address) if address else port.card or port.device


def position(port: Port) -> tuple[str, int]:
    """Which port of its card this is: function and number. Cards are cabled alike, port by port."""
    address = known(port.address) or ""
    number = port.card_function
    function = address.rpartition(".")[2] if address or number is None else str(number)
    return function, port.port


def serves_no_one(node: Node, port: Port) -> bool:
    """Soft-RoCE, and a virtual function beside its visible physical function."""
    if port.software:
        return True
    device = node.devices.get(known(port.address) or "")
    physical = port.physical_function or (device.function.physical_function if device else None)
    virtual = port.virtual_function or (device is not None and device.function.virtual_function)
    return virtual and physical is not None and physical in node.devices
