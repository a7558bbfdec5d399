"""A machine's shape as a document that can be kept, and what differs between it and the machine as it is now.

The document (JSON, `Past.baseline` in the rules; empty where none was saved). Every value may be null: not known
when it was saved, and then nothing is compared with it.

    schema       "gpu-topo/baseline/1"
    saved_at, version, hostname     for a person; never compared
    counts       {"gpus": 8, "accelerators": 0, "nics": 10, "nvswitches": 4, "storage": 8}
    numa_nodes   2
    devices[]    endpoints: place, address, kind, name, vendor_id, device_id (4 hex digits), slot, numa_node,
                 link {speed_gts, width, expected_speed_gts, expected_width} or null where link values mean nothing
    gpus[]       place, address, model, nvlinks_active, nvlinks_total
    links[]      accelerator links that are not NVLink: kind, a, b (places), links
    switches[]   place (of the topmost port), id, name, ports (a number), uplink (as link)
    ports[]      place, device, port, address, link_layer, state, rate_gbps, lanes, speed, firmware
    accepted[]   code, subject, by, reason, until: what was accepted as designed

A place says where a device is without bus numbers, which move when a card is added elsewhere:
"0000:17/01.0/00.0/10.0/00.0" is the root bus and the device and function number at each step down. Devices are
matched by place, then by address, then (as moved) by what they are.
"""

from __future__ import annotations

from gpu_topo.model.gpu import ACTIVE as LINK_ACTIVE
from gpu_topo.model.host import Port
from gpu_topo.model.node import (
    ACCELERATOR,
    GPU,
    NIC,
    NVSWITCH,
    STORAGE,
    Device,
    Gpu,
    Link,
    Node,
)
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.units import describe_link
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import line_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Row = dict[str, Any]

SCHEMA = "gpu-topo/baseline/1"
COUNTED = {GPU: "gpus", ACCELERATOR: "accelerators", NIC: "nics", NVSWITCH: "nvswitches", STORAGE: "storage"}

MISSING = "missing"  # a device or port that the baseline has
NEW = "new"  # a device or port that the baseline does not have
MOVED = "moved"  # the same kind of device at another place
REPLACED = "replaced"  # another part at the same place
LINK = "link"  # the link is narrower or slower, or can do less or more than it could
SWITCH = "switch"  # a PCIe switch came, went or has another number of ports
NVLINKS = "nvlinks"  # another number of NVLinks (or of xGMI, HCCS links)
PORT = "port"  # state, rate or link layer of an RDMA port
NUMA = "numa"  # another number of NUMA nodes


class Difference(NamedTuple):
    """One change. subject as in findings: an address (the old one for what is missing), mlx5_0/1, a~b, or "node"."""

    kind: str  # one of the constants above
    subject: str
    summary: str  # one line: what was, and what is
    was: Mapping[str, Any]
    now: Mapping[str, Any]


def place_of(node: Node, address: str) -> str:
    """Where a device is, without the bus numbers that move; the address itself where its path is not known."""
    device = node.devices.get(address)
    path = device.path if device and device.path else (address,)
    if any(step.count(":") != 2 for step in path):
        return address  # a recording's own name, such as GPU0
    root = path[0].rpartition(":")[0]
    return "/".join([root, *(step.rpartition(":")[2] for step in path)])


def counted(node: Node) -> tuple[Device, ...]:
    """The endpoints that make up the machine: a virtual function only where its physical function is not visible."""
    return tuple(
        device for device in lookup(node).endpoints if not device.integrated and not _is_spare_function(node, device)
    )


def counts(node: Node) -> dict[str, int]:
    """How many of each kind there are, by the names that `--expect` uses."""
    result = dict.fromkeys(COUNTED.values(), 0)
    for device in counted(node):
        result[COUNTED[device.kind]] += 1
    return result


def document(node: Node) -> dict[str, Any]:
    """The shape of a machine. Plain values only: json.dumps and json.loads give it back unchanged."""
    return {
        "schema": SCHEMA,
        "counts": counts(node),
        "numa_nodes": known(node.platform.numa_count),
        "devices": [_device(node, device) for device in counted(node)],
        "gpus": [_gpu(node, gpu) for gpu in node.gpus],
        "links": [
            {"kind": link.kind, "a": place_of(node, link.a), "b": place_of(node, link.b), "links": known(link.links)}
            for link in node.accelerator_links
        ],
        "switches": [
            {
                "place": place_of(node, switch.id),
                "id": switch.id,
                "name": switch.name,
                "ports": len(switch.ports),
                "uplink": _link(node, switch.id, switch.uplink),
            }
            for switch in node.switches.values()
        ],
        "ports": [_port(node, port) for port in node.ports if not (port.virtual_function or port.software)],
        "accepted": [],
    }


