"""The dashboard of a fleet: which node is the worst, which is the odd one, which is silent."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from node_dashboard import UID as NODE_UID
from panels import GOOD_IS_ZERO, SEVERITIES, SOME_CAN_WAIT, Column, board, counted, lines, number, row, rows, variable

UID = "gpu-topo-fleet"
JOB = 'job=~"$job"'
TO_NODE = f"/d/{NODE_UID}?var-datasource=${{datasource}}&var-node=${{__value.raw}}"


def build() -> Dashboard:
    """The dashboard. Much of it reads the recording rules of deploy/prometheus/gpu-topo.rules.yml."""
    made = board(
        UID,
        "gpu-topo / fleet",
        "All GPU nodes together. Needs the recording rules of gpu-topo.rules.yml.",
        [variable("job", "Job", "label_values(gputopo_build_info, job)", several=True)],
    )
    for part in (_totals, _nodes, _shapes, _agents):
        made = part(made)
    return made


def _totals(made: Dashboard) -> Dashboard:
    def nodes_with(severity: str) -> str:
        return f'count(gputopo_findings{{{JOB}, severity="{severity}"}} > 0) or vector(0)'

    lost = f"sum(instance:gputopo_pcie_lost_bandwidth_bytes_per_second:sum{{{JOB}}}) or vector(0)"
    return (
        made.with_panel(number("Nodes", "That answer.", f"count(gputopo_build_info{{{JOB}}})"))
        .with_panel(
            number("Silent", "Agents that do not answer.", f"count(up{{{JOB}}} == 0) or vector(0)", steps=GOOD_IS_ZERO)
        )
        .with_panel(
            number("Nodes with critical findings", "A job is hurt now.", nodes_with("critical"), steps=GOOD_IS_ZERO)
        )
        .with_panel(
            number("Nodes with warnings", "Can wait for working hours.", nodes_with("warning"), steps=SOME_CAN_WAIT)
        )
        .with_panel(
            number(
                "Shapes",
                "Kinds of nodes, by their wiring. In a fleet of one kind there is one.",
                f"count(shape:gputopo_shape_info:count{{{JOB}}})",
            )
        )
        .with_panel(
            number("PCIe bandwidth lost", "By degraded links, per direction.", lost, unit="Bps", steps=GOOD_IS_ZERO)
        )
    )


def _nodes(made: Dashboard) -> Dashboard:
    def of(severity: str) -> str:
        return f'sum by (instance) (gputopo_findings{{{JOB}, severity="{severity}"}})'

    return (
        made.with_panel(
            rows(
                "Worst nodes",
                "Critical findings first, then warnings.",
                {
                    "A": f"topk(20, sum by (instance) (instance:gputopo_findings_weight:sum{{{JOB}}}))",
                    "B": of("critical"),
                    "C": of("warning"),
                    "D": f"sum by (instance) (instance:gputopo_pcie_lost_bandwidth_bytes_per_second:sum{{{JOB}}})"
                    f" or 0 * sum by (instance) (gputopo_findings{{{JOB}}})",
                },
                [
                    Column("instance", "Node", link=TO_NODE),
                    Column("B", "Critical", width=90),
                    Column("C", "Warnings", width=90),
                    Column("D", "PCIe bandwidth lost", unit="Bps", width=160),
                    Column("A", "Weight", width=90),
                ],
                sort="Weight",
                descending=True,
                height=10,
                span=12,
            )
        )
        .with_panel(
            rows(
                "Findings",
                "What there is, and how often.",
                {"A": f"sum by (severity, code) (code_severity:gputopo_finding:count{{{JOB}}})"},
                [
                    Column("severity", "Severity", colours=SEVERITIES, width=100),
                    Column("code", "Code"),
                    Column("A", "Count", width=90),
                ],
                empty="no findings",
                sort="Count",
                descending=True,
                height=10,
                span=12,
            )
        )
        .with_panel(
            lines(
                "Findings over time",
                "All nodes together.",
                f"sum by (severity) (severity:gputopo_findings:sum{{{JOB}}})",
                "{{severity}}",
                unit="none",
                colours=SEVERITIES,
            )
        )
        .with_panel(
            lines(
                "RDMA ports that are not active",
                "Ports of the compute fabric, by node; the ten nodes that have the most.",
                f"topk(10, sum by (instance) ((1 - gputopo_port_active{{{JOB}}})"
                f' * on (job, instance, device, port) group_left () gputopo_port_info{{{JOB}, role="fabric"}}))',
                "{{instance}}",
                unit="none",
            )
        )
    )


def _shapes(made: Dashboard) -> Dashboard:
    twins = f"instance_shape:gputopo_shape_twins:count{{{JOB}}}"
    return (
        made.with_row(row("Shapes"))
        .with_panel(
            rows(
                "Odd nodes",
                "How many nodes are wired as this one is; the loneliest first. Kinds, models, expected links, switch"
                " grouping, NVLink and port rates count, serial and bus numbers do not.",
                {"A": f"bottomk(20, sum by (instance, shape) ({twins}))"},
                [Column("instance", "Node", link=TO_NODE), Column("shape", "Shape"), Column("A", "Alike", width=90)],
                sort="Alike",
                span=12,
            )
        )
        .with_panel(
            counted(
                "Shapes",
                "How many nodes have each.",
                f"sum by (shape) (shape:gputopo_shape_info:count{{{JOB}}})",
                [Column("shape", "Shape")],
                of="Nodes",
                span=12,
            )
        )
    )


def _agents(made: Dashboard) -> Dashboard:
    return (
        made.with_row(row("Agents"))
        .with_panel(
            lines(
                "Oldest scans",
                "How long ago the last scan finished, for the ten nodes where it is the longest.",
                f"topk(10, time() - gputopo_last_scan_timestamp_seconds{{{JOB}}})",
                "{{instance}}",
                unit="s",
                span=8,
            )
        )
        .with_panel(
            counted(
                "Not assessed",
                "On how many nodes a rule could not judge, and why.",
                f"count by (code, reason) (gputopo_unassessed{{{JOB}}})",
                [Column("code", "Code"), Column("reason", "Reason")],
                of="Nodes",
                empty="everything was assessed",
            )
        )
        .with_panel(
            counted(
                "Versions",
                "Of the agent.",
                f"count by (version) (gputopo_build_info{{{JOB}}})",
                [Column("version", "Version")],
                of="Nodes",
            )
        )
    )
