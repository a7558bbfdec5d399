"""The shipped unit under a real systemd: installed from the wheel, watched, stopped, reloaded, restarted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import fakenvml
from tests.fakenvml import states
from tests.lab.hgx import Hgx
from tests.lab.nspawn import Container, layered, why_not
from tests.lab.processes import until
from tests.lab.rootfs import rootfs
from tests.lab.service import since

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".lab/nspawn"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "iproute2", "procps", "python3", "python3-venv", "libudev1")
# Seconds, the end of any wait. What is asked for takes two or three scans of a second each; others use this computer's
# processors, too.
SOON = 180.0
WATCHDOG = 30  # many scans, so that it strikes a daemon that stands still and not one that waits for a processor
SYNC = "journalctl --sync"  # what was sent a moment ago may not be in the journal yet
PYTHON = "/opt/gpu-topo/bin/python"

# Nothing of the sandbox changes: only where the machine is, and the pace.
DROP_IN = f"""[Service]
BindReadOnlyPaths=/machine/sys:/sys
BindReadOnlyPaths=/machine/proc/cpuinfo:/proc/cpuinfo
Environment=LD_LIBRARY_PATH=/nvml FAKE_NVML=/nvml-state/machine.state
WatchdogSec={WATCHDOG}s
RestartSec=1s
"""
CONFIG = """scan.interval = "1s"
scan.timeout = "10s"
scan.boot-grace = "0s"
"""


class Host(NamedTuple):
    """The container and the machine that it believes to be."""

    container: Container
    tree: Hgx
    nvml: fakenvml.Machine

    def page(self, path: str = "/metrics") -> str:
        """A page of the daemon, asked for inside; empty where it does not answer."""
        fetch = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=60).read().decode())"
        done = self.container.run(f"{PYTHON} -c '{fetch}' http://127.0.0.1:10119{path} 2>/dev/null")
        return done.output if done.status == 0 else ""

    def metrics(self) -> str:
        """The metrics, as soon as there are some."""
        page: str = until(self.page, SOON, "metrics", self.journal)
        return page

    def shows(self, pattern: str, what: str) -> re.Match[str]:
        """Wait until the metrics have a line that matches: the match, in its page."""
        found: re.Match[str] = until(lambda: re.search(pattern, self.page(), re.MULTILINE), SOON, what, self.journal)
        return found

    def clears(self, text: str) -> None:
        """Wait until the metrics are there and do not have this."""
        until(lambda: text not in self.metrics(), SOON, f"no {text}", self.journal)

    def pass_scans(self, number: int) -> None:
        """Wait until so many more scans were finished."""
        pattern = r"^gputopo_scans_total (\S+)"
        goal = float(self.shows(pattern, "scans")[1]) + number
        until(lambda: float(self.shows(pattern, "scans")[1]) >= goal, SOON, f"{number} more scans", self.journal)

    def journal(self, mark: float = 0.0) -> str:
        """The unit's lines in the journal, after a moment where one is given."""
        said = self.container.check(f"{SYNC}; journalctl -q -u gpu-topo -o json --output-fields=MESSAGE")
        return "\n".join(since(said, mark))

    def mark(self) -> float:
        """A moment for `journal`: what was logged by now is before it."""
        self.container.check(SYNC)
        return time.monotonic()

    def state(self, name: str) -> str:
        """A property of the unit."""
        return self.container.check(f"systemctl show gpu-topo -p {name} --value").strip()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpu-topo's wheel and those of what it needs, for the Python of the container."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the container has Python 3.11, and this one would fetch wheels for another")
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", f"--wheel-dir={folder}"]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def host(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A booted container with gpu-topo installed as the README says, its daemon running."""
    work = tmp_path_factory.mktemp("nspawn")
    library = fakenvml.build(work / "nvml")
    (work / "state").mkdir()
    (work / "shared").mkdir()
    tree = Hgx(work / "machine")
    nvml = fakenvml.Machine(library, work / "state", states.hgx_h100())
    binds = {
        wheels: "/wheels",
        tree.root: "/machine",
        library: "/nvml",
        work / "state": "/nvml-state",
    }
    for folder in (work, *work.parents[:2]):
        folder.chmod(0o755)
    with layered(rootfs(CACHE, PACKAGES), CACHE / f"run-{os.getpid()}") as root:
        subprocess.run(["make", "-s", "-C", str(ROOT / "systemd"), "install", f"DESTDIR={root}"], check=True)
        drop_in = root / "etc/systemd/system/gpu-topo.service.d/lab.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(DROP_IN)
        (root / "etc/gpu-topo").mkdir()
        (root / "etc/gpu-topo/gpu-topo.toml").write_text(CONFIG)
        container = Container(root, work / "shared", binds)
        try:
            container.start()
            made = Host(container, tree, nvml)
            install(container)
            assert container.run("systemctl start gpu-topo").status == 0, made.journal()
            yield made
        finally:
            container.stop()


