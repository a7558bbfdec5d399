"""The node's shape as one short hash, so that a fleet finds its odd node with one query."""

from __future__ import annotations

from itertools import pairwise

from gpu_topo.model.gpu import ACTIVE, UNKNOWN_STATE
from gpu_topo.model.node import Device, Gpu, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.counted import is_spare
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import is_up, line_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DIGITS = 16


def shape(node: Node) -> str:
    """A hash of the wiring: kinds, models, expected links, switch grouping, links between GPUs, port rates.

    Equal on two nodes of one kind whatever their serial numbers, bus numbers and names; different when a device or a
    link is missing. What a link runs at does not count, since an idle GPU slows its own down.
    """
    import hashlib

    return hashlib.sha256("\n".join(describe(node)).encode()).hexdigest()[:DIGITS]


def describe(node: Node) -> list[str]:
    """The lines that are hashed: sorted, without any name, number or address that differs from node to node."""
    lines = _trees(node)
    joined = interconnect(node)
    lines.append(f"interconnect {joined.shape} {sorted(len(island) for island in joined.islands)}")
    lines += sorted(f"{_model(node.devices.get(gpu.address))} {_links(gpu)}" for gpu in node.gpus)

    def model(address: str) -> str:
        return _model(node.devices[address]) if address in node.devices else "?"

    lines += sorted(
        f"{link.kind} {sorted((model(link.a), model(link.b)))} {known(link.links)} {link.state}"
        for link in node.accelerator_links
    )
    lines += sorted(
        f"port {model(known(port.address) or '')} {known(port.link_layer)} "
        # A port that is down shows a placeholder rate.
        f"{line_rate(node, port) if is_up(port) else 'down'}"
        for port in node.ports
        if not (port.software or port.virtual_function)
    )
    return lines


def _trees(node: Node) -> list[str]:
    """Each root port with what hangs below it, written inside out, siblings sorted by what they are."""
    below: dict[str, list[str]] = {}
    tops: dict[str, None] = {}
    for device in lookup(node).endpoints:
        if is_spare(node, device):
            continue
        path = device.path or (device.address,)
        tops[path[0]] = None
        for upper, lower in pairwise(path):
            children = below.setdefault(upper, [])
            if lower not in children:
                children.append(lower)
    return sorted(_tree(node, top, below) for top in tops)


def _tree(node: Node, address: str, below: Mapping[str, list[str]]) -> str:
    device = node.devices.get(address)
    own = f"{_model(device)} {_expected(device)}"
    children = below.get(address)
    return f"{own} ({', '.join(sorted(_tree(node, child, below) for child in children))})" if children else own


def _model(device: Device | None) -> str:
    """Kind and PCI id; the name where a recording has no ids."""
    if device is None:
        return "unknown"
    function = device.function
    if function.vendor_id is None or function.device_id is None:
        return f"{device.kind} {device.name}"
    return f"{device.kind} {function.vendor_id:04x}:{function.device_id:04x}"


def _expected(device: Device | None) -> str:
    if device is None or device.link is None:
        return "-"
    return f"{device.link.expected_speed_gts}x{device.link.expected_width}"


def _links(gpu: Gpu) -> str:
    """How many NVLinks are up, by what is at their other end."""
    links = known(gpu.nvlinks)
    if links is None:
        return "nvlink unknown"
    active = sorted(link.remote_kind for link in links if link.state == ACTIVE)
    unknown = sum(link.state == UNKNOWN_STATE for link in links)
    return f"nvlink {len(links)} {active} {unknown}"
