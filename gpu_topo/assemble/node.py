"""All readings of a machine put together: one Node.

Facts come in order; a later source of the same kind is a later sample of the same machine, and its values win.
Sources of different kinds complete each other: a value beats an unknown, and what only guesses never overrules what
was read.
"""

from __future__ import annotations

from itertools import islice

from gpu_topo.assemble.devices import (
    add_named_nics,
    as_drivers_know,
    identities_of,
    in_place,
    is_told,
    mark_virtual,
    unnamed_ids,
)
from gpu_topo.assemble.gpus import gpus_of, untied
from gpu_topo.assemble.hypervisor import hypervisor_of_functions
from gpu_topo.assemble.identify import alike
from gpu_topo.assemble.merge import merge_functions, merge_platform, merge_ports
from gpu_topo.assemble.pairs import accelerator_links, nic_names, once, stated_of
from gpu_topo.assemble.views import by_address, numbered_twice, unmasked
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.finding import CAUSE_VM
from gpu_topo.model.gpu import DriverState
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import GPU, Node
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.buses import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_topo.assemble.devices import Names


def assemble(facts: Sequence[Facts], names: Names | None = None, live: bool = False) -> Node:
    """One Node from everything that was read. names: looks up part names by (vendor, device), where the machine
    has such a list."""
    facts = [unmasked(fact) for fact in facts]
    functions = merge_functions([fact for fact in facts if fact.functions])
    if _lacks_parents(functions.values()):
        functions = {f.address: f for f in place(functions.values())}
    kinds = alike(functions.values())
    mark_virtual(functions, kinds)
    identities = identities_of(functions, kinds, names)
    one_of_each = [functions[addresses[0]] for addresses in kinds]
    read = len(functions)
    nvidia = [a for a, i in identities.items() if i.kind == GPU and functions[a].vendor_id == NVIDIA]
    views, gpu_names = by_address(facts, nvidia)
    as_drivers_know(functions, identities, views)
    ports = merge_ports(facts)
    add_named_nics(facts, functions, identities, ports, {*views, *gpu_names})
    devices, switches = in_place(functions, identities, views)
    platform = merge_platform(
        facts,
        hypervisor_of_functions((*one_of_each, *islice(functions.values(), read, None))),
        [word for v in views.values() if (word := known(v.view.virtualization))],
    )
    rename = {**gpu_names, **nic_names(ports)}
    stated, p2p = stated_of(facts, rename)
    return Node(
        platform=platform,
        sources=_sources(facts),
        devices=devices,
        gpus=gpus_of(devices, views, rename, facts),
        accelerator_links=once(accelerator_links(facts, rename), numbered_twice(views)),
        ports=ports,
        netdevs=tuple({n.name: n for fact in facts for n in fact.netdevs}.values()),
        blocks=tuple({b.name: b for fact in facts for b in fact.blocks}.values()),
        switches=switches,
        stated_paths=stated,
        p2p=p2p,
        drivers=_drivers(facts, len(untied(devices, views))),
        unread=_unread(facts),
        live=live,
        hidden_links=dict.fromkeys(devices, CAUSE_VM) if platform.kind == VIRTUAL_MACHINE else {},
    )


def named(node: Node, names: Names) -> Node:
    """The node with names for the parts that assemble leaves alone, for those who want to see every function."""
    unnamed = {
        address: ids
        for address, device in node.devices.items()
        if not is_told(device.function) and (ids := unnamed_ids(device.function)) is not None
    }
    found = names(set(unnamed.values()))
    devices = dict(node.devices)
    for address, ids in unnamed.items():
        if ids in found:
            devices[address] = devices[address]._replace(name=found[ids])
    return node._replace(devices=devices)


def _lacks_parents(functions: Iterable[Function]) -> bool:
    """Whether some recording does not state which bridge is above a function."""
    for function in functions:
        parent = function.parent
        if isinstance(parent, Unknown) and parent.why == NOT_RECORDED:
            return True
    return False


def _sources(facts: Sequence[Facts]) -> tuple[SourceStatus, ...]:
    """Each source once; of several looks at one, the first that did not go well."""
    found: dict[str, SourceStatus] = {}
    for fact in facts:
        before = found.get(fact.source.name)
        if before is None or (before.status == OK and fact.source.status != OK):
            found[fact.source.name] = fact.source
    return tuple(found.values())


def _drivers(facts: Sequence[Facts], numbered: int) -> dict[str, DriverState]:
    """How each driver answered, by the latest look at it. numbered: of NVML."""
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
    if numbered and "nvml" in found:
        found["nvml"] = found["nvml"]._replace(numbered=numbered)
    return found


def _unread(facts: Sequence[Facts]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for fact in facts:
        for what, number in fact.unread.items():
            counts[what] = counts.get(what, 0) + number
    return counts
