"""exporters/prometheus.py: metric families and their exposition."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gpu_topo.exporters.prometheus import NO_RUNTIME, PORT_ERRORS, Runtime, families, render
from gpu_topo.model.facts import ABSENT, PARTIAL, TIMEOUT, SourceStatus
from gpu_topo.model.finding import CAUSE_LOAD, Acceptance, Report, Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE
from gpu_topo.model.host import NetDevice
from gpu_topo.model.node import GPU, NIC, Gpu, Node
from gpu_topo.model.pci import Aer
from gpu_topo.model.reading import DENIED, Unknown
from tests import build

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(report: Report, runtime: Runtime = NO_RUNTIME, per_link: bool = False) -> Series:
    """Every sample, by name and labels, as Prometheus would read it."""
    text = render(report, runtime=runtime, nvlink_per_link=per_link).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float | None:
    """One sample's value."""
    return found.get((f"gputopo_{name}", tuple(sorted(labels.items()))))


def busy_node() -> Node:
    """An eight-GPU node of which everything was read: AER counters, port and NVLink error counters."""
    node = build.eight_gpus()
    counts = Aer({"RxErr": 3, "BadTLP": 2, "TOTAL_ERR_COR": 5}, {"DLP": 0}, {"DLP": 0})
    devices = {a: d._replace(function=d.function._replace(aer=counts)) for a, d in node.devices.items()}
    ports = tuple(port._replace(counters=dict.fromkeys((*PORT_ERRORS, "port_xmit_data"), 0)) for port in node.ports)
    errors = {"crc_flit": 1, "crc_data": 0, "replay": 0, "recovery": 0}
    gpus = tuple(
        gpu._replace(nvlinks=tuple(link._replace(errors=errors) for link in build.nvlinks(18))) for gpu in node.gpus
    )
    return node._replace(devices=devices, ports=ports, gpus=gpus)


def test_link_metrics_are_base_units() -> None:
    """Speed is in transfers, bandwidth in bytes per second; the expected values stand beside them."""
    node = build.eight_gpus(gpu_links={0: build.link(32.0, 8)})
    found = series(build.report(node))
    address = node.gpus[0].address
    assert value(found, "pcie_link_width", address=address) == 8
    assert value(found, "pcie_link_expected_width", address=address) == 16
    assert value(found, "pcie_link_speed_transfers_per_second", address=address) == 32e9
    assert value(found, "pcie_link_expected_speed_transfers_per_second", address=address) == 32e9
    assert value(found, "pcie_link_bandwidth_bytes_per_second", address=address) == pytest.approx(31.5e9, rel=0.001)
    assert value(found, "pcie_link_expected_bandwidth_bytes_per_second", address=address) == pytest.approx(
        63.0e9, rel=0.001
    )


def test_findings() -> None:
    """A finding is 1 while it holds; accepted ones are apart and not counted; every severity has its count."""
    kept = build.finding(since=1000.0)
    accepted = build.finding(severity="warning", subject="0000:14:00.0", accepted=Acceptance("ops", "riser"))
    unassessed = [Unassessed("pcie-speed-degraded", f"0000:1{i}:00.0", "why", CAUSE_LOAD) for i in range(3)]
    found = series(build.report(build.eight_gpus(), [kept, accepted], unassessed))
    labels = {"code": kept.code, "severity": kept.severity, "subject": kept.subject}
    assert value(found, "finding", **labels) == 1
    assert value(found, "finding_since_timestamp_seconds", **labels) == 1000.0
    assert value(found, "finding_accepted", code=accepted.code, severity="warning", subject=accepted.subject) == 1
    assert [value(found, "findings", severity=s) for s in ("critical", "warning", "info")] == [1, 0, 0]
    assert value(found, "unassessed", code="pcie-speed-degraded", reason=CAUSE_LOAD) == 3


def test_missing_is_absent() -> None:
    """What is unknown or absent has no series: no 0, no -1, no NaN."""
    unknown = Unknown(DENIED, "somewhere")
    link = build.link()._replace(speed_gts=unknown, width=unknown, gbs=None)
    device = build.device("0000:01:00.0", GPU, link=link, numa_node=unknown)
    gpu = Gpu("0000:01:00.0", replays=unknown, nvlinks=unknown)
    found = series(build.report(build.node([device], gpus=(gpu,))))
    names = {name for name, _ in found}
    assert "gputopo_pcie_link_width" not in names
    assert "gputopo_pcie_replays_total" not in names
    assert not any("nvlink" in name for name in names)
    assert value(found, "pcie_link_expected_width", address="0000:01:00.0") is None
    assert all(number == number and number >= 0 for number in found.values())


