"""The daemon sees what happens, says it once, and goes on whatever fails. On copied trees, by its pages and its log."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpu_topo.agent.baseline import load_saved, save
from gpu_topo.agent.cli import main
from gpu_topo.agent.config import Config, ConfigError
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.daemon import Daemon
from gpu_topo.agent.inspect import audit
from gpu_topo.agent.log import Log
from gpu_topo.agent.notify import Notify, watchdog_seconds
from gpu_topo.agent.site import quality, wants_openmetrics
from gpu_topo.agent.watch import Guarded, Memory, Settings, boot_clock, guarded, look
from gpu_topo.collectors import COLLECTORS
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.node import Node
from gpu_topo.source import Live, Source
from gpu_topo.source.kept import Kept
from tests.trees import GEN5, Machine

WAIT = 30.0  # at most; nothing below waits longer than it has to


def machine(root: Path) -> tuple[Path, str]:
    """A node with two GPUs behind root ports; the tree and the address of the first GPU."""
    built = Machine()
    host = built.host(0x16)
    gpus = [built.gpu(built.root_port(host), link=(GEN5, 16)) for _ in range(2)]
    built.write(root)
    boot_id = root / "proc" / "sys" / "kernel" / "random" / "boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("a-boot\n")
    return root, gpus[0]


class Agent:
    """A daemon in a thread of its own."""

    def __init__(self, config: Config, collectors: tuple[Guarded, ...] | None = None) -> None:
        self.log = io.StringIO()
        self.config: Config | Exception = config
        self.daemon = Daemon(self._load, Log("info", self.log, journal=True))
        if collectors is not None:
            self.daemon._collectors = collectors
        self.port = self.daemon.addresses[0].port
        self.thread = threading.Thread(target=self.daemon.run)
        self.thread.start()

    def _load(self) -> Config:
        if isinstance(self.config, Exception):
            raise self.config
        return self.config

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        client = HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def metrics(self) -> str:
        return self.get("/metrics")[2].decode()

    def value(self, series: str) -> float | None:
        """The value of one series, written as in the exposition."""
        for line in self.metrics().splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return None

    def until(self, happened: Callable[[], object]) -> None:
        """Wait for what is to happen, by asking the daemon."""
        deadline = time.monotonic() + WAIT
        while not happened():
            assert time.monotonic() < deadline, self.log.getvalue()
            assert self.thread.is_alive(), self.log.getvalue()

    def scans(self, more: int) -> None:
        """Wait for so many further scans."""
        wanted = self.daemon.scans + more
        self.until(lambda: self.daemon.scans >= wanted and self.get("/healthz"))

    def logged(self, word: str) -> list[str]:
        return [line for line in self.log.getvalue().splitlines() if word in line]

    def stop(self) -> None:
        self.daemon.stop()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


Start = Callable[..., Agent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[Agent] = []
    standard = Config(web_listen_address=(Listen("127.0.0.1", 0),), scan_interval=0.02, scan_boot_grace=0.0)

    def begin(root: Path, collectors: tuple[Guarded, ...] | None = None, **changes: object) -> Agent:
        agents.append(Agent(standard._replace(root=str(root), **changes), collectors))  # type: ignore[arg-type]
        return agents[-1]

    yield begin
    for agent in agents:
        if agent.thread.is_alive():
            agent.stop()


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, str]:
    return machine(tmp_path / "root")


def attribute(root: Path, address: str, name: str) -> Path:
    return root / "sys" / "bus" / "pci" / "devices" / address / name


# --- pages --------------------------------------------------------------------------------------------------------


def test_pages(start: Start, tree: tuple[Path, str]) -> None:
    """Every page is there, in every form, with its type; what is none is told so."""
    agent = start(tree[0])
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    status, headers, text = agent.get("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"gputopo_build_info" in text
    status, headers, packed = agent.get("/metrics", Accept_Encoding="gzip", Accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert zlib.decompress(packed, 31).endswith(b"# EOF\n")
    assert agent.get("/metrics", "HEAD")[2] == b""
    status, headers, text = agent.get("/api/v1/report")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text)["schema"] == "gpu-topo/report/1"
    status, headers, text = agent.get("/picture")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"/api/v1/report" in agent.get("/")[2]
    assert agent.get("/healthz")[::2] == (200, b"ok\n")
    assert agent.get("/none")[0] == 404
    assert agent.get("/metrics", "DELETE")[0] == 405


def test_a_page_is_rendered_once_a_scan(start: Start, tree: tuple[Path, str]) -> None:
    """Scrapes between two scans get the very same bytes; after the next scan they get new ones."""
    agent = start(tree[0], scan_interval=3600.0)
    agent.until(lambda: agent.get("/readyz")[0] == 200 and agent.daemon.scans == 1)
    first = agent.get("/metrics")[2]
    assert agent.get("/metrics")[2] == first
    agent.daemon.reload()
    agent.until(lambda: agent.daemon.scans > 1 and agent.get("/metrics")[2] != first)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("text/plain;q=0.5, application/openmetrics-text;q=0.4", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
    ],
)
def test_openmetrics_for_who_asks_for_it(accept: str, wanted: bool) -> None:
    """The client's weights decide; plain text for everybody else."""
    assert wants_openmetrics(accept) is wanted


