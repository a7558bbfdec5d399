"""Prometheus metrics of a report: what is missing is absent, never 0 or -1; nothing per virtual function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_topo.exporters.view import listed_devices, nvlink_totals
from gpu_topo.model.facts import ABSENT, FAILED, OK, PARTIAL, TIMEOUT
from gpu_topo.model.finding import SEVERITIES, Finding, Report
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE
from gpu_topo.model.host import Port
from gpu_topo.model.node import ENDPOINT_KINDS, Device, Gpu, Link, Node
from gpu_topo.model.pci import Aer
from gpu_topo.model.reading import EMPTY, Reading, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.placement import placement
from gpu_topo.topology.ports import line_rate
from gpu_topo.topology.roles import role
from gpu_topo.topology.shape import shape

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# The port counters that mean trouble on the wire or at its end; of traffic and of every other counter
# node_exporter's infiniband collector has more.
PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
)


class Runtime(NamedTuple):
    """What only a daemon knows. Moments are seconds since the epoch; what is None gives no series."""

    last_scan: float | None = None
    scan_seconds: float | None = None
    scans: int | None = None
    source_age: Mapping[str, float] = EMPTY  # source -> seconds since its last good answer
    port_flaps: Mapping[tuple[str, int], int] = EMPTY  # (device, port) -> times it went down since start
    config_reload_ok: bool | None = None
    config_reload_time: float | None = None  # of the last reload that succeeded
    state_write_ok: bool | None = None  # None where no state is kept
    last_heard: Mapping[tuple[str, str, int], int] = EMPTY  # (GPU, kind of error, NVLink) -> count of links silent now


NO_RUNTIME = Runtime()


def render(
    report: Report, openmetrics: bool = False, runtime: Runtime = NO_RUNTIME, nvlink_per_link: bool = False
) -> bytes:
    """The exposition of all families, as text for Prometheus or as OpenMetrics 1.0."""
    from prometheus_client import exposition
    from prometheus_client.core import CollectorRegistry
    from prometheus_client.openmetrics import exposition as openmetrics_exposition

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(families(report, runtime, nvlink_per_link))))
    latest = openmetrics_exposition.generate_latest if openmetrics else exposition.generate_latest
    return latest(registry)


class _Once:
    """A collector of families that are there already."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(report: Report, runtime: Runtime = NO_RUNTIME, nvlink_per_link: bool = False) -> Iterator[Metric]:
    """Every metric family of a report that has at least one series."""
    make = _Families()
    _findings(make, report)
    _devices(make, report)
    _gpus(make, report, runtime, nvlink_per_link)
    _ports(make, report, runtime)
    _node(make, report)
    _agent(make, report, runtime)
    return make.used()


class _Families:
    """Families by name, in the order of their first sample."""

    def __init__(self) -> None:
        self._found: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, labels: Mapping[str, str], value: float | None) -> None:
        """A sample of a gauge; None gives none."""
        from prometheus_client.core import GaugeMetricFamily

        if value is None:
            return
        name = f"gputopo_{name}"
        family = self._found.get(name)
        if not isinstance(family, GaugeMetricFamily):
            family = self._found[name] = GaugeMetricFamily(name, text, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), value)

    def counter(self, name: str, text: str, labels: Mapping[str, str], value: float | None) -> None:
        """A sample of a counter (the exposition adds _total); None gives none."""
        from prometheus_client.core import CounterMetricFamily

        if value is None:
            return
        name = f"gputopo_{name}"
        family = self._found.get(name)
        if not isinstance(family, CounterMetricFamily):
            family = self._found[name] = CounterMetricFamily(name, text, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), value)

    def info(self, name: str, text: str, labels: Mapping[str, object]) -> None:
        """A sample of an info family (the exposition adds _info); what is not known is an empty label."""
        from prometheus_client.core import InfoMetricFamily

        name = f"gputopo_{name}"
        family = self._found.get(name)
        if not isinstance(family, InfoMetricFamily):
            family = self._found[name] = InfoMetricFamily(name, text)
        family.add_metric((), {key: "" if value is None else str(value) for key, value in labels.items()})

    def used(self) -> Iterator[Metric]:
        """What has samples."""
        return iter(self._found.values())


