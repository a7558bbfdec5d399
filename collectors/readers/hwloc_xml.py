"""Reads hwloc's XML (`lstopo machine.xml`), formats 1 to 3: the PCI tree, NUMA nodes, GPUs, ports, disks, NVLinks.

hwloc keeps one number of a link, its bandwidth, so width and speed cannot be told; for GPUs older versions replaced
it by NVML's maximum, so theirs is not reported at all.
Source of the format: open-mpi/hwloc hwloc/topology-xml.c, topology-nvml.c, topology-rsmi.c and topology-linux.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpu_topo.collectors.cpu_mask import to_bits, to_list
from gpu_topo.collectors.readers import hwloc_links
from gpu_topo.collectors.readers.reader import Reader, documents
from gpu_topo.model.address import normalise
from gpu_topo.model.facts import FAILED, OK, Facts, SourceStatus
from gpu_topo.model.gpu import COUNTED, AcceleratorLink, DriverGpu
from gpu_topo.model.host import BlockDevice, NetDevice, NumaNode, Platform, Port
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

KIND = "hwloc XML"

_BEGIN = re.compile(r"\s*<topology(?:\s+version=|\s*>)")
_END = "</topology>"
_PCI_TYPE = re.compile(
    r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[([0-9a-f]{4}):([0-9a-f]{4})\])?(?: (\w\w))?"
)
_BUSES = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]")
_UUID = re.compile(r"(?:GPU-)?[0-9a-fA-F]{8,}[0-9a-fA-F-]*\Z")
_NVME = re.compile(r"(nvme\d+)(?:c\d+)?n\d+\Z")
_DRIVER_DEVICE = re.compile(r"(nvml|rsmi|cuda|ze)(\d+)(?:\.\d+)?\Z")

_BRIDGE, _NVSWITCH = 0x0604, 0x0680
_NVIDIA, _AMAZON, _EFA = 0x10DE, 0x1D0F, 0xEFA0
_ACCELERATED = (0x03, 0x12)  # base classes whose link values may be NVML's maxima

# What an OSDev is: a number in formats 1 and 2, a set of bits in format 3.
_NETWORK, _RDMA, _DISK, _GPU = "network", "rdma", "disk", "gpu"
_TYPES = {0: _DISK, 1: _GPU, 2: _NETWORK, 3: _RDMA, 5: _GPU}
_BITS = ((1 << 0, _DISK), (1 << 2, _GPU), (1 << 3, _GPU), (1 << 4, _NETWORK), (1 << 5, _RDMA))

# enum ibv_port_state
_PORT_STATES = {"0": "NOP", "1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}


class _Place(NamedTuple):
    """Where an object stands: the bridge and host bridge above, and the nearest object with CPUs."""

    parent: Reading[str]
    host_bridge: str | None
    local: Element


class _Found:
    """What a document holds, while it is walked."""

    def __init__(self, bits: bool, numa: dict[int, Element]) -> None:
        self.bits = bits
        self.numa = numa
        self.functions: dict[str, Function] = {}
        self.gpus: dict[str, DriverGpu] = {}
        self.counts: dict[tuple[str, str], int] = {}  # (address, driver) -> devices of that driver
        self.ports: list[Port] = []
        self.netdevs: list[NetDevice] = []
        self.disks: dict[str, BlockDevice] = {}
        self.owner: dict[str, str] = {}  # gp_index of an OSDev or PCIDev -> address
        self.by_name: dict[str, str] = {}  # rsmi3 -> address


def _begins(line: str) -> bool:
    return bool(_BEGIN.match(line))


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every document in the lines, oldest first."""
    found = [_read_document(document, where) for document in documents(lines, _begins, _END)]
    return [facts for facts in found if facts is not None]


