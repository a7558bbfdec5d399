"""What several reports show alike: which devices are listed, what they are called, what their NVLinks carry.

Pure functions of facts, so that JSON, text, markdown, HTML and metrics never disagree. Light to import.
"""

from __future__ import annotations

from gpu_topo.model.finding import SEVERITIES, Finding, Report
from gpu_topo.model.gpu import ACTIVE, UNKNOWN_STATE
from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, ENDPOINT_KINDS, GPU, NIC, STORAGE, Device, Gpu, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.bonds import link_gbs, nvlink_version
from gpu_topo.topology.counted import is_spare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class NvlinkTotals(NamedTuple):
    """All NVLinks of one GPU together; gbs is per direction, nominal. None where it is not known."""

    total: int | None = None
    active: int | None = None
    version: int | None = None
    gbs: float | None = None


def nvlink_totals(gpu: Gpu) -> NvlinkTotals:
    """Counts the GPU's NVLinks and adds up what the active ones carry."""
    links = known(gpu.nvlinks)
    if links is None:
        return NvlinkTotals()
    if not links and gpu.part is not None and gpu.part.fabric == "nvlink":
        return NvlinkTotals(None, 0, None, 0.0)  # the driver says that none is up, and not how many there are
    version = nvlink_version(gpu)
    if links and all(link.state == UNKNOWN_STATE for link in links):
        return NvlinkTotals(len(links), None, version, None)
    active = [link for link in links if link.state == ACTIVE]
    gbs: float | None = 0.0
    for link in active:
        rate = link_gbs(gpu, link)
        gbs = None if gbs is None or rate is None else gbs + rate
    return NvlinkTotals(len(links), len(active), version, gbs)


def listed_devices(report: Report) -> list[Device]:
    """The devices of a report, in address order: endpoints and every bridge above one; everything with --all.

    Virtual functions beside their physical function add nothing to a report; they come with --all.
    """
    node, devices = report.node, report.node.devices
    if report.all_functions:
        return list(devices.values())
    wanted: set[str] = set()
    for device in devices.values():
        if device.kind in ENDPOINT_KINDS and not is_spare(node, device):
            wanted.update(device.path)
            wanted.add(device.address)
    return [device for device in devices.values() if device.address in wanted]


def port_max_gbps(node: Node, port: Port) -> float | None:
    """What the card behind a port can do at most, Gb/s, by the catalogue; None where it has no figure."""
    device = node.devices.get(known(port.address) or "")
    return device.part.port_max_gbps if device and device.part else None


def names(node: Node) -> dict[str, str]:
    """Short names of endpoints by address, as the tools of the field write them: GPU0, mlx5_0, ens1f0, nvme0.

    GPUs carry their driver's index; without a driver they are counted in its default order, by address.
    """
    result: dict[str, str] = {}
    taken = {gpu.ordinal for gpu in node.gpus if gpu.ordinal is not None}
    free = (number for number in range(len(taken) + len(node.gpus) + 1) if number not in taken)
    for gpu in node.gpus:
        device = node.devices.get(gpu.address)
        prefix = "ACC" if device and device.kind == ACCELERATOR else "GPU"
        result[gpu.address] = f"{prefix}{next(free) if gpu.ordinal is None else gpu.ordinal}"
    for port in node.ports:  # a verbs name says more than a network interface's
        if (address := known(port.address)) and not port.virtual_function:
            result.setdefault(address, port.device)
    for netdev in node.netdevs:
        if address := known(netdev.address):
            result.setdefault(address, netdev.name)
    for block in node.blocks:
        if address := known(block.address):
            result.setdefault(address, block.name)
    counts = dict.fromkeys((GPU, NIC, STORAGE), 0)
    prefixes = {GPU: "GPU", NIC: "NIC", STORAGE: "STO"}
    for device in node.devices.values():
        if device.kind in counts and not is_spare(node, device):
            if device.address not in result:
                # A recording without addresses already uses names: GPU0, NIC3, mlx5_0.
                fallback = f"{prefixes[device.kind]}{counts[device.kind]}"
                result[device.address] = fallback if ":" in device.address else device.address
            counts[device.kind] += 1
    return result


def subject_name(subject: str, short: Mapping[str, str]) -> str:
    """A finding's subject for a person: `GPU3 (0000:65:00.0)`, `GPU0~GPU1`, `mlx5_0/1`, `this node`."""
    if subject == "node":
        return "this node"
    if "~" in subject:
        return " ~ ".join(short.get(part, part) for part in subject.split("~"))
    name = short.get(subject)
    return f"{name} ({subject})" if name and name != subject else subject


def open_findings(report: Report) -> list[Finding]:
    """The findings that count, worst first, then by what they cost."""
    return _worst_first(f for f in report.findings if f.accepted is None)


def accepted_findings(report: Report) -> list[Finding]:
    """The findings that somebody accepted as designed."""
    return _worst_first(f for f in report.findings if f.accepted is not None)


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda f: (order.get(f.severity, 9), -(f.lost_gbs or 0.0)))