def install(container: Container) -> None:
    """The commands of the README, but for where the wheels come from."""
    container.check("ip link set lo up 2>/dev/null || true")
    container.check("python3 -m venv /opt/gpu-topo", 120)
    container.check("/opt/gpu-topo/bin/pip install --quiet --no-index --find-links /wheels gpu-topo", 120)
    container.check("ln -s /opt/gpu-topo/bin/gpu-topo /usr/local/bin/gpu-topo")
    container.check("systemctl daemon-reload && systemctl enable gpu-topo gpu-topo-audit.timer")


@pytest.fixture(scope="module", autouse=True)
def _can_run() -> None:
    reason = why_not() or ("" if fakenvml.compiler() else "no C compiler for the fake NVML")
    if reason:
        pytest.skip(reason)


def test_it_starts_and_says_what_it_saw(host: Host) -> None:
    """systemd waited for readiness, and the status line is the verdict."""
    assert host.state("ActiveState") == "active"
    assert host.state("Type") == "notify"
    assert host.state("StatusText") == "ok"


def test_metrics_are_answered_with_nvml_and_ports(host: Host) -> None:
    """The sandbox lets everything through that the agent reads: sysfs, NVML, RDMA."""
    page = host.shows(r'^gputopo_findings\{severity="critical"\} 0\.0$', "a healthy node").string
    for source in ("platform", "pcie", "nvml", "rdma"):
        assert f'gputopo_source_up{{source="{source}"}} 1.0' in page
    assert 'gputopo_nvlink_links{address="0000:17:00.0",state="active"} 18.0' in page
    assert 'gputopo_port_active{device="mlx5_4",port="1"} 1.0' in page


def test_it_has_no_privilege(host: Host) -> None:
    """No capability, a user of its own, no new privileges, and a system call filter, as the kernel says."""
    pid = host.state("MainPID")
    status = host.container.check(f"cat /proc/{pid}/status")
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^CapBnd:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^CapAmb:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    assert not re.search(r"^Uid:\s+0\b", status, re.MULTILINE)


def test_it_can_write_to_its_state_only(host: Host) -> None:
    """For the daemon the whole tree is read-only but for its own directories and its private /tmp."""
    pid = host.state("MainPID")
    mounts = [line.split() for line in host.container.check(f"cat /proc/{pid}/mountinfo").splitlines()]
    writable = {mount[4] for mount in mounts if "rw" in mount[5].split(",")}
    api = ("/dev", "/proc")
    # What nspawn lays into its containers, and what is left below the /sys that the lab's machine covers.
    container = ("/run/host", "/sys/fs/cgroup")
    ours = {"/var/lib/private/gpu-topo", "/run/gpu-topo", "/tmp", "/var/tmp"}
    assert {path for path in writable if not path.startswith((*api, *container))} == ours


def test_it_hears_the_kernel(host: Host) -> None:
    """Netlink comes through the sandbox: the daemon says which events it listens to, and none was refused."""
    assert re.search(r"event", host.journal(), re.IGNORECASE)
    assert not re.search(r"not permitted|denied", host.journal(), re.IGNORECASE)


def test_one_line_for_each_change_of_a_finding(host: Host) -> None:
    """A port that goes down and up again is two lines in the journal, and scans are none."""
    until(lambda: "raised" in host.journal(), SOON, "what it found at the start is told")
    before = host.mark()
    host.tree.port(5, up=False)
    host.shows(r'^gputopo_finding\{code="port-down".*subject="mlx5_5/1"\} 1', "port-down")
    host.pass_scans(3)
    host.tree.port(5, up=True)
    host.clears("port-down")
    lines = [line for line in host.journal(before).splitlines() if line]
    assert len(lines) == 2, lines
    assert all("port-down" in line and "mlx5_5/1" in line for line in lines)


def test_a_hang_of_nvml_is_seen_and_the_rest_stays_fresh(host: Host) -> None:
    """NVML hangs: its source is down within two scans, sysfs is still read, and the watchdog does not strike."""
    restarts = host.state("NRestarts")
    host.nvml.put("hang.nvmlDeviceGetNvLinkState=600")
    page = host.shows(r'^gputopo_source_up\{source="nvml"\} 0\.0$', "nvml down").string
    assert 'gputopo_source_up{source="pcie"} 1.0' in page
    host.pass_scans(2)
    host.nvml.put()
    host.shows(r'^gputopo_source_up\{source="nvml"\} 1\.0$', "nvml up again")
    assert host.state("NRestarts") == restarts


def test_a_daemon_that_stands_still_is_restarted(host: Host) -> None:
    """The watchdog is not fooled: a stopped process feeds it nothing, and systemd starts another."""
    pid, restarts = host.state("MainPID"), int(host.state("NRestarts"))
    host.container.check(f"kill -STOP {pid}")
    until(lambda: int(host.state("NRestarts")) == restarts + 1, SOON, "a restart", host.journal)
    until(lambda: host.state("ActiveState") == "active", SOON, "active again", host.journal)
    assert host.state("MainPID") != pid
    assert "Watchdog timeout" in host.container.check(f"{SYNC}; journalctl --no-pager -o cat _PID=1")
    host.shows(r"^gputopo_build_info", "metrics again")