def _read_document(lines: Sequence[str], where: str) -> Facts | None:
    from gpu_topo.collectors.readers.xml_tree import BadXml, parse

    name = f"{KIND} ({where})"
    try:
        root = parse(lines)
    except BadXml as error:
        return Facts(SourceStatus(name, FAILED, f"not well-formed: {error}"))
    machine = root.find("object")
    if machine is None:
        return None  # some other program's <topology>
    numa = {number: node for node in root.iter("object") if (number := _numa_number(node)) is not None}
    found = _Found((root.get("version") or "").startswith(("3", "4")), numa)
    _walk(machine, _Place(Unknown(NOT_RECORDED, "the bridge above"), None, machine), found)
    links = _links(root, found)
    return Facts(
        SourceStatus(name, OK),
        functions=tuple(found.functions.values()),
        gpus=tuple(found.gpus.values()),
        accelerator_links=links,
        ports=tuple(_with_netdev(port, found.netdevs) for port in found.ports),
        netdevs=tuple(found.netdevs),
        blocks=tuple(found.disks.values()),
        platform=_platform(machine, root, found),
    )


# --- the tree -------------------------------------------------------------------------------------------------------


def _walk(thing: Element, place: _Place, found: _Found) -> None:
    """An object and what is below it; its depth is bounded by the parser."""
    kind = thing.get("type")
    if kind in ("Bridge", "PCIDev"):
        place = _read_pci(thing, place, found)
    elif thing.get("cpuset") is not None and kind != "NUMANode":
        place = place._replace(local=thing)
    elif kind == "NUMANode" and thing.find("object") is not None:
        place = place._replace(local=thing)  # format 1: the node contains what is local to it
    for child in thing.findall("object"):
        _walk(child, place, found)


def _read_pci(thing: Element, place: _Place, found: _Found) -> _Place:
    """A bridge or device; returns the place of what is below it."""
    buses = _BUSES.match(thing.get("bridge_pci") or "")
    address = normalise(thing.get("pci_busid") or "")
    if address is None:
        if buses is None:
            return place
        # A host bridge: what is directly below it is on a root bus.
        return place._replace(parent=None, host_bridge=f"pci{int(buses[1], 16):04x}:{buses[2]}")
    function = _function(thing, address, place, found)
    if buses is not None:
        function = function._replace(secondary_bus=int(buses[2], 16), subordinate_bus=int(buses[3], 16))
    found.functions[address] = function
    if index := thing.get("gp_index"):
        found.owner[f"PCIDev:{index}"] = address
    for device in thing.findall("object"):
        if device.get("type") == "OSDev":
            _read_device(device, function, found)
    return place._replace(parent=address)


def _function(thing: Element, address: str, place: _Place, found: _Found) -> Function:
    ids = _PCI_TYPE.match((thing.get("pci_type") or "").lower())
    numbers = [int(number, 16) if number else None for number in ids.groups()] if ids else [None] * 6
    base, vendor, device, subvendor, subdevice, revision = numbers
    if vendor in (0, 0xFFFF):
        base = vendor = device = None
    names = _infos(thing)
    spelled = " ".join(names[key] for key in ("PCIVendor", "PCIDevice") if key in names)
    name = spelled if "PCIDevice" in names else None
    if thing.get("subtype") == "NVSwitch":
        # hwloc knows it as the other end of NVLinks, whatever its configuration space says.
        base, vendor, name = _NVSWITCH, _NVIDIA, name or "NVIDIA NVSwitch"
    link_known = base is not None and base >> 8 not in _ACCELERATED
    return Function(
        address,
        vendor_id=vendor,
        device_id=device,
        class_code=None if base is None else base << 8,
        subsystem_vendor_id=subvendor or None,
        subsystem_device_id=subdevice if subvendor else None,
        revision=revision,
        name=name,
        numa_node=_numa_of(place.local, found.numa),
        parent=place.parent,
        host_bridge=place.host_bridge,
        bridge=thing.get("type") == "Bridge" or base == _BRIDGE,
        slot=names.get("PCISlot"),
        local_cpus=to_list(place.local.get("cpuset") or ""),
        link_trusted=link_known,
        link_gbs=_gbs(thing.get("pci_link_speed")) if link_known else None,
    )


