"""The readings of several sources and samples become one Node.

Facts come in order; a later source of the same kind is a later sample of the same machine, and its values win.
Sources of different kinds complete each other: a value beats an unknown, and what only guesses never overrules what
was read.
"""

from __future__ import annotations

from itertools import islice

from gpu_topo.assemble.gpus import AMD, GPU_MAKERS, DriverViews, by_address, order, renamed
from gpu_topo.assemble.identify import Identity, alike, hypervisor_of_functions, identify, identify_all
from gpu_topo.assemble.links import bottleneck, from_driver, join
from gpu_topo.assemble.merge import fill, merge_functions, merge_platform, merge_ports
from gpu_topo.assemble.nvlinks import completed, most_listed, whole
from gpu_topo.catalogue import gpu_part_by_name, is_virtual_function
from gpu_topo.model.address import in_order, sort_key
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.finding import CAUSE_VM
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, AcceleratorLink, DriverGpu, DriverState, NvLink
from gpu_topo.model.host import VIRTUAL_MACHINE, Port
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, Device, Gpu, Link, LinkSample, Node, Part, Switch
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import EMPTY, MALFORMED, NOT_RECORDED, Unknown, known
from gpu_topo.topology.buses import place
from gpu_topo.topology.paths import pair_key
from gpu_topo.topology.switches import build, chip_of
from gpu_topo.topology.tree import parent_of, paths_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Names = Callable[[Iterable[tuple[int, int]]], Mapping[tuple[int, int], str]]

NVIDIA = 0x10DE
_TOLD_CLASSES = frozenset({0x01, 0x02, 0x03, 0x06, 0x0B, 0x12})  # storage, network, display, bridges, processing


def assemble(facts: Sequence[Facts], names: Names | None = None, live: bool = False) -> Node:
    """One Node from everything that was read. names: looks up part names by (vendor, device), where the machine
    has such a list."""
    functions = merge_functions([fact for fact in facts if fact.functions])
    if _lacks_parents(functions.values()):
        functions = {f.address: f for f in place(functions.values())}
    kinds = alike(functions.values())
    _mark_virtual(functions, kinds)
    identities = _identify_all(functions, kinds, names)
    one_of_each = [functions[addresses[0]] for addresses in kinds]
    read = len(functions)
    nvidia = [a for a, i in identities.items() if i.kind == GPU and _is_nvidia(functions[a])]
    views, gpu_names = by_address(facts, nvidia)
    _as_drivers_know(functions, identities, views)
    ports = merge_ports(facts)
    _add_named_nics(facts, functions, identities, ports, {*views, *gpu_names})
    devices, switches = _devices(functions, identities, views)
    platform = merge_platform(
        facts,
        hypervisor_of_functions((*one_of_each, *islice(functions.values(), read, None))),
        [word for v in views.values() if (word := known(v.view.virtualization))],
    )
    rename = {**gpu_names, **_nic_names(ports)}
    stated, p2p = _peers(facts, rename)
    return Node(
        platform=platform,
        sources=_sources(facts),
        devices=devices,
        gpus=_gpus(devices, views, rename, facts),
        accelerator_links=_accelerator_links(facts, rename),
        ports=ports,
        netdevs=tuple({n.name: n for fact in facts for n in fact.netdevs}.values()),
        blocks=tuple({b.name: b for fact in facts for b in fact.blocks}.values()),
        switches=switches,
        stated_paths=stated,
        p2p=p2p,
        drivers=_drivers(facts),
        unread=_unread(facts),
        live=live,
        hidden_links=dict.fromkeys(devices, CAUSE_VM) if platform.kind == VIRTUAL_MACHINE else {},
    )


def _lacks_parents(functions: Iterable[Function]) -> bool:
    """Whether some recording does not state which bridge is above a function."""
    for function in functions:
        parent = function.parent
        if isinstance(parent, Unknown) and parent.why == NOT_RECORDED:
            return True
    return False


def _is_nvidia(function: Function) -> bool:
    return function.vendor_id == NVIDIA


def named(node: Node, names: Names) -> Node:
    """The node with names for the parts that assemble leaves alone, for who wants to see every function."""
    unnamed = {
        address: ids
        for address, device in node.devices.items()
        if not _is_told(device.function) and (ids := _ids_without_name(device.function)) is not None
    }
    found = names(set(unnamed.values()))
    devices = dict(node.devices)
    for address, ids in unnamed.items():
        if ids in found:
            devices[address] = devices[address]._replace(name=found[ids])
    return node._replace(devices=devices)


def _is_told(function: Function) -> bool:
    """Whether a report may speak of this function: the hundred small parts of a processor have neither a link nor a
    class that any rule looks at."""
    return function.link is not None or function.class_code is None or function.class_code >> 16 in _TOLD_CLASSES


