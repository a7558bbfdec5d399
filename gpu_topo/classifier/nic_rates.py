"""What network adapters ask of their PCIe links: the rate that their lines run at, else the most that they can do."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.model.address import slot_of
from gpu_topo.model.node import NIC, Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import is_up, line_rate

_FAST_GBS = 1.25  # 10 Gb/s


class Rate(NamedTuple):
    """GB/s per direction: what lines are known to run at, and what they can do at most."""

    least: float
    most: float

    @property
    def known(self) -> bool:
        """Whether it is known how all lines run."""
        return self.least == self.most


def function_rate(node: Node, device: Device) -> Rate | None:
    """The ports of one function together: their rate, else the interface's speed, else the board's or part's most."""
    ports = lookup(node).ports(device.address)
    rates = [rate for port in ports if (rate := line_rate(node, port)) is not None and is_up(port)]
    if not rates:
        speeds = [known(net.speed_mbps) for net in lookup(node).netdevs(device.address)]
        rates = [speed / 1000 for speed in speeds if speed is not None and speed > 0]
    if rates:
        return Rate(sum(rates) / 8, sum(rates) / 8)
    # One chip is sold in several grades: that of the board, where its PSID tells, is no more than the chip's.
    grades = [grade for port in ports if (board := known(port.board_id)) and (grade := catalogue.psid_gbps(board))]
    most = sum(grades) if ports and len(grades) == len(ports) else device.part.port_max_gbps if device.part else None
    return Rate(0.0, most / 8) if most else None


def card_rate(node: Node, device: Device) -> Rate | None:
    """All functions of a NIC together, since they share its link; None where one says nothing. A port without a cable
    brings nothing, beside one that has one."""
    slot = slot_of(device.address)
    beside = [node.devices.get(f"{slot}.{number}") for number in range(8)]
    functions = [d for d in beside if d is not None and d.kind == NIC and not d.function.virtual_function] or [device]
    rates = [function_rate(node, d) for d in functions]
    if any(rate is not None and rate.least for rate in rates):
        rates = [rate for rate, d in zip(rates, functions, strict=True) if not _is_idle(node, d)]
    known_rates = [rate for rate in rates if rate is not None]
    if not known_rates or len(known_rates) < len(rates):
        return None
    return Rate(sum(rate.least for rate in known_rates), sum(rate.most for rate in known_rates))


def _is_idle(node: Node, device: Device) -> bool:
    """Whether none of a function's ports carries data, as far as that is known of each."""
    ports = lookup(node).ports(device.address)
    return bool(ports) and all(known(port.state) is not None and not is_up(port) for port in ports)


def fitting(rate: Rate) -> str:
    """Why a link that carries no less is enough, for a sentence."""
    most = f"{rate.most:.1f} GB/s"
    return f"its line rate of {most} fits" if rate.known else f"its ports do {most} at most"


def is_fast_nic(node: Node, device: Device) -> bool:
    """A NIC of 10 Gb/s and more."""
    rate = function_rate(node, device) if device.kind == NIC else None
    return rate is not None and rate.most >= _FAST_GBS
