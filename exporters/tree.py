"""The part of the PCIe tree where the findings sit: root, switches and devices, with the link of each hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpu_topo.exporters.view import names, nvlink_totals
from gpu_topo.exporters.words import clean, gbs, link_gbs, link_text
from gpu_topo.model.address import sort_key
from gpu_topo.model.finding import Finding, Report
from gpu_topo.model.node import BRIDGE, Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.ports import line_rate, port_name


class Row(NamedTuple):
    """One line of the tree. last: for each level down to this one, whether it is the last of its siblings."""

    last: tuple[bool, ...]
    text: str  # address and name
    link: str = ""  # Gen5 x16
    gbs: str = ""  # 31.5 of 63.0
    marks: tuple[int, ...] = ()  # numbers of the findings that sit here


# What to draw before a row: (goes on below, passes by, last one, nothing)
GLYPHS = ("├─ ", "│  ", "└─ ", "   ")
ASCII_GLYPHS = ("|- ", "|  ", "`- ", "   ")


def branch(last: Sequence[bool], glyphs: tuple[str, str, str, str] = GLYPHS) -> str:
    """The lines before a row's text."""
    if not last:
        return ""
    tee, bar, corner, blank = glyphs
    return "".join(blank if ended else bar for ended in last[:-1]) + (corner if last[-1] else tee)


def lines(rows: Sequence[Row]) -> list[str]:
    """The rows as aligned lines of text: place, link, GB/s and the numbers of the findings."""
    texts = [branch(row.last) + row.text for row in rows]
    width = max((len(text) for text in texts), default=0)
    link, rate = max((len(row.link) for row in rows), default=0), max((len(row.gbs) for row in rows), default=0)
    found = []
    for text, row in zip(texts, rows, strict=True):
        mark = f"◀ {', '.join(str(number) for number in dict.fromkeys(row.marks))}" if row.marks else ""
        found.append(f"{text:<{width}}  {row.link:<{link}}  {row.gbs:<{rate}}  {mark}".rstrip())
    return found


def rows(report: Report, numbered: Sequence[tuple[int, Finding]]) -> list[Row]:
    """The paths of the devices that these findings are about, each marked with the numbers of its findings."""
    node = report.node
    marks: dict[str, list[int]] = {}
    details: dict[str, dict[str, list[int]]] = {}  # device -> text of a line below it -> numbers
    for number, finding in numbered:
        for subject in finding.subject.split("~"):
            device, detail = _place(node, subject, finding.code)
            if device is None or ":" not in device:
                continue  # a recording without addresses has no tree
            if detail:
                details.setdefault(device, {}).setdefault(detail, []).append(number)
                marks.setdefault(device, [])
            else:
                marks.setdefault(device, []).append(number)
    children: dict[str, list[str]] = {}
    tops: dict[str, None] = {}
    for address in sorted(marks, key=sort_key):
        way = _hops(node, address, marks)
        tops[way[0]] = None
        for upper, lower in pairwise(way):
            below = children.setdefault(upper, [])
            if lower not in below:
                below.append(lower)
    short = names(node)
    found: list[Row] = []
    for top in tops:
        _walk(node, top, (), children, marks, details, short, found)
    return found


def _place(node: Node, subject: str, code: str) -> tuple[str | None, str]:
    """The device that a subject means, and the line below it where the finding is not about its PCIe link."""
    for port in node.ports:
        if subject in (port_name(port), port.device) and (address := known(port.address)) in node.devices:
            rate = line_rate(node, port)
            state = known(port.state) or known(port.phys_state) or "state unknown"
            return address, f"port {port_name(port)}: {state}" + (f", {rate:g} Gb/s" if rate else "")
    if subject not in node.devices:
        return None, ""
    gpu = next((gpu for gpu in node.gpus if gpu.address == subject), None)
    if gpu and code.startswith(("nvlink", "fabric")):
        totals = nvlink_totals(gpu)
        if totals.total is None and totals.active == 0:
            return subject, "NVLink: none active"
        if totals.total:
            carried = f", {gbs(totals.gbs)} GB/s" if totals.gbs is not None else ""
            if totals.active is None:
                return subject, f"NVLink: {totals.total} links, state unknown"
            return subject, f"NVLink: {totals.active} of {totals.total} active{carried}"
    return subject, ""


def _hops(node: Node, address: str, marks: Mapping[str, list[int]]) -> list[str]:
    """The path with each switch chip as one hop, and without the ports that lead out of it."""
    way: list[str] = []
    path = node.devices[address].path or (address,)
    for step in path:
        device = node.devices.get(step)
        before = node.devices.get(way[-1]) if way else None
        inside = device and before and device.kind == BRIDGE and device.switch and device.switch == before.switch
        if not inside or step in marks:
            way.append(step)
    return way


def _walk(
    node: Node,
    address: str,
    last: tuple[bool, ...],
    children: Mapping[str, list[str]],
    marks: Mapping[str, list[int]],
    details: Mapping[str, Mapping[str, list[int]]],
    short: Mapping[str, str],
    found: list[Row],
) -> None:
    device = node.devices.get(address)
    text = _describe(device, short) if device else address
    below = children.get(address, [])
    # A port that leads downwards has the same link as the device below it, where it is drawn.
    link = device.link if device and device.link and (device.link.port or not below) else None
    extra = details.get(address, {})
    found.append(Row(last, text, link_text(link), link_gbs(link), tuple(marks.get(address, ()))))
    total = len(below) + len(extra)
    for position, (line, numbers) in enumerate(extra.items()):
        found.append(Row((*last, position == total - 1), clean(line), marks=tuple(numbers)))
    for position, lower in enumerate(below):
        ended = len(extra) + position == total - 1
        _walk(node, lower, (*last, ended), children, marks, details, short, found)


def _describe(device: Device, short: Mapping[str, str]) -> str:
    """`0000:13:00.0 GPU0, slot 3, NVIDIA H100`: what helps to find the card comes before what may be cut."""
    name = short.get(device.address)
    parts = [device.address] if ":" in device.address else []
    if name and name != device.address:
        parts[-1:] = [f"{parts[-1]} {name}"] if parts else [name]
    if device.function.slot:
        parts.append(f"slot {device.function.slot}")
    numa = known(device.function.numa_node)
    if len(device.path) <= 1 and numa is not None:
        parts.append(f"NUMA node {numa}")
    if device.name:
        parts.append(device.name)
    return clean(", ".join(parts))
