"""What a PCI function is: its kind by class and exact ids, its name, and what the catalogue has of it."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.assemble.bridges import settle
from gpu_topo.catalogue import words
from gpu_topo.model.address import slot_of
from gpu_topo.model.cached import cached
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, NVSWITCH, OTHER, STORAGE, Part
from gpu_topo.model.pci import INTEGRATED_ENDPOINT, UPSTREAM_PORT, Function
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple, often
from gpu_topo.model.vendors import AMD, AMD_PROCESSORS, INTEL, MELLANOX, NVIDIA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_GPU_VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}

_NUMBER = r"\bDevice [0-9a-f]{4}$"  # what lspci prints where its list has no name
_REVISION = r" \(rev [0-9a-f]{2}\)$"


@often
class Identity(NamedTuple):
    """What a function is. integrated: graphics inside a processor, or a function that has no link of its own."""

    kind: str
    name: str
    part: Part | None
    integrated: bool


class _Core(NamedTuple):
    """What ids, class and spelled name alone say; the same for every function that shares them."""

    kind: str
    part: Part | None
    own_name: str  # the recording's, "" where it has none or only repeats a number
    last_name: str  # where neither the recording nor a list of names has one
    integrated: bool
    unsure: bool  # the other functions of the device have a say


def alike(functions: Iterable[Function]) -> list[list[str]]:
    """The addresses of functions that differ in nothing but their place and state, in order of first appearance: the
    thousands of functions of a machine are of a hundred kinds, and what they are is worked out once for each."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for f in functions:
        kind = (
            f.vendor_id,
            f.device_id,
            f.class_code,
            f.subsystem_vendor_id,
            f.subsystem_device_id,
            f.bridge,
            f.secondary_bus is not None,
            f.name,
            f.port_type,
            f.link is not None,
        )
        same = kinds.get(kind)
        if same is None:
            kinds[kind] = [f.address]
        else:
            same.append(f.address)
    return list(kinds.values())


def identify_all(
    functions: Mapping[str, Function], kinds: Iterable[Sequence[str]], names: Mapping[tuple[int, int], str] = EMPTY
) -> dict[str, Identity]:
    """Kind, name and part of every function, in no order. kinds: as `alike` found them."""
    found: dict[str, Identity] = {}
    for addresses in kinds:
        first = functions[addresses[0]]
        if not _core_of(first).unsure:
            found.update(dict.fromkeys(addresses, identify(first, names)))
            continue
        for address in addresses:
            slot = slot_of(address)
            beside = [other for n in range(8) if (other := functions.get(f"{slot}.{n}")) is not None]
            found[address] = identify(functions[address], names, beside)
    for address, part in settle(functions, {a: i.part for a, i in found.items() if i.kind == BRIDGE}).items():
        found[address] = found[address]._replace(part=part)
    return found


def identify(
    function: Function, names: Mapping[tuple[int, int], str] = EMPTY, siblings: Sequence[Function] = ()
) -> Identity:
    """Kind, name and catalogue part of one function.

    names: (vendor id, device id) -> "Vendor Device", used where the recording itself spells no name.
    siblings: the other functions of the same device, where known: a management function inside a switch and the
    graphics of a new AMD processor show by them.
    """
    vendor, device = function.vendor_id, function.device_id
    core = _core_of(function)
    kind, integrated = core.kind, core.integrated
    if core.unsure:
        kind, integrated = _in_place(core, function, siblings)
    elif kind != GPU and function.port_type == INTEGRATED_ENDPOINT:
        integrated = True
    elif kind == ACCELERATOR and function.class_code is None and vendor == INTEL and ":00:" in function.address:
        integrated = True  # a drawing does not say what kind of endpoint Intel's NPU is
    name, part = core.own_name, core.part
    if not name:
        name = (names.get((vendor, device)) if vendor is not None and device is not None else None) or core.last_name
        if kind == BRIDGE and part is None and _is_tunnel(name.lower()):
            part = Part(name)  # newer than the catalogue, and the machine's own list knows it
    return Identity(kind, name, part, integrated)


def _in_place(core: _Core, function: Function, siblings: Sequence[Function]) -> tuple[str, bool]:
    """Kind and integration of a function whose ids do not settle them."""
    if core.kind == STORAGE:
        inside = any(other.port_type == UPSTREAM_PORT for other in siblings)
        return (OTHER if inside else STORAGE), function.port_type == INTEGRATED_ENDPOINT
    # Displays of AMD and Intel that the catalogue does not list.
    vendor = function.vendor_id
    bus, _, slot = function.address.partition(":")[2].partition(":")
    if vendor == INTEL and bus == "00" and slot.startswith("02."):
        # Intel's graphics are 00:02.0; a second display function beside it is its second head.
        return (GPU if slot == "02.0" else OTHER), True
    if vendor == AMD:
        # Inside a processor the functions beside it (crypto, USB) are the processor's; on a card they are the card's.
        beside = any(other.vendor_id == AMD_PROCESSORS for other in siblings)
        return GPU, core.integrated or beside or (function.port_type == INTEGRATED_ENDPOINT and bus == "00")
    return GPU, core.integrated