def _findings(make: _Families, report: Report) -> None:
    held: dict[tuple[str, str, str, bool], float | None] = {}
    for finding in report.findings:
        held[finding.code, finding.severity, finding.subject, finding.accepted is not None] = finding.since
    for (code, severity, subject, accepted), since in held.items():
        labels = {"code": code, "severity": severity, "subject": subject}
        if accepted:
            make.gauge("finding_accepted", "1 while this finding holds and is accepted as designed.", labels, 1)
        else:
            make.gauge("finding", "1 while this finding holds; `gpu-topo rules CODE` explains it.", labels, 1)
        text = "When the finding was raised, in seconds since the epoch."
        make.gauge("finding_since_timestamp_seconds", text, labels, since)
    for severity in SEVERITIES:
        count = sum(1 for _, own, _, accepted in held if own == severity and not accepted)
        make.gauge("findings", "How many findings hold, accepted ones not counted.", {"severity": severity}, count)
    unassessed: dict[tuple[str, str], int] = {}
    for item in report.unassessed:
        unassessed[item.code, item.cause] = unassessed.get((item.code, item.cause), 0) + 1
    for (code, cause), count in unassessed.items():
        text = "On how many subjects this rule could not conclude anything, by the reason."
        make.gauge("unassessed", text, {"code": code, "reason": cause}, count)


def _devices(make: _Families, report: Report) -> None:
    node = report.node
    driver_links = {gpu.address: gpu.driver_link for gpu in node.gpus if gpu.driver_link}
    for device in listed_devices(report._replace(all_functions=False)):
        labels = {"address": device.address}
        if device.kind in ENDPOINT_KINDS or device.address in node.switches:
            _device_info(make, device)
            link = device.link
            if device.address in node.hidden_links or link is None or known(link.width) is None:
                link = driver_links.get(device.address)
            if link is not None:
                _link(make, labels, link)
        if device.function.aer is not None:
            _aer(make, device.address, device.function.aer)


def _device_info(make: _Families, device: Device) -> None:
    function = device.function
    make.info(
        "device",
        "A PCI device: /sys/bus/pci/devices/ADDRESS (vendor, device, numa_node), name by pci.ids or the catalogue.",
        {
            "address": device.address,
            "kind": device.kind,
            "name": device.name,
            "vendor_id": None if function.vendor_id is None else f"{function.vendor_id:04x}",
            "device_id": None if function.device_id is None else f"{function.device_id:04x}",
            "numa_node": known(function.numa_node),
            "switch": device.switch,
            "slot": function.slot,
        },
    )


def _link(make: _Families, labels: Mapping[str, str], link: Link) -> None:
    here = "/sys/bus/pci/devices/ADDRESS"
    both = "the least of what the device and the port above it can do"
    make.gauge("pcie_link_width", f"Lanes in use: {here}/current_link_width.", labels, known(link.width))
    make.gauge("pcie_link_expected_width", f"Lanes: {both}.", labels, link.expected_width)
    make.gauge(
        "pcie_link_speed_transfers_per_second",
        f"Transfers per second and lane: {here}/current_link_speed.",
        labels,
        _giga(known(link.speed_gts)),
    )
    make.gauge(
        "pcie_link_expected_speed_transfers_per_second",
        f"Transfers per second and lane: {both}.",
        labels,
        _giga(link.expected_speed_gts),
    )
    make.gauge(
        "pcie_link_bandwidth_bytes_per_second",
        "Bandwidth per direction after line encoding, at the speed and width in use.",
        labels,
        _giga(link.gbs),
    )
    make.gauge(
        "pcie_link_expected_bandwidth_bytes_per_second",
        f"Bandwidth per direction after line encoding: {both}.",
        labels,
        _giga(link.expected_gbs),
    )


def _giga(value: float | None) -> float | None:
    return None if value is None else round(value * 1e9)


def _aer(make: _Families, address: str, aer: Aer) -> None:
    if aer.sticky:  # status bits count nothing
        return
    kinds: tuple[tuple[str, Reading[Mapping[str, int]]], ...] = (
        ("correctable", aer.correctable),
        ("nonfatal", aer.nonfatal),
        ("fatal", aer.fatal),
    )
    for severity, reading in kinds:
        counts = known(reading)
        if counts is not None:
            make.counter(
                "pcie_errors",
                "PCIe errors since boot: /sys/bus/pci/devices/ADDRESS/aer_dev_{correctable,nonfatal,fatal}.",
                {"address": address, "severity": severity},
                sum(number for name, number in counts.items() if not name.startswith("TOTAL_")),
            )


