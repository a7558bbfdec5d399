"""AMD compute topology from /sys/class/kfd: the PCI function of each compute node and the xGMI links between them."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.sysfs import Tally, missing, too_late
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import ACTIVE, AcceleratorLink, DriverGpu
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import Reading
from gpu_topo.source import Dir, Refusal, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "kfd"
ROOT = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = 11  # HSA_IOLINK_TYPE_XGMI in the kernel's kfd_crat.h and in libhsakmt
_HOP_WEIGHT = 15  # KFD_CRAT_XGMI_WEIGHT of one hop: 30 leads through another GPU and is no link of its own


def collect(source: Source, context: Context) -> Facts:
    """Functions, partitions and xGMI links. A partitioned GPU (CPX, DPX) is several nodes on one PCI function."""
    started = time.monotonic()
    names = source.list(ROOT)
    if isinstance(names, Refusal):
        return Facts(missing(NAME, ROOT, names, started))
    nodes = source.dir(ROOT)
    if isinstance(nodes, Refusal):
        return Facts(missing(NAME, ROOT, nodes, started))
    tally = Tally()
    late = False
    with nodes:
        members: dict[str, list[int]] = {}  # address -> its compute nodes
        functions: dict[str, Function] = {}
        for number in sorted(int(n) for n in names if n.isdecimal()):
            if too_late(context):
                late = True
                break
            function = _function(_properties(nodes, str(number), tally))
            if function and function.address not in context.exclude:
                functions.setdefault(function.address, function)
                members.setdefault(function.address, []).append(number)
        links = () if late else _links(nodes, members, tally)
    return Facts(
        tally.status(NAME, started, late),
        functions=tuple(functions.values()),
        gpus=tuple(
            DriverGpu(
                address=address,
                vendor_id=functions[address].vendor_id,
                device_id=functions[address].device_id,
                partitions=len(nodes_of) if len(nodes_of) > 1 else None,
            )
            for address, nodes_of in members.items()
        ),
        accelerator_links=links,
        structure_only=True,
        unread=tally.counts,
    )


def _properties(folder: Dir, path: str, tally: Tally) -> Mapping[str, int]:
    """The name and number of each line; empty where the file may not be read (a container sees some GPUs only)."""
    text = tally.text(folder.read(f"{path}/properties"), "properties")
    values = {}
    for line in text.splitlines() if isinstance(text, str) else ():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal() and len(value) < 24:  # 64 bits; more is no number of a driver
            values[name] = int(value)
    return values


def _function(properties: Mapping[str, int]) -> Function | None:
    """The PCI function of a compute node, None for a CPU. location_id is bus, device and function in 16 bits, and its
    function bits number the partitions of one device."""
    location, simds = properties.get("location_id"), properties.get("simd_count", 0)
    if location is None or not (simds or properties.get("vendor_id")) or location > 0xFFFF:
        return None
    if not simds and properties.get("cpu_cores_count"):
        return None
    address = f"{properties.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.0"
    return Function(
        address=address,
        vendor_id=properties.get("vendor_id"),
        device_id=properties.get("device_id"),
        driver="amdgpu",
    )


def _links(nodes: Dir, members: Mapping[str, list[int]], tally: Tally) -> tuple[AcceleratorLink, ...]:
    """One AcceleratorLink for each pair of devices that are one xGMI hop apart.

    All partitions of a device share its links, so those of its first node are read.
    """
    owner = {number: address for address, numbers in members.items() for number in numbers}
    pairs: dict[tuple[str, str], tuple[Reading[int], Reading[float]]] = {}
    for address, numbers in members.items():
        listing = nodes.list(f"{numbers[0]}/io_links")
        if isinstance(listing, Refusal):
            tally.text(listing, "io_links")
            continue
        for entry in listing:
            link = _properties(nodes, f"{numbers[0]}/io_links/{entry}", tally)
            other = owner.get(link.get("node_to", -1))
            if other is None or other == address or link.get("type") != _XGMI:
                continue
            pair = (address, other) if address < other else (other, address)
            if _is_direct(link.get("weight", 0)) and pairs.get(pair, (None, None))[1] is None:
                pairs[pair] = _strength(link)
    # The driver lists a link that has come up; it has no word for one that has not.
    return tuple(
        AcceleratorLink("xGMI", a, b, links=count, state=ACTIVE, gbs=gbs)
        for (a, b), (count, gbs) in sorted(pairs.items())
    )


def _is_direct(weight: int) -> bool:
    """Whether no third GPU lies between: not two or more hops."""
    return weight <= _HOP_WEIGHT or weight % _HOP_WEIGHT != 0


def _strength(link: Mapping[str, int]) -> tuple[int | None, float | None]:
    """Bonded links and GB/s per direction: amdgpu gives MB/s of one link as minimum and of all as maximum."""
    least, most = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    count = most // least if least and most >= least and most % least == 0 else None
    return count, most / 1000 if most else None
