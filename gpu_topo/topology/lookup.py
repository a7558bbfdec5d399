"""Indexes of a Node, built once and kept while the same Node is being asked about.

A Node is a plain tuple of facts; rules and reports that ask it the same question for each of 5,000 functions would
otherwise search it 5,000 times.
"""

from __future__ import annotations

from gpu_topo.model.address import slot_of
from gpu_topo.model.cached import of_last
from gpu_topo.model.host import BlockDevice, NetDevice, Port
from gpu_topo.model.node import ENDPOINT_KINDS, Device, Gpu, Node
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import known
from gpu_topo.topology.tree import port_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENDPOINTS = frozenset(ENDPOINT_KINDS)


class Lookup:
    """What rules look up of one Node: by address, in constant time.

    Threads share it: an index is made whole before it is kept.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.functions: Mapping[str, Function] = {a: d.function for a, d in node.devices.items()}
        self.gpus: Mapping[str, Gpu] = {gpu.address: gpu for gpu in node.gpus}
        self.endpoints: Sequence[Device] = [d for d in node.devices.values() if d.kind in _ENDPOINTS]
        self.carried_gbs: dict[str, float | None] = {}  # what capacity.carries has worked out, by address
        self._kinds: dict[tuple[str, ...], Sequence[Device]] = {}
        self._port_types: dict[str, str | None] = {}
        self._below: dict[str, list[Device]] | None = None
        self._ports: dict[str, list[Port]] | None = None
        self._netdevs: dict[str, list[NetDevice]] | None = None
        self._named: dict[str, NetDevice] | None = None
        self._blocks: dict[str, list[BlockDevice]] | None = None
        self._numas: dict[str, int | None] = {}
        self._numa_of_slot: dict[str, int] | None = None  # device without function -> NUMA node

    def of(self, *kinds: str) -> Sequence[Device]:
        """The devices of these kinds in address order: a rule need not look at the thousands of other functions."""
        found = self._kinds.get(kinds)
        if found is None:
            among = self.endpoints if _ENDPOINTS.issuperset(kinds) else self.node.devices.values()
            found = self._kinds[kinds] = [device for device in among if device.kind in kinds]
        return found

    def port_type(self, address: str) -> str | None:
        """What kind of port a bridge is, None for other functions and where it cannot be told."""
        if address not in self._port_types:
            self._port_types[address] = port_type(self.functions, self.functions[address])
        return self._port_types[address]

    def below(self, address: str) -> Sequence[Device]:
        """GPUs, accelerators, NICs, storage and NVSwitches anywhere below a bridge, without virtual functions."""
        found = self._below
        if found is None:
            found = {}
            for device in self.endpoints:
                if device.function.physical_function:
                    continue
                for step in device.path[:-1]:
                    found.setdefault(step, []).append(device)
            self._below = found
        return found.get(address, ())

    def numa_node(self, device: Device) -> int | None:
        """The NUMA node of a device, else of another function of the same device, else of the nearest bridge above
        that knows it."""
        if device.address not in self._numas:
            self._numas[device.address] = self._nearest_numa(device)
        return self._numas[device.address]

    def _nearest_numa(self, device: Device) -> int | None:
        number = known(device.function.numa_node)
        if number is not None:
            return number
        slots = self._numa_of_slot
        if slots is None:
            slots = {}
            for address, function in self.functions.items():
                if (other := known(function.numa_node)) is not None:
                    slots.setdefault(slot_of(address), other)
            self._numa_of_slot = slots
        number = slots.get(slot_of(device.address))
        for step in reversed(device.path[:-1]) if number is None else ():
            number = known(self.functions[step].numa_node) if step in self.functions else None
            if number is not None:
                return number
        return number

    def ports(self, address: str) -> Sequence[Port]:
        """The RDMA ports of a PCI function."""
        found = self._ports
        if found is None:
            found = {}
            for port in self.node.ports:
                found.setdefault(known(port.address) or "", []).append(port)
            self._ports = found
        return found.get(address, ())

    def netdevs(self, address: str) -> Sequence[NetDevice]:
        """The network interfaces of a PCI function."""
        found = self._netdevs
        if found is None:
            found = {}
            for net in self.node.netdevs:
                found.setdefault(known(net.address) or "", []).append(net)
            self._netdevs = found
        return found.get(address, ())

    def netdev(self, name: str) -> NetDevice | None:
        """The network interface of a name."""
        found = self._named
        if found is None:
            found = self._named = {net.name: net for net in reversed(self.node.netdevs)}
        return found.get(name)

    def blocks(self, address: str) -> Sequence[BlockDevice]:
        """The drives of a PCI function."""
        found = self._blocks
        if found is None:
            found = {}
            for block in self.node.blocks:
                found.setdefault(known(block.address) or "", []).append(block)
            self._blocks = found
        return found.get(address, ())


@of_last
def lookup(node: Node) -> Lookup:
    """The indexes of a Node; asking about the same Node again costs nothing."""
    return Lookup(node)