def _ids_without_name(function: Function) -> tuple[int, int] | None:
    """Vendor and device id of a function that no source named."""
    if function.name is not None or function.vendor_id is None or function.device_id is None:
        return None
    return function.vendor_id, function.device_id


def _identify_all(
    functions: Mapping[str, Function], kinds: Sequence[Sequence[str]], names: Names | None
) -> dict[str, Identity]:
    """Kind, name and part of every function, in address order."""
    one_of_each = (functions[addresses[0]] for addresses in kinds)
    wanted = {ids for f in one_of_each if _is_told(f) and (ids := _ids_without_name(f)) is not None}
    found = identify_all(functions, kinds, names(wanted) if names is not None and wanted else EMPTY)
    return {address: found[address] for address in in_order(functions)}


def _mark_virtual(functions: dict[str, Function], kinds: Sequence[Sequence[str]]) -> None:
    """In a guest only the id tells a virtual function from a physical one."""
    for addresses in kinds:
        f = functions[addresses[0]]
        if f.vendor_id is None or f.device_id is None or (f.class_code or 0) >> 16 != 0x02:
            continue
        if is_virtual_function(f.vendor_id, f.device_id):
            for address in addresses:
                if not functions[address].virtual_function:
                    functions[address] = functions[address]._replace(virtual_function=True)


def _as_drivers_know(
    functions: dict[str, Function], identities: dict[str, Identity], views: Mapping[str, DriverViews]
) -> None:
    """GPUs as their driver knows them: by the model that people say, and also where no PCI listing has them."""
    if not views:
        return
    on_the_bus = any(identity.kind == GPU for identity in identities.values())
    makers = {functions[a].vendor_id for a, identity in identities.items() if identity.kind == ACCELERATOR}
    for address in sorted(views, key=sort_key):
        view = views[address].view
        seen = on_the_bus if view.vendor_id in GPU_MAKERS else view.vendor_id in makers
        if seen and ":" not in address:
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


def _add_named_nics(
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


def _devices(
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
            link = _driver_link(views[address].view)
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


def _driver_link(view: DriverGpu) -> Link | None:
    return from_driver(view.link, view.gpu_max_speed_gts, view.host_max_speed_gts) if view.link is not None else None


def _gpus(
    devices: Mapping[str, Device],
    views: Mapping[str, DriverViews],
    rename: Mapping[str, str],
    facts: Sequence[Facts],
) -> tuple[Gpu, ...]:
    """GPUs and accelerators with what their driver says, by the driver's index."""
    listed = _listed(facts)
    earlier = _link_samples(facts)
    most = most_listed(found.view for found in views.values())
    gpus = []
    for address, device in devices.items():
        if device.kind not in (GPU, ACCELERATOR) or device.function.physical_function:
            continue
        found = views.get(address)
        samples = earlier.get(address, ())
        if found is None:
            nvidia = _is_nvidia(device.function)
            gpus.append(
                Gpu(
                    address,
                    part=device.part,
                    vendor_id=device.function.vendor_id,
                    samples=samples,
                    listed=False if nvidia and listed and device.function.driver == "nvidia" else None,
                )
            )
            continue
        gpus.append(_gpu(address, device.part, device.function.vendor_id, found, rename, samples, most))
    for name, found in views.items():
        # Its driver cannot say which device it is; a matrix's NPU is one of the accelerators on the bus.
        told_twice = found.view.vendor_id == AMD and any(gpu.vendor_id == AMD for gpu in gpus)
        if name not in devices and found.view.vendor_id in GPU_MAKERS and not told_twice:
            model = known(found.view.model)
            gpus.append(_gpu(name, gpu_part_by_name(model) if model else None, NVIDIA, found, rename, (), most))
    return tuple(sorted(gpus, key=lambda gpu: order(gpu.ordinal, gpu.address)))


def _gpu(
    address: str,
    part: Part | None,
    vendor_id: int | None,
    found: DriverViews,
    rename: Mapping[str, str],
    samples: tuple[LinkSample, ...],
    most: dict[str, int],
) -> Gpu:
    """One GPU. most: the number of NVLinks of each model, where a whole list of them tells."""
    view = found.view
    links = completed(whole(view, part, most), found.counted)
    return Gpu(
        address=address,
        ordinal=view.ordinal,
        uuid=view.uuid,
        model=view.model,
        architecture=view.architecture,
        pstate=view.pstate,
        utilization=view.utilization,
        busy=_busy(found.samples),
        mig=view.mig,
        partitions=view.partitions,
        nvlinks=links if links is None or isinstance(links, Unknown) else _links(links, known(view.mig), rename),
        fabric=view.fabric,
        driver_link=_driver_link(view),
        samples=samples + found.samples,
        replays=view.replays,
        lost=view.lost,
        listed=not view.lost,
        c2c=view.c2c,
        part=part,
        vendor_id=vendor_id,
    )


def _links(links: Sequence[NvLink], mig: bool | None, rename: Mapping[str, str]) -> tuple[NvLink, ...]:
    """The links by the addresses that they lead to. With MIG on the driver calls every link inactive, which says
    nothing of the link."""
    shown = [link._replace(state=UNKNOWN_STATE) if mig and link.state == INACTIVE else link for link in links]
    return renamed(shown, rename)


def _busy(samples: Sequence[LinkSample]) -> bool | None:
    """Whether the GPU works, by the latest look: utilisation, else a P-state that only an idle GPU takes."""
    if not samples:
        return None
    last = samples[-1]
    if last.utilization is not None:
        return last.utilization > 0
    return False if last.pstate is not None and last.pstate >= 5 else None


def _listed(facts: Sequence[Facts]) -> bool:
    """Whether a driver that works as a whole lists GPUs by address, so that one it does not list is missing, or
    hidden from this container or job: that of which it tells device nodes knows more than it may open."""
    for fact in facts:
        state = fact.driver
        if state is None or state.library != "nvml" or state.status != "ok":
            continue
        if (state.lists_all or state.minors) and any(gpu.address and not gpu.lost for gpu in fact.gpus):
            return True
    return False


def _link_samples(facts: Sequence[Facts]) -> dict[str, tuple[LinkSample, ...]]:
    """Link speeds that PCI sources saw, oldest first; only worth keeping where there are several looks."""
    sources = [fact for fact in facts if fact.functions and not fact.structure_only]
    if not sources or (len(sources) == 1 and not any(fact.gpus for fact in facts)):
        return {}
    samples: dict[str, tuple[LinkSample, ...]] = {}
    for fact in sources:
        for f in fact.functions:
            if f.link is None or not f.link_trusted or (f.class_code or 0) >> 16 not in (0x03, 0x0B, 0x12):
                continue
            look = LinkSample(known(f.link.speed_gts), known(f.link.width))
            samples[f.address] = (*samples.get(f.address, ()), look)
    return samples


def _nic_names(ports: Sequence[Port]) -> dict[str, str]:
    """RDMA device -> address of its function, where known."""
    return {port.device: address for port in ports if (address := known(port.address))}


def _peers(
    facts: Sequence[Facts], rename: Mapping[str, str]
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], Mapping[str, str]]]:
    stated: dict[tuple[str, str], str] = {}
    p2p: dict[tuple[str, str], Mapping[str, str]] = {}
    for fact in facts:
        for peer in fact.peers:
            pair = pair_key(rename.get(peer.a, peer.a), rename.get(peer.b, peer.b))
            if pair[0] == pair[1]:
                continue  # two chips behind one function
            if peer.kind is not None:
                stated[pair] = peer.kind
            if peer.p2p:
                p2p[pair] = {**p2p.get(pair, {}), **peer.p2p}
    return stated, p2p


