"""The dashboard of one node: what is wrong, its links, NVLink, ports, and the agent itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from panels import (
    GOOD_IS_ZERO,
    GREEN,
    ORANGE,
    RED,
    SEVERITIES,
    SOME_CAN_WAIT,
    Column,
    bars,
    board,
    lines,
    number,
    row,
    rows,
    states,
    variable,
)

UID = "gpu-topo-node"
NODE = 'job=~"$job", instance="$node"'
GTS = "suffix: GT/s"


def build() -> Dashboard:
    """The dashboard."""
    made = board(
        UID,
        "gpu-topo / node",
        "How one GPU node is really wired and running. `gpu-topo inspect` on the node explains each finding.",
        [
            variable("job", "Job", "label_values(gputopo_build_info, job)", several=True),
            variable("node", "Node", 'label_values(gputopo_build_info{job=~"$job"}, instance)'),
        ],
    )
    for part in (_verdict, _pcie, _nvlink, _ports, _agent):
        made = part(made)
    return made


def _verdict(made: Dashboard) -> Dashboard:
    def count(severity: str) -> str:
        return f'sum(gputopo_findings{{{NODE}, severity="{severity}"}})'

    return (
        made.with_panel(number("Critical", "Findings that cost a job now.", count("critical"), steps=GOOD_IS_ZERO))
        .with_panel(
            number("Warnings", "Findings that can wait for working hours.", count("warning"), steps=SOME_CAN_WAIT)
        )
        .with_panel(number("Info", "Facts worth knowing; nothing to repair.", count("info")))
        .with_panel(
            number(
                "Last scan",
                "How long ago the last scan finished. Old news is no news.",
                f"time() - max(gputopo_last_scan_timestamp_seconds{{{NODE}}})",
                unit="s",
                steps=((None, GREEN), (60, ORANGE), (300, RED)),
            )
        )
        .with_panel(
            number(
                "Largest tensor-parallel group",
                "GPUs that reach each other at full speed without PCIe.",
                f"max(gputopo_max_tensor_parallel{{{NODE}}})",
            )
        )
        .with_panel(number("Fabric NICs per GPU", "1 or more is usual.", f"max(gputopo_nic_gpu_ratio{{{NODE}}})"))
        .with_panel(
            rows(
                "Findings",
                "Everything that holds now. `gpu-topo rules CODE` explains a code.",
                {
                    "A": f"max by (severity, code, subject) (gputopo_finding{{{NODE}}})",
                    "B": f"1000 * max by (severity, code, subject) (gputopo_finding_since_timestamp_seconds{{{NODE}}})",
                },
                [
                    Column("severity", "Severity", colours=SEVERITIES, width=100),
                    Column("code", "Code", width=260),
                    Column("subject", "Subject"),
                    Column("B", "Since", unit="dateTimeFromNow"),
                ],
                empty="none",
                sort="Severity",
            )
        )
    )


def _pcie(made: Dashboard) -> Dashboard:
    def of(name: str) -> str:
        return f"max by (address) (gputopo_pcie_link_{name}{{{NODE}}})"

    return (
        made.with_row(row("PCIe"))
        .with_panel(
            rows(
                "Links",
                "What each link runs at, and what both of its ends can do. Idle GPUs lower their speed on purpose.",
                {
                    "A": f"max by (address, kind, name, numa_node, slot) (gputopo_device_info{{{NODE}}})",
                    "B": of("width"),
                    "C": of("expected_width"),
                    "D": f"{of('speed_transfers_per_second')} / 1e9",
                    "E": f"{of('expected_speed_transfers_per_second')} / 1e9",
                    "F": of("bandwidth_bytes_per_second"),
                    "G": of("expected_bandwidth_bytes_per_second"),
                },
                [
                    Column("kind", "Kind", width=90),
                    Column("address", "Address", width=120),
                    Column("name", "Name"),
                    Column("slot", "Slot", width=90),
                    Column("numa_node", "NUMA", width=70),
                    Column("B", "Lanes", unit="prefix:x", width=70),
                    Column("C", "Lanes possible", unit="prefix:x", width=120),
                    Column("D", "Speed", unit=GTS, width=90),
                    Column("E", "Speed possible", unit=GTS, width=130),
                    Column("F", "Bandwidth", unit="Bps", width=100),
                    Column("G", "Bandwidth possible", unit="Bps", width=150),
                ],
                sort="Address",
                height=11,
            )
        )
        .with_panel(
            lines(
                "Bandwidth in use of what is possible",
                "The ten links furthest below what they could. Idle GPUs may be lower in speed, never in lanes.",
                f"bottomk(10, gputopo_pcie_link_bandwidth_bytes_per_second{{{NODE}}}"
                f" / gputopo_pcie_link_expected_bandwidth_bytes_per_second{{{NODE}}})",
                "{{address}}",
                unit="percentunit",
            )
        )
        .with_panel(
            lines(
                "PCIe errors",
                "The ten devices that count the most AER errors. Correctable ones are repaired, at a price.",
                f"topk(10, sum by (address, severity) (rate(gputopo_pcie_errors_total{{{NODE}}}[$__rate_interval])))",
                "{{address}} {{severity}}",
                unit="cps",
            )
        )
        .with_panel(
            bars(
                "Oversubscription of switch uplinks",
                "What hangs below a switch over what its uplink carries. Two to four is usual.",
                f"gputopo_switch_oversubscription_ratio{{{NODE}}}",
                "{{address}}",
                unit="none",
                steps=((None, GREEN), (4.01, ORANGE)),
            )
        )
        .with_panel(
            lines(
                "PCIe replays",
                "Packets that GPUs had to send again, by NVML: a link that is about to fail its lanes.",
                f"sum by (address) (rate(gputopo_pcie_replays_total{{{NODE}}}[$__rate_interval]))",
                "{{address}}",
                unit="cps",
            )
        )
    )


def _nvlink(made: Dashboard) -> Dashboard:
    active = f'max by (address) (gputopo_nvlink_links{{{NODE}, state="active"}})'
    return (
        made.with_row(row("NVLink"))
        .with_panel(
            bars(
                "Active NVLinks",
                "Of those that are to be active: by peers of the same model, or by the catalogue.",
                f"{active} / max by (address) (gputopo_nvlink_expected_links{{{NODE}}})",
                "{{address}}",
                unit="percentunit",
                most=1,
                steps=((None, RED), (1, GREEN)),
            )
        )
        .with_panel(
            lines(
                "NVLink errors",
                "By GPU and kind, all links together.",
                f"sum by (address, kind) (rate(gputopo_nvlink_errors_total{{{NODE}}}[$__rate_interval]))",
                "{{address}} {{kind}}",
                unit="cps",
            )
        )
        .with_panel(
            rows(
                "GPUs",
                "As their driver sees them. Bandwidth is that of all active NVLinks together, per direction.",
                {
                    "A": f"max by (address, index, model, uuid) (gputopo_gpu_info{{{NODE}}})",
                    "B": f"max by (address) (gputopo_nvlink_bandwidth_bytes_per_second{{{NODE}}})",
                    "C": active,
                    "D": f"max by (address) (gputopo_nvlink_expected_links{{{NODE}}})",
                },
                [
                    Column("index", "Index", width=80),
                    Column("address", "Address", width=120),
                    Column("model", "Model"),
                    Column("uuid", "UUID"),
                    Column("C", "NVLinks", width=90),
                    Column("D", "NVLinks expected", width=140),
                    Column("B", "Bandwidth", unit="Bps", width=110),
                ],
                sort="Index",
            )
        )
    )


def _ports(made: Dashboard) -> Dashboard:
    labels = "device, port"

    def of(name: str) -> str:
        return f"max by ({labels}) (gputopo_port_{name}{{{NODE}}})"

    return (
        made.with_row(row("RDMA ports"))
        .with_panel(
            rows(
                "Ports",
                "InfiniBand and RoCE ports, what each is for, and its line rate. A port that is down has no rate.",
                {
                    "A": f"max by ({labels}, netdev, link_layer, role, firmware) (gputopo_port_info{{{NODE}}})",
                    "B": of("active"),
                    "C": of("rate_bytes_per_second"),
                    "D": of("expected_rate_bytes_per_second"),
                },
                [
                    Column("device", "Device", width=110),
                    Column("port", "Port", width=60),
                    Column("role", "Role", width=110),
                    Column("B", "Active", colours={"1": GREEN, "0": RED}, width=80),
                    Column("C", "Rate", unit="Bps", width=100),
                    Column("D", "Rate expected", unit="Bps", width=120),
                    Column("link_layer", "Link layer"),
                    Column("netdev", "Interface"),
                    Column("firmware", "Firmware"),
                ],
                sort="Device",
            )
        )
        .with_panel(
            states(
                "State",
                "Flapping shows as stripes.",
                f"max by ({labels}) (gputopo_port_active{{{NODE}}})",
                "{{device}}/{{port}}",
                {"1": ("active", GREEN), "0": ("not active", RED)},
            )
        )
        .with_panel(
            lines(
                "Port errors",
                "The ten counters that grow the most.",
                f"topk(10, sum by ({labels}, kind) (rate(gputopo_port_errors_total{{{NODE}}}[$__rate_interval])))",
                "{{device}}/{{port}} {{kind}}",
                unit="cps",
            )
        )
    )


def _agent(made: Dashboard) -> Dashboard:
    return (
        made.with_row(row("The agent"))
        .with_panel(
            rows(
                "Not assessed",
                "What no rule could judge here, and why. Unassessed is not healthy.",
                {"A": f"sum by (code, reason) (gputopo_unassessed{{{NODE}}})"},
                [Column("code", "Code"), Column("reason", "Reason"), Column("A", "Subjects", width=100)],
                empty="everything was assessed",
                sort="Code",
                span=8,
            )
        )
        .with_panel(
            states(
                "Sources",
                "Whether each source answered.",
                f"max by (source) (gputopo_source_up{{{NODE}}})",
                "{{source}}",
                {"1": ("up", GREEN), "0": ("down", RED)},
                span=8,
            )
        )
        .with_panel(
            lines(
                "Time to read a source",
                "In the last scan.",
                f"max by (source) (gputopo_source_duration_seconds{{{NODE}}})",
                "{{source}}",
                unit="s",
                span=8,
            )
        )
    )
