"""A drawing of the node: NUMA nodes, PCIe switches, devices in their places, links between GPUs, what is wrong in red.

Self-contained (its style knows light and dark), deterministic, and complete with whatever little is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpu_topo.exporters.entries import Entry, entries
from gpu_topo.exporters.svg_canvas import LETTER, Canvas, Mark, document
from gpu_topo.exporters.svg_layout import (
    BAR,
    CARD,
    CARD_HEIGHT,
    COLUMN,
    CPU,
    GAP,
    HEADER,
    LANE,
    MARGIN,
    PAD,
    ROW,
    STEP,
    Hub,
    columns,
    depth,
    each_hub,
    lines,
    panels,
    rows,
    width_of,
)
from gpu_topo.exporters.view import names, nvlink_totals
from gpu_topo.exporters.words import gbs, headline, host, link_gbs, link_text, model
from gpu_topo.model.finding import Report
from gpu_topo.model.gpu import INACTIVE
from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, NVSWITCH, STORAGE, Device, Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.ports import is_up, line_rate

_CLASSES = {GPU: "gpu", ACCELERATOR: "gpu", NIC: "nic", STORAGE: "sto"}


def render(report: Report, links: bool = False) -> str:
    """The drawing as an SVG document; links: badges lead to `#finding-N` of a page around it."""
    return _Drawing(report, links).render()


class _Drawing:
    """One rendering: measured from the leaves up, drawn from the CPUs down."""

    def __init__(self, report: Report, links: bool) -> None:
        self.report = report
        self.node: Node = report.node
        self.names = names(self.node)
        self.canvas = Canvas(links)
        self.marks = _marks(entries(report))
        self.gpus = {gpu.address: gpu for gpu in self.node.gpus}
        self.ports: dict[str, list[Port]] = {}
        for port in self.node.ports:
            if (address := known(port.address)) and not (port.virtual_function and port.physical_function):
                self.ports.setdefault(address, []).append(port)
        self.centers: dict[str, tuple[float, float]] = {}  # GPU -> where its NVLinks leave the card
        self.panels = panels(self.node)
        self.leaf_y = self.gpu_y = 0.0  # of the line that is drawn: where devices and where GPUs begin
        self.gpu_rows = 0
        self.bands: dict[str, list[tuple[float, float]]] = {}  # first GPU of an island -> right ends of its bands

    def render(self) -> str:
        y = float(MARGIN + HEADER)
        right = 0.0
        cpus: list[tuple[float, float]] = []  # left ends, where the lines' first CPUs can be joined
        for line in lines(self.panels):
            cpus.append((MARGIN + PAD, y + PAD + CPU / 2))
            end, bottom = self.line(line, y)
            right = max(right, end)
            y = self.islands(bottom, line) + 18
        for (x, above), (_, below) in pairwise(cpus):
            side = x - PAD / 2
            for start, stop in ((above, above), (above, below), (below, below)):
                self.canvas.line("far", side if start != stop else x, start, side, stop, 2)
        joined = self.join_bands(right + 13)
        self.legend(y - 4)
        return self.headed(max(right + (GAP if joined else 0) + MARGIN, 620), y + 28)

    def line(self, line: dict[int | None, Hub], top: float) -> tuple[float, float]:
        """NUMA nodes side by side. Returns the right and the lower edge."""
        hubs = [hub for panel in line.values() for hub in each_hub(panel)]
        levels = max(depth(panel) for panel in line.values())
        self.gpu_rows = max(len(rows(hub.leaves)[1]) for hub in hubs)
        cpu_y = top + PAD
        self.leaf_y = cpu_y + CPU + levels * STEP + 26
        self.gpu_y = self.leaf_y + max(len(rows(hub.leaves)[0]) for hub in hubs) * ROW
        bottom = self.gpu_y + self.gpu_rows * ROW + 6
        x = float(MARGIN)
        cpus: list[tuple[float, float]] = []
        for numa, panel in line.items():
            width = width_of(panel) + 2 * PAD
            self.canvas.rect("panel", x, top, width, bottom - top, 10)
            self.cpu(numa, panel, x + PAD, cpu_y, width - 2 * PAD, top)
            cpus.append((x, width))
            x += width + GAP
        for (left, size), (right, _) in pairwise(cpus):
            y = cpu_y + CPU / 2
            self.canvas.line("far", left + size - PAD, y, right + PAD, y, 2)
        return x - GAP, bottom

    def cpu(self, numa: int | None, panel: Hub, x: float, y: float, width: float, top: float) -> None:
        """A NUMA node and everything below it."""
        nodes = {node.number: node for node in known(self.node.platform.numa) or ()}
        cpus = known(nodes[numa].cpus) if numa is not None and numa in nodes else None
        name = "CPU" if numa is None else f"NUMA node {numa}"
        self.canvas.rect("cpu", x, y, width, CPU)
        self.canvas.text(x + 12, y + 16, name, "b")
        self.canvas.text(
            x + 12, y + 30, f"CPUs {cpus}" if cpus else "NUMA node not known" if numa is None else "", "dim"
        )
        self.below(panel, x, y + CPU, 0)

    def below(self, hub: Hub, x: float, y: float, level: int) -> None:
        """The switches below a hub from left to right, then its own devices."""
        for child in hub.hubs.values():
            width = width_of(child)
            self.switch(child, x, y, width, level)
            x += width + PAD
        for column in range(columns(hub.leaves)):
            self.column(hub.leaves, column, x, y)
            x += COLUMN

    def switch(self, hub: Hub, x: float, y: float, width: float, level: int) -> None:
        """A switch with its uplink, and what hangs below it."""
        switch = self.node.switches.get(hub.id)
        link = switch.uplink if switch else None
        if link is None and hub.id in self.node.devices:
            link = self.node.devices[hub.id].link
        mark = self.mark(hub.id, *(switch.ports if switch else ()))
        bad = mark.alarm if mark else ""
        bar = y + STEP - BAR
        middle = x + min(width / 2, 60)
        self.canvas.line(f"l {bad}", middle, y, middle, bar, _thick(link))
        if label := link_text(link):
            rate = link_gbs(link)
            self.canvas.text(middle + 8, (y + bar) / 2 + 4, f"{label}  {rate} GB/s" if rate else label, bad or "dim")
        with self.canvas.titled(f"PCIe switch {hub.id}"):
            self.canvas.rect(f"bar {bad}", x, bar, width - 2, BAR)
            room = width - 26
            name = model(switch.name) if switch and switch.name else "PCIe switch"
            self.canvas.text(x + 12, bar + 16, name, "b", room=room)
            ratio = f", {switch.oversubscription:.1f}:1" if switch and switch.oversubscription else ""
            self.canvas.text(x + 12, bar + 30, f"{hub.id}{ratio}", "dim", room=room)
            if mark:
                self.canvas.badge(x + width + 4, bar + 1, mark)
        self.below(hub, x, bar + BAR, level + 1)

    def column(self, leaves: Sequence[Device], column: int, x: float, y: float) -> None:
        """One column of devices along a trunk."""
        others, gpus = rows(leaves)
        placed = [(row[column], self.leaf_y + i * ROW) for i, row in enumerate(others) if column < len(row)]
        placed += [(row[column], self.gpu_y + i * ROW) for i, row in enumerate(gpus) if column < len(row)]
        trunk = x + 9
        if placed:
            # Recordings without a tree (topo -m alone) do not say what hangs where: no line then.
            known_place = any(":" in device.address for device, _ in placed)
            if known_place:
                self.canvas.line("l", trunk, y, trunk, placed[-1][1] + CARD_HEIGHT / 2)
            for device, top in placed:
                self.card(device, x + 20, top, trunk if known_place else None)

    def card(self, device: Device, x: float, y: float, trunk: float | None) -> None:
        """One device: name, link, and what says most about its kind."""
        gpu = self.gpus.get(device.address)
        link = None if device.address in self.node.hidden_links else device.link
        link = link or (gpu.driver_link if gpu else None)
        mark = self.mark(device.address, *(f"{p.device}/{p.port}" for p in self.ports.get(device.address, ())))
        bad = mark.alarm if mark else ""
        # The link itself is red only where a finding is about it: an idle GPU slows its link down.
        worse = self.mark(device.address, prefix="pcie-")
        link_bad = worse.alarm if worse else ""
        if trunk is not None:
            self.canvas.line(f"l {link_bad}", trunk, y + CARD_HEIGHT / 2, x, y + CARD_HEIGHT / 2, _thick(link))
        with self.canvas.titled(self.describe(device, link)):
            self.canvas.rect(f"card {bad}", x, y, CARD, CARD_HEIGHT)
            self.canvas.rect(_CLASSES.get(device.kind, "oth"), x, y + 6, 4, CARD_HEIGHT - 12, 2)
            self.canvas.text(x + 12, y + 17, self.names.get(device.address, device.address), "b", room=62)
            self.canvas.text(x + CARD - 10, y + 17, link_text(link), link_bad or "dim", "end", room=66)
            second, style = self.second(device, gpu, link, link_bad)
            self.canvas.text(x + 12, y + 34, second, style, room=CARD - 18)
            if mark:
                self.canvas.badge(x + CARD + 6, y + 1, mark)
        if gpu:
            self.centers[device.address] = x + CARD / 2, y + CARD_HEIGHT

    def second(self, device: Device, gpu: Gpu | None, link: Link | None, bad: str) -> tuple[str, str]:
        """A card's second line and its style."""
        if bad and " of " in link_gbs(link):
            return f"{link_gbs(link)} GB/s", bad
        if ports := self.ports.get(device.address):
            return _port_text(self.node, ports), "dim"
        if gpu:
            return model(known(gpu.model) or device.name), "dim"
        block = next((block for block in self.node.blocks if known(block.address) == device.address), None)
        if block and block.mounts:
            return block.mounts[0], "dim"
        unnamed = device.function.vendor_id is None and device.function.name is None
        return "" if unnamed else model(device.name), "dim"

    def describe(self, device: Device, link: Link | None) -> str:
        """What a pointer over the card tells."""
        parts = [device.address, device.name]
        if device.function.slot:
            parts.append(f"slot {device.function.slot}")
        if link_text(link):
            parts.append(f"{link_text(link)} {link_gbs(link)} GB/s")
        parts += [
            f"{port.device}/{port.port} {known(port.state) or '?'}" for port in self.ports.get(device.address, ())
        ]
        return ", ".join(parts)

    def mark(self, *subjects: str, prefix: str = "") -> Mark | None:
        """The worst severity and the numbers of the findings on any of these subjects."""
        found = [mark for subject in subjects for mark in self.marks.get(subject, ()) if mark[2].startswith(prefix)]
        if not found:
            return None
        order = sorted(found, key=lambda mark: mark[1])
        return Mark(order[0][0], tuple(dict.fromkeys(number for _, number, _ in order)))

    def islands(self, y: float, line: dict[int | None, Hub]) -> float:
        """GPUs of a line that reach each other without PCIe: a band below them for each island. Returns the lower
        edge."""
        here = {device.address for panel in line.values() for hub in each_hub(panel) for device in hub.leaves}
        joined = interconnect(self.node)
        wholes = [[a for a in island if a in self.gpus] for island in joined.islands]
        wholes = [whole for whole in wholes if len(whole) > 1]
        lanes: list[float] = []  # right edge of the last band in each lane
        placed = []
        groups = [(whole, [a for a in whole if a in here and a in self.centers]) for whole in wholes]
        groups = [(whole, group) for whole, group in groups if group]
        for whole, group in sorted(groups, key=lambda item: min(self.centers[a] for a in item[1])):
            across = [self.centers[a][0] for a in group]
            left, right = min(across) - 40, max(across) + CARD / 2 + 12
            lane = next((i for i, edge in enumerate(lanes) if edge < left), len(lanes))
            lanes[lane : lane + 1] = [right]
            top = y + 18 + lane * LANE
            placed.append((whole, left, right, top))
            self.bands.setdefault(whole[0], []).append((right, top + 12))
            for address in group:
                self.bond(address, top)
        switches = [device for device in self.node.devices.values() if device.kind == NVSWITCH]
        for whole, left, right, top in placed:
            self.canvas.rect("nv", left, top, right - left, 24, 12)
            words = self.band(joined.shape if len(wholes) == 1 else "", whole, len(switches))
            self.canvas.text((left + right) / 2, top + 16, words, "b", "middle", right - left - 12)
        mark = self.mark(*(switch.address for switch in switches))
        if mark and placed:
            self.canvas.badge(placed[0][2] - 6, placed[0][3] + 12, mark)
        return y + (18 + len(lanes) * LANE if lanes else 0)

    def join_bands(self, x: float) -> bool:
        """An island that spans several lines: its bands, joined along the right side at x. Whether there is one."""
        spanning = [ends for ends in self.bands.values() if len(ends) > 1]
        for ends in spanning:
            for right, y in ends:
                self.canvas.line("nvl", right, y, x, y, 3)
            self.canvas.line("nvl", x, ends[0][1], x, ends[-1][1], 3)
        return bool(spanning)

    def bond(self, address: str, top: float) -> None:
        """The line from a GPU to its island, with the number of links; red where a finding says that some are down."""
        x, y = self.centers[address]
        totals = nvlink_totals(self.gpus[address])
        mark = self.mark(address, prefix="nvlink") or self.mark(address, prefix="xgmi")
        bad = mark.alarm if mark else ""
        if y < self.gpu_y + (self.gpu_rows - 1) * ROW:  # cards stand below: pass them at their right
            side = x + CARD / 2 + 5
            self.canvas.line(f"nvl {bad}", x + CARD / 2, y - 12, side, y - 12, 3)
            x, y = side, y - 12
        self.canvas.line(f"nvl {bad}", x, y, x, top, 3)
        if totals.active is not None:
            count = f"{totals.active} of {totals.total}" if bad and totals.total else str(totals.active)
            self.canvas.text(x + 6, top - 4, count, bad or "dim")

    def band(self, shape: str, group: Sequence[str], switches: int) -> str:
        """What joins an island: `NVLink through 4 NVSwitches, 450 GB/s`."""
        others = [link for link in self.node.accelerator_links if link.a in group and link.state != INACTIVE]
        words = others[0].kind if others else "NVLink"
        if shape == "nvswitch":
            words += f" through {switches} NVSwitches" if switches else " through NVSwitches"
        elif shape and len(group) > 2:
            words += f", {shape.replace('-', ' ')}"
        rates = [rate for a in group if (rate := nvlink_totals(self.gpus[a]).gbs)]
        if rates and len(rates) == len(group):
            words += f", {gbs(max(rates))} GB/s"
            if min(rates) < max(rates):
                words += f", the slowest GPU {gbs(min(rates))}"
        return words

    def legend(self, y: float) -> None:
        """What the colours mean."""
        x = float(MARGIN)
        kinds = {device.kind for panel in self.panels.values() for hub in each_hub(panel) for device in hub.leaves}
        items = [("gpu", "GPU")] if kinds & {GPU, ACCELERATOR} else []
        items += [("nic", "NIC")] if NIC in kinds else []
        items += [("sto", "storage")] if STORAGE in kinds else []
        for style, words in items:
            self.canvas.rect(style, x, y, 10, 10, 2)
            self.canvas.text(x + 16, y + 9, words, "dim")
            x += 36 + len(words) * LETTER
        self.canvas.text(x, y + 9, "GB/s in each direction; numbers in badges are findings", "dim")

    def headed(self, width: float, height: float) -> str:
        """The drawing with its headline."""
        head = Canvas()
        verdict = self.report.verdict
        label = verdict.upper()
        size = 20 + 8.2 * len(label)
        head.rect(f"badge {verdict}", MARGIN, MARGIN, size, 24, 12)
        head.text(MARGIN + size / 2, MARGIN + 16, label, "in", "middle")
        head.text(MARGIN + size + 12, MARGIN + 18, host(self.report), "h")
        sentence = headline(self.report)
        head.text(MARGIN, MARGIN + 44, f"{sentence[:1].upper()}{sentence[1:]}.", "dim", room=width - 2 * MARGIN)
        if not self.panels:
            head.text(MARGIN, MARGIN + 84, "No GPU, NIC or storage device is known.", "dim")
        return document(width, height, f"{host(self.report)}: {verdict}", head, self.canvas)


