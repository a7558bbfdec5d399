"""Which adapter or drive is nearest to a GPU, without asking for every pair of a large machine."""

from __future__ import annotations

from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.structure import PCIE_KINDS, UNKNOWN_PATH, Path
from gpu_topo.topology.paths import Router

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_FAR = 16  # beyond the own socket one candidate is as good as another


class Neighbourhood:
    """The candidates of one kind, sorted by where they are, so that a GPU looks at those around it only."""

    def __init__(self, router: Router, candidates: Iterable[str]) -> None:
        self._router = router
        self._node: Node = router.node
        self._all = tuple(candidates)
        self._by_root: dict[str, list[str]] = {}
        self._by_bridge: dict[str, list[str]] = {}
        self._by_numa: dict[int, list[str]] = {}
        for address in self._all:
            device = self._node.devices.get(address)
            if device is None:
                continue
            if len(device.path) > 1:
                self._by_root.setdefault(device.path[0], []).append(address)
            self._by_bridge.setdefault(_host_bridge(device), []).append(address)
            numa = numa_node(self._node, device)
            if numa is not None:
                self._by_numa.setdefault(numa, []).append(address)

    def nearest(self, address: str) -> tuple[Path, ...]:
        """The paths to the nearest candidates: all of the best kind, the widest first. Empty where no kind is known."""
        for group in self._around(address):
            paths = [self._router.path(address, other) for other in group]
            kinds = [path for path in paths if path.kind != UNKNOWN_PATH]
            if kinds:
                best = min(rank(path.kind) for path in kinds)
                chosen = [path for path in kinds if rank(path.kind) == best]
                return tuple(sorted(chosen, key=lambda path: -(path.gbs or 0.0)))
        return ()

    def _around(self, address: str) -> Iterable[Sequence[str]]:
        """Groups of candidates, those behind the same root port first."""
        device = self._node.devices.get(address)
        if device is None or self._node.stated_paths:
            # `nvidia-smi topo -m` states each pair and knows more than an incomplete tree.
            yield self._all
            return
        yield self._by_root.get(device.path[0], ()) if len(device.path) > 1 else ()
        yield self._by_bridge.get(_host_bridge(device), ())
        numa = numa_node(self._node, device)
        yield self._by_numa.get(numa, ()) if numa is not None else ()
        yield self._all[:_MOST_FAR]


def rank(kind: str) -> int:
    """0 for the nearest kind of path; what is not PCIe is nearer still."""
    return PCIE_KINDS.index(kind) if kind in PCIE_KINDS else -1


def numa_node(node: Node, device: Device) -> int | None:
    """The NUMA node of a device, else of the nearest bridge above that knows it."""
    for address in reversed(device.path or (device.address,)):
        step = node.devices.get(address)
        number = known(step.function.numa_node) if step is not None else None
        if number is not None:
            return number
    return None


def _host_bridge(device: Device) -> str:
    top = device.path[0] if device.path else device.address
    return device.function.host_bridge or "pci" + top.rsplit(":", 1)[0]
