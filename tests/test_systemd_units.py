"""The units, held against systemd's own tools: clean, tight, and made of what the agent has."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_topo.agent.config_values import listen

ROOT = Path(__file__).resolve().parents[1]
SYSTEMD = ROOT / "systemd"
SERVICES = ("gpu-topo.service", "gpu-topo-audit.service")
UNITS = (*SERVICES, "gpu-topo-audit.timer")
PROGRAM = "/usr/local/bin/gpu-topo"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def settings(unit: str, section: str = "Service") -> dict[str, list[str]]:
    """Each directive of a section with all its values, in order."""
    found: dict[str, list[str]] = {}
    now = ""
    for line in (SYSTEMD / unit).read_text().splitlines():
        if line.startswith("["):
            now = line.strip("[]")
        elif now == section and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A root with the units as `make install` lays them, and something in the program's place."""
    subprocess.run(["make", "-s", "-C", str(SYSTEMD), "install", f"DESTDIR={tmp_path}"], check=True)
    program = tmp_path / PROGRAM[1:]
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


@needs_systemd
def test_verify_has_nothing_to_say(installed: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` prints nothing: it returns 0 whatever it finds, so what counts is its output."""
    folder = installed / "etc/systemd/system"
    for unit in SERVICES:  # verify looks for the program on this machine
        text = (folder / unit).read_text().replace(PROGRAM, str(installed / PROGRAM[1:]))
        (folder / unit).write_text(text)
    told = subprocess.run(
        ["systemd-analyze", "verify", *(str(folder / unit) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.stderr, told.returncode) == ("", "", 0)


@needs_systemd
def test_verify_would_tell(tmp_path: Path) -> None:
    """The check above can fail: a directive that does not exist is printed."""
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nWatchdogSecs=60\n")
    told = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "WatchdogSecs" in told.stderr


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES)
def test_exposure_is_at_most_one_and_a_half(unit: str, installed: Path) -> None:
    """systemd's own measure of a sandbox, where 10 is none at all."""
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager",
         str(installed / "etc/systemd/system" / unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout
    assert told.stderr == ""


@needs_systemd
def test_the_drop_in_gives_one_capability(installed: Path) -> None:
    """With the drop-in for ACS the service has CAP_SYS_ADMIN and no other, and its exposure stays below 2."""
    subprocess.run(["make", "-s", "-C", str(SYSTEMD), "install-acs", f"DESTDIR={installed}"], check=True)
    unit = installed / "etc/systemd/system/gpu-topo.service"
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--json=short", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    given = {row["name"] for row in json.loads(told.stdout) if row["set"] is False and "CAP_" in row["name"]}
    assert given == {"CapabilityBoundingSet=~CAP_SYS_ADMIN"}
    assert told.returncode == 0


def test_no_drop_in_lies_where_systemd_would_find_it() -> None:
    """The capability is off until somebody installs it: the folder that is copied holds no drop-in folder."""
    assert not list(SYSTEMD.glob("*.d"))


def test_install_keeps_what_an_administrator_has_set(installed: Path) -> None:
    """A second installation leaves the environment file as it is."""
    (installed / "etc/default/gpu-topo").write_text("GPU_TOPO_OPTIONS=--web.listen-address=127.0.0.1:1\n")
    subprocess.run(["make", "-s", "-C", str(SYSTEMD), "install", f"DESTDIR={installed}"], check=True)
    assert "127.0.0.1:1" in (installed / "etc/default/gpu-topo").read_text()


def test_the_two_services_share_one_sandbox() -> None:
    """Whatever confines the daemon confines the audit: no directive of the sandbox is forgotten in one of them."""
    sandbox = ("Capability", "Ambient", "NoNew", "Private", "Protect", "Remove", "Keyring", "Device", "Lock", "Memory")
    daemon, audit = settings(SERVICES[0]), settings(SERVICES[1])
    names = {name for name in daemon if name.startswith((*sandbox, "Restrict", "SystemCall", "DynamicUser"))}
    assert len(names) > 25
    for name in names - {"RestrictAddressFamilies", "MemoryHigh", "MemoryMax"}:
        assert audit.get(name) == daemon[name], name
    assert audit["ReadOnlyPaths"][0].split() == daemon["ReadOnlyPaths"][0].split()[:1]
    assert set(audit["RestrictAddressFamilies"][0].split()) < set(daemon["RestrictAddressFamilies"][0].split())


def test_devices_and_netlink_come_through() -> None:
    """NVML's device nodes and the kernel's events are let through: the sandbox does not blind the agent."""
    daemon = settings(SERVICES[0])
    assert daemon["DeviceAllow"] == ["char-195 rw", "char-nvidia* rw"]
    assert "AF_NETLINK" in daemon["RestrictAddressFamilies"][0].split()
    assert "PrivateDevices" not in daemon and "ProcSubset" not in daemon and "PrivateNetwork" not in daemon


def test_the_environment_file_holds_what_the_daemon_takes() -> None:
    """The shipped options serve on every interface, and each address of its comment is one that serve understands."""
    lines = (SYSTEMD / "gpu-topo.default").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        'GPU_TOPO_OPTIONS="--web.listen-address=:10119"'
    ]
    flag = "--web.listen-address="
    addresses = [word.strip('"').partition("=")[2] for line in lines for word in line.split() if flag in word]
    addresses = [address.removeprefix("--web.listen-address=") for address in addresses]
    assert len(addresses) == 4
    for address in addresses:
        listen(address)


def test_the_watchdog_outlasts_a_scan() -> None:
    """Default interval and deadline of a scan together stay far below the watchdog."""
    from gpu_topo.agent.config import Config

    seconds = int(settings(SERVICES[0])["WatchdogSec"][0].removesuffix("s"))
    assert seconds >= 2 * (Config().scan_interval + Config().scan_timeout)