def test_nvlink() -> None:
    """NVLinks by state, what is expected by the finding, nominal bandwidth, and errors by kind."""
    node = build.eight_gpus(nvlinks_active={3: 17})
    address = node.gpus[3].address
    finding = build.finding("nvlink-inactive", subject=address, expected={"links_active": 18})
    found = series(build.report(node, [finding]))
    assert value(found, "nvlink_links", address=address, state="active") == 17
    assert value(found, "nvlink_links", address=address, state="inactive") == 1
    assert value(found, "nvlink_expected_links", address=address) == 18
    assert value(found, "nvlink_expected_links", address=node.gpus[0].address) == 18
    assert value(found, "nvlink_bandwidth_bytes_per_second", address=address) == 425e9
    assert value(found, "nvlink_link_active", address=address, link="17") is None
    assert value(series(build.report(node), per_link=True), "nvlink_link_active", address=address, link="17") == 0


def test_ports() -> None:
    """A port's rate is in bytes per second while it is active; a port that is down has no rate."""
    node = build.eight_gpus()
    down = node.ports[0]._replace(state="DOWN", rate_gbps=10.0)
    node = node._replace(ports=(down, *node.ports[1:]))
    found = series(build.report(node), Runtime(port_flaps={("mlx5_0", 1): 4}))
    assert value(found, "port_active", device="mlx5_0", port="1") == 0
    assert value(found, "port_rate_bytes_per_second", device="mlx5_0", port="1") is None
    assert value(found, "port_active", device="mlx5_1", port="1") == 1
    assert value(found, "port_rate_bytes_per_second", device="mlx5_1", port="1") == 50e9
    assert value(found, "port_expected_rate_bytes_per_second", device="mlx5_1", port="1") == 50e9
    assert value(found, "port_flaps_total", device="mlx5_0", port="1") == 4


def test_the_rate_of_an_ethernet_port_is_its_interfaces() -> None:
    """The driver's 40 Gb/s is what mlx5 prints for Ethernet speeds that it does not know."""
    node = build.eight_gpus()
    roce = node.ports[0]._replace(link_layer="Ethernet", rate_gbps=40.0)
    netdevs = (NetDevice(str(roce.netdev), speed_mbps=400_000),)
    found = series(build.report(node._replace(ports=(roce, *node.ports[1:]), netdevs=netdevs)))
    assert value(found, "port_rate_bytes_per_second", device="mlx5_0", port="1") == 50e9
    assert value(found, "port_expected_rate_bytes_per_second", device="mlx5_0", port="1") == 50e9


def test_error_counters() -> None:
    """AER counters are summed by severity without the kernel's own total; sticky status bits are no counters."""
    node = busy_node()
    address = node.gpus[0].address
    found = series(build.report(node))
    assert value(found, "pcie_errors_total", address=address, severity="correctable") == 5
    assert value(found, "nvlink_errors_total", address=address, kind="crc_flit") == 18
    sticky = build.device("0000:01:00.0", GPU, aer=Aer({"RxErr": 1}, sticky=True))
    assert value(series(build.report(build.node([sticky]))), "pcie_errors_total", address="0000:01:00.0") is None


@pytest.mark.parametrize(
    ("state", "errors", "before", "expected"),
    [
        (ACTIVE, {"replay": 1000}, None, 3000),
        (ACTIVE, {}, None, None),
        (ACTIVE, {}, 900, 2900),
        (UNKNOWN_STATE, {}, None, None),
        (INACTIVE, {}, None, 2000),
        (INACTIVE, {"replay": 1000}, None, 3000),
        (INACTIVE, {}, 900, 2900),
    ],
)
def test_a_sum_of_which_a_part_is_missing(
    state: str, errors: dict[str, int], before: int | None, expected: int | None
) -> None:
    """A link that does not tell its errors counts as it told last: a smaller sum would look like a reset. One that
    never told makes the sum unknown, unless it is down."""
    node = build.eight_gpus()
    address = node.gpus[0].address
    links = [link._replace(errors={"replay": 1000}) for link in build.nvlinks(3, 3)]
    links[1] = links[1]._replace(state=state, errors=errors)
    node = node._replace(gpus=(node.gpus[0]._replace(nvlinks=tuple(links)), *node.gpus[1:]))
    runtime = Runtime(last_heard={} if before is None else {(address, "replay", links[1].number): before})
    found = series(build.report(node), runtime)
    assert value(found, "nvlink_errors_total", address=address, kind="replay") == expected