def _gbs(text: str | None) -> Reading[float]:
    """GB/s of a link; hwloc writes 0.000000 where it knows none."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    return round(value, 3) if 0 < value < 1e5 else Unknown(NO_DATA, "pci_link_speed in hwloc XML")


def _infos(thing: Element) -> dict[str, str]:
    return {info.get("name") or "": info.get("value") or "" for info in thing.findall("info")}


# --- NUMA nodes -----------------------------------------------------------------------------------------------------


def _numa_number(thing: Element) -> int | None:
    index = thing.get("os_index") or ""
    is_node = thing.get("type") in ("NUMANode", "Node") and index.isascii() and index.isdigit()
    return int(index) if is_node and len(index) < 8 else None


def _numa_of(local: Element, numa: dict[int, Element]) -> Reading[int]:
    """The NUMA node of what is local to an object. A package may have several: DRAM counts, memory of GPUs and HBM
    with the same CPUs do not."""
    number = _numa_number(local)
    if number is not None:
        return number
    bits = to_bits(local.get("nodeset") or "")
    nodes = {bit: numa[bit] for bit in bits or () if bit in numa}
    if len(nodes) > 1:
        nodes = {
            bit: node for bit, node in nodes.items() if not node.get("subtype") and to_bits(node.get("cpuset") or "")
        }
    cpus = {node.get("cpuset") for node in nodes.values()}
    if nodes and len(cpus) == 1:
        return min(nodes)
    return Unknown(NO_DATA, "nodeset in hwloc XML")


def _numa_nodes(numa: dict[int, Element]) -> tuple[NumaNode, ...]:
    return tuple(NumaNode(number, to_list(numa[number].get("cpuset") or "")) for number in sorted(numa))


# --- devices of the operating system --------------------------------------------------------------------------------


def _type_of(device: Element, bits: bool) -> str | None:
    number = device.get("osdev_type") or ""
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        return None
    if bits:
        return next((kind for bit, kind in _BITS if int(number) & bit), None)
    return _TYPES.get(int(number))


def _read_device(device: Element, function: Function, found: _Found) -> None:
    name = (device.get("name") or "")[:64]
    address = function.address
    if index := device.get("gp_index"):
        found.owner[f"OSDev:{index}"] = address
    found.by_name[name] = address
    kind = _type_of(device, found.bits)
    if not name or kind is None:
        return
    infos = _infos(device)
    if kind == _GPU:
        _read_gpu(name, infos, function, found)
    elif kind == _RDMA:
        found.ports.extend(_ports(name, infos, function))
    elif kind == _NETWORK:
        found.netdevs.append(NetDevice(name, address))
    else:
        _read_disk(name, infos, address, found)


def _read_gpu(name: str, infos: dict[str, str], function: Function, found: _Found) -> None:
    """What a vendor's library says: nvml, rsmi, cuda and level zero; OpenCL and display names add nothing."""
    match = _DRIVER_DEVICE.match(name)
    if match is None:
        return
    address, library = function.address, match[1]
    found.counts[address, library] = count = found.counts.get((address, library), 0) + 1
    gpu = found.gpus.get(address) or DriverGpu(
        address,
        vendor_id=function.vendor_id,
        device_id=function.device_id,
        numa_node=function.numa_node,
        nvlinks=Unknown(NOT_RECORDED, "NVLinkBandwidth in hwloc XML") if function.vendor_id == _NVIDIA else None,
    )
    uuid = infos.get("NVIDIAUUID") or infos.get("AMDUUID") or ""
    if library in ("nvml", "rsmi") and count == 1:
        gpu = gpu._replace(ordinal=int(match[2][:6]))
    if _UUID.match(uuid) and gpu.uuid is None:
        gpu = gpu._replace(uuid=uuid)
    model = infos.get("GPUModel")
    found.gpus[address] = gpu._replace(model=gpu.model or model, partitions=count if count > 1 else gpu.partitions)


