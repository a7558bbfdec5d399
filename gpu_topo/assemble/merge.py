"""Two sources that speak of the same thing become one: a value beats an unknown, the later sample beats the earlier."""

from __future__ import annotations

from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import CUT_SHORT, LISTED, UNKNOWN_STATE, DriverGpu, NvLink
from gpu_topo.model.host import BARE_METAL, UNKNOWN_PLATFORM, VIRTUAL_MACHINE, Platform, Port
from gpu_topo.model.pci import Function, LinkEnd
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    Tuple = TypeVar("Tuple", bound=NamedTuple)


def _later(old: Any, new: Any) -> Any:
    """The later value where there is one, else the earlier, else the unknown with a reason."""
    if new is None:
        return old
    if isinstance(new, Unknown):
        return new if old is None else old
    return new


def fill(old: Tuple, new: Tuple) -> Tuple:
    """Field by field: the later value, completed by the earlier one."""
    defaults: Any = getattr(type(new), "_field_defaults", {})
    picked = []
    for name, before, after in zip(type(new)._fields, old, new, strict=True):
        is_default = not isinstance(after, (Unknown, type(None))) and name in defaults and after == defaults[name]
        picked.append(before if is_default and before is not None else _later(before, after))
    return type(new)(*picked)


def merge_gpu(old: DriverGpu, new: DriverGpu) -> DriverGpu:
    """One GPU seen by two tools (or twice by one): NVLinks are joined link by link, since states, remote ends and
    error counts come from three calls of nvidia-smi."""
    merged = fill(old, new)
    before, after = old.nvlinks, new.nvlinks
    links = merged.nvlinks
    if before is not None and after is not None and not isinstance(before, Unknown) and not isinstance(after, Unknown):
        links = _merge_links(before, after)
    # One list of which nothing is missing names all links.
    ends_early = [gpu.nvlinks_are == CUT_SHORT for gpu in (old, new) if known(gpu.nvlinks)]
    are = CUT_SHORT if ends_early and all(ends_early) else LISTED
    # A query of some fields does not take back the others.
    link = fill(old.link, new.link) if old.link is not None and new.link is not None else merged.link
    return merged._replace(
        link=link, nvlinks=links, nvlinks_are=are, lost=old.lost or new.lost, unknowns={**old.unknowns, **new.unknowns}
    )


def _merge_links(before: tuple[NvLink, ...], after: tuple[NvLink, ...]) -> tuple[NvLink, ...]:
    found = {link.number: link for link in before}
    for link in after:
        old = found.get(link.number)
        if old is None:
            found[link.number] = link
            continue
        found[link.number] = fill(old, link)._replace(
            state=link.state if link.state != UNKNOWN_STATE else old.state,
            remote_kind=link.remote_kind if link.remote_kind != "unknown" else old.remote_kind,
            errors={**old.errors, **link.errors},
        )
    return tuple(found[number] for number in sorted(found))


def merge_function(old: Function, new: Function) -> Function:
    """One PCI function seen by two sources (or twice by one)."""
    merged = fill(old, new)
    # An address above is more than "on a root bus", and that is more than "not recorded".
    parent: Any = new.parent
    if isinstance(new.parent, Unknown) or (new.parent is None and isinstance(old.parent, str)):
        parent = old.parent
    link, trusted = _merge_link(old, new)
    return merged._replace(
        parent=parent,
        link=link,
        link_trusted=trusted,
        bridge=old.bridge or new.bridge,
        virtual_function=old.virtual_function or new.virtual_function,
        hotplug_empty=old.hotplug_empty or new.hotplug_empty,
        answers=False if old.answers is False or new.answers is False else merged.answers,
    )


def _merge_link(old: Function, new: Function) -> tuple[LinkEnd | None, bool]:
    """Link values of a source that only guesses never replace those of one that read them."""
    if new.link is None or (old.link is not None and old.link_trusted and not new.link_trusted):
        return old.link, old.link_trusted
    if old.link is None or (new.link_trusted and not old.link_trusted):
        return new.link, new.link_trusted
    return fill(old.link, new.link), new.link_trusted


def merge_functions(facts: Sequence[Facts]) -> dict[str, Function]:
    """All functions of all sources by address. Inventories and trees complete, they never overrule."""
    functions: dict[str, Function] = {}
    for fact in facts:
        if not functions and len(facts) == 1:
            return {function.address: function for function in fact.functions}
        for function in fact.functions:
            before = functions.get(function.address)
            if before is None:
                functions[function.address] = function
            elif fact.structure_only:
                functions[function.address] = merge_function(function, before)
            else:
                functions[function.address] = merge_function(before, function)
    return functions


def merge_ports(facts: Sequence[Facts]) -> tuple[Port, ...]:
    """All RDMA ports by device and number, in order of first appearance."""
    ports: dict[tuple[str, int], Port] = {}
    for fact in facts:
        for port in fact.ports:
            key = (port.device, port.port)
            ports[key] = fill(ports[key], port) if key in ports else port
    return tuple(ports.values())


def merge_platform(facts: Sequence[Facts], hypervisor: str | None, virtualization: Sequence[str]) -> Platform:
    """What kind of machine this is: the sources' own word, else evidence from its PCI devices and from the driver.

    virtualization: what NVIDIA's driver says of each GPU ("None", "Pass-Through", "Host VGPU", ...).
    """
    merged = Platform()
    for fact in facts:
        if fact.platform is not None:
            platform = fact.platform
            if platform.kind == UNKNOWN_PLATFORM and merged.kind != UNKNOWN_PLATFORM:
                platform = platform._replace(kind=merged.kind, evidence=merged.evidence)
            merged = fill(merged, platform)
    if merged.kind != UNKNOWN_PLATFORM:
        return merged
    if hypervisor is not None:
        return merged._replace(
            kind=VIRTUAL_MACHINE,
            hypervisor=known(merged.hypervisor) or hypervisor,
            evidence=f"devices of {hypervisor}",
        )
    guest = next((word for word in virtualization if word.lower() in ("pass-through", "vgpu")), None)
    if guest:
        return merged._replace(kind=VIRTUAL_MACHINE, evidence=f"the driver's virtualization mode is {guest}")
    host = [word for word in virtualization if word.lower() in ("none", "host vgpu", "host vsga")]
    if host and len(host) == len(virtualization):
        return merged._replace(kind=BARE_METAL, evidence=f"the driver's virtualization mode is {host[0]}")
    return merged
