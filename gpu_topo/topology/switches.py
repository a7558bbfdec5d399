"""Physical PCIe switches: all bridges of one chip are one switch, cascaded virtual bridges included."""

from __future__ import annotations

from gpu_topo.model.address import slot_of
from gpu_topo.model.node import BRIDGE, Device, Part, Switch
from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT, Function
from gpu_topo.model.vendors import AMD, AMD_PROCESSORS, INTEL
from gpu_topo.topology.capacity import card_links
from gpu_topo.topology.tree import parent_of, port_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Set

# They build no switch chips: an upstream port of theirs is a chipset's, a card's or a tunnel's, listed or not.
_NO_SWITCHES = (AMD_PROCESSORS, AMD, INTEL)

_Marks = tuple[tuple[int, int], ...]

# Chips that enumerate their own inner bridges: a virtual switch below a virtual switch of one piece of silicon.
# (vendor, device) -> the subsystem device ids of outer and of inner ports as (value, mask); the vendor is Broadcom's.
# Source: NVIDIA/nccl src/graph/topo.cc, ncclTopoFlattenBcmSwitches (PEX880xx and PEX890xx).
_TWO_LEVEL: Mapping[tuple[int, int], tuple[_Marks, _Marks]] = {
    (0x1000, 0xC010): (((0xA000, 0xF000),), ((0xA000, 0xF000),)),
    (0x1000, 0xC030): (((0x0000, 0xF000),), ((0x1000, 0xF000), (0x0100, 0xFF00))),
}


def chip_of(functions: Mapping[str, Function], parts: Mapping[str, Part | None]) -> dict[str, str]:
    """For every bridge that is a port of a switch chip, the chip's id: the address of its topmost port.

    parts: what the catalogue has of each bridge. A chipset's or a card's own bridges are no switch that somebody could
    plug into; the catalogue tells them apart.
    """
    chips: dict[str, str] = {}
    with_ports = {parent_of(functions[address]) for address in parts}  # bridges that have bridges below
    for address in parts:  # address order: what is above may come later, so ports resolve recursively
        _chip(functions, parts, address, chips, with_ports)
    return {port: chip for port, chip in chips.items() if chip}


def _chip(
    functions: Mapping[str, Function],
    parts: Mapping[str, Part | None],
    address: str,
    chips: dict[str, str],
    with_ports: Set[str | None],
) -> str:
    """The chip that a bridge belongs to, "" where it is none; remembered in `chips`."""
    known = chips.get(address)
    if known is not None:
        return known
    chips[address] = ""  # ends a cycle in a damaged recording
    function, part = functions[address], parts[address]
    above = functions.get(parent_of(function) or "")
    if above is not None and above.address not in parts:
        above = None
    kind = port_type(functions, function)
    chip = ""
    if part is not None and part.internal_bridge:
        chip = ""
    elif kind == UPSTREAM_PORT:
        # An upstream port is a switch's unless the catalogue or its maker tells that it is part of something else.
        # Where only its place tells what it is, a bridge without ports below it is one to conventional PCI.
        told = isinstance(function.port_type, str) or (part is not None and part.switch_chip)
        may_be = part.switch_chip if part is not None else function.vendor_id not in _NO_SWITCHES
        chip = address if may_be and (told or address in with_ports) else ""
        if chip and above is not None and _inner(function, above):
            chip = _chip(functions, parts, above.address, chips, with_ports) or address
    elif kind == DOWNSTREAM_PORT and above is not None:
        chip = _chip(functions, parts, above.address, chips, with_ports)
    elif kind is None and part is not None and part.switch_chip:
        # A recording without port types (NCCL XML): a switch part below the same part is its downstream side.
        same = above is not None and _same_id(function, above)
        chip = (
            _chip(functions, parts, above.address, chips, with_ports) if same and above is not None else ""
        ) or address
    chips[address] = chip
    return chip


def _same_id(a: Function, b: Function) -> bool:
    return a.vendor_id == b.vendor_id and a.device_id == b.device_id and a.device_id is not None


def _inner(port: Function, above: Function) -> bool:
    """Whether an upstream port is a virtual one inside the chip of the downstream port above it."""
    if not _same_id(port, above):
        return False
    marks = _TWO_LEVEL.get((port.vendor_id or 0, port.device_id or 0))
    return marks is not None and _bears(above, marks[0]) and _bears(port, marks[1])


def _bears(port: Function, marks: _Marks) -> bool:
    """Whether a port's subsystem is one of these; where it is not recorded the family's habit decides."""
    if not port.subsystem_device_id:
        return True
    if port.subsystem_vendor_id not in (None, 0x1000):
        return False
    return any(port.subsystem_device_id & mask == value for value, mask in marks)


def build(devices: Mapping[str, Device], chips: Mapping[str, str]) -> dict[str, Switch]:
    """The switches with their uplink and with what hangs below them, by id."""
    ports: dict[str, list[str]] = {}
    for port, chip in chips.items():
        ports.setdefault(chip, []).append(port)
    below: dict[str, list[Device]] = {chip: [] for chip in ports}
    for device in devices.values():
        if device.switch is None:
            continue
        if device.address in ports:  # a switch below a switch asks for what its own uplink carries
            outer = next((chips[step] for step in reversed(device.path[:-1]) if step in chips), None)
        else:
            outer = device.switch if device.kind != BRIDGE else None
        if outer in below and not device.function.virtual_function:
            below[outer].append(device)
    switches = {}
    for chip, members in ports.items():
        members.sort(key=lambda a: (len(devices[a].path), a))
        uplink = devices[chip].link
        capacity = _downstream_gbs(devices, below[chip])
        ratio = None
        carries = (uplink.expected_gbs or uplink.gbs) if uplink is not None and uplink.trusted else None
        if capacity is not None and carries:
            ratio = round(capacity / carries, 2)
        switches[chip] = Switch(
            id=chip,
            name=devices[chip].name,
            ports=tuple(members),
            uplink=uplink,
            downstream=tuple(device.address for device in below[chip]),
            downstream_gbs=capacity,
            oversubscription=ratio,
        )
    return switches


def _downstream_gbs(devices: Mapping[str, Device], below: list[Device]) -> float | None:
    """What everything below can carry together, GB/s: each link once (the functions of one device share it), and a
    card with bridges of its own no more than its slot, however much is on it."""
    total = 0.0
    cards: dict[str, float] = {}  # the topmost bridge of a card -> what hangs from it
    seen = set()
    for device in below:
        slot = slot_of(device.address)
        if slot in seen:
            continue
        # A management endpoint or placeholder inside the chip carries no payload.
        if device.part is not None and device.part.management:
            continue
        # Where a recording leaves a device's own link out, the port above it shows the same link.
        port = devices.get(device.path[-2]) if len(device.path) > 1 else None
        gbs = _at_best(device) or (_at_best(port) if port is not None else None)
        if not gbs:
            continue
        seen.add(slot)
        ends = card_links(devices, device)
        if len(ends) == 1:
            total += gbs
            continue
        for step in ends[1:]:
            gbs = min(gbs, _at_best(step) or gbs)
        top = ends[-1].address
        cards[top] = cards.get(top, 0.0) + gbs
    total += sum(min(gbs, _at_best(devices[top]) or gbs) for top, gbs in cards.items())
    return round(total, 3) if seen else None


def _at_best(device: Device) -> float | None:
    link = device.link
    return None if link is None else link.expected_gbs or link.gbs