def test_a_read_that_hangs_does_not_stop_the_others(host: Host) -> None:
    """A file of /sys that never answers: what hangs is down, the rest is fresh, and nothing is restarted."""
    nic = host.tree.root / "sys/class/infiniband/mlx5_0/ports/1/state"
    real = nic.resolve()
    text = real.read_text()
    real.unlink()
    os.mkfifo(real, 0o644)
    host.container.check("systemctl restart gpu-topo")
    try:
        host.shows(r'^gputopo_source_up\{source="(rdma|pcie)"\} ', "metrics in spite of it")
        host.pass_scans(2)
        assert 'gputopo_source_up{source="pcie"} 1.0' in host.metrics()
    finally:
        real.unlink()
        real.write_text(text)
    host.container.check("systemctl restart gpu-topo")
    host.shows(r'^gputopo_source_up\{source="rdma"\} 1\.0$', "rdma up again")
    assert host.state("NRestarts") == "0"


def test_reload_takes_the_new_and_refuses_the_wrong(host: Host) -> None:
    """`systemctl reload`: a good configuration is in force, a bad one is told and the one before stays."""
    file = host.container.root / "etc/gpu-topo/gpu-topo.toml"
    pid = host.state("MainPID")
    before = host.mark()
    file.write_text(CONFIG + "no-such-key = 1\n")
    host.container.check("systemctl reload gpu-topo")
    host.shows(r"^gputopo_config_last_reload_successful 0\.0$", "refused")
    assert "gpu-topo.toml:4" in host.journal(before)
    file.write_text(CONFIG + 'skip = ["pcie-uplink-oversubscribed"]\n')
    host.container.check("systemctl reload gpu-topo")
    host.shows(r"^gputopo_config_last_reload_successful 1\.0$", "taken")
    host.clears("pcie-uplink-oversubscribed")
    file.write_text(CONFIG)
    host.container.check("systemctl reload gpu-topo")
    host.shows('code="pcie-uplink-oversubscribed"', "the rule is back")
    assert host.state("MainPID") == pid


def test_since_survives_a_restart(host: Host) -> None:
    """The state directory keeps when a finding was raised; it belongs to the service alone."""
    host.tree.link(host.tree.gpus[1], width=8)
    pattern = r'^gputopo_finding_since_timestamp_seconds\{code="pcie-width-degraded".*\} (\S+)$'
    first = host.shows(pattern, "raised")
    host.container.check("systemctl restart gpu-topo")
    assert host.shows(pattern, "still there")[1] == first[1]
    host.tree.link(host.tree.gpus[1])
    host.clears("pcie-width-degraded")
    kept = host.container.check("stat -c '%a %U' /var/lib/private/gpu-topo && ls /var/lib/gpu-topo/")
    assert kept.split()[0] == "750" and len(kept.split()) > 2


def test_a_wrong_configuration_keeps_it_from_starting(host: Host) -> None:
    """Not half-configured: the unit fails, and the journal names file and line."""
    file = host.container.root / "etc/gpu-topo/gpu-topo.toml"
    before = host.mark()
    host.container.check("systemctl stop gpu-topo")
    file.write_text("scan.intervall = 1\n")
    assert host.container.run("systemctl start gpu-topo").status != 0
    assert "gpu-topo.toml:1" in host.journal(before) and "scan.interval" in host.journal(before)
    file.write_text(CONFIG)
    host.container.check("systemctl stop gpu-topo; systemctl reset-failed gpu-topo; systemctl start gpu-topo")
    host.shows(r"^gputopo_build_info", "metrics again")


def test_the_audit_puts_its_report_into_the_journal(host: Host) -> None:
    """The one-shot unit: a healthy machine is a success, a critical finding makes the unit fail."""
    folder = host.container.root / "etc/systemd/system/gpu-topo-audit.service.d"
    folder.mkdir()
    (folder / "lab.conf").write_text(DROP_IN.replace(f"WatchdogSec={WATCHDOG}s\nRestartSec=1s\n", ""))
    host.container.check("systemctl daemon-reload && systemctl start gpu-topo-audit")
    host.tree.link(host.tree.gpus[1], width=8)
    assert host.container.run("systemctl start gpu-topo-audit").status != 0
    report = host.container.check(f"{SYNC}; journalctl -u gpu-topo-audit --no-pager -o cat")
    host.tree.link(host.tree.gpus[1])
    assert "pcie-width-degraded" in report and "0000:3b:00.0" in report
    timers = json.loads(host.container.check("systemctl list-timers gpu-topo-audit.timer --all -o json || echo []"))
    assert "enabled" in host.container.check("systemctl is-enabled gpu-topo-audit.timer") or timers


def test_it_stops_cleanly(host: Host) -> None:
    """A stop is quick, leaves no process, and is no failure."""
    host.container.check("systemctl stop gpu-topo")
    assert host.state("Result") == "success"
    assert host.state("MainPID") == "0"
    left = host.container.run("cat /sys/fs/cgroup/system.slice/gpu-topo.service/cgroup.procs 2>/dev/null")
    # 0 is a process that has ended and has no number any more: the kernel takes it out of the group a little later.
    assert set(left.output.split()) <= {"0"}
