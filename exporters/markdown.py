"""The report as GitHub-flavoured markdown, for pasting into a ticket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
    tally,
)
from gpu_topo.model.finding import Report
from gpu_topo.model.reading import known
from gpu_topo.topology.placement import placement

# An underscore inside a word, as in mlx5_0, means nothing to markdown.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")


def render(report: Report) -> str:
    """The report as markdown; names and reasons from recordings are escaped, so that they stay text."""
    serious, notes = split(report)
    lines = list(_head(report))
    for item in serious:
        lines += _finding(report, item)
    if serious:
        lines += _where(report, serious)
    if notes:
        lines += _notes(report, notes)
    placed = placement(report.node, report.role_overrides)
    if rows := limits(report, placed):
        lines += _limits(rows)
        if placed.summary:
            lines += ["", escape(placed.summary)]
        if placed.settings:
            block = [text for setting in placed.settings for text in (f"# {setting.reason}", setting.line)]
            lines += ["", *_code(block, "sh")]
    lines += _unassessed(report)
    lines += _accepted(report)
    lines += ["", f"<sub>gpu-topo {escape(report.version)}, {escape(report.generated_at)}</sub>"]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text that markdown leaves as it is, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", clean(text))


def code(text: str) -> str:
    """Inline code that a backtick inside does not end."""
    text = clean(text)
    fence = _fence([text], 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fence(lines: Sequence[str], least: int) -> str:
    """Backticks, more than stand in a row inside."""
    return "`" * max(least, *(len(run) + 1 for line in lines for run in re.findall(r"`+", line)), 0)


def _code(lines: Iterable[str], language: str = "") -> list[str]:
    """A fenced block; its fence is longer than any run of backticks inside."""
    body = [clean(line) for line in lines]
    fence = _fence(body, 3)
    return [f"{fence}{language}", *body, fence]


def _head(report: Report) -> Iterable[str]:
    platform = report.node.platform
    yield f"## {report.verdict.upper()}: {escape(host(report))}"
    yield ""
    if report.verdict == "ok":
        yield escape(fits(report, 1000)) + "."
    else:
        counted = tally(report)
        yield (f"**{counted}.** " if counted else "") + escape(headline(report)) + "."
    kernel = known(platform.kernel)
    details = [known(platform.product), f"kernel {kernel}" if kernel else None, f"platform {platform.kind}"]
    yield ""
    yield escape(", ".join(text for text in details if text))
    for note in report.notes:
        yield ""
        yield f"> {escape(note)}"


def _finding(report: Report, item: Entry) -> list[str]:
    short = names(report.node)
    first = item.first
    lines = ["", f"### {item.number}. {first.severity}: {code(first.code)} {escape(item.subject(short))}", ""]
    for what, seen in item.rows(short):
        lines.append(f"- **What** {escape(what)}")
        if seen:
            lines.append(f"- **Seen** {escape(seen)}")
    if item.lost_gbs:
        lines.append(f"- **Costs** {gbs(item.lost_gbs)} GB/s in each direction")
    lines += [f"- **Impact** {escape(impact)}" for impact in item.impacts]
    lines.append(f"- **Judged by** {escape(judged_by(first))}")
    if first.remedy:
        lines += ["- **Do**", *[f"  {number}. {escape(step)}" for number, step in enumerate(first.remedy, 1)]]
    if first.verify:
        lines.append(f"- **Check** {code(first.verify)}")
    return lines


def _where(report: Report, serious: Sequence[Entry]) -> list[str]:
    rows = tree.rows(report, [(item.number, finding) for item in serious for finding in item.findings])
    if not rows:
        return []
    return ["", "### Where it sits", "", "Link and GB/s of each hop:", "", *_code(tree.lines(rows))]


def _notes(report: Report, notes: Sequence[Entry]) -> list[str]:
    short = names(report.node)
    lines = ["", "### Also worth knowing", ""]
    for item in notes:
        subjects = compact(dict.fromkeys(short_subject(f.subject, short) for f in item.findings))
        lines.append(f"- {code(item.first.code)} {escape(subjects)}: {escape(item.first.summary)}")
    return lines


def _limits(rows: Sequence[Limit]) -> list[str]:
    titles, cells = limits_table(rows)
    shown = [[cell.text for cell in row] for row in cells]
    return ["", "### Limits, GB/s in each direction", "", *table_lines(titles, shown)]


def table_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in GitHub's spelling; cells are escaped."""
    lines = [f"| {' | '.join(escape(title) for title in titles)} |", f"|{' --- |' * len(titles)}"]
    return lines + [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]


def _unassessed(report: Report) -> list[str]:
    groups = unassessed_groups(report)
    if not groups:
        return []
    lines = ["", "<details><summary>Not judged</summary>", ""]
    for item in groups:
        codes = ", ".join(code(name) for name in item.codes)
        lines.append(f"- {escape(compact(item.subjects))}: {codes}: {escape(item.reason)}")
    return [*lines, "", "</details>"]


def _accepted(report: Report) -> list[str]:
    found = accepted_findings(report)
    if not found:
        return []
    short = names(report.node)
    lines = ["", "### Accepted as designed", ""]
    for finding in found:
        accepted = finding.accepted
        assert accepted is not None
        lines.append(
            f"- {code(finding.code)} {escape(subject_name(finding.subject, short))}: {escape(accepted_text(accepted))}"
        )
    return lines
