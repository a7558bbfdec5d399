"""A drawing of the node: NUMA nodes, PCIe switches, devices in their places, links between GPUs, what is wrong in red.

Self-contained (its style knows light and dark), deterministic, and complete with whatever little is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_xml
from itertools import pairwise

from gpu_topo.exporters.view import Group, grouped, names, nvlink_totals, open_findings, shadowed
from gpu_topo.exporters.words import clean, gbs, headline, host, link_gbs, link_text, model
from gpu_topo.model.address import sort_key
from gpu_topo.model.finding import INFO, Report
from gpu_topo.model.gpu import INACTIVE
from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, NVSWITCH, STORAGE, Device, Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.roles import is_up, line_rate

CARD, CARD_HEIGHT = 132, 44  # one device
COLUMN, ROW = CARD + 22, CARD_HEIGHT + 10  # with the trunk at its left
BAR, STEP = 38, 38 + 40  # a switch, and from one switch to the one below
CPU, PAD, MARGIN, HEADER = 38, 14, 20, 64
LANE = 44  # one island of NVLinks
MOST_COLUMNS, MOST_ROWS = 8, 4  # GPUs of one hub side by side; other devices of one column
_CHAR, _BOLD = 6.4, 7.0  # about the width of a letter at 11 px

STYLE = """
.gt{--bg:#fff;--panel:#f5f6f8;--line:#9aa3b0;--ink:#1c2430;--dim:#5d6878;--card:#fff;--edge:#cfd5de;
--gpu:#0b7a5f;--nic:#1f5fbf;--sto:#7a4bb5;--red:#c81e1e;--amber:#b45f06;--nv:#d8efe6;--nvline:#0b7a5f;
font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
@media (prefers-color-scheme:dark){.gt{--bg:#14181f;--panel:#1b212b;--line:#5d6878;--ink:#e6eaf0;--dim:#98a3b3;
--card:#232b37;--edge:#3a4554;--gpu:#35c295;--nic:#6ea3f5;--sto:#b792ea;--red:#ff6b63;--amber:#f0a845;--nv:#173a30;
--nvline:#35c295}}
.gt .bg{fill:var(--bg)}.gt .panel{fill:var(--panel);stroke:var(--edge)}.gt .cpu{fill:var(--card);stroke:var(--line)}
.gt .bar{fill:var(--card);stroke:var(--line)}.gt .card{fill:var(--card);stroke:var(--edge)}
.gt text{fill:var(--ink)}.gt .dim{fill:var(--dim)}.gt .b{font-weight:600}.gt .h{font-size:17px;font-weight:600}
.gt .l{stroke:var(--line);fill:none}.gt .far{stroke:var(--line);stroke-dasharray:4 4;fill:none}
.gt .gpu{fill:var(--gpu)}.gt .nic{fill:var(--nic)}.gt .sto{fill:var(--sto)}.gt .oth{fill:var(--line)}
.gt .nvl{stroke:var(--nvline);fill:none}.gt .nv{fill:var(--nv);stroke:var(--nvline)}
.gt .critical{stroke:var(--red)}.gt .warning{stroke:var(--amber)}
.gt text.critical,.gt .badge.critical{fill:var(--red);stroke:none}
.gt text.warning,.gt .badge.warning{fill:var(--amber);stroke:none}
.gt .card.critical,.gt .card.warning,.gt .bar.critical,.gt .bar.warning{stroke-width:2}
.gt .badge.info,.gt .badge.unknown{fill:var(--dim)}.gt .badge.ok{fill:var(--gpu)}.gt .in{fill:var(--bg);font-weight:700}
"""

_CLASSES = {GPU: "gpu", ACCELERATOR: "gpu", NIC: "nic", STORAGE: "sto"}
_DRAWN = (NIC, STORAGE, GPU, ACCELERATOR)  # top down; GPUs at the bottom, where NVLink joins them


class Hub(NamedTuple):
    """A switch, or with an empty id the CPU of a NUMA node, with what hangs below it."""

    id: str
    hubs: dict[str, Hub]
    leaves: list[Device]


def render(report: Report, links: bool = False) -> str:
    """The drawing as an SVG document; links: badges lead to `#finding-N` of a page around it."""
    return _Drawing(report, links).render()


class _Drawing:
    """One rendering: measured from the leaves up, drawn from the CPUs down."""

    def __init__(self, report: Report, links: bool) -> None:
        self.report = report
        self.node: Node = report.node
        self.links = links
        self.names = names(self.node)
        self.parts: list[str] = []
        self.marks = _marks(grouped(open_findings(report)))
        self.gpus = {gpu.address: gpu for gpu in self.node.gpus}
        self.ports: dict[str, list[Port]] = {}
        for port in self.node.ports:
            if (address := known(port.address)) and not (port.virtual_function and port.physical_function):
                self.ports.setdefault(address, []).append(port)
        self.centers: dict[str, tuple[float, float]] = {}  # GPU -> where its NVLinks leave the card
        self.panels = _panels(self.node)
        leaves = [hub for panel in self.panels.values() for hub in _all(panel)]
        self.other_rows = max((len(_rows(hub.leaves)[0]) for hub in leaves), default=0)
        self.gpu_rows = max((len(_rows(hub.leaves)[1]) for hub in leaves), default=0)
        self.levels = max((_depth(panel) for panel in self.panels.values()), default=0)

    def render(self) -> str:
        top = float(MARGIN + HEADER)
        cpu_y = top + PAD
        self.leaf_y = cpu_y + CPU + (self.levels * STEP if self.levels else 0) + 26
        self.gpu_y = self.leaf_y + self.other_rows * ROW
        bottom = self.gpu_y + self.gpu_rows * ROW + 6
        x = float(MARGIN)
        cpus: list[tuple[float, float]] = []
        for numa, panel in self.panels.items():
            width = self.width(panel) + 2 * PAD
            self.rect("panel", x, top, width, bottom - top, 10)
            self.cpu(numa, panel, x + PAD, cpu_y, width - 2 * PAD, top)
            cpus.append((x, width))
            x += width + 26
        for (left, size), (right, _) in pairwise(cpus):
            y = cpu_y + CPU / 2
            self.line("far", left + size - PAD, y, right + PAD, y, 2)
        width = max(x - 26 + MARGIN, 620)
        bottom = self.islands(float(bottom))
        self.legend(bottom + 14)
        return self.document(width, bottom + 46)

    # --- primitives: every string is cleaned and escaped here

    def text(self, x: float, y: float, content: str, style: str = "", anchor: str = "", room: float = 0) -> None:
        """One line of text, cut where it would not fit into `room` pixels."""
        content = clean(content)
        most = int(room / (_BOLD if "b" in style.split() else _CHAR))
        if room and len(content) > most:
            content = content[: max(most - 1, 1)] + "…"
        attributes = (f' class="{style}"' if style else "") + (f' text-anchor="{anchor}"' if anchor else "")
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{attributes}>{escape_xml(content)}</text>')

    def rect(self, style: str, x: float, y: float, width: float, height: float, radius: int = 5) -> None:
        """A rounded box."""
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'
        )

    def line(self, style: str, x1: float, y1: float, x2: float, y2: float, width: float = 1.5) -> None:
        """A straight line."""
        self.parts.append(f'<path class="{style}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke-width="{width:g}"/>')

    def badge(self, x: float, y: float, mark: tuple[str, tuple[int, ...]]) -> None:
        """The numbers of the findings that sit here."""
        severity, numbers = mark
        shown = ",".join(str(number) for number in numbers[:3])
        size = 14 + 6 * (len(shown) - 1)
        if self.links:
            self.parts.append(f'<a href="#finding-{numbers[0]}">')
        self.rect(f"badge {severity}", x - size, y - 7, size, 14, 7)
        self.text(x - size / 2, y + 4, shown, "in", "middle")
        if self.links:
            self.parts.append("</a>")

    # --- measuring

    def width(self, hub: Hub) -> float:
        """Pixels that a hub needs for all that hangs below it."""
        own = _columns(hub.leaves) * COLUMN
        below = sum(self.width(child) + PAD for child in hub.hubs.values())
        return max(own + below - (PAD if below and not own else 0), COLUMN + 40)

    # --- drawing

    def cpu(self, numa: int | None, panel: Hub, x: float, y: float, width: float, top: float) -> None:
        """A NUMA node and everything below it."""
        nodes = {node.number: node for node in known(self.node.platform.numa) or ()}
        cpus = known(nodes[numa].cpus) if numa is not None and numa in nodes else None
        name = "CPU" if numa is None else f"NUMA node {numa}"
        self.rect("cpu", x, y, width, CPU)
        self.text(x + 12, y + 16, name, "b")
        self.text(x + 12, y + 30, f"CPUs {cpus}" if cpus else "NUMA node not known" if numa is None else "", "dim")
        self.below(panel, x, y + CPU, 0)

    def below(self, hub: Hub, x: float, y: float, level: int) -> None:
        """The switches below a hub from left to right, then its own devices."""
        for child in hub.hubs.values():
            width = self.width(child)
            self.switch(child, x, y, width, level)
            x += width + PAD
        for column in range(_columns(hub.leaves)):
            self.column(hub.leaves, column, x, y)
            x += COLUMN

    def switch(self, hub: Hub, x: float, y: float, width: float, level: int) -> None:
        """A switch with its uplink, and what hangs below it."""
        switch = self.node.switches.get(hub.id)
        link = switch.uplink if switch else None
        if link is None and hub.id in self.node.devices:
            link = self.node.devices[hub.id].link
        mark = self.mark(hub.id, *(switch.ports if switch else ()))
        bad = mark[0] if mark and mark[0] != INFO else ""
        bar = y + STEP - BAR
        middle = x + min(width / 2, 60)
        self.line(f"l {bad}", middle, y, middle, bar, _thick(link))
        if label := link_text(link):
            rate = link_gbs(link)
            self.text(middle + 8, (y + bar) / 2 + 4, f"{label}  {rate} GB/s" if rate else label, bad or "dim")
        self.parts.append(f"<g><title>{escape_xml(clean(f'PCIe switch {hub.id}'))}</title>")
        self.rect(f"bar {bad}", x, bar, width - 2, BAR)
        room = width - 26
        name = model(switch.name) if switch and switch.name else "PCIe switch"
        self.text(x + 12, bar + 16, name, "b", room=room)
        ratio = f", {switch.oversubscription:.1f}:1" if switch and switch.oversubscription else ""
        self.text(x + 12, bar + 30, f"{hub.id}{ratio}", "dim", room=room)
        if mark:
            self.badge(x + width + 4, bar + 1, mark)
        self.parts.append("</g>")
        self.below(hub, x, bar + BAR, level + 1)

    def column(self, leaves: Sequence[Device], column: int, x: float, y: float) -> None:
        """One column of devices along a trunk."""
        others, gpus = _rows(leaves)
        placed = [(row[column], self.leaf_y + i * ROW) for i, row in enumerate(others) if column < len(row)]
        placed += [(row[column], self.gpu_y + i * ROW) for i, row in enumerate(gpus) if column < len(row)]
        trunk = x + 9
        if placed:
            # Recordings without a tree (topo -m alone) do not say what hangs where: no line then.
            known_place = any(":" in device.address for device, _ in placed)
            if known_place:
                self.line("l", trunk, y, trunk, placed[-1][1] + CARD_HEIGHT / 2)
            for device, top in placed:
                self.card(device, x + 20, top, trunk if known_place else None)

    def card(self, device: Device, x: float, y: float, trunk: float | None) -> None:
        """One device: name, link, and what says most about its kind."""
        gpu = self.gpus.get(device.address)
        link = None if device.address in self.node.hidden_links else device.link
        link = link or (gpu.driver_link if gpu else None)
        mark = self.mark(device.address, *(f"{p.device}/{p.port}" for p in self.ports.get(device.address, ())))
        bad = mark[0] if mark and mark[0] != INFO else ""
        # The link itself is red only where a finding is about it: an idle GPU slows its link down.
        worse = self.mark(device.address, prefix="pcie-")
        link_bad = worse[0] if worse and worse[0] != INFO else ""
        if trunk is not None:
            self.line(f"l {link_bad}", trunk, y + CARD_HEIGHT / 2, x, y + CARD_HEIGHT / 2, _thick(link))
        self.parts.append(f"<g><title>{escape_xml(clean(self.describe(device, link)))}</title>")
        self.rect(f"card {bad}", x, y, CARD, CARD_HEIGHT)
        self.rect(_CLASSES.get(device.kind, "oth"), x, y + 6, 4, CARD_HEIGHT - 12, 2)
        self.text(x + 12, y + 17, self.names.get(device.address, device.address), "b", room=62)
        self.text(x + CARD - 10, y + 17, link_text(link), link_bad or "dim", "end", room=66)
        second, style = self.second(device, gpu, link, link_bad)
        self.text(x + 12, y + 34, second, style, room=CARD - 18)
        if mark:
            self.badge(x + CARD + 6, y + 1, mark)
        self.parts.append("</g>")
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

    def mark(self, *subjects: str, prefix: str = "") -> tuple[str, tuple[int, ...]] | None:
        """The worst severity and the numbers of the findings on any of these subjects."""
        found = [mark for subject in subjects for mark in self.marks.get(subject, ()) if mark[2].startswith(prefix)]
        if not found:
            return None
        order = sorted(found, key=lambda mark: mark[1])
        return order[0][0], tuple(dict.fromkeys(number for _, number, _ in order))

    def islands(self, y: float) -> float:
        """GPUs that reach each other without PCIe: a band below them for each island. Returns the lower edge."""
        joined = interconnect(self.node)
        groups = [[a for a in island if a in self.centers] for island in joined.islands]
        groups = [group for group in groups if len(group) > 1]
        lanes: list[float] = []  # right edge of the last band in each lane
        placed = []
        for group in sorted(groups, key=lambda group: min(self.centers[a] for a in group)):
            across = [self.centers[a][0] for a in group]
            left, right = min(across) - 40, max(across) + CARD / 2 + 12
            lane = next((i for i, edge in enumerate(lanes) if edge < left), len(lanes))
            lanes[lane : lane + 1] = [right]
            placed.append((group, left, right, y + 18 + lane * LANE))
        for group, _, _, top in placed:
            for address in group:
                self.bond(address, top)
        switches = [device for device in self.node.devices.values() if device.kind == NVSWITCH]
        for group, left, right, top in placed:
            self.rect("nv", left, top, right - left, 24, 12)
            words = self.band(joined.shape if len(placed) == 1 else "", group, len(switches))
            self.text((left + right) / 2, top + 16, words, "b", "middle", right - left - 12)
        mark = self.mark(*(switch.address for switch in switches))
        if mark and placed:
            self.badge(placed[0][2] - 6, placed[0][3] + 12, mark)
        return y + (18 + len(lanes) * LANE if lanes else 0)

    def bond(self, address: str, top: float) -> None:
        """The line from a GPU to its island, with the number of links; red where a finding says that some are down."""
        x, y = self.centers[address]
        totals = nvlink_totals(self.gpus[address])
        mark = self.mark(address, prefix="nvlink") or self.mark(address, prefix="xgmi")
        bad = mark[0] if mark and mark[0] != INFO else ""
        if y < self.gpu_y + (self.gpu_rows - 1) * ROW:  # cards stand below: pass them at their right
            side = x + CARD / 2 + 5
            self.line(f"nvl {bad}", x + CARD / 2, y - 12, side, y - 12, 3)
            x, y = side, y - 12
        self.line(f"nvl {bad}", x, y, x, top, 3)
        if totals.active is not None:
            count = f"{totals.active} of {totals.total}" if bad else str(totals.active)
            self.text(x + 6, top - 4, count, bad or "dim")

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
            words += f", {gbs(min(rates))} GB/s"
        return words

    def legend(self, y: float) -> None:
        """What the colours mean."""
        x = float(MARGIN)
        kinds = {device.kind for panel in self.panels.values() for hub in _all(panel) for device in hub.leaves}
        items = [("gpu", "GPU")] if kinds & {GPU, ACCELERATOR} else []
        items += [("nic", "NIC")] if NIC in kinds else []
        items += [("sto", "storage")] if STORAGE in kinds else []
        for style, words in items:
            self.rect(style, x, y, 10, 10, 2)
            self.text(x + 16, y + 9, words, "dim")
            x += 36 + len(words) * _CHAR
        self.text(x, y + 9, "GB/s in each direction; numbers in badges are findings", "dim")

    def document(self, width: float, height: float) -> str:
        """The drawing with its frame and headline."""
        body, self.parts = self.parts, []
        verdict = self.report.verdict
        label = verdict.upper()
        size = 20 + 8.2 * len(label)
        self.rect(f"badge {verdict}", MARGIN, MARGIN, size, 24, 12)
        self.text(MARGIN + size / 2, MARGIN + 16, label, "in", "middle")
        self.text(MARGIN + size + 12, MARGIN + 18, host(self.report), "h")
        sentence = headline(self.report)
        self.text(MARGIN, MARGIN + 44, f"{sentence[:1].upper()}{sentence[1:]}.", "dim", room=width - 2 * MARGIN)
        if not self.panels:
            self.text(MARGIN, MARGIN + 84, "No GPU, NIC or storage device is known.", "dim")
        title = escape_xml(clean(f"{host(self.report)}: {verdict}"))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="gt" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">',
                f"<style>{STYLE}</style>",
                f'<rect class="bg" width="{width:g}" height="{height:g}"/>',
                *self.parts,
                *body,
                "</svg>",
                "",
            ]
        )


def _marks(groups: Iterable[Group]) -> dict[str, list[tuple[str, int, str]]]:
    """Subject -> severity, number and code of its findings; a pair marks both of its ends."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for group in groups:
        for finding in group.findings:
            for subject in finding.subject.split("~"):
                found.setdefault(subject, []).append((finding.severity, group.number, finding.code))
    return found


def _panels(node: Node) -> dict[int | None, Hub]:
    """NUMA node -> what hangs below it, in order of the numbers; what has none comes last."""
    found: dict[int | None, Hub] = {}
    for device in node.devices.values():
        if device.kind not in _DRAWN or shadowed(device):
            continue
        numa = _numa(node, device)
        hub = found.setdefault(numa, Hub("", {}, []))
        for step in device.path[:-1]:
            bridge = node.devices.get(step)
            if bridge and bridge.switch and bridge.switch != hub.id:
                hub = hub.hubs.setdefault(bridge.switch, Hub(bridge.switch, {}, []))
        hub.leaves.append(device)
    return dict(sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def _numa(node: Node, device: Device) -> int | None:
    """The NUMA node of a device, else of the nearest bridge above that knows it."""
    for step in reversed(device.path or (device.address,)):
        above = node.devices.get(step)
        if above and (numa := known(above.function.numa_node)) is not None:
            return numa
    return None


def _all(hub: Hub) -> Iterable[Hub]:
    yield hub
    for child in hub.hubs.values():
        yield from _all(child)


def _depth(hub: Hub) -> int:
    return max((1 + _depth(child) for child in hub.hubs.values()), default=0)


def _columns(leaves: Sequence[Device]) -> int:
    """Columns that the devices of one hub take: one a GPU, the others in rows above them."""
    gpus = sum(device.kind in (GPU, ACCELERATOR) for device in leaves)
    return max(min(gpus, MOST_COLUMNS), -(-(len(leaves) - gpus) // MOST_ROWS))


def _rows(leaves: Sequence[Device]) -> tuple[list[list[Device]], list[list[Device]]]:
    """The rows of the others, NICs first, and the rows of the GPUs."""
    ordered = sorted(leaves, key=lambda device: (_DRAWN.index(device.kind), sort_key(device.address)))
    gpus = [device for device in ordered if device.kind in (GPU, ACCELERATOR)]
    others = [device for device in ordered if device.kind not in (GPU, ACCELERATOR)]
    columns = max(_columns(leaves), 1)

    def split(items: list[Device]) -> list[list[Device]]:
        return [items[i : i + columns] for i in range(0, len(items), columns)]

    return split(others), split(gpus)


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