def _core_of(function: Function) -> _Core:
    return _core(
        function.vendor_id,
        function.device_id,
        function.class_code,
        function.subsystem_vendor_id,
        function.subsystem_device_id,
        function.bridge,
        function.secondary_bus is not None,
        function.name,
    )


@cached
def _core(
    vendor: int | None,
    device: int | None,
    class_code: int | None,
    subsystem_vendor: int | None,
    subsystem_device: int | None,
    bridge: bool,
    forwards: bool,
    name: str | None,
) -> _Core:
    spelled = own_name = ""
    if name:
        import re  # seldom needed, and slow to load: sysfs spells no names

        spelled = re.sub(_REVISION, "", name).strip()
        own_name = "" if re.search(_NUMBER, spelled) else spelled
    if class_code is None:
        kind, part = _without_class(vendor, device, subsystem_vendor, subsystem_device, bridge or forwards, spelled)
    elif vendor is not None and device is not None:
        subsystem = _subsystem(subsystem_vendor, subsystem_device)
        kind, part = _by_ids(vendor, device, class_code, subsystem, bridge, forwards)
        if kind == BRIDGE and part is None and spelled:
            part = _bridge_by_name(vendor, spelled)
    else:
        kind, part = _by_name(vendor, spelled, class_code, bridge, forwards)
    unsure = kind == STORAGE or (kind == GPU and part is None and vendor in (AMD, INTEL))
    return _Core(
        kind,
        part,
        own_name,
        _last_name(kind, vendor, device, part) or spelled,
        part is not None and part.form_factor == "integrated",
        unsure,
    )


def _last_name(kind: str, vendor: int | None, device: int | None, part: Part | None) -> str:
    if part is not None and part.name:
        brand = _GPU_VENDORS.get(vendor or 0, "") if kind == GPU else ""
        return f"{brand} {part.name}".strip()
    return f"{vendor:04x}:{device:04x}" if vendor is not None and device is not None else ""


def _subsystem(vendor: int | None, device: int | None) -> tuple[int, int] | None:
    return (vendor, device) if vendor is not None and device is not None else None


def _by_ids(
    vendor: int, device: int, class_code: int, subsystem: tuple[int, int] | None, bridge: bool, forwards: bool
) -> tuple[str, Part | None]:
    """Kind and part of a function whose numbers are known."""
    base, sub = class_code >> 16, class_code >> 8
    if base == 0x06 or forwards or bridge:
        if sub == 0x0680 and (part := catalogue.nvswitch_part(vendor, device)):
            return NVSWITCH, part
        part = catalogue.bridge_part(vendor, device)
        return (BRIDGE if _is_bridge(sub, bridge, forwards) else OTHER), part
    if base == 0x03:
        if vendor not in _GPU_VENDORS or catalogue.display_role(vendor, device) == "management":
            return OTHER, None
        return GPU, catalogue.gpu_part(vendor, device, subsystem) or catalogue.integrated_part(vendor, device)
    if base == 0x12:
        part = catalogue.gpu_part(vendor, device, subsystem)
        # AMD and NVIDIA build nothing else under this class; Intel's NPUs share it with none of its listed GPUs.
        is_gpu = vendor in (AMD, NVIDIA) or (vendor == INTEL and part is not None)
        return (GPU if is_gpu else ACCELERATOR), part
    if sub == 0x0B40:
        return ACCELERATOR, catalogue.gpu_part(vendor, device, subsystem)
    if base == 0x02 or sub == 0x0C06:
        return NIC, catalogue.nic_part(vendor, device)
    if base == 0x01:
        part = catalogue.bridge_part(vendor, device)
        return (OTHER, part) if part is not None else (STORAGE, None)
    return OTHER, None


