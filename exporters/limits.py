"""How fast data can leave each GPU, per direction: PCIe, NVLink, the nearest fabric port, and where it is narrowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_topo.exporters.view import names, nvlink_totals
from gpu_topo.exporters.words import gbs, link_gbs, link_text
from gpu_topo.model.finding import Report
from gpu_topo.model.gpu import INACTIVE
from gpu_topo.model.host import Port
from gpu_topo.model.node import Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import GpuPlacement, Placement
from gpu_topo.topology.capacity import is_c2c
from gpu_topo.topology.ports import is_up, line_rate

UNKNOWN_NIC = "unknown"  # there are NICs, and which one is nearest is not known


class Limit(NamedTuple):
    """One GPU's row; GB/s per direction, None where it is not known."""

    gpu: str
    name: str
    numa_node: int | None
    link: Link | None
    fabric: str = ""  # NVLink, xGMI, HCCS; empty where the GPU has no such links
    fabric_gbs: float | None = None
    partial: bool = False  # some of these links are down
    nic: str | None = None  # the nearest one, or UNKNOWN_NIC; "+1" behind it: as many more are as near
    nic_kind: str | None = None
    path_gbs: float | None = None
    port_gbs: float | None = None
    narrowest_gbs: float | None = None
    narrowest: str = ""  # where: "port", "NIC link", "GPU link" or "bridge"


class Cell(NamedTuple):
    """A cell of the table; bad: it shows a fault."""

    text: str
    bad: bool = False


def limits_table(rows: Sequence[Limit]) -> tuple[list[str], list[list[Cell]]]:
    """Titles and cells; columns that no row fills are left out. GB/s where nothing else is said."""
    fabric = next((row.fabric for row in rows if row.fabric), "")
    networked = any(row.nic for row in rows)
    titles = ["GPU", "NUMA node", "PCIe", "GB/s", *([fabric] if fabric else [])]
    titles += ["nearest NIC", "way to it", "port", "narrowest"] if networked else []
    return titles, [_cells(row, bool(fabric), networked) for row in rows]


def _cells(row: Limit, fabric: bool, networked: bool) -> list[Cell]:
    rate = link_gbs(row.link, "/")
    cells = [
        Cell(row.name),
        Cell("?" if row.numa_node is None else str(row.numa_node)),
        Cell(link_text(row.link) or "?"),
        Cell(rate or "?", "/" in rate),
    ]
    if fabric:
        cells.append(Cell(gbs(row.fabric_gbs) if row.fabric else "-", row.partial))
    if networked:
        cells += [
            Cell(" ".join(filter(None, (row.nic, row.nic_kind))) or "-"),
            Cell(gbs(row.path_gbs) if row.nic else "-"),
            Cell(gbs(row.port_gbs) if row.nic else "-"),
            Cell(f"{gbs(row.narrowest_gbs)} {row.narrowest}" if row.narrowest else "-"),
        ]
    return cells


def limits(report: Report, placed: Placement) -> list[Limit]:
    """A row for each GPU and accelerator, in the node's order; none for a single one that no NIC is near."""
    node = report.node
    if len(node.gpus) < 2 and not any(row.nics for row in placed.gpus):
        return []
    short = names(node)
    rows = {row.gpu: row for row in placed.gpus}
    ports: dict[str, list[Port]] = {}
    for port in node.ports:
        if address := known(port.address):
            ports.setdefault(address, []).append(port)
    return [_limit(node, gpu, short, rows.get(gpu.address), ports) for gpu in node.gpus]


def _limit(
    node: Node, gpu: Gpu, short: Mapping[str, str], row: GpuPlacement | None, ports: Mapping[str, Sequence[Port]]
) -> Limit:
    device = node.devices.get(gpu.address)
    link = gpu.driver_link or (device.link if device and gpu.address not in node.hidden_links else None)
    if device and is_c2c(node, device):
        link = None  # what PCIe shows of it is not the way to the processor
    numa = row.numa_node if row else known(device.function.numa_node) if device else None
    limit = Limit(gpu.address, short.get(gpu.address, gpu.address), numa, link, *_fabric(node, gpu))
    if row is not None and row.nics is None:
        return limit._replace(nic=UNKNOWN_NIC)
    if row is None or not row.nics:
        return limit
    near = row.nics[0]
    own = ports.get(near.address)
    port_gbs = _ports_gbs(node, own) if own else _netdev_gbs(node, near.address)
    equals = sum(other.kind == near.kind and other.gbs == near.gbs for other in row.nics) - 1
    name = short.get(near.address, near.name) + (f" +{equals}" if equals else "")
    limit = limit._replace(nic=name, nic_kind=near.kind, path_gbs=near.gbs, port_gbs=port_gbs)
    if near.gbs is None or port_gbs is None:
        return limit
    smallest = min(near.gbs, port_gbs)
    return limit._replace(narrowest_gbs=smallest, narrowest=_where(node, limit, near.address, smallest))


def _ports_gbs(node: Node, ports: Sequence[Port]) -> float | None:
    """What the ports of one function carry together; those that are down carry nothing."""
    rates = [line_rate(node, port) for port in ports if is_up(port)]
    return sum(rate for rate in rates if rate is not None) / 8 if rates and None not in rates else None


def _netdev_gbs(node: Node, address: str) -> float | None:
    """The rate of the network interface that is up behind a NIC without RDMA."""
    rates = [known(dev.speed_mbps) for dev in node.netdevs if known(dev.address) == address]
    return max((rate / 8000 for rate in rates if rate and rate > 0), default=None)


def _fabric(node: Node, gpu: Gpu) -> tuple[str, float | None, bool]:
    """Kind and GB/s of all links between this GPU and others, and whether some of them are down."""
    totals = nvlink_totals(gpu)
    if totals.total:
        return "NVLink", totals.gbs, totals.active != totals.total
    links = [link for link in node.accelerator_links if gpu.address in (link.a, link.b)]
    if not links:
        return "", None, False
    rates = [known(link.gbs) for link in links if link.state != INACTIVE]
    total = None if None in rates else sum(rate for rate in rates if rate is not None)
    return links[0].kind, total, any(link.state == INACTIVE for link in links)


def _where(node: Node, limit: Limit, nic: str, smallest: float) -> str:
    """Names the narrowest part of the way; of equals the one nearest to the network, since it limits all GPUs."""

    def holds(value: float | None) -> bool:
        return value is not None and abs(value - smallest) < 0.01

    card = node.devices.get(nic)
    if holds(limit.port_gbs):
        return "port"
    if card and card.link and holds(card.link.gbs):
        return "NIC link"
    if limit.link and holds(limit.link.gbs):
        return "GPU link"
    return "bridge"
