"""What a PCI function is: its kind by class and exact ids, its name, and what the catalogue has of it."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.model.address import slot_of
from gpu_topo.model.cached import cached
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, NVSWITCH, OTHER, STORAGE, Part
from gpu_topo.model.pci import INTEGRATED_ENDPOINT, UPSTREAM_PORT, Function
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple, often

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NVIDIA, AMD, INTEL, AMD_CPU, MELLANOX = 0x10DE, 0x1002, 0x8086, 0x1022, 0x15B3
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
    name = core.own_name
    if not name:
        name = (names.get((vendor, device)) if vendor is not None and device is not None else None) or core.last_name
    return Identity(kind, name, core.part, integrated)


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
        beside = any(other.vendor_id == AMD_CPU for other in siblings)
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
    if vendor is not None and device is not None:
        subsystem = (
            (subsystem_vendor, subsystem_device)
            if subsystem_vendor is not None and subsystem_device is not None
            else None
        )
        kind, part = _by_ids(vendor, device, class_code, subsystem, bridge, forwards)
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


def _by_ids(
    vendor: int, device: int, class_code: int | None, subsystem: tuple[int, int] | None, bridge: bool, forwards: bool
) -> tuple[str, Part | None]:
    """Kind and part of a function whose numbers are known."""
    if class_code is None:
        return _without_class(vendor, device, subsystem, bridge)
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
    vendor: int, device: int, subsystem: tuple[int, int] | None, bridge: bool
) -> tuple[str, Part | None]:
    """Some recordings give ids and no class: then exact ids alone count."""
    if part := catalogue.gpu_part(vendor, device, subsystem):
        return (GPU if vendor in _GPU_VENDORS else ACCELERATOR), part
    if part := catalogue.nvswitch_part(vendor, device):
        return NVSWITCH, part
    if part := catalogue.nic_part(vendor, device):
        return (OTHER if part.management else NIC), part
    return (BRIDGE if bridge else OTHER), catalogue.bridge_part(vendor, device)


def _is_bridge(sub: int, bridge: bool, forwards: bool) -> bool:
    # Some root complexes bear the class of a processor and still have a bridge's header.
    return sub in (0x0604, 0x0609) or forwards or (bridge and sub >> 8 != 0x06)


_SWITCH_WORDS = ("switch", "pex 8", "pex8", "pex9", "switchtec")
_NO_SWITCH = ("chipset", "matisse", "zeppelin", "starship")


def _by_name(
    vendor: int | None, name: str, class_code: int | None, bridge: bool, forwards: bool
) -> tuple[str, Part | None]:
    """Kind and part of a function without a device number: by its class, its vendor and the words of its name."""
    model = _model(name)
    if class_code is None:
        part = catalogue.gpu_part_by_name(model)
        if part is not None:
            return GPU, part
        part = catalogue.nic_part_by_name(model)
        return (NIC if part else BRIDGE if bridge else OTHER), part
    base, sub, low = class_code >> 16, class_code >> 8, name.lower()
    if base == 0x06 or forwards or bridge:
        if sub == 0x0680 and vendor == NVIDIA and "nvswitch" in low:
            return NVSWITCH, Part(model or name)
        if not _is_bridge(sub, bridge, forwards):
            return OTHER, None
        return BRIDGE, _bridge_by_name(vendor, name, low)
    if base == 0x03:
        # A recording of classes alone (NCCL's XML) lists no management displays; one of names shows them.
        is_gpu = vendor in _GPU_VENDORS or (not name and vendor is None)
        if "es1000" in low or "rage xl" in low:
            is_gpu = False
        return (GPU, catalogue.gpu_part_by_name(model)) if is_gpu else (OTHER, None)
    if base == 0x12:
        part = catalogue.gpu_part_by_name(model)
        return (GPU if vendor in (AMD, NVIDIA) or (vendor == INTEL and part) else ACCELERATOR), part
    if sub == 0x0B40:
        return ACCELERATOR, catalogue.gpu_part_by_name(model)
    if base == 0x02 or sub == 0x0C06:
        return NIC, catalogue.nic_part_by_name(model)
    if base == 0x01:
        inside = "management endpoint" in low or "placeholder endpoint" in low or "virtual endpoint" in low
        return (OTHER, Part(name, management=True)) if inside else (STORAGE, None)
    return OTHER, None


def _model(name: str) -> str:
    """The part in brackets of "AD102 [GeForce RTX 4090]"; the whole name where it does not end in brackets."""
    _, opened, model = name.removesuffix("]").rpartition("[")
    return model if opened and model and name.endswith("]") and "]" not in model else name


def _bridge_by_name(vendor: int | None, name: str, low: str) -> Part | None:
    """What the name of a bridge says: part of a card, a switch chip, or nothing."""
    if vendor == AMD and ("upstream port" in low or "downstream port" in low):
        return Part(name, internal_bridge=True)  # AMD's cards
    if vendor == MELLANOX and "bridge" in low:
        return Part(name, internal_bridge=True)
    if "thunderbolt" in low:
        return Part(name)  # a tunnel's link is no real one: neither a switch nor part of a card
    if any(word in low for word in _SWITCH_WORDS) and not any(word in low for word in _NO_SWITCH):
        return Part(name, switch_chip=vendor not in (None, AMD_CPU, INTEL))
    return None


# --- what the functions say of the machine ---------------------------------------------------------------------

_HYPERVISOR_VENDORS = {
    0x1B36: "KVM",  # Red Hat's emulated bridges and controllers: QEMU
    0x15AD: "VMware",
    0x1414: "Hyper-V",
    0x5853: "Xen",
    0x80EE: "VirtualBox",
    0x1AB8: "Parallels",
}
_BOCHS_DISPLAY = (0x1234, 0x1111)
_QEMU_SUBSYSTEM = (0x1AF4, 0x1100)
_VIRTIO = 0x1AF4
# Host bridges that virtual machines show: 440FX, Q35, QEMU's generic one, Cloud Hypervisor's.
_VIRTUAL_HOST_BRIDGES = frozenset({(0x8086, 0x1237), (0x8086, 0x29C0), (0x1B36, 0x0008), (0x8086, 0x0D57)})


def hypervisor_of_functions(functions: Iterable[Function]) -> str | None:
    """The hypervisor whose emulated devices are among the functions, None where there are none.

    Virtio alone is no proof, since cards of some clouds show it to bare metal: it counts unless a real host bridge is
    there. Amazon's and Google's own devices serve bare metal too and do not count.
    """
    virtio = False
    host_bridges: set[tuple[int | None, int | None]] = set()
    for function in functions:
        vendor = function.vendor_id
        if vendor in _HYPERVISOR_VENDORS:
            return _HYPERVISOR_VENDORS[vendor]
        ids = (vendor, function.device_id)
        if ids == _BOCHS_DISPLAY or (function.subsystem_vendor_id, function.subsystem_device_id) == _QEMU_SUBSYSTEM:
            return "KVM"
        if vendor == _VIRTIO:
            virtio = True
        if function.class_code is not None and function.class_code >> 8 == 0x0600:
            host_bridges.add(ids)
    return "KVM" if virtio and (not host_bridges or host_bridges & _VIRTUAL_HOST_BRIDGES) else None