def test_gzip_for_who_takes_it() -> None:
    """gzip is used where the client takes it, and not where it says no."""
    weights = [quality(header, "gzip") for header in ("", "gzip", "gzip;q=0", "*", "br, gzip;q=0.5", "identity")]
    assert weights == [0, 1, 0, 1, 0.5, 0]


# --- findings -----------------------------------------------------------------------------------------------------


def test_a_degraded_link_is_raised_once_and_cleared_once(start: Start, tree: tuple[Path, str]) -> None:
    """A link that narrows shows in the metrics within two scans and is logged in one line; so is its healing."""
    root, gpu = tree
    agent = start(root)
    series = f'gputopo_finding{{code="pcie-width-degraded",severity="critical",subject="{gpu}"}}'
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    agent.scans(2)
    assert agent.value(series) is None
    for address in (gpu, parent(root, gpu)):
        attribute(root, address, "current_link_width").write_text("8\n")
    agent.until(lambda: agent.value(series) == 1.0)
    agent.scans(3)
    assert agent.value(f'gputopo_pcie_link_width{{address="{gpu}"}}') == 8.0
    assert agent.value('gputopo_findings{severity="critical"}') == 1.0
    assert agent.get("/")[2].count(b"critical") > 0
    for address in (gpu, parent(root, gpu)):
        attribute(root, address, "current_link_width").write_text("16\n")
    agent.until(lambda: agent.value(series) is None)
    agent.scans(3)
    assert len(agent.logged("raised: ")) == 1 + len(agent.logged("severity=info"))
    (raised,) = [line for line in agent.logged("raised: ") if "pcie-width-degraded" in line]
    assert raised.startswith("<3>")
    assert f"subject={gpu} severity=critical since=" in raised
    (cleared,) = agent.logged("cleared: ")
    assert cleared.startswith("<6>")


def parent(root: Path, address: str) -> str:
    return os.readlink(root / "sys" / "bus" / "pci" / "devices" / address).split("/")[-2]


