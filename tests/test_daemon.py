"""The daemon sees what happens, says it once, and goes on whatever fails. On copied trees, by its pages and its log."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_topo.agent.baseline import load_saved, save
from gpu_topo.agent.config import Config, ConfigError
from gpu_topo.agent.inspect import audit
from gpu_topo.agent.watch import Guarded, guarded
from gpu_topo.collectors import COLLECTORS, Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.source import Live, Source
from tests.daemons import WAIT, Start, attribute, parent, start, tree

__all__ = ["start", "tree"]  # fixtures

# --- findings --------------------------------------------------------------------------------------------------------


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


# --- what fails ------------------------------------------------------------------------------------------------------


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
        collectors = (Guarded(Collector("hung", "gpu_topo_test_hung")), *guarded(COLLECTORS))
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
        agent = start(tree[0], (Guarded(Collector("bug", "gpu_topo_test_bug")), *guarded()), scan_timeout=0.1)
        agent.until(lambda: agent.get("/readyz")[0] == 200)
        broken.set()
        agent.until(lambda: agent.get("/healthz")[0] == 503)
        assert agent.get("/metrics")[0] == 200
        assert len(agent.logged("ZeroDivisionError")) == 1
        broken.clear()
        agent.until(lambda: agent.get("/healthz")[0] == 200)
    finally:
        del sys.modules["gpu_topo_test_bug"]


def test_a_bug_in_keeping_the_state_does_not_stop_the_scans(
    start: Start, tree: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be put into the state file is told once; what the scan saw is shown all the same."""

    def broken(*_: object) -> bytes:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("gpu_topo.agent.state.encode", broken)
        patch.setattr("gpu_topo.agent.daemon._SAVE_SECONDS", 0.0)
        agent = start(tree[0], state_directory=str(tmp_path))
        agent.scans(3)
        assert agent.value("gputopo_scans_total") is not None
        assert len(agent.logged("the state was not kept")) == 1 and not agent.logged("a scan failed")


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


def test_the_state_directory_stays_until_the_next_start(start: Start, tree: tuple[Path, str], tmp_path: Path) -> None:
    """Another state directory is announced for the next start, and the baseline in it counts no sooner either."""
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    save(str(tmp_path / "new" / "baseline.json"), audit(Live(str(tree[0]))).node, load_saved(""))
    agent = start(tree[0], state_directory=str(tmp_path / "old"))
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    assert isinstance(agent.config, Config)
    agent.config = agent.config._replace(state_directory=str(tmp_path / "new"))
    agent.daemon.reload()
    agent.until(lambda: agent.logged("takes effect at the next start key=state.directory"))
    agent.scans(2)
    assert agent.logged("baseline read") == []
    agent.daemon.reload()
    agent.until(lambda: len(agent.logged("takes effect at the next start")) == 2)
