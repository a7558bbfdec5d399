"""The report for a person at a terminal: the verdict, the worst first, where it sits, what to do, what nobody knows."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from gpu_topo.exporters import tree
from gpu_topo.exporters.entries import Entry, short_subject, split, unassessed_groups
from gpu_topo.exporters.limits import Limit, limits, limits_table
from gpu_topo.exporters.view import accepted_findings, names, subject_name
from gpu_topo.exporters.words import (
    accepted_text,
    clean,
    compact,
    fits,
    gbs,
    headline,
    host,
    judged_by,
    moment,
    plural,
    tally,
)
from gpu_topo.model.facts import ABSENT, OK
from gpu_topo.model.finding import CRITICAL, INFO, WARNING, Report
from gpu_topo.model.structure import Placement
from gpu_topo.topology.placement import placement

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# At 80 columns there is room for no more.
_SHORT_TITLES = {"GPU": "", "NUMA node": "node", "way to it": "GB/s"}

STYLES = {
    CRITICAL: "bold red",
    WARNING: "bold yellow",
    INFO: "bold cyan",
    "ok": "bold green",
    "unknown": "bold magenta",
}
_ASCII = str.maketrans({"→": ">", "–": "-", "—": "-", "·": "*", "…": ".", "×": "x", "≤": "<", "≥": ">"})
MIN_WIDTH = 40
MOST_NAMES = 6  # of an info finding
FEW, MOST = 4, 16  # findings of one entry that are shown with their evidence, and at all


def render(report: Report, width: int = 80, color: bool = False, ascii_only: bool = False) -> str:
    """The report in lines of at most `width` columns (at least 40); ascii_only where the encoding has no more."""
    return _Page(report, max(width, MIN_WIDTH), color, ascii_only).render()


class _Page:
    """One rendering; keeps the console and what several sections need."""

    def __init__(self, report: Report, width: int, color: bool, ascii_only: bool) -> None:
        from rich.console import Console

        self.report = report
        self.width = width
        self.ascii = ascii_only
        self.glyphs = tree.ASCII_GLYPHS if ascii_only else tree.GLYPHS
        self.marker = "<<" if ascii_only else "◀"
        self.buffer = io.StringIO()
        self.console: Console = Console(
            file=self.buffer,
            width=width,
            color_system="standard" if color else None,
            force_terminal=color,
            no_color=not color,
            emoji=False,
            markup=False,
            highlight=False,
            legacy_windows=False,
            soft_wrap=False,
            _environ={},
        )
        self.names = names(report.node)

    def render(self) -> str:
        report = self.report
        self.verdict()
        serious, notes = split(report)
        for item in serious:
            self.finding(item)
        if serious:
            self.where(serious)
        if notes:
            self.heading("Also worth knowing")
            for item in notes:
                self.note(item)
        placed = placement(report.node, report.role_overrides)
        if rows := limits(report, placed):
            self.limits(rows)
            self.placement(placed)
        if report.verdict != "ok" or report.all_functions:
            self.unassessed()
        self.accepted()
        text = self.buffer.getvalue()
        text = re.sub(r"[ \t]+(\x1b\[0m)?$", r"\1", text, flags=re.MULTILINE)
        return text.translate(_ASCII).encode("ascii", "replace").decode() if self.ascii else text

    # --- building blocks

    def text(self, content: str, style: str = "") -> Text:
        """Text that cannot act on the terminal."""
        from rich.text import Text

        return Text(clean(content), style, overflow="fold")

    def line(self, content: str = "", style: str = "") -> None:
        """One paragraph, wrapped."""
        self.console.print(self.text(content, style))

    def grid(self, *ratios: int | None) -> Table:
        """A table without lines; a column with a number takes that share of the rest."""
        from rich.table import Table

        table = Table.grid(padding=(0, 2, 0, 0), expand=any(ratios))
        for ratio in ratios:
            table.add_column(ratio=ratio, overflow="fold")
        return table

    def indent(self, content: RenderableType, by: int = 2) -> None:
        """Prints something further to the right."""
        from rich.padding import Padding

        self.console.print(Padding(content, (0, 0, 0, by)))

    def heading(self, title: str) -> None:
        """A section's title after an empty line."""
        self.line()
        self.line(title, "bold")

    # --- sections

    def verdict(self) -> None:
        """Two lines: how it is, and what could not be seen. They are all that a healthy machine needs."""
        report = self.report
        table = self.grid(None, 1)
        badge = self.text(report.verdict.upper(), STYLES.get(report.verdict, ""))
        if report.verdict == "ok":
            table.add_row(badge, self.text(fits(report, self.width - len(badge) - 2), "bold"))
            table.add_row("", self.text(self.blind(self.width - len(badge) - 2), "dim"))
        else:
            counted = tally(report)
            table.add_row(badge, self.text(f"{host(report)}: {counted}" if counted else host(report), "bold"))
            table.add_row("", self.text(f"{headline(report)[:1].upper()}{headline(report)[1:]}."))
        for note in report.notes:
            table.add_row("", self.text(note))
        self.console.print(table)

    def blind(self, room: int) -> str:
        """One line on what could not be judged."""
        groups = unassessed_groups(self.report)
        if not groups:
            return "everything that applies here could be judged"
        codes = list(dict.fromkeys(code for item in groups for code in item.codes))
        causes = {code: ", ".join(dict.fromkeys(g.cause for g in groups if code in g.codes)) for code in codes}
        for shown in range(len(codes), 0, -1):
            rest = len(codes) - shown
            listed = ", ".join(f"{code} ({causes[code]})" for code in codes[:shown])
            line = f"not judged: {listed}{f' and {rest} more' if rest else ''}; --all says why"
            if len(line) <= room:
                return line
        return f"{plural(len(codes), 'rule')} could not judge; --all says why"[:room]

    def finding(self, item: Entry) -> None:
        """What, evidence, cost, impact, remedy and how to see it oneself."""
        first = item.first
        style = STYLES.get(first.severity, "")
        self.line()
        head = self.grid(None, None, None, 1)
        head.add_row(
            self.text(str(item.number), "bold"),
            self.text(first.severity.upper(), style),
            self.text(first.code, style),
            self.text(item.title(self.report.node, self.names), "bold"),
        )
        self.console.print(head)
        table = self.grid(None, 1)
        for position, (what, seen) in enumerate(item.rows(self.names)[:MOST]):
            table.add_row(self.label("" if position else "what"), self.text(what))
            if seen and len(item.findings) <= FEW:
                table.add_row(self.label("seen"), self.text(seen))
        if len(item.findings) > MOST:
            table.add_row("", self.text(f"and {len(item.findings) - MOST} more like these", "dim"))
        if item.lost_gbs:
            table.add_row(self.label("costs"), self.text(f"{gbs(item.lost_gbs)} GB/s in each direction", style))
        for impact in item.impacts:
            table.add_row(self.label("impact"), self.text(impact))
        if first.since is not None:
            table.add_row(self.label("since"), self.text(moment(first.since)))
        for number, step in enumerate(first.remedy, 1):
            table.add_row(self.label("do" if number == 1 else ""), self.text(f"{number}. {step}"))
        if first.verify:
            table.add_row(self.label("check"), self.text(first.verify, "bold"))
        table.add_row(self.label("judged by"), self.text(judged_by(first), "dim"))
        self.indent(table)

    def label(self, word: str) -> Text:
        """The word at the left of a finding's line."""
        return self.text(word, "dim")

    def note(self, item: Entry) -> None:
        """An info finding in short: what, and how to see it."""
        table = self.grid(None, 1)
        subjects = list(dict.fromkeys(short_subject(f.subject, self.names) for f in item.findings))
        rest = len(subjects) - MOST_NAMES
        shown = f"{compact(subjects[:MOST_NAMES])} and {rest} more" if rest > 1 else compact(subjects)
        table.add_row(
            self.text(str(item.number), "bold"),
            self.text(f"{item.first.code}  ", STYLES[INFO]) + self.text(shown, "bold"),
        )
        others = len({f.summary for f in item.findings}) - 1
        table.add_row("", self.text(item.first.summary + (f" (and {others} more like this)" if others else "")))
        if item.first.remedy:
            table.add_row("", self.text(f"do: {item.first.remedy[0]}"))
        if item.first.verify:
            table.add_row("", self.text(f"check: {item.first.verify}", "dim"))
        self.indent(table, 0)

    def where(self, serious: Sequence[Entry]) -> None:
        """The tree of the paths concerned, with a mark on each bad hop."""
        from rich.text import Text

        numbered = [(item.number, finding) for item in serious for finding in item.findings]
        rows = tree.rows(self.report, numbered)
        if not rows:
            return
        severity = {item.number: item.first.severity for item in serious}
        self.heading("Where it sits")
        table = self.grid(None, None, None, None)
        cells: list[tuple[Text, Text, Text, Text]] = []
        table.add_row(self.text(""), self.text("link", "dim"), self.text("GB/s", "dim"), "")
        for row in rows:
            style = STYLES[severity[row.marks[0]]] if row.marks else ""
            # Not cleaned: these are this program's own lines, and the rest was.
            place = Text(tree.branch(row.last, self.glyphs), "dim") + self.text(row.text, style)
            mark = f"{self.marker} {', '.join(str(number) for number in dict.fromkeys(row.marks))}" if row.marks else ""
            cells.append((place, self.text(row.link, style), self.text(row.gbs, style), self.text(mark, style)))
        # The lines of the tree stay whole: what does not fit is cut at the end of a name.
        others = sum(max(cell[column].cell_len for cell in cells) + 2 for column in (1, 2, 3))
        for cell in cells:
            cell[0].truncate(max(20, self.width - 2 - 2 - others), overflow="ellipsis")
            table.add_row(*cell)
        self.indent(table)

    def limits(self, found: Sequence[Limit]) -> None:
        """What each GPU can send at most, per direction, and where its way to the network is narrowest."""
        titles, rows = limits_table(found)
        self.heading("Limits, GB/s in each direction")
        table = self.grid(*[None] * len(titles))
        table.add_row(*[self.text(_SHORT_TITLES.get(title, title), "dim") for title in titles])
        for cells in rows:
            shown = [self.text(cell.text, "bold red" if cell.bad else "") for cell in cells]
            table.add_row(self.text(cells[0].text, "bold"), *shown[1:])
        self.indent(table)

    def placement(self, placed: Placement) -> None:
        """What this node is good for, where each process goes, and lines that can be pasted into a shell."""
        if not (placed.summary or placed.settings):
            return
        self.heading("Placement")
        if placed.summary:
            self.indent(self.text(placed.summary))
        homes: dict[tuple[int | None, str | None], list[str]] = {}
        for row in placed.gpus:
            homes.setdefault((row.numa_node, row.cpus), []).append(self.names.get(row.gpu, row.gpu))
        for (numa, cpus), gpus in homes.items():
            if numa is not None or cpus:
                where = f"NUMA node {'unknown' if numa is None else numa}" + (f", CPUs {cpus}" if cpus else "")
                self.indent(self.text(f"{compact(gpus)}: {where}"))
        if placed.settings:
            self.line()
        for setting in placed.settings:
            for piece in shell_lines(f"# {clean(setting.reason)}", self.width):
                self.line(piece, "dim")
            for piece in shell_lines(clean(setting.line), self.width):
                self.line(piece)

    def unassessed(self) -> None:
        """What no rule could conclude, by reason; and the sources that failed."""
        groups = unassessed_groups(self.report)
        failed = [source for source in self.report.node.sources if source.status not in (OK, ABSENT)]
        if not groups and not failed:
            return
        self.heading("Not judged")
        table = self.grid(None, 1)
        for item in groups:
            who = compact(item.subjects) if len(item.subjects) <= 12 else f"{len(item.subjects)} devices"
            who = "this node" if who == "node" else who
            table.add_row(self.text("-"), self.text(f"{who}: {', '.join(item.codes)}", "bold"))
            table.add_row("", self.text(item.reason))
        for source in failed:
            detail = f": {source.detail}" if source.detail else ""
            table.add_row(self.text("-"), self.text(f"source {source.name} {source.status}{detail}"))
        self.indent(table)

    def accepted(self) -> None:
        """What somebody accepted as designed."""
        found = accepted_findings(self.report)
        if not found:
            return
        self.heading(f"Accepted as designed ({plural(len(found), 'finding')})")
        for finding in found:
            accepted = finding.accepted
            assert accepted is not None
            subject = subject_name(finding.subject, self.names)
            self.indent(self.text(f"{finding.code} {subject}: ", "dim") + self.text(accepted_text(accepted)))


def shell_lines(line: str, width: int) -> list[str]:
    """A command, a comment or a command with one behind it, broken where it is too long, so that what is pasted into a
    shell means the same: a command goes on after a backslash, and each line of a comment is one of its own."""
    if len(line) <= width:
        return [line]
    command, _, comment = line.partition("# ")
    lines = [f"# {part}" for part in wrap(comment, width - 2)]
    command = command.rstrip()
    while len(command) > width:
        # After a comma inside a word, else before a blank: the shell joins both to what was meant.
        cut = max(command.rfind(",", 0, width - 1) + 1, command.rfind(" ", 0, width - 1))
        if cut <= 0:
            cut = width - 1
        lines.append(command[:cut] + "\\")
        command = command[cut:]
    return [*lines, command] if command else lines