def test_a_device_that_goes_and_comes_back(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """A GPU that leaves the bus is lost within two scans; its series goes; when it is back all is as before."""
    root, gpu = tree
    agent = start(root)
    agent.until(lambda: agent.value(f'gputopo_pcie_link_width{{address="{gpu}"}}') == 16.0)
    link = root / "sys" / "bus" / "pci" / "devices" / gpu
    os.rename(link, tmp_path / "away")
    lost = f'gputopo_finding{{code="pcie-device-lost",severity="critical",subject="{gpu}"}}'
    agent.until(lambda: agent.value(lost) == 1.0)
    assert agent.value(f'gputopo_pcie_link_width{{address="{gpu}"}}') is None
    os.rename(tmp_path / "away", link)
    agent.until(lambda: agent.value(lost) is None and agent.value(f'gputopo_pcie_link_width{{address="{gpu}"}}'))


def test_what_was_known_survives_a_restart(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """After a restart a finding goes on without being raised again, dated as before; a lost device is still lost."""
    root, gpu = tree
    state = str(tmp_path)
    agent = start(root, state_directory=state)
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    os.unlink(root / "sys" / "bus" / "pci" / "devices" / gpu)
    since = f'gputopo_finding_since_timestamp_seconds{{code="pcie-device-lost",severity="critical",subject="{gpu}"}}'
    agent.until(lambda: agent.value(since))
    first = agent.value(since)
    agent.stop()
    again = start(root, state_directory=state)
    again.until(lambda: again.get("/readyz")[0] == 200)
    assert again.value(since) == first
    assert again.logged("pcie-device-lost") == []
    assert again.value("gputopo_state_last_write_successful") == 1.0


def test_a_damaged_state_is_set_aside(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """A damaged state file costs one warning, and the daemon starts."""
    (tmp_path / "state.json").write_text("{")
    agent = start(tree[0], state_directory=str(tmp_path))
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    assert len(agent.logged("damaged")) == 1
    assert (tmp_path / "state.json.damaged").exists()


def test_a_state_directory_that_cannot_be_written(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """Where nothing can be kept, that is said once and in a metric; everything else goes on."""
    (tmp_path / "file").write_text("")
    agent = start(tree[0], state_directory=str(tmp_path / "file"))
    agent.until(lambda: agent.value("gputopo_state_last_write_successful") == 0.0)
    agent.scans(3)
    assert len(agent.logged("cannot be written")) == 1


def test_a_new_baseline_makes_the_machine_right(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """A GPU that was taken out on purpose is lost until a new baseline is saved, and no longer after."""
    root, gpu = tree
    path = str(tmp_path / "baseline.json")
    save(path, audit(Live(str(root))).node, load_saved(path))
    agent = start(root, baseline_file=path)
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    os.unlink(root / "sys" / "bus" / "pci" / "devices" / gpu)
    agent.until(lambda: "inventory-short" in agent.metrics() and "pcie-device-lost" in agent.metrics())
    save(path, audit(Live(str(root))).node, load_saved(path))
    agent.until(lambda: "inventory-short" not in agent.metrics() and "pcie-device-lost" not in agent.metrics())
    assert len(agent.logged("baseline read")) == 1


def test_a_broken_baseline_keeps_the_old_one(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """A baseline that becomes unreadable is said once, and the one before stays in force."""
    root, gpu = tree
    path = tmp_path / "baseline.json"
    save(str(path), audit(Live(str(root))).node, load_saved(str(path)))
    agent = start(root, baseline_file=str(path))
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    path.write_text("{")
    agent.until(lambda: agent.logged("baseline not read"))
    os.unlink(root / "sys" / "bus" / "pci" / "devices" / gpu)
    agent.until(lambda: "inventory-short" in agent.metrics())
    assert len(agent.logged("baseline not read")) == 1


# --- what fails ---------------------------------------------------------------------------------------------------


def test_a_source_that_hangs_is_down_and_the_rest_is_fresh(start: Start, tree: tuple[Path, str]) -> None:
    """A stuck source shows as down while links go on to be read; no thread piles up; it recovers by itself."""
    root, gpu = tree
    gate = threading.Event()
    asked: list[int] = []

    module = type(sys)("gpu_topo_test_hung")

    def collect(source: Source, context: Context) -> Facts:
        asked.append(1)
        gate.wait(WAIT)
        return Facts(SourceStatus("hung", OK))

    module.collect = collect  # type: ignore[attr-defined]
    sys.modules["gpu_topo_test_hung"] = module
    try:
        collectors = (Guarded("hung", "gpu_topo_test_hung"), *guarded(COLLECTORS))
        agent = start(root, collectors, scan_timeout=0.5)
        agent.until(lambda: agent.value('gputopo_source_up{source="hung"}') == 0.0)
        before = threading.active_count()
        attribute(root, gpu, "current_link_width").write_text("4\n")
        agent.until(lambda: agent.value(f'gputopo_pcie_link_width{{address="{gpu}"}}') == 4.0)
        agent.scans(10)
        assert asked == [1]
        assert threading.active_count() <= before + 1
        assert agent.value('gputopo_source_up{source="pcie"}') == 1.0
        assert (agent.value('gputopo_source_age_seconds{source="hung"}') or 0) > 0
        assert agent.value('gputopo_source_age_seconds{source="pcie"}') == 0.0
        assert agent.get("/healthz")[0] == 200
        assert len(agent.logged("source hung timeout")) == 1
        gate.set()
        agent.until(lambda: agent.value('gputopo_source_up{source="hung"}') == 1.0)
        assert len(agent.logged("source hung answers again")) == 1
    finally:
        gate.set()
        del sys.modules["gpu_topo_test_hung"]


def test_a_bug_in_a_scan_does_not_end_the_daemon(start: Start, tree: tuple[Path, str]) -> None:
    """A collector that raises is said once with its traceback; pages stay; health tells after a while."""
    module = type(sys)("gpu_topo_test_bug")
    broken = threading.Event()

    def collect(source: Source, context: Context) -> Facts:
        if broken.is_set():
            raise ZeroDivisionError("a bug")
        return Facts(SourceStatus("bug", OK))

    module.collect = collect  # type: ignore[attr-defined]
    sys.modules["gpu_topo_test_bug"] = module
    try:
        agent = start(tree[0], (Guarded("bug", "gpu_topo_test_bug"), *guarded()), scan_timeout=0.1)
        agent.until(lambda: agent.get("/readyz")[0] == 200)
        broken.set()
        agent.until(lambda: agent.get("/healthz")[0] == 503)
        assert agent.get("/metrics")[0] == 200
        assert len(agent.logged("ZeroDivisionError")) == 1
        broken.clear()
        agent.until(lambda: agent.get("/healthz")[0] == 200)
    finally:
        del sys.modules["gpu_topo_test_bug"]


def test_devices_that_vanish_while_they_are_read(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """Devices that come and go in the middle of scans never break one."""
    root, gpu = tree
    agent = start(root, scan_interval=0.001)
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    link = root / "sys" / "bus" / "pci" / "devices" / gpu
    folder = link.resolve()
    wanted = agent.daemon.scans + 150
    deadline = time.monotonic() + WAIT
    while agent.daemon.scans < wanted and time.monotonic() < deadline:
        os.rename(link, tmp_path / "link")
        os.rename(folder, tmp_path / "folder")
        os.rename(tmp_path / "folder", folder)
        os.rename(tmp_path / "link", link)
    assert agent.logged("a scan failed") == []
    assert agent.thread.is_alive()


# --- configuration, signals, systemd --------------------------------------------------------------------------------


def test_a_bad_reload_keeps_what_was_in_force(start: Start, tree: tuple[Path, str]) -> None:
    """A wrong configuration is refused, said in the log and in a metric; a right one is taken."""
    agent = start(tree[0])
    agent.until(lambda: agent.value("gputopo_config_last_reload_successful") == 1.0)
    good = agent.config
    agent.config = ConfigError("file:3: unknown key 'x'")
    agent.daemon.reload()
    agent.until(lambda: agent.value("gputopo_config_last_reload_successful") == 0.0)
    assert len(agent.logged("file:3: unknown key 'x'")) == 1
    assert isinstance(good, Config)
    agent.config = good._replace(expect={"gpus": 9}, root="/elsewhere")
    agent.daemon.reload()
    agent.until(lambda: agent.value('gputopo_finding{code="inventory-short",severity="critical",subject="node"}'))
    assert agent.value("gputopo_config_last_reload_successful") == 1.0
    assert len(agent.logged("takes effect at the next start key=root")) == 1


def test_systemd_is_told(start: Start, tree: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY after the first scan, WATCHDOG only after finished scans, STOPPING at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        agent = start(tree[0], scan_interval=3600.0)
        assert manager.recv(4096) == b"READY=1"
        assert manager.recv(4096).startswith(b"WATCHDOG=1\nSTATUS=")
        agent.daemon.reload()
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(4096) == b"READY=1"
        assert manager.recv(4096).startswith(b"WATCHDOG=1")
        agent.stop()
        heard = b""
        while heard != b"STOPPING=1":
            heard = manager.recv(4096)


def test_the_interval_keeps_the_watchdog_content(monkeypatch: pytest.MonkeyPatch, tree: tuple[Path, str]) -> None:
    """Scans are never further apart than half of what systemd's watchdog waits."""
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_seconds() == 20.0
    daemon = Daemon(lambda: Config(root=str(tree[0]), web_listen_address=(Listen("127.0.0.1", 0),), scan_interval=60.0))
    assert daemon.interval == 10.0
    daemon._close()
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() is None


def test_nobody_to_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service manager, or with one that is gone, nothing happens."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notify()("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "@gpu-topo-nobody")
    Notify()("READY=1")


def serve(root: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """`gpu-topo serve` in a process of its own, and its port."""
    command = [
        sys.executable,
        "-m",
        "gpu_topo.agent",
        "serve",
        "--root",
        str(root),
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "serving address=127.0.0.1:" in line, line + process.stderr.read()
    return process, int(line.split("address=127.0.0.1:")[1].split()[0])


def fetch(port: int, path: str) -> bytes:
    client = HTTPConnection("127.0.0.1", port, timeout=WAIT)
    try:
        client.request("GET", path, headers={"Accept-Encoding": "gzip"})
        return client.getresponse().read()
    finally:
        client.close()


def ready(port: int) -> None:
    deadline = time.monotonic() + WAIT
    while b"ready" not in fetch(port, "/readyz").split() and time.monotonic() < deadline:
        pass


def settled(port: int) -> None:
    """Wait for two more scans: the first opens again what a reload let go of."""

    def scans() -> float:
        found = re.search(rb"^gputopo_scans_total (\S+)", gzip.decompress(fetch(port, "/metrics")), re.MULTILINE)
        assert found is not None
        return float(found[1])

    wanted, deadline = scans() + 2, time.monotonic() + WAIT
    while scans() < wanted:
        assert time.monotonic() < deadline


def test_signals_reload_and_stop(tree: tuple[Path, str], tmp_path: Path) -> None:
    """SIGHUP reads the file again, SIGTERM ends with status 0 after the state was written."""
    file = tmp_path / "conf.toml"
    file.write_text("scan.interval = '1h'\n")
    process, port = serve(tree[0], "--config.file", str(file), "--state.directory", str(tmp_path))
    ready(port)
    file.write_text("scan.intervall = '1h'\n")
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or "not reloaded" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1]
    assert f"{file}:1: unknown key 'scan.intervall'; did you mean 'scan.interval'?" in lines[-1]
    process.send_signal(signal.SIGTERM)
    assert "stopped" in process.communicate(timeout=WAIT)[1]
    assert process.returncode == 0
    assert (tmp_path / "state.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scan.interval", "soon"], "gpu-topo: --scan.interval takes a duration"),
        (["--config.file", "/nonexistent.toml"], "/nonexistent.toml: no such file"),
        (["--web.config.file", "/nonexistent.yml"], "/nonexistent.yml: the web configuration cannot be read"),
        (["--web.listen-address", "203.0.113.77:1"], "cannot listen on 203.0.113.77:1"),
        (["--skip", "pcie-width-degarded"], "did you mean 'pcie-width-degraded'?"),
    ],
)
def test_it_does_not_start_half_configured(
    tree: tuple[Path, str], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Anything wrong is one line on standard error and status 3."""
    assert main(["serve", "--root", str(tree[0]), *options]) == 3
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


# --- one scan -------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_moves_no_beginning(tree: tuple[Path, str]) -> None:
    """When the wall clock jumps a day, what began a minute ago began a minute before the new time."""
    root, gpu = tree
    for address in (gpu, parent(root, gpu)):
        attribute(root, address, "current_link_width").write_text("8\n")
    source = Live(str(root))
    boot = [1000.0]
    wall = [2_000_000_000.0]
    settings = Settings(boot_grace=0.0)
    first = look(source, settings, Memory(), clock=lambda: boot[0], wall=lambda: wall[0])
    key = ("pcie-width-degraded", gpu)
    assert first.memory.lives[key].since == wall[0]
    boot[0] += 60
    wall[0] += 60 + 86400
    second = look(source, settings, first.memory, clock=lambda: boot[0], wall=lambda: wall[0])
    assert second.memory.lives[key].since == wall[0] - 60
    assert [finding.since for finding in second.report.findings if finding.code == key[0]] == [wall[0] - 60]


def test_errors_that_grow_are_raised(tree: tuple[Path, str]) -> None:
    """Counters are judged by what the daemon saw them grow by, not by what they stand at."""
    root, gpu = tree
    file = attribute(root, gpu, "aer_dev_fatal")
    file.write_text("DLP 5\nTOTAL_ERR_FATAL 5\n")
    for name in ("correctable", "nonfatal"):
        attribute(root, gpu, f"aer_dev_{name}").write_text("RxErr 9\nTOTAL 9\n")
    source = Live(str(root))
    seen = look(source, Settings(boot_grace=0.0), Memory())
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    assert not [finding for finding in seen.report.findings if finding.code == "pcie-errors"]
    file.write_text("DLP 6\nTOTAL_ERR_FATAL 6\n")
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    (found,) = [finding for finding in seen.report.findings if finding.code == "pcie-errors"]
    assert (found.subject, found.severity) == (gpu, "critical")


def test_the_boot_clock_runs() -> None:
    """CLOCK_BOOTTIME goes on and is not the wall clock."""
    assert 0 < boot_clock() <= boot_clock() < time.time()


def test_kept_and_live_give_the_same_report(tree: tuple[Path, str]) -> None:
    """A warm scan concludes what a cold one does."""
    kept = Kept(str(tree[0]))
    memory = Memory()
    for _ in range(3):
        kept.begin()
        seen = look(kept, Settings(), memory)
        cold: Node = look(Live(str(tree[0])), Settings(), memory).report.node
        assert seen.report.node._replace(sources=()) == cold._replace(sources=())
        memory = seen.memory
    kept.close()


# --- commands that go with it -----------------------------------------------------------------------------------------


def test_textfile_writes_the_same_families(tree: tuple[Path, str], tmp_path: Path, start: Start) -> None:
    """`gpu-topo textfile` writes the daemon's families, atomically."""
    path = tmp_path / "gpu-topo.prom"
    assert main(["textfile", "--root", str(tree[0]), "--output", str(path)]) == 0

    def families(text: str) -> set[str]:
        return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    agent = start(tree[0])
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    agent.scans(2)
    missing = families(agent.metrics()) - families(path.read_text())
    assert all(name.startswith(("gputopo_source_age", "gputopo_scans", "gputopo_config", "gputopo_finding_since"))
               for name in missing), missing  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["gpu-topo.prom", "root"]


def test_baseline_save_diff_accept(tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Save, see no difference, lose a GPU, see it, accept a finding; an audit against the baseline knows both."""
    root, gpu = tree
    path = str(tmp_path / "base.json")
    common = ["--root", str(root), "--file", path]
    assert main(["baseline", "diff", *common]) == 3
    assert "`gpu-topo baseline save` makes one" in capsys.readouterr().err
    assert main(["baseline", "save", *common]) == 0
    assert "2 gpus" in capsys.readouterr().out
    assert main(["baseline", "diff", *common]) == 0
    os.unlink(root / "sys" / "bus" / "pci" / "devices" / gpu)
    capsys.readouterr()
    assert main(["baseline", "diff", *common]) == 1
    assert f"missing   {gpu}" in capsys.readouterr().out
    assert main(["baseline", "diff", "--json", *common]) == 1
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "missing"
    assert main(["baseline", "accept", "inventory-short", "node", "--file", path]) == 3
    assert "give --reason" in capsys.readouterr().err
    assert main(["baseline", "accept", "inventry-short", "node", "--reason", "x", "--file", path]) == 3
    assert "did you mean 'inventory-short'?" in capsys.readouterr().err
    late = ["inventory-short", "node", "--reason", "x", "--until", "tomorrow"]
    assert main(["baseline", "accept", *late, "--baseline", path]) == 3
    assert "2030-12-31" in capsys.readouterr().err
    assert main(["baseline", "accept", "inventory-short", "node", "--reason", "one is away", "--file", path]) == 0
    capsys.readouterr()
    main(["inspect", "--json", "--root", str(root), "--baseline", path])
    found = {f["code"]: f["accepted"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["inventory-short"]["reason"] == "one is away"
    assert "baseline-drift" in found
    assert main(["baseline", "save", *common]) == 0
    assert [row.code for row in load_saved(path).accepted] == ["inventory-short"]


# --- endurance --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_scrapes_and_a_thousand_rescans_leak_nothing(tree: tuple[Path, str], tmp_path: Path) -> None:
    """Memory, threads and descriptors stay where they were after the first thousand scrapes and rescans."""
    root, gpu = tree
    process, port = serve(root, "--scan.interval", "1s", "--scan.settle", "0s")
    assert process.stderr is not None
    drain = threading.Thread(target=process.stderr.read)  # a pipe that nobody reads would stop whoever writes
    drain.start()
    try:
        ready(port)
        link = root / "sys" / "bus" / "pci" / "devices" / gpu

        def usage() -> tuple[int, int, int]:
            with open(f"/proc/{process.pid}/status") as status:
                fields = dict(line.split(":", 1) for line in status)
            fds = len(os.listdir(f"/proc/{process.pid}/fd"))
            return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), fds

        def rounds(number: int) -> None:
            client = HTTPConnection("127.0.0.1", port, timeout=WAIT)
            for n in range(number):
                if n % 10 == 0:
                    os.rename(link, tmp_path / "away")
                    os.rename(tmp_path / "away", link)
                    process.send_signal(signal.SIGHUP)
                client.request("GET", ("/metrics", "/metrics", "/api/v1/report")[n % 3])
                assert client.getresponse().read()
            client.close()

        rounds(2000)
        settled(port)
        before = usage()
        rounds(10_000)
        settled(port)
        after = usage()
        # KiB; an allocator's noise is half of that, a leak of 300 bytes a scrape is more
        assert after[0] - before[0] <= 2048
        assert after[1] <= before[1] + 1
        assert after[2] <= before[2] + 4
    finally:
        process.kill()
        process.wait(WAIT)
        drain.join(WAIT)
        process.stderr.close()


def test_a_stream_of_events_does_not_put_the_scan_off(start: Start, tree: tuple[Path, str]) -> None:
    """An event every few milliseconds, for longer than an interval: the scan that was due comes all the same."""
    agent = start(tree[0])
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    daemon = agent.daemon
    before = daemon.scans
    until = time.monotonic() + 6
    while daemon.scans < before + 2 and time.monotonic() < until:
        daemon.loop.soon(daemon._event)
        agent.get("/readyz")
    assert daemon.scans >= before + 2
