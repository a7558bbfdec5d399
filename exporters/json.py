"""The JSON report, schema gpu-topo/report/1: one object, unknown values null, the reasons under `unassessed`."""

from __future__ import annotations

from itertools import islice

from gpu_topo.exporters.json_values import encode, string
from gpu_topo.exporters.view import listed_devices, nvlink_totals, port_max_gbps
from gpu_topo.model.address import pair_key
from gpu_topo.model.cached import Answers
from gpu_topo.model.node import Link
from gpu_topo.model.reading import EMPTY, Unknown, known
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.paths import all_paths
from gpu_topo.topology.placement import placement
from gpu_topo.topology.roles import role

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from gpu_topo.model.finding import Finding, Report, Unassessed
    from gpu_topo.model.gpu import AcceleratorLink, NvLink
    from gpu_topo.model.host import Platform, Port
    from gpu_topo.model.node import Device, Gpu, Switch
    from gpu_topo.model.structure import GpuPlacement, Near, Path

SCHEMA = "gpu-topo/report/1"
_AT_ONCE = 64  # rows of a piece


def render(report: Report) -> str:
    """The report as one JSON object, each of its rows on a line of its own, so that grep and diff work on it."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same in pieces, for whoever writes it: of a large machine it is megabytes, and a page of new memory costs as
    much as writing five rows."""
    node = report.node
    joined = interconnect(node)
    placed = placement(node, report.role_overrides)
    ratio, scale_out = _number(placed.nic_to_gpu_ratio), _number(placed.scale_out_gbs_per_gpu)
    rows = _Rows(report)
    fields: dict[str, str | Iterable[str]] = {
        "schema": encode(SCHEMA),
        "version": encode(report.version),
        "generated_at": encode(report.generated_at),
        "verdict": encode(report.verdict),
        "node": encode(_platform(node.platform)),
        "sources": (
            encode({"name": s.name, "status": s.status, "detail": s.detail, "seconds": _number(s.seconds, 4)})
            for s in node.sources
        ),
        "unread": encode(dict(node.unread)),
        "devices": map(rows.device, listed_devices(report)),
        "gpus": map(rows.gpu, node.gpus),
        "accelerator_links": map(rows.accelerator_link, node.accelerator_links),
        "interconnect": encode(
            {
                "shape": joined.shape,
                "islands": joined.islands,
                "max_tensor_parallel": joined.max_tensor_parallel,
                "reason": joined.reason or None,
            }
        ),
        "ports": map(rows.port, node.ports),
        "switches": map(rows.switch, node.switches.values()),
        "paths": map(rows.path, all_paths(node, report.all_paths)),
        "placement": (rows.placement(row, ratio, scale_out) for row in placed.gpus),
        "advice": encode(
            {
                "summary": placed.summary or None,
                "nic_to_gpu_ratio": ratio,
                "scale_out_gbs_per_gpu": scale_out,
                "settings": [{"line": setting.line, "reason": setting.reason} for setting in placed.settings],
            }
        ),
        "findings": map(rows.finding, report.findings),
        "unassessed": map(rows.unassessed, report.unassessed),
        "notes": encode(report.notes),
    }
    before = "{"
    for name, value in fields.items():
        yield f'{before}"{name}": '
        if isinstance(value, str):
            yield value
        else:
            yield from _lines(iter(value))
        before = ",\n"
    yield "}\n"


def _lines(rows: Iterator[str]) -> Iterator[str]:
    """A list with a line for each of its rows."""
    before = "[\n  "
    while some := list(islice(rows, _AT_ONCE)):
        yield before
        yield ",\n  ".join(some)
        before = ",\n  "
    yield "[]" if before[0] == "[" else "\n]"


def _number(value: float | None, digits: int = 3) -> float | int | None:
    """A number a person can read: rounded, whole numbers without a fraction, null where it is none."""
    if value is None or value - value != 0.0:
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
    if isinstance(value, (dict, type(EMPTY))):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def _platform(platform: Platform) -> dict[str, Any]:
    return {
        "hostname": known(platform.hostname),
        "platform": platform.kind,
        "hypervisor": known(platform.hypervisor),
        "kernel": known(platform.kernel),
        "numa_nodes": known(platform.numa_count),
        "product": known(platform.product),
        "evidence": platform.evidence or None,
    }