def differences(node: Node, saved: Mapping[str, Any], exclude: frozenset[str] = frozenset()) -> tuple[Difference, ...]:
    """What changed since the baseline was saved, in the order of the document.

    exclude: addresses and device names that are not read at all, so that nothing can be said of them. What is not
    known on either side is no difference.
    """
    if not isinstance(saved.get("devices"), list):
        return ()  # nothing was saved but acceptances
    now = document(node)
    result: list[Difference] = []
    if node.devices:
        result += _compare_devices(_without(saved.get("devices"), exclude), _without(now["devices"], exclude))
        result += _compare_switches(_rows(saved.get("switches")), now["switches"])
    result += _compare_gpus(_without(saved.get("gpus"), exclude), now["gpus"])
    result += _compare_links(_rows(saved.get("links")), now["links"])
    if node.ports:
        result += _compare_ports(_without(saved.get("ports"), exclude), _without(now["ports"], exclude))
    if _differ(saved.get("numa_nodes"), now["numa_nodes"]):
        summary = f"{now['numa_nodes']} NUMA nodes instead of {saved['numa_nodes']}"
        was, is_now = {"numa_nodes": saved["numa_nodes"]}, {"numa_nodes": now["numa_nodes"]}
        result.append(Difference(NUMA, "node", summary, was, is_now))
    return tuple(result)


# --- the document's rows ------------------------------------------------------------------------------------------


def _is_spare_function(node: Node, device: Device) -> bool:
    physical = device.function.physical_function
    return device.function.virtual_function and physical is not None and physical in node.devices


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value:04x}"


def _link(node: Node, address: str, link: Link | None) -> dict[str, Any] | None:
    if link is None or not link.trusted or address in node.hidden_links:
        return None
    return {
        "speed_gts": known(link.speed_gts),
        "width": known(link.width),
        "expected_speed_gts": link.expected_speed_gts,
        "expected_width": link.expected_width,
    }


def _device(node: Node, device: Device) -> dict[str, Any]:
    function = device.function
    return {
        "place": place_of(node, device.address),
        "address": device.address,
        "kind": device.kind,
        "name": device.name,
        "vendor_id": _hex(function.vendor_id),
        "device_id": _hex(function.device_id),
        "slot": function.slot,
        "numa_node": known(function.numa_node),
        "link": _link(node, device.address, device.link),
    }


def _gpu(node: Node, gpu: Gpu) -> dict[str, Any]:
    links = known(gpu.nvlinks)
    active = None if links is None else sum(link.state == LINK_ACTIVE for link in links)
    if links is not None and any(link.state == "unknown" for link in links):
        active = None
    return {
        "place": place_of(node, gpu.address),
        "address": gpu.address,
        "model": known(gpu.model),
        "nvlinks_active": active,
        "nvlinks_total": None if links is None else len(links),
    }


def _port(node: Node, port: Port) -> dict[str, Any]:
    address = known(port.address)
    return {
        "place": f"{place_of(node, address) if address else port.device}#{port.port}",
        "device": port.device,
        "port": port.port,
        "address": address,
        "link_layer": known(port.link_layer),
        "state": known(port.state),
        "rate_gbps": line_rate(node, port),
        "lanes": known(port.lanes),
        "speed": known(port.speed),
        "firmware": known(port.firmware),
    }


# --- comparing ----------------------------------------------------------------------------------------------------


def _rows(value: object) -> list[Row]:
    """The rows of a table of a saved document, which may have been edited by hand: what is no row is left out."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _without(value: object, exclude: frozenset[str]) -> list[Row]:
    return [row for row in _rows(value) if not {row.get("address"), row.get("device")} & exclude]


def _differ(was: object, now: object) -> bool:
    return was is not None and now is not None and was != now


def _pair(was: Iterable[Row], now: Iterable[Row], *keys: str) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Rows of the same place, or else with the same `keys`, together; then what is left of each side."""
    old, new = list(was), list(now)
    pairs: list[tuple[Row, Row]] = []
    for key in (("place",), keys):
        waiting: dict[tuple[Any, ...], list[Row]] = {}
        for row in new:
            waiting.setdefault(tuple(row.get(name) for name in key), []).append(row)
        rest: list[Row] = []
        for row in old:
            found = waiting.get(tuple(row.get(name) for name in key))
            if found:
                pairs.append((row, found.pop(0)))
            else:
                rest.append(row)
        taken = {id(row) for _, row in pairs}
        old, new = rest, [row for row in new if id(row) not in taken]
    return pairs, old, new


def _what(row: Row) -> str:
    where = f" in slot {row['slot']}" if row.get("slot") else ""
    return f"{row.get('name') or row.get('kind')}{where}"