def _marks(report_entries: Iterable[Entry]) -> dict[str, list[tuple[str, int, str]]]:
    """Subject -> severity, number and code of its findings; a pair marks both of its ends."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for entry in report_entries:
        for finding in entry.findings:
            for subject in finding.subject.split("~"):
                found.setdefault(subject, []).append((finding.severity, entry.number, finding.code))
    return found


def _thick(link: Link | None) -> float:
    """A line's thickness by what it carries now."""
    return 1.5 if link is None or link.gbs is None else round(min(1 + link.gbs / 16, 5), 1)


def _port_text(node: Node, ports: Sequence[Port]) -> str:
    """`NDR 400 Gb/s`, `2 ports 200 Gb/s`, `down`."""
    up = [port for port in ports if is_up(port)]
    if not up:
        states = sorted({str(known(port.state) or "state unknown").lower() for port in ports})
        return f"port {', '.join(states)}"
    rate = line_rate(node, up[0])
    speed = known(up[0].speed) or known(up[0].link_layer) or ""
    rates = f"{rate:g} Gb/s" if rate else ""
    count = (
        f"{len(up)} of {len(ports)} ports " if len(up) < len(ports) else f"{len(ports)} ports " if len(up) > 1 else ""
    )
    return f"{count}{speed} {rates}".strip()
