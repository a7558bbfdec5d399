"""What bridges that the catalogue does not know show by their place: ends of tunnels, and bridges of a card."""

from __future__ import annotations

from gpu_topo.model.address import slot_of
from gpu_topo.model.node import Part
from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT, Function
from gpu_topo.model.reading import known
from gpu_topo.model.vendors import AMD, AMD_PROCESSORS
from gpu_topo.topology.tree import parent_of, port_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_USB4_HOST = 0x0C0340  # PCI Code and ID Assignment Specification: USB4 host interface
_AMD = (AMD, AMD_PROCESSORS)
_GPU_CLASSES = (0x03, 0x12)  # display; processing accelerators
# What the port of a tunnel claims whatever it carries, and what no switch chip that can do no more has below itself.
_CLAIMED_GTS, _REAL_GTS = 2.5, 8.0


def settle(functions: Mapping[str, Function], parts: Mapping[str, Part | None]) -> dict[str, Part]:
    """The parts of bridges that were settled by their place. parts: what is known of each bridge so far."""
    unknown = [address for address, part in parts.items() if part is None]
    tops = [
        chip
        for host in functions.values()
        if host.class_code == _USB4_HOST and (chip := _chip_above(functions, parts, host)) is not None
    ]
    slow = [address for address in unknown if _claims_little(functions, functions[address])]
    found: dict[str, Part] = {}
    if tops or slow:
        below: dict[str, list[str]] = {}
        for address in parts:
            below.setdefault(parent_of(functions[address]) or "", []).append(address)
        tops += [address for address in slow if any(_is_fast(functions[port]) for port in below.get(address, ()))]
        for top in tops:
            for port in (top, *below.get(top, ())):
                found[port] = _tunnel(functions[port], parts[port])
    if any(functions[address].vendor_id in _AMD for address in unknown):
        found.update(_amd_cards(functions, parts))
    return found


def _chip_above(functions: Mapping[str, Function], parts: Mapping[str, Part | None], host: Function) -> str | None:
    """The upstream port of the chip that a USB4 host interface is part of: it hangs from one of its ports. Inside a
    processor it hangs from a root port or bus, and there the tunnels are root ports."""
    port = functions.get(parent_of(host) or "")
    above = functions.get(parent_of(port) or "") if port is not None else None
    if port is None or above is None or above.address not in parts or port.address not in parts:
        return None
    if above.vendor_id != host.vendor_id:
        return None  # a card in a slot of a switch
    return above.address if port_type(functions, above) == UPSTREAM_PORT else None


def _tunnel(function: Function, part: Part | None) -> Part:
    """Neither a switch's port nor a card's, whatever it was taken for."""
    return Part(part.name if part is not None else function.name or "USB4 or Thunderbolt port")


def _claims_little(functions: Mapping[str, Function], function: Function) -> bool:
    """Whether an upstream port can do 2.5 GT/s by its own word."""
    if function.link is None or known(function.link.max_speed_gts) != _CLAIMED_GTS:
        return False
    return port_type(functions, function) == UPSTREAM_PORT


def _is_fast(port: Function) -> bool:
    most = known(port.link.max_speed_gts) if port.link is not None else None
    return most is not None and most >= _REAL_GTS


def _amd_cards(functions: Mapping[str, Function], parts: Mapping[str, Part | None]) -> dict[str, Part]:
    """The two bridges that AMD's cards carry since Vega: upstream port, its only downstream port, its only device."""
    gpus = [f for f in functions.values() if f.vendor_id == AMD and (f.class_code or 0) >> 16 in _GPU_CLASSES]
    if not gpus:
        return {}
    below: dict[str, set[str]] = {}
    for function in functions.values():
        parent = parent_of(function)
        if parent is not None:
            below.setdefault(parent, set()).add(slot_of(function.address))
    found = {}
    for function in gpus:
        port = functions.get(parent_of(function) or "")
        above = functions.get(parent_of(port) or "") if port is not None else None
        if port is None or above is None:
            continue
        if (port_type(functions, above), port_type(functions, port)) != (UPSTREAM_PORT, DOWNSTREAM_PORT):
            continue
        for bridge in (above, port):
            unknown = bridge.address in parts and parts[bridge.address] is None and bridge.vendor_id in _AMD
            if unknown and len(below[above.address]) == len(below[port.address]) == 1:
                found[bridge.address] = Part(bridge.name or "bridge of a GPU card", internal_bridge=True)
    return found
