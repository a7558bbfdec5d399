"""What network adapters ask of their PCIe links: the rate that their lines run at, else the most that they can do."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.model.address import slot_of
from gpu_topo.model.node import NIC, Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import line_rate

_FAST_GBS = 1.25  # 10 Gb/s


class Rate(NamedTuple):
    """GB/s per direction. known: as its lines run; else it is what they can do at most, and they may do less."""

    gbs: float
    known: bool


def function_rate(node: Node, device: Device) -> Rate | None:
    """The ports of one function together: their rate, else the interface's speed, else the board's or part's most."""
    ports = lookup(node).ports(device.address)
    rates = [
        rate
        for port in ports
        if (rate := line_rate(node, port)) is not None and str(known(port.state) or "").startswith("ACTIVE")
    ]
    if not rates:
        speeds = [known(net.speed_mbps) for net in lookup(node).netdevs(device.address)]
        rates = [speed / 1000 for speed in speeds if speed is not None and speed > 0]
    if rates:
        return Rate(sum(rates) / 8, True)
    # One chip is sold in several grades: that of the board, where its PSID tells, is no more than the chip's.
    grades = [grade for port in ports if (board := known(port.board_id)) and (grade := catalogue.psid_gbps(board))]
    most = sum(grades) if ports and len(grades) == len(ports) else device.part.port_max_gbps if device.part else None
    return Rate(most / 8, False) if most else None


def card_rate(node: Node, device: Device) -> Rate | None:
    """All functions of a NIC together, since they share its link; None where one says nothing."""
    slot = slot_of(device.address)
    beside = [node.devices.get(f"{slot}.{number}") for number in range(8)]
    functions = [d for d in beside if d is not None and d.kind == NIC and not d.function.virtual_function] or [device]
    rates = [rate for d in functions if (rate := function_rate(node, d)) is not None]
    if len(rates) < len(functions):
        return None
    return Rate(sum(rate.gbs for rate in rates), all(rate.known for rate in rates))


def is_fast_nic(node: Node, device: Device) -> bool:
    """A NIC of 10 Gb/s and more."""
    rate = function_rate(node, device) if device.kind == NIC else None
    return rate is not None and rate.gbs >= _FAST_GBS
