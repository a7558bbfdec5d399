"""The device-by-device table: GPUs, NICs and storage, path kind and GB/s per direction in each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_topo.exporters.view import names
from gpu_topo.exporters.words import clean, gbs
from gpu_topo.model.node import Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.structure import NODE, PHB, PIX, PXB, SYS, UNKNOWN_PATH, Path
from gpu_topo.topology.counted import endpoints
from gpu_topo.topology.paths import Router

SCHEMA = "gpu-topo/matrix/1"
FORMATS = ("text", "json", "csv", "markdown")

LEGEND = {
    "NV": "NV#   # bonded NVLinks",
    "XG": "XG#   # xGMI links; XG where their number is not known",
    "HC": "HC#   # HCCS links; HC where their number is not known",
    PIX: "PIX   ports of one PCIe switch",
    PXB: "PXB   several PCIe bridges, no host bridge",
    PHB: "PHB   one and the same PCIe host bridge",
    NODE: "NODE  different host bridges of one NUMA node",
    SYS: "SYS   across NUMA nodes",
    UNKNOWN_PATH: "?     hidden: virtual machine, or no NUMA data",
}


class Place(NamedTuple):
    """A row and column of the table."""

    address: str
    name: str
    kind: str
    model: str
    numa_node: int | None
    cpus: str | None


class Table(NamedTuple):
    """The endpoints of a node, and the path of each pair: cells[row][column], None on the diagonal."""

    places: tuple[Place, ...]
    cells: tuple[tuple[Path | None, ...], ...]


def render(node: Node, format: str = "text", width: int = 80) -> str:
    """The table in one of FORMATS; width is for text only, which wraps groups of columns to it."""
    table = build(node)
    if format == "json":
        return _json(table)
    if format == "csv":
        return _csv(table)
    if format == "markdown":
        return _markdown(table)
    if format == "text":
        return _text(table, width)
    raise ValueError(f"no such format: {format}")


def build(node: Node) -> Table:
    """The path of every pair of GPUs, NICs and storage devices."""
    short = names(node)
    router = Router(node)
    cpus = {numa.number: known(numa.cpus) for numa in known(node.platform.numa) or ()}
    places = []
    for device in endpoints(node):
        numa = known(device.function.numa_node)
        near = known(device.function.local_cpus) or (cpus.get(numa) if numa is not None else None)
        name = clean(short.get(device.address, device.address))
        places.append(Place(device.address, name, device.kind, clean(device.name), numa, near))
    # The way back is the same way.
    upper = {
        (i, j): router.path(a.address, b.address) for i, a in enumerate(places) for j, b in enumerate(places) if i < j
    }
    size = range(len(places))
    cells = tuple(tuple(None if i == j else upper[min(i, j), max(i, j)] for j in size) for i in size)
    return Table(tuple(places), cells)


def cell_text(path: Path | None) -> str:
    """`X` on the diagonal, `NV18 450`, `PIX 63.0`, `SYS` where the bandwidth is not known."""
    if path is None:
        return "X"
    kind = "?" if path.kind == UNKNOWN_PATH else path.kind
    return kind if path.gbs is None else f"{kind} {gbs(path.gbs)}"


def legend(table: Table) -> Iterator[str]:
    """What the path kinds of this table mean."""
    used = {path.kind for row in table.cells for path in row if path}
    for kind, words in LEGEND.items():
        if kind in used or any(other[:2] == kind for other in used):
            yield words


def _text(table: Table, width: int) -> str:
    if not table.places:
        return "no GPU, NIC or storage device\n"
    lines: list[str] = []
    heads = [place.name for place in table.places]
    left = max(len(head) for head in heads)
    texts = [[cell_text(path) for path in row] for row in table.cells]
    sizes = [max(len(heads[j]), *(len(row[j]) for row in texts)) for j in range(len(heads))]
    start = 0
    while start < len(heads):
        end, room = start, width - left
        while end < len(heads) and (end == start or room >= sizes[end] + 2):
            room -= sizes[end] + 2
            end += 1
        columns = range(start, end)
        lines.append((" " * left + "".join(f"  {heads[j]:<{sizes[j]}}" for j in columns)).rstrip())
        for head, row in zip(heads, texts, strict=True):
            lines.append((f"{head:<{left}}" + "".join(f"  {row[j]:<{sizes[j]}}" for j in columns)).rstrip())
        lines.append("")
        start = end
    lines.append("GB/s in each direction, of the narrowest link on the way. X: itself")
    lines += [f"  {words}" for words in legend(table)]
    lines.append("")
    addresses = max(len(place.address) for place in table.places)
    for place in table.places:
        numa = "node ?" if place.numa_node is None else f"node {place.numa_node}"
        cpus = f" CPUs {place.cpus}" if place.cpus else ""
        lines.append(f"{place.name:<{left}}  {place.address:<{addresses}}  {numa}{cpus}  {place.model}")
    return "\n".join(line if len(line) <= width else f"{line[: width - 3]}..." for line in lines) + "\n"


def _json(table: Table) -> str:
    import json

    devices = [
        {
            "name": place.name,
            "address": place.address,
            "kind": place.kind,
            "model": place.model or None,
            "numa_node": place.numa_node,
            "cpus": place.cpus,
        }
        for place in table.places
    ]
    paths = [
        {"a": path.a, "b": path.b, "kind": path.kind, "gbs": None if path.gbs is None else round(path.gbs, 3)}
        for i, row in enumerate(table.cells)
        for path in row[i + 1 :]
        if path
    ]
    rows = [f'"schema": {json.dumps(SCHEMA)}']
    for key, items in (("devices", devices), ("paths", paths)):
        body = ",\n  ".join(json.dumps(item) for item in items)
        rows.append(f'"{key}": [\n  {body}\n]' if items else f'"{key}": []')
    return "{" + ",\n".join(rows) + "}\n"


def _csv(table: Table) -> str:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["device", "address", "numa_node", *[place.name for place in table.places]])
    for place, row in zip(table.places, table.cells, strict=True):
        numa = "" if place.numa_node is None else place.numa_node
        writer.writerow([place.name, place.address, numa, *[cell_text(path) for path in row]])
    return buffer.getvalue()


def _markdown(table: Table) -> str:
    from gpu_topo.exporters.markdown import table_lines

    titles = ["", *[place.name for place in table.places], "NUMA node", "address"]
    rows: list[Sequence[str]] = [
        [
            place.name,
            *[cell_text(path) for path in row],
            "?" if place.numa_node is None else str(place.numa_node),
            place.address,
        ]
        for place, row in zip(table.places, table.cells, strict=True)
    ]
    lines = [*table_lines(titles, rows), "", "GB/s in each direction, of the narrowest link on the way.", ""]
    lines += [f"- {words}" for words in legend(table)]
    return "\n".join(lines) + "\n"
