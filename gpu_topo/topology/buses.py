"""Parents by bus numbers, for recordings that do not state them: a function hangs below the bridge that forwards to
its bus."""

from __future__ import annotations

from gpu_topo.model import pci
from gpu_topo.model.address import domain_and_bus
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import Unknown
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Only these can sit on a root bus and nowhere else, so their neighbours are on one too.
_ROOT_BUS_TYPES = frozenset((pci.ROOT_PORT, pci.INTEGRATED_ENDPOINT, pci.EVENT_COLLECTOR))
_HOST_BRIDGE = 0x0600
_BRIDGE = 0x0604
_FIRST = "0000:00:00.0"
_MAX_DEPTH = 256  # each bridge leads to a bus with a higher number

Bus = tuple[int, int]  # domain, bus number


class _Forwarding(NamedTuple):
    """Which bridge leads to a bus directly, and which is the innermost whose range holds it."""

    direct: dict[Bus, str]
    innermost: dict[Bus, str]


def place(functions: Iterable[Function]) -> tuple[Function, ...]:
    """The functions with parent and host_bridge filled in where bus numbers tell them, and left Unknown where not.

    Known parents stay. A function on a bus that no recorded bridge leads to is on a root bus only where something
    proves it: bus 0, a root port or integrated endpoint beside it, or a listing of the whole machine.
    """
    listed = tuple(functions)
    by_address = {function.address: function for function in listed}
    buses = {address: bus for address in by_address if (bus := _bus(address)) is not None}
    forwarding = _forwarding(listed, buses)
    roots = {buses[f.address] for f in listed if f.address in buses and _proves_root_bus(f)}
    whole = _lists_all_bridges(by_address)
    parents: dict[str, str | None] = {}
    for function in listed:
        if not isinstance(function.parent, Unknown):
            parents[function.address] = function.parent
        elif (bus := buses.get(function.address)) is not None:
            above = _above(function, bus, forwarding, buses)
            if above is not None:
                parents[function.address] = above
            elif bus not in forwarding.innermost and (bus[1] == 0 or bus in roots or whole):
                parents[function.address] = None
    below = set(parents.values())
    return tuple(_placed(function, parents, buses, below) for function in listed)


def _bus(address: str) -> Bus | None:
    try:
        return domain_and_bus(address)
    except ValueError:
        return None  # a name instead of an address


def _forwarding(functions: Iterable[Function], buses: dict[str, Bus]) -> _Forwarding:
    """The first bridge of each secondary bus counts: bridges that nobody has set up repeat each other's numbers."""
    direct: dict[Bus, str] = {}
    ranges: list[tuple[int, int, int, str]] = []
    for function in functions:
        bus, secondary, subordinate = buses.get(function.address), function.secondary_bus, function.subordinate_bus
        # Buses are numbered downwards from the root, so that parents cannot form a loop.
        if bus is None or secondary is None or secondary <= bus[1] or (bus[0], secondary) in direct:
            continue
        direct[bus[0], secondary] = function.address
        ranges.append((bus[0], secondary, max(secondary, min(subordinate or 0, 0xFF)), function.address))
    innermost: dict[Bus, str] = {}
    for domain, secondary, subordinate, address in sorted(ranges):
        for number in range(secondary, subordinate + 1):
            innermost[domain, number] = address
    return _Forwarding(direct, innermost)


def _proves_root_bus(function: Function) -> bool:
    return function.port_type in _ROOT_BUS_TYPES or (function.class_code or 0) >> 8 == _HOST_BRIDGE


def _lists_all_bridges(by_address: dict[str, Function]) -> bool:
    """Whether this looks like the listing of a whole machine, with the bus numbers of every bridge in it."""
    return _FIRST in by_address and all(
        function.secondary_bus is not None
        for function in by_address.values()
        if (function.class_code or 0) >> 8 == _BRIDGE
    )


def _above(function: Function, bus: Bus, forwarding: _Forwarding, buses: dict[str, Bus]) -> str | None:
    """The bridge that leads to a function's bus. Virtual functions spill over to buses after their physical one's."""
    above = forwarding.direct.get(bus)
    if above is None and function.virtual_function:
        home = buses.get(function.physical_function or "", bus)
        above = forwarding.direct.get(home) or forwarding.innermost.get(bus)
    return None if above == function.address else above


def _placed(
    function: Function, parents: dict[str, str | None], buses: dict[str, Bus], below: set[str | None]
) -> Function:
    """One function with what was found out. A slot with something below it is not empty, whatever its pins say."""
    address = function.address
    host_bridge = function.host_bridge
    if host_bridge is None and address in parents:
        root: str | None = address
        for _ in range(_MAX_DEPTH):
            above = parents.get(root or "")
            if above is None:
                break
            root = above
        if root in buses and parents.get(root, "") is None:
            host_bridge = "pci{:04x}:{:02x}".format(*buses[root])
    empty = function.hotplug_empty and address not in below
    if address not in parents or (
        parents[address] == function.parent and host_bridge == function.host_bridge and empty == function.hotplug_empty
    ):
        return function
    return function._replace(parent=parents[address], host_bridge=host_bridge, hotplug_empty=empty)
