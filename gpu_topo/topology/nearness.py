"""Which adapter or drive is nearest to a GPU, without asking for every pair of a large machine."""

from __future__ import annotations

from gpu_topo.model.cached import of_last
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import Device, Node
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import NODE, PCIE_KINDS, PIX, Path
from gpu_topo.model.structure import UNKNOWN_PATH as HIDDEN
from gpu_topo.topology.adapters import fabric
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.paths import Router, router
from gpu_topo.topology.tree import is_complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOST_FAR = 16  # beyond the own socket one candidate is as good as another


class Nearest(NamedTuple):
    """What is known of the candidates nearest to a GPU."""

    paths: tuple[Path, ...]  # to those of the nearest kind that is known, the widest first; empty where none is
    hidden: str | None = None  # a candidate whose path is not known and that may be nearer than these


class Neighbourhood:
    """The candidates of one kind, sorted by where they are, so that a GPU looks at those around it only."""

    def __init__(self, router: Router, candidates: Iterable[str]) -> None:
        self._router = router
        self._node: Node = router.node
        self._all = tuple(candidates)
        self._by_root: dict[str, list[str]] = {}
        self._by_bridge: dict[str, list[str]] = {}
        self._by_numa: dict[int, list[str]] = {}
        self._doubtful: dict[bool, Sequence[str]] = {}  # what _may_be_anywhere has worked out
        for address in self._all:
            device = self._node.devices.get(address)
            if device is None:
                continue
            if len(device.path) > 1:
                self._by_root.setdefault(device.path[0], []).append(address)
            self._by_bridge.setdefault(_host_bridge(device), []).append(address)
            numa = lookup(self._node).numa_node(device)
            if numa is not None:
                self._by_numa.setdefault(numa, []).append(address)

    def nearest(self, address: str) -> Nearest:
        """The nearest candidates as far as is known, and whether one of unknown place may be nearer."""
        paths = self._nearest_known(address)
        best = rank(paths[0].kind) if paths else len(PCIE_KINDS)
        if best > rank(PIX):  # else nothing is nearer
            for candidate in self._in_doubt(address, best):
                if self._router.path(address, candidate).kind == HIDDEN:
                    return Nearest(paths, candidate)
        return Nearest(paths)

    def _in_doubt(self, address: str, best: int) -> Sequence[str]:
        """The candidates whose path may be unknown: few where the tree is whole, so that a GPU need not ask for all."""
        node = self._node
        device = node.devices.get(address)
        if device is None or node.stated_paths or node.platform.kind == VIRTUAL_MACHINE:
            return self._all
        if not is_complete(lookup(node).functions, device.path):
            return self._all
        if best > rank(NODE) and lookup(node).numa_node(device) is None:
            return self._all
        return self._may_be_anywhere(best > rank(NODE))

    def _may_be_anywhere(self, beyond_host_bridges: bool) -> Sequence[str]:
        """Candidates whose way up is cut short. beyond_host_bridges: also those of unknown NUMA node, of which a whole
        tree does not tell whether they are NODE or SYS."""
        found = self._doubtful.get(beyond_host_bridges)
        if found is None:
            devices, functions = self._node.devices, lookup(self._node).functions
            found = self._doubtful[beyond_host_bridges] = [
                candidate
                for candidate in self._all
                if candidate not in devices
                or not is_complete(functions, devices[candidate].path)
                or (beyond_host_bridges and lookup(self._node).numa_node(devices[candidate]) is None)
            ]
        return found

    def _nearest_known(self, address: str) -> tuple[Path, ...]:
        """The paths to all candidates of the best kind that is known, the widest first."""
        for group in self._around(address):
            paths = [self._router.path(address, other) for other in group]
            kinds = [path for path in paths if path.kind != HIDDEN]
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
        numa = lookup(self._node).numa_node(device)
        yield self._by_numa.get(numa, ()) if numa is not None else ()
        yield self._all[:_MOST_FAR]


@of_last
def nearest_adapters(node: Node, roles: Mapping[str, str] = EMPTY) -> Mapping[str, Nearest]:
    """GPU -> what is known of its nearest fabric adapters. roles: overrides from the configuration."""
    around = Neighbourhood(router(node), [nic.address or nic.name for nic in fabric(node, roles)])
    return {gpu.address: around.nearest(gpu.address) for gpu in accelerators(node)}


def rank(kind: str) -> int:
    """0 for the nearest kind of path; what is not PCIe is nearer still."""
    return PCIE_KINDS.index(kind) if kind in PCIE_KINDS else -1


def _host_bridge(device: Device) -> str:
    top = device.path[0] if device.path else device.address
    return device.function.host_bridge or "pci" + top.rsplit(":", 1)[0]
