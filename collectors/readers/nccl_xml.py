"""Reads the topology XML that NCCL and RCCL dump (NCCL_TOPO_DUMP_FILE) or are given (NCCL_TOPO_FILE).

Structure only: link_speed and link_width are the maxima of both ends or a provider's guess, a port's speed likewise,
so none of them is reported. NCCL leaves root ports and the downstream ports of switches out, and keeps only the GPUs
and NICs that a job used: what is not in the file is not known to be absent.
Source of the format: NVIDIA/nccl src/graph/xml.cc and topo.cc, ROCm/rccl src/graph/xml.cc.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_topo.collectors.readers.reader import Reader, documents
from gpu_topo.model.address import normalise, pair_key
from gpu_topo.model.facts import FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import ACTIVE, COUNTED, AcceleratorLink, DriverGpu, NvLink
from gpu_topo.model.host import NetDevice, Platform, Port
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

KIND = "NCCL topology XML"

_BEGIN = re.compile(r"\s*<system(?:\s+version=|\s*>)")
_END = "</system>"
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})\Z")
_MAX_LINKS = 64  # between two chips; more is no count

_BRIDGE = 0x0604
_NVSWITCH = 0x0680
_POWER_CPU = 0x068001  # the class that NCCL has for the NVLink bridge of a POWER processor


class _Place(NamedTuple):
    """Where an element stands: the bridge above and what its <cpu> says."""

    parent: str | None
    numa_node: Reading[int]
    cpus: str | None


class _Found:
    """What a document holds, while it is walked."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.gpus: dict[str, DriverGpu] = {}
        self.links: dict[tuple[str, str], AcceleratorLink] = {}
        self.ports: dict[str, Port] = {}
        self.netdevs: dict[str, NetDevice] = {}
        self.malformed = 0


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
        return Facts(SourceStatus(name, FAILED, f"not well-formed: {error}"), structure_only=True)
    cpus = root.findall("cpu")
    if not cpus:
        return None  # some other program's <system>
    hosts = list(dict.fromkeys(cpu.get("host_hash", "") for cpu in cpus))
    found = _Found()
    for cpu in cpus:
        if cpu.get("host_hash", "") == hosts[0]:
            _read_cpu(cpu, found)
    remarks = []
    if len(hosts) > 1:
        # NCCL joins the nodes of one NVLink domain in one file; their addresses repeat.
        remarks.append(f"holds {len(hosts)} machines, of which the first is shown")
    if found.malformed:
        remarks.append(f"{found.malformed} elements without a PCI address")
    arch = cpus[0].get("arch") or None
    return Facts(
        SourceStatus(name, PARTIAL if remarks else OK, "; ".join(remarks)),
        functions=tuple(found.functions.values()),
        gpus=tuple(found.gpus.values()),
        accelerator_links=tuple(found.links.values()),
        ports=tuple(found.ports.values()),
        netdevs=tuple(found.netdevs.values()),
        platform=Platform(arch=arch),
        structure_only=True,
    )


def _read_cpu(cpu: Element, found: _Found) -> None:
    place = _Place(None, _numa_node(cpu.get("numaid")), _cpu_list(cpu.get("affinity")))
    # Interfaces straight below a <cpu> are virtual ones, or their PCI function is hidden.
    for pci in cpu.findall("pci"):
        _read_pci(pci, place, found)


def _read_pci(pci: Element, place: _Place, found: _Found) -> None:
    """A <pci> element and what is below it; its depth is bounded by the parser."""
    address = _address(pci.get("busid"))
    if address is None:
        found.malformed += 1
    else:
        class_code = _class(pci.get("class"))
        vendor = _identity(pci.get("vendor"))
        found.functions.setdefault(
            address,
            Function(
                address,
                vendor_id=vendor,
                device_id=_identity(pci.get("device")),
                class_code=class_code,
                subsystem_vendor_id=_identity(pci.get("subsystem_vendor")),
                subsystem_device_id=_identity(pci.get("subsystem_device")),
                numa_node=place.numa_node,
                parent=place.parent,
                bridge=class_code is not None and class_code >> 8 == _BRIDGE,
                local_cpus=place.cpus,
                link_trusted=False,
            ),
        )
        gpus = pci.findall("gpu")
        if gpus:
            _read_gpu(gpus, address, found)
        for nic in pci.findall("nic"):
            _read_nic(nic, address, found)
    below = place._replace(parent=address or place.parent)
    for child in pci.findall("pci"):
        _read_pci(child, below, found)