def test_sources_and_runtime() -> None:
    """A source that failed is down, one that is partly readable is up, one that does not exist has no series."""
    statuses = (("pcie", PARTIAL), ("nvml", TIMEOUT), ("kfd", ABSENT))
    sources = tuple(SourceStatus(name, status, seconds=0.5) for name, status in statuses)
    runtime = Runtime(1e9, 0.2, 7, {"nvml": 60.0}, config_reload_ok=False, config_reload_time=5.0)
    found = series(build.report(build.node(sources=sources)), runtime)
    assert value(found, "source_up", source="pcie") == 1
    assert value(found, "source_up", source="nvml") == 0
    assert value(found, "source_up", source="kfd") is None
    assert value(found, "source_duration_seconds", source="nvml") == 0.5
    assert value(found, "source_age_seconds", source="nvml") == 60
    assert value(found, "last_scan_timestamp_seconds") == 1e9
    assert value(found, "scans_total") == 7
    assert value(found, "config_last_reload_successful") == 0
    assert value(found, "build_info", version="0.1.0") == 1


def test_half_a_node_has_no_shape() -> None:
    """While a source does not answer, what it would tell is missing: no hash, rather than a wrong one."""
    node = build.eight_gpus()
    assert any(name == "gputopo_shape_info" for name, _ in series(build.report(node)))
    hanging = node._replace(sources=(SourceStatus("rdma", TIMEOUT),))
    assert not any(name == "gputopo_shape_info" for name, _ in series(build.report(hanging)))


def test_no_series_for_virtual_functions() -> None:
    """A thousand virtual functions beside their physical function add no series."""
    node = build.eight_gpus()
    nic = next(device for device in node.devices.values() if device.kind == NIC)
    virtual = {
        f"0000:16:{i // 8:02x}.{i % 8}": build.device(
            f"0000:16:{i // 8:02x}.{i % 8}", NIC, virtual_function=True, physical_function=nic.address
        )
        for i in range(8, 256)
    }
    more = node._replace(devices={**node.devices, **virtual})
    assert len(series(build.report(more))) == len(series(build.report(node)))


def test_under_a_thousand_series() -> None:
    """An eight-GPU node of which everything can be read stays under 1,000 series."""
    findings = [build.finding(subject=gpu.address, since=1.0) for gpu in build.eight_gpus().gpus]
    runtime = Runtime(1.0, 1.0, 1, {"pcie": 0.0}, {("mlx5_0", 1): 0}, True, 1.0)
    assert len(series(build.report(busy_node(), findings), runtime)) < 1000


def test_labels_are_escaped() -> None:
    """Quotes, backslashes and line feeds of a name do not break the exposition."""
    name = 'a"b\\c\nd'
    found = series(build.report(build.node([build.device("0000:01:00.0", GPU, name)])))
    assert any(dict(labels).get("name") == name for _, labels in found)


def test_openmetrics() -> None:
    """The OpenMetrics exposition is one that its own strict parser accepts."""
    text = render(build.report(busy_node(), [build.finding()]), openmetrics=True).decode()
    found = list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    assert {family.name for family in found} >= {"gputopo_device", "gputopo_pcie_errors", "gputopo_finding"}


def test_every_family_has_help() -> None:
    """Each family says what it is and has its prefix."""
    for family in families(build.report(busy_node(), [build.finding(since=1.0)])):
        assert family.name.startswith("gputopo_")
        assert family.documentation.endswith(".")


@pytest.mark.lab
def test_promtool_finds_nothing() -> None:
    """promtool check metrics is silent."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    text = render(build.report(busy_node(), [build.finding(since=1.0)]), runtime=Runtime(1.0, 1.0, 1))
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