def _without_class(
    vendor: int | None,
    device: int | None,
    subsystem_vendor: int | None,
    subsystem_device: int | None,
    bridge: bool,
    name: str,
) -> tuple[str, Part | None]:
    """Some recordings give no class: then exact ids count, else what the name says."""
    if vendor is not None and device is not None:
        if part := catalogue.gpu_part(vendor, device, _subsystem(subsystem_vendor, subsystem_device)):
            return (GPU if vendor in _GPU_VENDORS else ACCELERATOR), part
        if part := catalogue.nvswitch_part(vendor, device):
            return NVSWITCH, part
        if part := catalogue.nic_part(vendor, device):
            return (OTHER if part.management else NIC), part
        if part := catalogue.bridge_part(vendor, device):
            return (BRIDGE if bridge else OTHER), part
        if role := catalogue.display_role(vendor, device):
            return (GPU, catalogue.integrated_part(vendor, device)) if role == "apu" else (OTHER, None)
    if bridge:
        return BRIDGE, _bridge_by_name(vendor, name)
    kind = words.kind_of(vendor, name)
    if kind == GPU:
        return _gpu_by_name(vendor, name)
    if kind == ACCELERATOR:
        return kind, catalogue.gpu_part_by_name(words.model_in(name))
    if kind == NVSWITCH:
        return kind, Part(words.model_in(name))
    if kind == STORAGE:
        return kind, None
    if kind is None and (part := catalogue.gpu_part_by_name(words.model_in(name))):
        return GPU, part
    part = _nic_by_name(name)
    if part is not None:
        return (OTHER if part.management else NIC), part
    return (NIC if kind == NIC else OTHER), None


def _gpu_by_name(vendor: int | None, name: str) -> tuple[str, Part | None]:
    """Kind and part of a display of a maker of GPUs: a server's own display is none."""
    role, integrated = catalogue.display_by_name(name)
    if role == "management":
        return OTHER, None
    part = catalogue.gpu_part_by_name(words.model_in(name)) or integrated
    if part is None and words.is_integrated(vendor, name):
        part = Part(words.model_in(name), form_factor="integrated", market="consumer")
    return GPU, part


def _nic_by_name(name: str) -> Part | None:
    return catalogue.nic_part_by_name(words.model_in(name)) or catalogue.nic_part_by_name(name)


def _is_bridge(sub: int, bridge: bool, forwards: bool) -> bool:
    # Some root complexes bear the class of a processor and still have a bridge's header.
    return sub in (0x0604, 0x0609) or forwards or (bridge and sub >> 8 != 0x06)


def _by_name(vendor: int | None, name: str, class_code: int, bridge: bool, forwards: bool) -> tuple[str, Part | None]:
    """Kind and part of a function without a device number: by its class, its vendor and the words of its name."""
    model = words.model_in(name)
    base, sub, low = class_code >> 16, class_code >> 8, name.lower()
    if base == 0x06 or forwards or bridge:
        if sub == 0x0680 and vendor == NVIDIA and "nvswitch" in low:
            return NVSWITCH, Part(model or name)
        if not _is_bridge(sub, bridge, forwards):
            return OTHER, None
        return BRIDGE, _bridge_by_name(vendor, name)
    if base == 0x03:
        # A recording of classes alone (NCCL's XML) lists no management displays; one of names shows them.
        is_gpu = vendor in _GPU_VENDORS or (not name and vendor is None)
        return _gpu_by_name(vendor, name) if is_gpu and "rage xl" not in low else (OTHER, None)
    if base == 0x12:
        part = catalogue.gpu_part_by_name(model)
        return (GPU if vendor in (AMD, NVIDIA) or (vendor == INTEL and part) else ACCELERATOR), part
    if sub == 0x0B40:
        return ACCELERATOR, catalogue.gpu_part_by_name(model)
    if base == 0x02 or sub == 0x0C06:
        return NIC, _nic_by_name(name)
    if base == 0x01:
        inside = "management endpoint" in low or "placeholder endpoint" in low or "virtual endpoint" in low
        return (OTHER, Part(name, management=True)) if inside else (STORAGE, None)
    return OTHER, None


_TUNNELS = ("thunderbolt", "usb4", "usb 4")
_SWITCHES = ("switch", "pex 8", "pex8", "pex9", "switchtec")
_CHIPSETS = ("chipset", "matisse", "zeppelin", "starship")
_AMD_CARDS = ("vega", "navi", "instinct", "radeon")


def _is_tunnel(low: str) -> bool:
    return any(word in low for word in _TUNNELS)


def _bridge_by_name(vendor: int | None, name: str) -> Part | None:
    """What the name of a bridge says: part of a card, a switch chip, of a chipset or a tunnel, or nothing."""
    if part := catalogue.bridge_part_by_name(name, vendor):
        return part
    low = name.lower()
    if vendor == AMD and ("upstream port" in low or "downstream port" in low):
        return Part(name, internal_bridge=True)  # AMD's cards
    if vendor in (AMD, AMD_PROCESSORS) and any(word in low for word in _AMD_CARDS):
        return Part(name, internal_bridge=True)
    if vendor == MELLANOX and "bridge" in low:
        return Part(name, internal_bridge=True)
    # A tunnel's link is no real one; those of a chipset are not judged. Neither a switch nor part of a card.
    if _is_tunnel(low) or any(word in low for word in _CHIPSETS):
        return Part(name)
    if any(word in low for word in _SWITCHES):
        return Part(name, switch_chip=vendor not in (None, AMD_PROCESSORS, INTEL))
    return None