def _ports(device: str, infos: dict[str, str], function: Function) -> Iterator[Port]:
    amazon = function.vendor_id == _AMAZON and (function.device_id or 0) & 0xFFF0 == _EFA
    for number in range(1, 17):
        state = infos.get(f"Port{number}State")
        if state is None:
            continue
        prefix = infos.get(f"Port{number}GID0", "").split(":")[:4]
        yield Port(
            device,
            number,
            function.address,
            link_layer=Unknown(NOT_RECORDED, "hwloc XML"),
            transport="efa" if amazon else None,
            state=_PORT_STATES.get(state) or Unknown(NO_DATA, f"Port{number}State in hwloc XML"),
            phys_state=Unknown(NOT_RECORDED, "hwloc XML"),
            rate_gbps=Unknown(NOT_RECORDED, "hwloc XML"),
            subnet_prefix=":".join(prefix) if len(prefix) == 4 and all(len(part) == 4 for part in prefix) else None,
        )


def _with_netdev(port: Port, netdevs: Sequence[NetDevice]) -> Port:
    """The port with its network interface, where its PCI function has only one."""
    beside = [netdev.name for netdev in netdevs if netdev.address == port.address]
    return port._replace(netdev=beside[0]) if len(beside) == 1 and port.port == 1 else port


def _read_disk(name: str, infos: dict[str, str], address: str, found: _Found) -> None:
    match = _NVME.match(name)
    owner = match[1] if match else name
    before = found.disks.get(owner) or BlockDevice(owner, address, model=infos.get("Model"))
    found.disks[owner] = before._replace(namespaces=(*before.namespaces, name))


# --- what stands beside the tree ------------------------------------------------------------------------------------


def _links(root: Element, found: _Found) -> tuple[AcceleratorLink, ...]:
    """Puts NVLinks on the GPUs found and returns the links that are none."""
    for address, links in hwloc_links.nvlinks(root, found.owner, found.functions).items():
        gpu = found.gpus.get(address)
        if gpu is not None:
            found.gpus[address] = gpu._replace(nvlinks=links, nvlinks_are=COUNTED)
    return hwloc_links.xgmi(root, found.owner, found.by_name)


def _platform(machine: Element, root: Element, found: _Found) -> Platform:
    infos = {**_infos(root), **_infos(machine)}
    vendor, product = infos.get("DMISysVendor", ""), infos.get("DMIProductName") or infos.get("PlatformModel") or ""
    chassis = infos.get("DMIChassisType", "")
    nodes = _numa_nodes(found.numa)
    # Memory of GPUs shows as nodes without processors.
    with_cpus = sum(node.cpus is not None for node in nodes)
    judged = _hardware_or_guest(infos)
    return Platform(
        hostname=infos.get("HostName") or None,
        kind=judged.kind,
        hypervisor=judged.hypervisor,
        evidence=judged.evidence,
        kernel=infos.get("OSRelease") or None,
        arch=infos.get("Architecture") or None,
        product=f"{vendor} {product}".strip() or None,
        chassis=int(chassis) if chassis.isascii() and chassis.isdigit() and len(chassis) < 4 else None,
        numa=nodes or None,
        numa_count=with_cpus or len(nodes) or None,
    )


def _hardware_or_guest(infos: dict[str, str]) -> Platform:
    """What the platform collector makes of the SMBIOS texts that hwloc copied."""
    from gpu_topo.collectors import platform
    from gpu_topo.collectors.context import Context
    from gpu_topo.source import Tree

    files = {
        f"{platform.DMI}/sys_vendor": infos.get("DMISysVendor", ""),
        f"{platform.DMI}/product_name": infos.get("DMIProductName", ""),
        f"{platform.DMI}/board_vendor": infos.get("DMIBoardVendor", ""),
        f"{platform.DMI}/bios_vendor": infos.get("DMIBIOSVendor", ""),
        "/proc/cpuinfo": f"platform : {infos['PlatformName']}" if "PlatformName" in infos else "",
    }
    tree = Tree({path: text.encode() for path, text in files.items() if text})
    return platform.collect(tree, Context(deadline=float("inf"))).platform or Platform()


READER = Reader(KIND, _begins, read)