def _accelerator_links(facts: Sequence[Facts], rename: Mapping[str, str]) -> tuple[AcceleratorLink, ...]:
    """Each pair once. A later sample of a source takes the place of the one before; what one source does not know,
    another completes, and where one says that links are down, those that merely list them do not deny it."""
    found: dict[tuple[str, str, str], tuple[str, AcceleratorLink]] = {}
    for fact in facts:
        if fact.accelerator_links:
            found = {pair: of for pair, of in found.items() if of[0] != fact.source.name}
        for link in fact.accelerator_links:
            a, b = pair_key(rename.get(link.a, link.a), rename.get(link.b, link.b))
            if a == b:
                continue  # two chips behind one function
            source, before = found.get((link.kind, a, b), (fact.source.name, link))
            state = link.state
            if source != fact.source.name and (state == UNKNOWN_STATE or before.state == INACTIVE):
                state = before.state
            found[link.kind, a, b] = fact.source.name, fill(before, link)._replace(a=a, b=b, state=state)
    return tuple(link for _, link in found.values())


def _sources(facts: Sequence[Facts]) -> tuple[SourceStatus, ...]:
    """Each source once; of several looks at one, the first that did not go well."""
    found: dict[str, SourceStatus] = {}
    for fact in facts:
        before = found.get(fact.source.name)
        if before is None or (before.status == OK and fact.source.status != OK):
            found[fact.source.name] = fact.source
    return tuple(found.values())


def _drivers(facts: Sequence[Facts]) -> dict[str, DriverState]:
    """How each driver answered, by the latest look at it."""
    found: dict[str, DriverState] = {}
    for fact in facts:
        state = fact.driver
        if state is None:
            continue
        before = found.get(state.library)
        if before is not None and before.status == state.status == OK:
            # An output that shows some GPUs only takes nothing back of one that listed all.
            version = state.version if known(state.version) is not None else before.version
            state = state._replace(version=version, lists_all=state.lists_all or before.lists_all)
        found[state.library] = state
    return found


def _unread(facts: Sequence[Facts]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for fact in facts:
        for what, number in fact.unread.items():
            counts[what] = counts.get(what, 0) + number
    return counts
