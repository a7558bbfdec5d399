"""What a link carries when it is asked to: a GPU that idles lowers its link's speed, which makes no path narrower."""

from __future__ import annotations

from gpu_topo.model.node import BRIDGE, Device, Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.model.units import pcie_gbs
from gpu_topo.topology.lookup import lookup


def gpu_of(node: Node, device: Device) -> Gpu | None:
    """What the driver says of the GPU that a link is for, None for other devices.

    A bridge above a single GPU, and nothing else, inherits that GPU's load.
    """
    address = device.address
    if device.kind == BRIDGE:
        below = lookup(node).below(address)
        if len(below) != 1:
            return None
        address = below[0].address
    return lookup(node).gpus.get(address)


def may_idle(gpu: Gpu) -> bool:
    """Whether a low link speed of this GPU may be idleness: it is not known to work, nor to hold its speed."""
    return gpu.busy is not True and not (gpu.part is not None and gpu.part.holds_speed_when_idle)


def carries(node: Node, device: Device) -> float | None:
    """GB/s per direction of the link above a device under load, None where it is not known (or only guessed)."""
    link = device.link
    if link is None or not link.trusted:
        return None
    found = lookup(node).carried_gbs
    if device.address not in found:
        found[device.address] = _carries(node, device, link)
    return found[device.address]


def _carries(node: Node, device: Device, link: Link) -> float | None:
    gpu = gpu_of(node, device)
    if gpu is not None and link.expected_speed_gts is not None and may_idle(gpu):
        return pcie_gbs(link.expected_speed_gts, known(link.width))
    return link.gbs
