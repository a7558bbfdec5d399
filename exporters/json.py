"""The JSON report, schema gpu-topo/report/1: one object, unknown values null, the reasons under `unassessed`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_topo.exporters.view import listed_devices, nvlink_totals, port_max_gbps
from gpu_topo.model.finding import Finding, Report
from gpu_topo.model.host import Platform, Port
from gpu_topo.model.node import Device, Gpu, Link, Node, Switch
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.structure import GpuPlacement, Near, Path
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.paths import all_paths
from gpu_topo.topology.placement import placement
from gpu_topo.topology.roles import role

SCHEMA = "gpu-topo/report/1"

Row = dict[str, Any]


def render(report: Report) -> str:
    """The report as one JSON object, each of its rows on a line of its own, so that grep and diff work on it."""
    encode = json.JSONEncoder(allow_nan=False).encode
    fields = []
    for key, value in document(report).items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join([encode(row) for row in value])
            fields.append(f'"{key}": [\n  {rows}\n]')
        else:
            fields.append(f'"{key}": {encode(value)}')
    return "{" + ",\n".join(fields) + "}\n"


def document(report: Report) -> Row:
    """The report as plain values, before encoding."""
    node = report.node
    joined = interconnect(node)
    placed = placement(node, report.role_overrides)
    return {
        "schema": SCHEMA,
        "version": report.version,
        "generated_at": report.generated_at,
        "verdict": report.verdict,
        "node": _platform(node.platform),
        "sources": [
            {"name": s.name, "status": s.status, "detail": s.detail, "seconds": _number(s.seconds, 4)}
            for s in node.sources
        ],
        "unread": dict(node.unread),
        "devices": [_device(device) for device in listed_devices(report)],
        "gpus": [_gpu(gpu) for gpu in node.gpus],
        "accelerator_links": [
            {
                "kind": link.kind,
                "a": link.a,
                "b": link.b,
                "links": known(link.links),
                "state": link.state,
                "gbs": _number(known(link.gbs)),
            }
            for link in node.accelerator_links
        ],
        "interconnect": {
            "shape": joined.shape,
            "islands": joined.islands,
            "max_tensor_parallel": joined.max_tensor_parallel,
            "reason": joined.reason or None,
        },
        "ports": [_port(node, port, report.role_overrides) for port in node.ports],
        "switches": [_switch(switch) for switch in node.switches.values()],
        "paths": [_path(path) for path in all_paths(node, report.all_paths)],
        "placement": [
            _gpu_placement(row, placed.nic_to_gpu_ratio, placed.scale_out_gbs_per_gpu) for row in placed.gpus
        ],
        "advice": {
            "summary": placed.summary or None,
            "nic_to_gpu_ratio": _number(placed.nic_to_gpu_ratio),
            "scale_out_gbs_per_gpu": _number(placed.scale_out_gbs_per_gpu),
            "settings": [{"line": setting.line, "reason": setting.reason} for setting in placed.settings],
        },
        "findings": [_finding(finding) for finding in report.findings],
        "unassessed": [
            {"code": u.code, "subject": u.subject, "reason": u.reason, "cause": u.cause} for u in report.unassessed
        ],
        "notes": report.notes,
    }


def _number(value: float | None, digits: int = 3) -> float | int | None:
    """A number a person can read: rounded, whole numbers without a fraction, null where it is none."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def plain(value: object) -> Any:
    """A finding's evidence as plain values: what is unknown becomes null, sets are sorted."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Unknown):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def _hex(number: int | None) -> str | None:
    return None if number is None else f"{number:04x}"


def _platform(platform: Platform) -> Row:
    numa = known(platform.numa)
    return {
        "hostname": known(platform.hostname),
        "platform": platform.kind,
        "hypervisor": known(platform.hypervisor),
        "kernel": known(platform.kernel),
        "numa_nodes": known(platform.numa_count) if numa is None else len(numa),
        "product": known(platform.product),
        "evidence": platform.evidence or None,
    }


def _link(link: Link | None) -> Row | None:
    if link is None:
        return None
    gbs, expected_gbs = link.gbs, link.expected_gbs
    return {
        "speed_gts": known(link.speed_gts),
        "width": known(link.width),
        "max_speed_gts": known(link.max_speed_gts),
        "max_width": known(link.max_width),
        "port": link.port,
        "port_max_speed_gts": known(link.port_max_speed_gts),
        "port_max_width": known(link.port_max_width),
        "expected_speed_gts": link.expected_speed_gts,
        "expected_width": link.expected_width,
        "gbs": None if gbs is None else round(gbs, 3),
        "expected_gbs": None if expected_gbs is None else round(expected_gbs, 3),
    }


def _device(device: Device) -> Row:
    function = device.function
    return {
        "address": device.address,
        "kind": device.kind,
        "name": device.name or None,
        "vendor_id": _hex(function.vendor_id),
        "device_id": _hex(function.device_id),
        "driver": known(function.driver),
        "numa_node": known(function.numa_node),
        "parent": known(function.parent),
        "path": device.path or (device.address,),
        "switch": device.switch,
        "slot": function.slot,
        "virtual_function": function.virtual_function,
        "bottleneck": device.bottleneck,
        "link": _link(device.link),
    }


def _gpu(gpu: Gpu) -> Row:
    totals = nvlink_totals(gpu)
    links = known(gpu.nvlinks)
    fabric = known(gpu.fabric)
    pstate = known(gpu.pstate)
    return {
        "address": gpu.address,
        "index": gpu.ordinal,
        "uuid": known(gpu.uuid),
        "model": known(gpu.model),
        "architecture": known(gpu.architecture),
        "pstate": None if pstate is None else f"P{pstate}",
        "utilization": known(gpu.utilization),
        "busy": gpu.busy,
        "mig": known(gpu.mig),
        "partitions": known(gpu.partitions),
        "lost": gpu.lost,
        "replays": known(gpu.replays),
        "driver_link": _link(gpu.driver_link),
        "nvlink": {
            "links_total": totals.total,
            "links_active": totals.active,
            "version": totals.version,
            "gbs": _number(totals.gbs, 4),
            "links": None
            if links is None
            else [
                {
                    "index": link.number,
                    "state": link.state,
                    "remote_kind": link.remote_kind,
                    "remote": link.remote,
                }
                for link in links
            ],
        },
        "fabric": {
            "state": known(fabric.state) if fabric else None,
            "status": known(fabric.status) if fabric else None,
            "clique": known(fabric.clique) if fabric else None,
            "health": dict(fabric.health) if fabric else {},
        },
    }


def _port(node: Node, port: Port, roles: Mapping[str, str]) -> Row:
    return {
        "device": port.device,
        "port": port.port,
        "address": known(port.address),
        "netdev": known(port.netdev),
        "link_layer": known(port.link_layer),
        "transport": port.transport,
        "state": known(port.state),
        "phys_state": known(port.phys_state),
        "rate_gbps": _number(known(port.rate_gbps)),
        "lanes": known(port.lanes),
        "speed": known(port.speed),
        "max_rate_gbps": _number(port_max_gbps(node, port)),
        "role": role(node, port, roles),
        "firmware": known(port.firmware),
        "board_id": known(port.board_id),
        "bond": port.bond,
        "virtual_function": port.virtual_function,
    }


def _switch(switch: Switch) -> Row:
    return {
        "id": switch.id,
        "name": switch.name,
        "ports": switch.ports,
        "uplink": _link(switch.uplink),
        "downstream": switch.downstream,
        "downstream_gbs": _number(switch.downstream_gbs),
        "oversubscription": _number(switch.oversubscription),
    }


def _path(path: Path) -> Row:
    return {"a": path.a, "b": path.b, "kind": path.kind, "gbs": _number(path.gbs), "via": path.via}


def _near(near: Near) -> Row:
    return {"address": near.address, "name": near.name, "kind": near.kind, "gbs": _number(near.gbs)}


def _gpu_placement(row: GpuPlacement, ratio: float | None, scale_out: float | None) -> Row:
    """One GPU's row. The two figures of the node stand in each row, so that a row can be used alone."""
    return {
        "gpu": row.gpu,
        "numa_node": row.numa_node,
        "cpus": row.cpus,
        "nics": [_near(near) for near in row.nics],
        "storage": [_near(near) for near in row.storage],
        "nic_to_gpu_ratio": _number(ratio),
        "scale_out_gbs_per_gpu": _number(scale_out),
    }


def _finding(finding: Finding) -> Row:
    accepted = finding.accepted
    return {
        "code": finding.code,
        "severity": finding.severity,
        "subject": finding.subject,
        "related": finding.related,
        "summary": finding.summary,
        "observed": plain(finding.observed),
        "expected": plain(finding.expected),
        "basis": finding.basis,
        "lost_gbs": _number(finding.lost_gbs),
        "impact": finding.impact,
        "remedy": finding.remedy,
        "verify": finding.verify,
        "accepted": None
        if accepted is None
        else {"by": accepted.by, "reason": accepted.reason, "until": accepted.until},
        "since": finding.since,
    }
