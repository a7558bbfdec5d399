"""The way between two endpoints, with the meaning of `nvidia-smi topo -m`, and its narrowest link."""

from __future__ import annotations

from gpu_topo.model.address import pair_key, slot_of
from gpu_topo.model.cached import of_last
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import NIC, STORAGE, Device, Node
from gpu_topo.model.pci import UPSTREAM_PORT
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import NODE, PHB, PIX, PXB, SYS, UNKNOWN_PATH, Path
from gpu_topo.topology.bonds import Bonds, bonds
from gpu_topo.topology.capacity import carries, is_c2c, is_inner
from gpu_topo.topology.counted import endpoints
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.tree import common_steps, is_complete, root_bus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_EMULATED = frozenset({(0x104C, 0x8232), (0x104C, 0x8233)})  # QEMU: hw/pci-bridge/xio3130_upstream.c, _downstream.c
_ENDLESS = float("inf")  # GB/s of what limits nothing, since there is no link
# GB/s of a chip-to-chip link to the processor. What it carries is not told, but it is more than any PCIe link does: 450
# on Grace (NVIDIA's white papers), 223 as NVML says of GB300.
_CHIP_TO_CHIP = 1e9
MAX_ENDPOINTS = 64  # beyond this only pairs below one host bridge are listed, unless everything is asked for


class _End(NamedTuple):
    """What every path to one endpoint is made of."""

    device: Device
    path: tuple[str, ...]
    chain: tuple[str, ...]  # the path without the bridges that are part of a card: they are no step of the way
    rates: tuple[float | None, ...]  # GB/s that the link above each step of the path carries
    slot: str