class _Rows:
    """Writes the rows of one report. The same few names, addresses and figures stand in most: each is written once."""

    def __init__(self, report: Report) -> None:
        self._node, self._roles = report.node, report.role_overrides
        # One for each kind of value, since 1, 1.0 and True are one and the same key.
        self._text = Answers(lambda text: string(text) if isinstance(text, str) else "null")
        self._whole = Answers(lambda number: encode(known(number)))
        self._speed = Answers(lambda gts: encode(known(gts)))
        self._gbs = Answers(lambda gbs: "null" if gbs is None else encode(round(gbs, 3)))
        self._figure = Answers(lambda number: encode(_number(known(number))))
        self._id = Answers(lambda number: "null" if number is None else f'"{number:04x}"')
        self._links = Answers(self._around_port)
        self._truth = {True: "true", False: "false"}

    def _texts(self, texts: Iterable[str]) -> str:
        return "[" + ", ".join(map(self._text.__getitem__, texts)) + "]"

    def device(self, device: Device) -> str:
        text, function = self._text, device.function
        return (
            f'{{"address": {text[device.address]}, "kind": {text[device.kind]}, "name": {text[device.name or None]}, '
            f'"vendor_id": {self._id[function.vendor_id]}, "device_id": {self._id[function.device_id]}, '
            f'"driver": {text[function.driver]}, "numa_node": {self._whole[function.numa_node]}, '
            f'"parent": {text[function.parent]}, "path": {self._texts(device.path or (device.address,))}, '
            f'"switch": {text[device.switch]}, "slot": {text[function.slot]}, '
            f'"virtual_function": {self._truth[function.virtual_function]}, '
            f'"bottleneck": {text[device.bottleneck]}, "link": {self.link(device.link)}}}'
        )

    def link(self, link: Link | None) -> str:
        if link is None:
            return "null"
        before, after = self._links[link[1:]]  # the hundreds of links of a machine differ in nothing but their port
        return f"{before}{self._text[link.port]}{after}"

    def _around_port(self, rest: tuple[Any, ...]) -> tuple[str, str]:
        link = Link(None, *rest)
        speed, whole = self._speed, self._whole
        return (
            f'{{"speed_gts": {speed[link.speed_gts]}, "width": {whole[link.width]}, '
            f'"max_speed_gts": {speed[link.max_speed_gts]}, "max_width": {whole[link.max_width]}, "port": ',
            f', "port_max_speed_gts": {speed[link.port_max_speed_gts]}, '
            f'"port_max_width": {whole[link.port_max_width]}, "expected_speed_gts": {speed[link.expected_speed_gts]}, '
            f'"expected_width": {whole[link.expected_width]}, "gbs": {self._gbs[link.gbs]}, '
            f'"expected_gbs": {self._gbs[link.expected_gbs]}}}',
        )

    def gpu(self, gpu: Gpu) -> str:
        totals = nvlink_totals(gpu)
        links = known(gpu.nvlinks)
        fabric = known(gpu.fabric)
        pstate = known(gpu.pstate)
        told = encode(
            {
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
            }
        )
        nvlink = encode(
            {
                "links_total": totals.total,
                "links_active": totals.active,
                "version": totals.version,
                "gbs": _number(totals.gbs, 4),
            }
        )
        listed = "null" if links is None else f"[{', '.join(map(self.nvlink, links))}]"
        health = encode(
            {
                "state": known(fabric.state) if fabric else None,
                "status": known(fabric.status) if fabric else None,
                "clique": known(fabric.clique) if fabric else None,
                "health": dict(fabric.health) if fabric else {},
            }
        )
        return (
            f'{told[:-1]}, "driver_link": {self.link(gpu.driver_link)}, '
            f'"nvlink": {nvlink[:-1]}, "links": {listed}}}, "fabric": {health}}}'
        )

    def nvlink(self, link: NvLink) -> str:
        text = self._text
        return (
            f'{{"index": {self._whole[link.number]}, "state": {text[link.state]}, '
            f'"remote_kind": {text[link.remote_kind]}, "remote": {text[link.remote]}}}'
        )

    def accelerator_link(self, link: AcceleratorLink) -> str:
        text = self._text
        return (
            f'{{"kind": {text[link.kind]}, "a": {text[link.a]}, "b": {text[link.b]}, '
            f'"links": {self._whole[link.links]}, "state": {text[link.state]}, "gbs": {self._figure[link.gbs]}}}'
        )

    def port(self, port: Port) -> str:
        text, whole, figure, node = self._text, self._whole, self._figure, self._node
        return (
            f'{{"device": {text[port.device]}, "port": {whole[port.port]}, "address": {text[port.address]}, '
            f'"netdev": {text[port.netdev]}, "link_layer": {text[port.link_layer]}, '
            f'"transport": {text[port.transport]}, "state": {text[port.state]}, "phys_state": {text[port.phys_state]}, '
            f'"rate_gbps": {figure[port.rate_gbps]}, "lanes": {whole[port.lanes]}, "speed": {text[port.speed]}, '
            f'"max_rate_gbps": {figure[port_max_gbps(node, port)]}, "role": {text[role(node, port, self._roles)]}, '
            f'"firmware": {text[port.firmware]}, "board_id": {text[port.board_id]}, "bond": {text[port.bond]}, '
            f'"virtual_function": {self._truth[port.virtual_function]}}}'
        )

    def switch(self, switch: Switch) -> str:
        text, figure = self._text, self._figure
        return (
            f'{{"id": {text[switch.id]}, "name": {text[switch.name]}, "ports": {self._texts(switch.ports)}, '
            f'"uplink": {self.link(switch.uplink)}, "downstream": {self._texts(switch.downstream)}, '
            f'"downstream_gbs": {figure[switch.downstream_gbs]}, '
            f'"oversubscription": {figure[switch.oversubscription]}}}'
        )

    def path(self, path: Path) -> str:
        text = self._text
        return (
            f'{{"a": {text[path.a]}, "b": {text[path.b]}, "kind": {text[path.kind]}, '
            f'"gbs": {self._figure[path.gbs]}, "via": {self._texts(path.via)}, "p2p": {self._p2p(path)}}}'
        )

    def _p2p(self, path: Path) -> str:
        """What the driver says of peer-to-peer between two GPUs: {"read": "OK", "nvlink": "NS"}."""
        statuses = self._node.p2p and self._node.p2p.get(pair_key(path.a, path.b))
        return encode(dict(statuses)) if statuses else "null"

    def placement(self, row: GpuPlacement, ratio: float | None, scale_out: float | None) -> str:
        """One GPU's row. The two figures of the node stand in each row, so that a row can be used alone."""
        return (
            f'{{"gpu": {self._text[row.gpu]}, "numa_node": {self._whole[row.numa_node]}, '
            f'"cpus": {self._text[row.cpus]}, "nics": {self.nearest(row.nics)}, '
            f'"storage": {self.nearest(row.storage)}, '
            f'"nic_to_gpu_ratio": {encode(ratio)}, "scale_out_gbs_per_gpu": {encode(scale_out)}}}'
        )

    def nearest(self, found: Sequence[Near] | None) -> str:
        return "null" if found is None else f"[{', '.join(map(self.near, found))}]"

    def near(self, near: Near) -> str:
        text = self._text
        return (
            f'{{"address": {text[near.address]}, "name": {text[near.name]}, "kind": {text[near.kind]}, '
            f'"gbs": {self._figure[near.gbs]}}}'
        )

    def finding(self, finding: Finding) -> str:
        text, accepted = self._text, finding.accepted
        decided = accepted and {"by": accepted.by, "reason": accepted.reason, "until": accepted.until}
        return (
            f'{{"code": {text[finding.code]}, "severity": {text[finding.severity]}, '
            f'"subject": {text[finding.subject]}, "related": {self._texts(finding.related)}, '
            f'"summary": {text[finding.summary]}, "observed": {encode(plain(finding.observed))}, '
            f'"expected": {encode(plain(finding.expected))}, "basis": {text[finding.basis]}, '
            f'"lost_gbs": {self._figure[finding.lost_gbs]}, "impact": {text[finding.impact]}, '
            f'"remedy": {self._texts(finding.remedy)}, "verify": {text[finding.verify]}, '
            f'"accepted": {encode(decided)}, "since": {encode(finding.since)}}}'
        )

    def unassessed(self, item: Unassessed) -> str:
        text = self._text
        return (
            f'{{"code": {text[item.code]}, "subject": {text[item.subject]}, "reason": {text[item.reason]}, '
            f'"cause": {text[item.cause]}}}'
        )
