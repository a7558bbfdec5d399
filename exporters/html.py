"""The report as one self-contained page: no script, no external resource, light and dark, the picture inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_topo.exporters import matrix, svg, tree
from gpu_topo.exporters.entries import Entry, split, unassessed_groups
from gpu_topo.exporters.limits import Limit, limits, limits_table
from gpu_topo.exporters.view import accepted_findings, listed_devices, names, subject_name
from gpu_topo.exporters.words import clean, compact, gbs, host, judged_by, link_gbs, link_text, moment
from gpu_topo.model.finding import INFO, Report
from gpu_topo.model.reading import known
from gpu_topo.topology.counted import endpoints
from gpu_topo.topology.placement import placement
from gpu_topo.topology.ports import line_rate
from gpu_topo.topology.roles import role

# The device-by-device table of a larger node is no longer something to look at.
MOST_PLACES = 48
MOST_NOTES = 3  # sentences of one rule in full, where they are only worth knowing


def render(report: Report, refresh: int | None = None) -> str:
    """The page; refresh: seconds after which a browser loads it again (for the daemon)."""
    import pkgutil

    from jinja2 import Environment
    from markupsafe import Markup

    template = pkgutil.get_data("gpu_topo.exporters", "report.html")
    if template is None:
        raise FileNotFoundError("report.html is missing from the package")
    environment = Environment(autoescape=True, trim_blocks=False, finalize=_finalize)
    # The picture escapes its own strings; everything else is escaped here.
    picture = Markup(svg.render(report, links=True))
    page = environment.from_string(template.decode()).render(picture=picture, refresh=refresh, **_content(report))
    return page + "\n"


def _finalize(value: object) -> object:
    """Cleans every plain string that the template prints; markup has been cleaned."""
    return clean(value) if type(value) is str else value


def _content(report: Report) -> dict[str, Any]:
    node = report.node
    short = names(node)
    serious, notes = split(report)
    placed = placement(node, report.role_overrides)
    kernel, product = known(node.platform.kernel), known(node.platform.product)
    return {
        "verdict": report.verdict,
        "host": host(report),
        "notes": report.notes,
        "serious": [_finding(item, short, report) for item in serious],
        "info": [_finding(item, short, report) for item in notes],
        "tree": _tree(report, serious),
        "limits": _limits(rows) if (rows := limits(report, placed)) else None,
        "placement": placed,
        "unassessed": [
            {"codes": ", ".join(item.codes), "subjects": compact(item.subjects), "reason": item.reason}
            for item in unassessed_groups(report)
        ],
        "accepted": [
            {**finding.accepted._asdict(), "code": finding.code, "subject": subject_name(finding.subject, short)}
            for finding in accepted_findings(report)
            if finding.accepted
        ],
        "matrix": _matrix(report),
        "ports": _ports(report),
        "devices": _devices(report),
        "sources": node.sources,
        "version": report.version,
        "generated_at": report.generated_at,
        "machine": ", ".join(
            text for text in (product, f"kernel {kernel}" if kernel else "", f"platform {node.platform.kind}") if text
        ),
    }


def _finding(item: Entry, short: dict[str, str], report: Report) -> dict[str, Any]:
    first = item.first
    return {
        "number": item.number,
        "severity": first.severity,
        "code": first.code,
        "title": item.title(report.node, short),
        "rows": item.rows(short),
        "shown": MOST_NOTES if first.severity == INFO else len(item.findings),
        "costs": gbs(item.lost_gbs) if item.lost_gbs else "",
        "impacts": item.impacts,
        "since": moment(first.since) if first.since is not None else "",
        "remedy": first.remedy,
        "verify": first.verify,
        "basis": judged_by(first),
    }


def _tree(report: Report, serious: Sequence[Entry]) -> list[dict[str, str]]:
    rows = tree.rows(report, [(item.number, finding) for item in serious for finding in item.findings])
    severity = {item.number: item.first.severity for item in serious}
    return [
        {"text": line, "style": severity[row.marks[0]] if row.marks else ""}
        for row, line in zip(rows, tree.lines(rows), strict=True)
    ]


def _limits(rows: Sequence[Limit]) -> dict[str, Any]:
    titles, cells = limits_table(rows)
    return {"titles": titles, "rows": [[{"text": cell.text, "bad": cell.bad} for cell in row] for row in cells]}


def _matrix(report: Report) -> dict[str, Any]:
    if len(endpoints(report.node)) > MOST_PLACES:
        return {"places": ()}
    table = matrix.build(report.node)
    rows = [
        (
            place,
            [
                {"text": matrix.cell_text(path), "style": "X" if path is None else path.kind.rstrip("0123456789")}
                for path in row
            ],
        )
        for place, row in zip(table.places, table.cells, strict=True)
    ]
    return {"places": table.places, "rows": rows, "legend": list(matrix.legend(table))}


def _ports(report: Report) -> list[list[str]]:
    rows = []
    for port in report.node.ports:
        rate = line_rate(report.node, port)
        speed = known(port.speed)
        rows.append(
            [
                f"{port.device}/{port.port}",
                known(port.address) or "",
                known(port.netdev) or "",
                port.transport or known(port.link_layer) or "",
                known(port.state) or "?",
                (f"{rate:g} Gb/s" if rate is not None else "?") + (f" {speed}" if speed else ""),
                role(report.node, port, report.role_overrides),
                known(port.firmware) or "",
            ]
        )
    return rows


def _devices(report: Report) -> list[list[str]]:
    return [
        [
            device.address,
            device.kind + (" (virtual function)" if device.function.virtual_function else ""),
            device.name,
            link_text(device.link),
            link_gbs(device.link),
            "" if (numa := known(device.function.numa_node)) is None else str(numa),
            device.function.slot or "",
            known(device.function.driver) or "",
        ]
        for device in listed_devices(report)
    ]