def _compare_devices(was: list[Row], now: list[Row]) -> list[Difference]:
    same, gone, new = _pair(was, now, "address", "vendor_id", "device_id")
    moved, gone, new = _pair(gone, new, "kind", "vendor_id", "device_id")
    result = []
    for old, row in same:
        ids = ("vendor_id", "device_id")
        if any(_differ(old.get(name), row.get(name)) for name in ids):
            summary = f"{_what(row)} where {_what(old)} was"
            result.append(Difference(REPLACED, _subject(row), summary, old, row))
        else:
            result += _compare_link(_subject(row), _what(row), row.get("kind"), old.get("link"), row.get("link"))
    for old, row in moved:
        result.append(Difference(MOVED, _subject(row), f"{_what(row)} was at {old.get('address')}", old, row))
    for old in gone:
        result.append(Difference(MISSING, _subject(old), f"{_what(old)} is gone", old, {}))
    for row in new:
        result.append(Difference(NEW, _subject(row), f"{_what(row)} is new", {}, row))
    return result


def _subject(row: Row) -> str:
    return str(row.get("address"))


def _compare_link(subject: str, what: str, kind: object, was: object, now: object) -> list[Difference]:
    """Compare width and what the link can do; speed too, but not a GPU's, which falls when it idles."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return []
    fields = ["width", "expected_width", "expected_speed_gts"]
    if kind not in (GPU, ACCELERATOR):
        fields.append("speed_gts")
    if not any(_differ(was.get(name), now.get(name)) for name in fields):
        return []
    steady = kind not in (GPU, ACCELERATOR)

    def shown(link: Row) -> str:
        speed = link.get("speed_gts") if steady else link.get("expected_speed_gts")
        text = describe_link(speed, link.get("width"))
        can = describe_link(link.get("expected_speed_gts"), link.get("expected_width"))
        return text if text == can else f"{text} (can do {can})"

    return [Difference(LINK, subject, f"the link of {what} was {shown(was)} and is {shown(now)}", was, now)]


def _compare_switches(was: list[Row], now: list[Row]) -> list[Difference]:
    same, gone, new = _pair(was, now, "id", "name")
    result = []
    for old, row in same:
        if _differ(old.get("ports"), row.get("ports")):
            summary = f"switch {row['name']} has {row['ports']} ports instead of {old.get('ports')}"
            result.append(Difference(SWITCH, str(row["id"]), summary, old, row))
        result += _compare_link(str(row["id"]), f"switch {row['name']}", None, old.get("uplink"), row.get("uplink"))
    for old in gone:
        result.append(Difference(SWITCH, str(old.get("id")), f"switch {old.get('name')} is gone", old, {}))
    for row in new:
        result.append(Difference(SWITCH, str(row["id"]), f"switch {row['name']} is new", {}, row))
    return result


def _compare_gpus(was: list[Row], now: list[Row]) -> list[Difference]:
    same, _, _ = _pair(was, now, "address")  # a GPU that is gone is a device that is gone
    result = []
    for old, row in same:
        if any(_differ(old.get(name), row.get(name)) for name in ("nvlinks_active", "nvlinks_total")):
            summary = (
                f"{row.get('nvlinks_active')} of {row.get('nvlinks_total')} NVLinks are active, "
                f"{old.get('nvlinks_active')} of {old.get('nvlinks_total')} were"
            )
            result.append(Difference(NVLINKS, _subject(row), summary, old, row))
    return result


def _compare_links(was: list[Row], now: list[Row]) -> list[Difference]:
    if not now:
        return []  # the driver that would tell may simply not be there
    current = {(row["kind"], row["a"], row["b"]): row for row in now}
    result = []
    for old in was:
        key = (old.get("kind"), old.get("a"), old.get("b"))
        row = current.get(key)
        if row is None or _differ(old.get("links"), row.get("links")):
            count = "no" if row is None else row["links"]
            summary = f"{count} {key[0]} {'link' if count == 1 else 'links'} instead of {old.get('links')}"
            result.append(Difference(NVLINKS, f"{key[1]}~{key[2]}", summary, old, row or {}))
    return result


def _compare_ports(was: list[Row], now: list[Row]) -> list[Difference]:
    same, gone, new = _pair(was, now, "device", "port")
    result = []
    for old, row in same:
        subject = f"{row['device']}/{row['port']}"
        if _differ(old.get("link_layer"), row.get("link_layer")):
            summary = f"{subject} is {row['link_layer']} and was {old['link_layer']}"
            result.append(Difference(PORT, subject, summary, old, row))
        elif _differ(old.get("state"), row.get("state")):
            summary = f"{subject} is {row['state']} and was {old['state']}"
            result.append(Difference(PORT, subject, summary, old, row))
        elif row.get("state") == "ACTIVE" and _differ(old.get("rate_gbps"), row.get("rate_gbps")):
            # The rate of a port that is down is a placeholder.
            summary = f"{subject} runs at {row['rate_gbps']:g} Gb/s and ran at {old['rate_gbps']:g}"
            result.append(Difference(PORT, subject, summary, old, row))
    for old in gone:
        subject = f"{old.get('device')}/{old.get('port')}"
        result.append(Difference(MISSING, subject, f"port {subject} is gone", old, {}))
    for row in new:
        subject = f"{row['device']}/{row['port']}"
        result.append(Difference(NEW, subject, f"port {subject} is new", {}, row))
    return result
