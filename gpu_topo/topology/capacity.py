"""What links carry when they are asked to, and which of them are a card's own.

A GPU that idles lowers its link's speed, which makes no path narrower. A card with a switch of its own (AMD's GPUs,
BlueField and other DPUs) shows an inner link that is always wide; what the card gets is the link in the slot.
"""

from __future__ import annotations

from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, Device, Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.model.units import pcie_gbs
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def is_inner(device: Device) -> bool:
    """Whether a bridge is part of a card: no slot is below it."""
    return device.part is not None and device.part.internal_bridge


def card_links(devices: Mapping[str, Device], device: Device) -> Sequence[Device]:
    """The lower ends of the links that are a card's own: the device and the bridges of its card, the slot's link last.

    For a device without bridges of its own that is the device alone.
    """
    path = device.path
    step = devices.get(path[-2]) if len(path) > 1 else None
    if step is None or not is_inner(step):
        return (device,)  # nearly all devices
    ends = [device]
    for address in path[-2::-1]:
        step = devices.get(address)
        if step is None or not is_inner(step):
            break
        if step.link is not None and step.link.port is not None:  # else it leads down: a link belongs to its lower end
            ends.append(step)
    return ends


def is_c2c(node: Node, device: Device) -> bool:
    """Whether a GPU hangs from a chip-to-chip link of its processor (Grace), by its part or by its driver.

    What PCIe shows of it besides means nothing: a narrow link that carries no data.
    """
    if device.part is not None and device.part.c2c:
        return True
    gpu = lookup(node).gpus.get(device.address) if device.kind in (GPU, ACCELERATOR) else None
    return gpu is not None and bool(known(gpu.c2c))


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
    """GB/s per direction of the link above a device under load, None where it is not known (or only guessed, or says
    nothing)."""
    link = device.link
    if link is None or not link.trusted:
        return None
    found = lookup(node).carried_gbs
    if device.address not in found:
        found[device.address] = _carries(node, device, link)
    return found[device.address]


def card_carries(node: Node, device: Device) -> float | None:
    """GB/s per direction that a card gets under load: the narrowest of its own links, None where one is not known."""
    rate = carries(node, device)
    ends = card_links(node.devices, device)
    if len(ends) == 1:
        return rate
    for step in ends[1:]:
        outer = carries(node, step)
        if rate is None or outer is None:
            return None
        rate = min(rate, outer)
    return rate


def _carries(node: Node, device: Device, link: Link) -> float | None:
    if is_c2c(node, device):
        return None
    gpu = gpu_of(node, device)
    if gpu is not None and link.expected_speed_gts is not None and may_idle(gpu):
        return pcie_gbs(link.expected_speed_gts, known(link.width))
    return link.gbs