class Router:
    """Answers path questions of one Node; what several answers need is worked out once."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._functions = lookup(node).functions
        self._bonds: Bonds = bonds(node)
        self._steps: dict[str, float | None] = {}  # bridge -> what the link above it carries
        self._ends: dict[str, _End] = {}
        self._paths: dict[tuple[str, str], Path] = {}

    def path(self, a: str, b: str) -> Path:
        """The path between two addresses (or names that a recording uses instead)."""
        found = self._paths.get((a, b))
        if found is None:
            found = self._paths[a, b] = self._path(a, b)
        return found

    def _path(self, a: str, b: str) -> Path:
        pair = pair_key(a, b) if self._bonds or self.node.stated_paths else (a, b)
        bond = self._bonds.get(pair)
        if bond is not None:
            return Path(a, b, bond.kind, bond.gbs)
        devices = self.node.devices
        if a in devices and b in devices:
            kind, gbs, via = self._pcie(self._end(a), self._end(b))
        else:
            kind, gbs, via = UNKNOWN_PATH, None, ()
        stated = self.node.stated_paths.get(pair)
        if stated is not None and (kind == UNKNOWN_PATH or stated[:2] in ("NV", "XG", "HC")):
            kind = stated
        return Path(a, b, kind, gbs, via)

    def _end(self, address: str) -> _End:
        end = self._ends.get(address)
        if end is None:
            devices = self.node.devices
            device = devices[address]
            path = device.path or (address,)
            inner = [step for step in path if step in devices and is_inner(devices[step])]
            chain = tuple([step for step in path if step not in inner]) if inner else path
            if is_c2c(self.node, device):
                rates: tuple[float | None, ...] = (*[_ENDLESS] * (len(path) - 1), _CHIP_TO_CHIP)
            else:
                rates = (*map(self._rate, path[:-1]), self._step(address, True))
            end = self._ends[address] = _End(device, path, chain, rates, slot_of(address))
        return end

    def _pcie(self, a: _End, b: _End) -> tuple[str, float | None, tuple[str, ...]]:
        """Kind, GB/s and bridges of the way over PCIe."""
        up, down = a.chain, b.chain
        shared = min(common_steps(up, down), len(up) - 1, len(down) - 1)
        # Two functions of one device: the traffic never leaves it.
        gbs = None if a.slot == b.slot else _narrowest(a, b)
        if shared > 0:
            via = (*reversed(up[shared - 1 : -1]), *down[shared:-1])
            # A guest may show its devices behind emulated bridges: that they share one says nothing of the host.
            if self.node.platform.kind == VIRTUAL_MACHINE and not self._real(up[shared - 1]):
                return UNKNOWN_PATH, gbs, via
            return self._below(up[shared - 1], len(up) - shared, len(down) - shared), gbs, via
        via = (*reversed(up[:-1]), *down[:-1])
        return self._above(a.device, b.device), gbs, via

    def _real(self, bridge: str) -> bool:
        device = self.node.devices.get(bridge)
        if device is None or device.part is None or not device.part.switch_chip:
            return False
        return (device.function.vendor_id, device.function.device_id) not in _EMULATED

    def _below(self, common: str, up: int, down: int) -> str:
        """PIX or PXB for two endpoints that are so many steps below their deepest common bridge."""
        if up == down == 1:
            return PIX
        kind = lookup(self.node).port_type(common) if common in self.node.devices else None
        # One switch: an upstream port on top, then one downstream port to each side. Without port types (NCCL XML)
        # a switch is a single bridge, or a bridge with one more on each side.
        if kind in (UPSTREAM_PORT, None) and up <= 2 and down <= 2:
            return PIX
        return PXB

    def _above(self, a: Device, b: Device) -> str:
        """PHB, NODE, SYS or UNKNOWN for two endpoints without a common bridge."""
        node = self.node
        if node.platform.kind == VIRTUAL_MACHINE:
            return UNKNOWN_PATH
        numa_a, numa_b = lookup(node).numa_node(a), lookup(node).numa_node(b)
        if numa_a is not None and numa_b is not None and numa_a != numa_b:
            return SYS
        root_a = root_bus(self._functions, a.path)
        root_b = root_bus(self._functions, b.path)
        if root_a is not None and root_a == root_b:
            return PHB
        complete = is_complete(self._functions, a.path) and is_complete(self._functions, b.path)
        rooted = complete or (a.function.host_bridge is not None and b.function.host_bridge is not None)
        if not rooted:
            return UNKNOWN_PATH
        if numa_a is not None and numa_b is not None:
            return NODE
        return NODE if known(node.platform.numa_count) == 1 else UNKNOWN_PATH

    def _rate(self, bridge: str) -> float | None:
        if bridge not in self._steps:
            self._steps[bridge] = self._step(bridge, False)
        return self._steps[bridge]

    def _step(self, address: str, is_end: bool) -> float | None:
        """What the link above a device carries, None where it is not known, infinity where there is no such link."""
        device = self.node.devices.get(address)
        link = device.link if device is not None else None
        if link is not None and address in self.node.hidden_links:
            return None
        # A link belongs to its lower end; a downstream or root port shows the same link from above.
        if device is None or link is None or (link.port is None and not is_end):
            return _ENDLESS
        return carries(self.node, device)


def _narrowest(a: _End, b: _End) -> float | None:
    """The narrowest link on the way, None where one of them is not known: it may be the narrowest."""
    shared = common_steps(a.path, b.path)
    rates = (*a.rates[shared:], *b.rates[shared:])
    if None in rates:
        return None
    links = [rate for rate in rates if rate is not None and rate != _ENDLESS]
    narrowest = min(links) if len(links) >= 2 else _CHIP_TO_CHIP
    return narrowest if narrowest < _CHIP_TO_CHIP else None


@of_last
def router(node: Node) -> Router:
    """The Router of a Node; rules and reports that ask about the same one share what it has worked out."""
    return Router(node)


def path(node: Node, a: str, b: str) -> Path:
    """The path between two endpoints of a node, by address."""
    return router(node).path(a, b)


def all_paths(node: Node, everything: bool = False) -> tuple[Path, ...]:
    """GPU-GPU, GPU-NIC, GPU-storage and NIC-storage (accelerators like GPUs).

    All pairs up to MAX_ENDPOINTS endpoints; beyond that only pairs below one host bridge, unless `everything`.
    """
    way = router(node).path
    chosen = endpoints(node)
    groups: Iterable[list[Device]] = [chosen]
    if len(chosen) > MAX_ENDPOINTS and not everything:
        by_root: dict[str, list[Device]] = {}
        for device in chosen:
            by_root.setdefault(device.path[0].rsplit(":", 1)[0] if device.path else device.address, []).append(device)
        groups = by_root.values()
    found = []
    for group in groups:
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                if a.kind in (NIC, STORAGE) and a.kind == b.kind:
                    continue
                found.append(way(a.address, b.address))
    return tuple(found)
