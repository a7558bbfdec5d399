"""Every function with what it is, in its place: kind, name and part, link, path and switch chip."""

from __future__ import annotations

from gpu_topo.assemble.identify import Identity, identify, identify_all
from gpu_topo.assemble.links import bottleneck, from_driver, join
from gpu_topo.assemble.views import GPU_MAKERS, DriverViews, numbered_twice
from gpu_topo.catalogue import gpu_part_by_name, is_virtual_function
from gpu_topo.model.address import in_order, sort_key
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, Device, Link, Part, Switch
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import EMPTY, MALFORMED, Unknown, known
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.switches import build, chip_of
from gpu_topo.topology.tree import parent_of, paths_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Names = Callable[[Iterable[tuple[int, int]]], Mapping[tuple[int, int], str]]

_TOLD_CLASSES = frozenset({0x01, 0x02, 0x03, 0x06, 0x0B, 0x12})  # storage, network, display, bridges, processing


def identities_of(
    functions: Mapping[str, Function], kinds: Sequence[Sequence[str]], names: Names | None
) -> dict[str, Identity]:
    """Kind, name and part of every function, in address order."""
    one_of_each = (functions[addresses[0]] for addresses in kinds)
    wanted = {ids for f in one_of_each if is_told(f) and (ids := unnamed_ids(f)) is not None}
    found = identify_all(functions, kinds, names(wanted) if names is not None and wanted else EMPTY)
    return {address: found[address] for address in in_order(functions)}


def is_told(function: Function) -> bool:
    """Whether a report may speak of this function: the hundred small parts of a processor have neither a link nor a
    class that any rule looks at."""
    return function.link is not None or function.class_code is None or function.class_code >> 16 in _TOLD_CLASSES


def unnamed_ids(function: Function) -> tuple[int, int] | None:
    """Vendor and device id of a function that no source named."""
    if function.name is not None or function.vendor_id is None or function.device_id is None:
        return None
    return function.vendor_id, function.device_id


def mark_virtual(functions: dict[str, Function], kinds: Sequence[Sequence[str]]) -> None:
    """In a guest only the id tells a virtual function from a physical one."""
    for addresses in kinds:
        f = functions[addresses[0]]
        if f.vendor_id is None or f.device_id is None or (f.class_code or 0) >> 16 != 0x02:
            continue
        if is_virtual_function(f.vendor_id, f.device_id):
            for address in addresses:
                if not functions[address].virtual_function:
                    functions[address] = functions[address]._replace(virtual_function=True)


def as_drivers_know(
    functions: dict[str, Function], identities: dict[str, Identity], views: Mapping[str, DriverViews]
) -> None:
    """GPUs as their driver knows them: by the model that people say, and also where no PCI listing has them."""
    if not views:
        return
    on_the_bus = {functions[a].vendor_id for a, i in identities.items() if i.kind == GPU and not i.integrated}
    makers = {functions[a].vendor_id for a, identity in identities.items() if identity.kind == ACCELERATOR}
    among = numbered_twice(views)
    for address in sorted(views, key=sort_key):
        view = views[address].view
        whose = {view.vendor_id or NVIDIA, None}  # a drawing of names has no vendors
        seen = not on_the_bus.isdisjoint(whose) if view.vendor_id in GPU_MAKERS else view.vendor_id in makers
        if address in among or (seen and ":" not in address):
            continue  # one of the GPUs on the bus, but which one its driver cannot say just now: no further device
        if address not in functions:
            functions[address] = Function(address, view.vendor_id, view.device_id, numa_node=view.numa_node)
        identity = identities.get(address) or identify(functions[address])
        model = known(view.model)
        part = identity.part or (gpu_part_by_name(model) if model else None)
        kind = identity.kind
        if kind not in (GPU, ACCELERATOR):
            kind = GPU if view.vendor_id in GPU_MAKERS else ACCELERATOR
        identities[address] = Identity(kind, model or identity.name, part, identity.integrated)


def add_named_nics(
    facts: Sequence[Facts],
    functions: dict[str, Function],
    identities: dict[str, Identity],
    ports: Sequence[Port],
    gpus: set[str],
) -> None:
    """NICs that only a matrix knows, by the names that it uses; where PCI lists NICs, these are among them.

    gpus: the addresses and names of GPUs and accelerators.
    """
    if any(identity.kind == NIC for identity in identities.values()):
        return
    placed = {port.device for port in ports if known(port.address) is not None}
    names = {name for fact in facts for peer in fact.peers for name in (peer.a, peer.b)}
    for name in sorted(names - placed, key=sort_key):
        if ":" not in name and not name.startswith("GPU") and name not in gpus:
            functions[name] = Function(name)
            identities[name] = Identity(NIC, "", None, False)


def in_place(
    functions: dict[str, Function], identities: Mapping[str, Identity], views: Mapping[str, DriverViews]
) -> tuple[dict[str, Device], dict[str, Switch]]:
    """Every function in its place, and the switch chips."""
    paths = paths_to(functions, identities)
    # A path ends below a known bridge only where a damaged recording has loops, or more levels than PCI has buses.
    for top in {path[0] for path in paths.values()}:
        if parent_of(functions[top]) in functions:
            functions[top] = functions[top]._replace(parent=Unknown(MALFORMED, "the bridges above form a loop"))
    links: dict[str, Link] = {}
    parts: dict[str, Part | None] = {}
    joined: dict[tuple[object, ...], Link] = {}
    for address, identity in identities.items():
        function = functions[address]
        if identity.kind == BRIDGE:
            parts[address] = identity.part
        link = None
        if function.link is not None or function.link_gbs is not None:
            link = join(functions, function, joined)
        if link is None and address in views and function.answers is not False:
            link = driver_link(views[address].view)
        if link is not None:
            links[address] = link
    chips = chip_of(functions, parts)
    devices = {}
    above: dict[str, str | None] = {}  # bridge -> the chip that it, or the nearest bridge above it, belongs to
    least: dict[str, float] = {}
    for address, (kind, name, part, integrated) in identities.items():
        path, link = paths[address], links.get(address)
        chip = narrowest = None
        if len(path) > 1 and chips:
            chip = chips.get(address)
            if chip is None:
                bridge = path[-2]
                if bridge not in above:
                    above[bridge] = next((chips[step] for step in reversed(path[:-1]) if step in chips), None)
                chip = above[bridge]
        elif chips:
            chip = chips.get(address)
        if link is not None and kind != BRIDGE and len(path) > 2:
            narrowest = bottleneck(path, links, least)
        devices[address] = Device(
            address, kind, name, functions[address], part, link, path, chip, narrowest, integrated
        )
    return devices, build(devices, chips)


def driver_link(view: DriverGpu) -> Link | None:
    """The PCIe link of a GPU as its driver tells it."""
    return from_driver(view.link, view.gpu_max_speed_gts, view.host_max_speed_gts) if view.link is not None else None