def _gpus(make: _Families, report: Report, runtime: Runtime, per_link: bool) -> None:
    for gpu in report.node.gpus:
        labels = {"address": gpu.address}
        make.info(
            "gpu",
            "A GPU as its driver sees it: nvmlDeviceGetIndex, nvmlDeviceGetUUID, nvmlDeviceGetName.",
            {**labels, "index": gpu.ordinal, "uuid": known(gpu.uuid), "model": known(gpu.model)},
        )
        text = "PCIe replays: nvmlDeviceGetPcieReplayCounter."
        make.counter("pcie_replays", text, labels, known(gpu.replays))
        _nvlink(make, report, gpu, runtime, per_link)
    fabric = {gpu.address: known(gpu.fabric) for gpu in report.node.gpus}
    for address, state in fabric.items():
        if state is not None:
            make.info(
                "fabric",
                "NVLink fabric registration: nvmlDeviceGetGpuFabricInfoV.",
                {"address": address, "state": known(state.state), "status": known(state.status)},
            )


def _nvlink(make: _Families, report: Report, gpu: Gpu, runtime: Runtime, per_link: bool) -> None:
    links = known(gpu.nvlinks)
    if not links:
        return
    labels = {"address": gpu.address}
    totals = nvlink_totals(gpu)
    for state in (ACTIVE, INACTIVE, UNKNOWN_STATE):
        number = sum(link.state == state for link in links)
        if number or state != UNKNOWN_STATE:
            text = "NVLinks by state: nvmlDeviceGetNvLinkState."
            make.gauge("nvlink_links", text, {**labels, "state": state}, number)
    expected = _expected(report, ("nvlink-inactive",), gpu.address, totals.active)
    text = "NVLinks that are to be active: by peers or the catalogue where fewer are, else those that are."
    make.gauge("nvlink_expected_links", text, labels, expected)
    text = "Nominal bandwidth of all active NVLinks together, per direction: nvmlDeviceGetNvLinkVersion and state."
    make.gauge("nvlink_bandwidth_bytes_per_second", text, labels, _giga(totals.gbs))
    kinds = sorted({kind for link in links for kind in link.errors})
    for kind in kinds:
        text = "NVLink errors since the driver was loaded, all links together: nvmlDeviceGetNvLinkErrorCounter."
        make.counter("nvlink_errors", text, {**labels, "kind": kind}, _nvlink_errors(gpu, kind, runtime.last_heard))
    if per_link:
        for link in links:
            own = {**labels, "link": str(link.number)}
            if link.state != UNKNOWN_STATE:
                text = "1 where this NVLink is active: nvmlDeviceGetNvLinkState."
                make.gauge("nvlink_link_active", text, own, link.state == ACTIVE)
            for kind, number in sorted(link.errors.items()):
                text = "Errors of one NVLink since the driver was loaded: nvmlDeviceGetNvLinkErrorCounter."
                make.counter("nvlink_link_errors", text, {**own, "kind": kind}, number)


def _nvlink_errors(gpu: Gpu, kind: str, last_heard: Mapping[tuple[str, str, int], int]) -> int | None:
    """The errors of one kind that all links counted, a silent one what it told last; None where one that is not down
    never told. A smaller sum would be taken for a reset, and the next whole one for that many new errors."""
    silent = {
        link: count for (address, what, link), count in last_heard.items() if (address, what) == (gpu.address, kind)
    }
    total = sum(silent.values())
    for link in known(gpu.nvlinks) or ():
        if kind in link.errors:
            total += link.errors[kind]
        elif link.number not in silent and link.state != INACTIVE:
            return None
    return total


def _expected(report: Report, codes: Sequence[str], subject: str, seen: float | None) -> float | None:
    """The number that a finding expects of a subject; without a finding what is seen is what is expected.

    None where nothing was seen, or where the rule could not judge.
    """
    for finding in report.findings:
        if finding.code in codes and finding.subject == subject and (wanted := _number(finding)) is not None:
            return wanted
    if any(item.code in codes and item.subject == subject for item in report.unassessed):
        return None
    return seen