def _read_gpu(gpus: Sequence[Element], address: str, found: _Found) -> None:
    """The <gpu> elements of one function: several are the partitions of one GPU."""
    before = found.gpus.get(address)
    count = len(gpus) + (before.partitions if before and isinstance(before.partitions, int) else bool(before))
    links: list[NvLink] = []
    for link in gpus[0].findall("nvlink"):
        target = _address(link.get("target"))
        kind = _remote_kind(_class(link.get("tclass")))
        # A target that is the GPU itself, or that is no address, stands for one that the machine hides.
        remote = None if target == address else target
        first = len(links)
        links.extend(NvLink(first + i, ACTIVE, None, kind, remote) for i in range(_count(link.get("count"))))
    for gpu in gpus:
        for link in gpu.findall("xgmi"):
            _read_xgmi(link, address, found)
    found.gpus[address] = before or DriverGpu(
        address,
        ordinal=_number(gpus[0].get("dev")),
        vendor_id=found.functions[address].vendor_id,
        device_id=found.functions[address].device_id,
        nvlinks=tuple(links),
        nvlinks_are=COUNTED,
        c2c=True if gpus[0].find("c2c") is not None else None,
    )
    if count > 1:
        found.gpus[address] = found.gpus[address]._replace(partitions=count)


def _read_xgmi(link: Element, address: str, found: _Found) -> None:
    target = _address(link.get("target"))
    count = _count(link.get("count"))
    if target is None or target == address or not count:
        return
    a, b = pair_key(address, target)
    known = found.links.get((a, b))
    if known is None or not isinstance(known.links, int) or known.links < count:
        found.links[a, b] = AcceleratorLink("xGMI", a, b, links=count, state=ACTIVE)


def _read_nic(nic: Element, address: str, found: _Found) -> None:
    for index, net in enumerate(nic.findall("net")):
        name = net.get("name") or ""
        number = _number(net.get("port"))
        if not name or len(name) > 64:
            continue
        if number:
            # NCCL counts on over the functions of one card, which it shows as one.
            silent = Unknown(NOT_RECORDED, "NCCL XML")
            port = Port(
                name,
                max(number - index, 1),
                address,
                link_layer=silent,
                state=silent,
                phys_state=silent,
                rate_gbps=Unknown(NOT_RECORDED, "NCCL XML: speed is a maximum or a guess"),
            )
            found.ports.setdefault(name, port)
        else:  # a socket interface
            found.netdevs.setdefault(name, NetDevice(name, address))


def _address(text: str | None) -> str | None:
    """An address; old versions leave the function out. NCCL's placeholder for a hidden NVSwitch is none."""
    if not text or len(text) > 24:
        return None
    return normalise(text) or normalise(f"{text}.0")


def _hex(text: str | None) -> int | None:
    match = _HEX.match((text or "").strip())
    return int(match[1], 16) if match else None


def _identity(text: str | None) -> int | None:
    """A vendor or device id; providers write 0xffff where they have none."""
    value = _hex(text)
    return value if value is not None and 0 < value < 0xFFFF else None


def _class(text: str | None) -> int | None:
    """A class code of 24 bits; some files leave the programming interface out."""
    value = _hex(text)
    if value is None or value > 0xFFFFFF:
        return None
    digits = len((text or "").strip().removeprefix("0x"))
    return value << 8 if digits <= 4 else value


def _remote_kind(tclass: int | None) -> str:
    if tclass is None:
        return "unknown"
    if tclass == _POWER_CPU:
        return "cpu"
    if tclass >> 8 == _NVSWITCH:
        return "nvswitch"
    return "gpu" if tclass >> 16 == 0x03 else "unknown"


def _number(text: str | None) -> int | None:
    value = (text or "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def _count(text: str | None) -> int:
    return min(_number(text) or 0, _MAX_LINKS)


def _numa_node(text: str | None) -> Reading[int]:
    number = _number(text)
    return Unknown(NO_DATA, "numaid in NCCL XML") if number is None else number


def _cpu_list(mask: str | None) -> str | None:
    from gpu_topo.collectors.cpu_mask import to_list

    return to_list(mask) if mask else None


READER = Reader(KIND, _begins, read)
