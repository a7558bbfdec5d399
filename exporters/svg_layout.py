"""Where things go in the drawing: what hangs below which CPU and switch, and how much room that takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_topo.model.address import sort_key
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, STORAGE, Device, Node
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.counted import is_spare
from gpu_topo.topology.lookup import lookup

CARD, CARD_HEIGHT = 132, 44  # one device
COLUMN, ROW = CARD + 22, CARD_HEIGHT + 10  # with the trunk at its left
BAR, STEP = 38, 38 + 40  # a switch, and from one switch to the one below
CPU, PAD, MARGIN, HEADER = 38, 14, 20, 64
LANE = 44  # one island of NVLinks
GAP = 26  # between NUMA nodes
WIDEST = 1200  # beyond this a NUMA node goes below the one before: so wide is a page on an ordinary screen
MOST_COLUMNS, MOST_ROWS = 8, 4  # GPUs of one hub side by side; other devices of one column

DRAWN = (NIC, STORAGE, GPU, ACCELERATOR)  # top down; GPUs at the bottom, where NVLink joins them


class Hub(NamedTuple):
    """A switch, or with an empty id the CPU of a NUMA node, with what hangs below it."""

    id: str
    hubs: dict[str, Hub]
    leaves: list[Device]


def panels(node: Node) -> dict[int | None, Hub]:
    """NUMA node -> what hangs below it, in order of the numbers; what has none comes last."""
    found: dict[int | None, Hub] = {}
    for device in node.devices.values():
        if device.kind not in DRAWN or is_spare(node, device):
            continue
        numa = lookup(node).numa_node(device)
        hub = found.setdefault(numa, Hub("", {}, []))
        for step in device.path[:-1]:
            bridge = node.devices.get(step)
            if bridge and bridge.switch and bridge.switch != hub.id:
                hub = hub.hubs.setdefault(bridge.switch, Hub(bridge.switch, {}, []))
        hub.leaves.append(device)
    return dict(sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def lines(found: dict[int | None, Hub]) -> list[dict[int | None, Hub]]:
    """The NUMA nodes side by side where a page is wide enough, else in several lines."""
    filled: list[dict[int | None, Hub]] = []
    left = 0.0
    for numa, hub in found.items():
        width = width_of(hub) + 2 * PAD + GAP
        if not filled or width > left:
            filled.append({})
            left = WIDEST + GAP
        filled[-1][numa] = hub
        left -= width
    return filled


def each_hub(hub: Hub) -> Iterable[Hub]:
    """A hub and all hubs below it."""
    yield hub
    for child in hub.hubs.values():
        yield from each_hub(child)


def depth(hub: Hub) -> int:
    """Switches below each other at the most."""
    return max((1 + depth(child) for child in hub.hubs.values()), default=0)


def width_of(hub: Hub) -> float:
    """Pixels that a hub needs for all that hangs below it."""
    own = columns(hub.leaves) * COLUMN
    below = sum(width_of(child) + PAD for child in hub.hubs.values())
    return max(own + below - (PAD if below and not own else 0), COLUMN + 40)


def columns(leaves: Sequence[Device]) -> int:
    """Columns that the devices of one hub take: one a GPU, the others in rows above them."""
    gpus = sum(device.kind in (GPU, ACCELERATOR) for device in leaves)
    return max(min(gpus, MOST_COLUMNS), -(-(len(leaves) - gpus) // MOST_ROWS))


def rows(leaves: Sequence[Device]) -> tuple[list[list[Device]], list[list[Device]]]:
    """The rows of the others, NICs first, and the rows of the GPUs."""
    ordered = sorted(leaves, key=lambda device: (DRAWN.index(device.kind), sort_key(device.address)))
    gpus = [device for device in ordered if device.kind in (GPU, ACCELERATOR)]
    others = [device for device in ordered if device.kind not in (GPU, ACCELERATOR)]
    across = max(columns(leaves), 1)

    def split(items: list[Device]) -> list[list[Device]]:
        return [items[i : i + across] for i in range(0, len(items), across)]

    return split(others), split(gpus)