def _number(finding: Finding) -> float | None:
    numbers = [v for v in finding.expected.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return numbers[0] if numbers else None


def _ports(make: _Families, report: Report, runtime: Runtime) -> None:
    for port in report.node.ports:
        if port.virtual_function and port.physical_function:
            continue
        labels = {"device": port.device, "port": str(port.port)}
        make.info(
            "port",
            "An RDMA port: /sys/class/infiniband/DEVICE (fw_ver, board_id) and its ports/PORT.",
            {
                **labels,
                "address": known(port.address),
                "netdev": known(port.netdev),
                "link_layer": known(port.link_layer),
                "transport": port.transport,
                "role": role(report.node, port, report.role_overrides),
                "firmware": known(port.firmware),
                "board_id": known(port.board_id),
            },
        )
        _port_state(make, report, port, labels)
        for kind in PORT_ERRORS:
            text = "Errors of a port: /sys/class/infiniband/DEVICE/ports/PORT/{counters,hw_counters}/KIND."
            count = known(port.counters.get(kind))
            make.counter("port_errors", text, {**labels, "kind": kind}, count)
        text = "How often the port went down since the agent first saw it in this boot."
        make.counter("port_flaps", text, labels, runtime.port_flaps.get((port.device, port.port)))


def _port_state(make: _Families, report: Report, port: Port, labels: Mapping[str, str]) -> None:
    state = known(port.state)
    if state is None:
        return
    active = state.upper().startswith("ACTIVE")
    here = "/sys/class/infiniband/DEVICE/ports/PORT"
    make.gauge("port_active", f"1 where the port's state is ACTIVE: {here}/state.", labels, active)
    rate = line_rate(report.node, port)
    if not active or rate is None:  # a port that is down shows a placeholder
        return
    text = f"Line rate in use, per direction, while active: {here}/rate; Ethernet: /sys/class/net/NETDEV/speed."
    make.gauge("port_rate_bytes_per_second", text, labels, _giga(rate / 8))
    wanted = _expected(report, ("port-rate-degraded",), f"{port.device}/{port.port}", rate)
    text = "Line rate to be expected: by twins, the port's past or its baseline where it is more, else the one in use."
    make.gauge("port_expected_rate_bytes_per_second", text, labels, None if wanted is None else _giga(wanted / 8))


def _node(make: _Families, report: Report) -> None:
    node: Node = report.node
    for switch in node.switches.values():
        text = "What hangs below a PCIe switch over what its uplink carries."
        make.gauge("switch_oversubscription_ratio", text, {"address": switch.id}, switch.oversubscription)
    placed = placement(node, report.role_overrides)
    make.gauge("nic_gpu_ratio", "Fabric ports per GPU of this node.", {}, placed.nic_to_gpu_ratio)
    text = "The largest group of GPUs that reach each other at full speed without PCIe."
    make.gauge("max_tensor_parallel", text, {}, interconnect(node).max_tensor_parallel)
    if not any(source.status in (TIMEOUT, FAILED) for source in node.sources):  # half a node is no node's shape
        make.info("shape", "A hash of the node's wiring: equal on nodes of one kind.", {"shape": shape(node)})


def _agent(make: _Families, report: Report, runtime: Runtime) -> None:
    seconds: dict[str, float] = {}
    up: dict[str, bool] = {}
    for source in report.node.sources:
        if source.status != ABSENT:
            seconds[source.name] = seconds.get(source.name, 0.0) + source.seconds
            up[source.name] = up.get(source.name, True) and source.status in (OK, PARTIAL)
    for name, good in up.items():
        text = "1 where the source answered, 0 where it failed; a source that this machine does not have is absent."
        make.gauge("source_up", text, {"source": name}, good)
        text = "How long the source took to answer in the last scan."
        make.gauge("source_duration_seconds", text, {"source": name}, seconds[name])
    for name, age in runtime.source_age.items():
        make.gauge("source_age_seconds", "Time since the source's last good answer.", {"source": name}, age)
    text = "End of the last finished scan, in seconds since the epoch."
    make.gauge("last_scan_timestamp_seconds", text, {}, runtime.last_scan)
    make.gauge("scan_duration_seconds", "Duration of the last scan.", {}, runtime.scan_seconds)
    make.counter("scans", "Scans finished since the agent's start.", {}, runtime.scans)
    text = "1 where the configuration's last reload succeeded; else the one before is in force."
    good_reload = runtime.config_reload_ok
    make.gauge("config_last_reload_successful", text, {}, None if good_reload is None else float(good_reload))
    text = "Last successful load of the configuration, in seconds since the epoch."
    make.gauge("config_last_reload_success_timestamp_seconds", text, {}, runtime.config_reload_time)
    text = "1 where what the daemon keeps over a restart could be written; 0: the disk is full or read-only."
    written = runtime.state_write_ok
    make.gauge("state_last_write_successful", text, {}, None if written is None else float(written))
    make.info("build", "The version of gpu-topo.", {"version": report.version})
