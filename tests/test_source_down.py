"""A source that vanishes is down: what it had told of the machine is neither lost nor healthy."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpu_topo.agent.config import Config, ConfigError
from gpu_topo.agent.daemon import Daemon
from gpu_topo.agent.inspect import audit, unread
from gpu_topo.agent.watch import Guarded, Memory, Seen, Settings, guarded, look
from gpu_topo.collectors import Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.history import Past
from gpu_topo.source import Live, Refusal, Source
from gpu_topo.source.kept import Kept
from gpu_topo.topology.baseline import document
from tests.commands import Run, gpu_topo, one_line
from tests.daemons import WAIT, Start, attribute, start, tree
from tests.lab.hgx import Hgx

__all__ = ["gpu_topo", "start", "tree"]  # fixtures

Scan = Callable[[], Seen]


@pytest.fixture
def node(tmp_path: Path) -> Hgx:
    """An eight-GPU node with RDMA ports, on disk."""
    node = Hgx(tmp_path / "node", nvswitches=False)
    interface = node.root / "sys/class/net/eth0"
    interface.mkdir(parents=True)
    (interface / "device").symlink_to(f"../../../bus/pci/devices/{node.nics[0]}")
    (interface / "speed").write_text("100000\n")
    return node


@pytest.fixture
def scan(node: Hgx) -> Iterator[Scan]:
    """One scan after another of that node, as the daemon makes them."""
    source = Kept(str(node.root))
    memory = Memory()
    collectors = guarded()

    def once() -> Seen:
        nonlocal memory
        source.begin()
        seen = look(source, Settings(boot_grace=0.0, raise_after=1, clear_after=1), memory, collectors)
        memory = seen.memory
        return seen

    yield once
    source.close()


def status(seen: Seen, name: str) -> str:
    return next(source.status for source in seen.report.node.sources if source.name == name)


def shown(seen: Seen) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.subject) for finding in seen.report.findings]


@pytest.mark.parametrize(
    ("gone", "down"),
    [
        ("sys/bus", ["pcie"]),
        ("sys/class/infiniband", ["rdma"]),
        ("sys/class/net", ["net"]),
        ("sys", ["pcie", "rdma", "net"]),
    ],
)
def test_a_source_that_vanishes(node: Hgx, scan: Scan, gone: str, down: list[str]) -> None:
    """It is down and not ready where all rests on it; what was found stays as it was, and nothing new is found."""
    node.link(node.gpus[1], width=8)
    node.port(5, up=False)
    scan()
    before = scan()
    assert {code for code, _, _ in shown(before)} >= {"pcie-width-degraded", "port-down"}
    away = node.root / "away"
    shutil.copytree(node.root / gone, away, symlinks=True)
    shutil.rmtree(node.root / gone)
    for _ in range(3):
        seen = scan()
        assert [name for name in ("pcie", "rdma", "net", "kfd") if status(seen, name) == "failed"] == down
        assert shown(seen) == shown(before)
        assert seen.changes == ()
        assert bool(unread(seen.report.node)) == ("pcie" in down)
    away.rename(node.root / gone)
    after = scan()
    assert (shown(after), status(after, "pcie"), unread(after.report.node)) == (shown(before), "ok", "")


def test_a_bus_that_was_read_in_part_lost_nothing(node: Hgx, scan: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the deadline came in the middle of the bus, the rest of it is neither gone nor healthy."""
    node.link(node.gpus[7], width=8)
    before = scan()
    looks = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr("gpu_topo.collectors.pcie.too_late", lambda context: next(looks))
        attribute(node.root, node.gpus[0], "current_link_speed").write_text("32.0 GT/s\n")  # else it is not read again
        seen = scan()
    assert 0 < len(seen.report.node.devices) < len(before.report.node.devices)
    assert node.gpus[7] not in seen.report.node.devices
    assert (status(seen, "pcie"), sorted(shown(seen)), seen.changes) == (TIMEOUT, sorted(shown(before)), ())
    after = scan()
    assert (status(after, "pcie"), sorted(shown(after)), after.changes) == ("ok", sorted(shown(before)), ())


def test_a_bus_that_lists_nothing_lost_nothing(node: Hgx, scan: Scan) -> None:
    """Not every device went at once: the listing is what failed. One device that goes is lost."""
    before = scan()
    devices = node.root / "sys/bus/pci/devices"
    devices.rename(node.root / "away")
    devices.mkdir()
    seen = scan()
    assert (status(seen, "pcie"), shown(seen)) == ("failed", shown(before))
    devices.rmdir()
    (node.root / "away").rename(devices)
    os.unlink(devices / node.gpus[0])
    assert "pcie-device-lost" in {code for code, _, _ in shown(scan())}


def test_a_source_that_this_machine_has_not(node: Hgx, scan: Scan) -> None:
    """What never told anything is absent, and stays so: no series, not down."""
    assert [status(scan(), "kfd") for _ in range(2)] == ["absent", "absent"]


def test_a_baseline_knows_that_there_was_a_bus(node: Hgx) -> None:
    """An audit against a baseline tells a bus that is not there from ten lost devices, too."""
    baseline = document(audit(Live(str(node.root))).node)
    (node.root / "sys/bus").rename(node.root / "away")
    report = audit(Live(str(node.root)), past=Past(baseline=baseline))
    assert [f.code for f in report.findings if f.code in ("pcie-device-lost", "inventory-short")] == []
    assert report.verdict == "unknown"
    assert "pcie-device-lost" in {item.code for item in report.unassessed}


def test_a_root_that_is_no_machine(gpu_topo: Run, tmp_path: Path) -> None:
    """serve refuses it in one line, as inspect does; the daemon does not start."""
    (tmp_path / "empty").mkdir()
    for root in (tmp_path / "missing", tmp_path / "empty"):
        for command in ("serve", "inspect", "capture out"):
            ran = gpu_topo(*command.split(), "--root", root)
            assert one_line(ran)
            assert f"{root}: no file tree of a machine" in ran.err
    with pytest.raises(ConfigError):
        Daemon(lambda: Config(root=str(tmp_path)))


def test_a_machine_of_which_nothing_can_be_read(start: Start, tmp_path: Path) -> None:
    """The daemon is not ready, its verdict is unknown, and the source that it needs is down."""
    for name in ("sys", "proc"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    agent = start(tmp_path / "bare")
    agent.scans(2)
    code, _, words = agent.get("/readyz")
    assert (code, b"/sys/bus/pci/devices" in words) == (503, True)
    assert b'"verdict": "unknown"' in agent.get("/api/v1/report")[2].replace(b'":"', b'": "')
    assert agent.value('gputopo_source_up{source="pcie"}') == 0.0
    assert agent.value('gputopo_source_up{source="rdma"}') is None
    assert agent.get("/healthz")[0] == 200
    assert len(agent.logged("source pcie failed")) == 1


def test_readiness_follows_the_bus(start: Start, tree: tuple[Path, str]) -> None:
    """Ready, not ready while the bus is away, ready again; its lost devices are never told."""
    root, _ = tree
    agent = start(root)
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    (root / "sys/bus").rename(root / "away")
    agent.until(lambda: agent.get("/readyz")[0] == 503)
    agent.scans(5)
    assert agent.value('gputopo_source_up{source="pcie"}') == 0.0
    assert "pcie-device-lost" not in agent.metrics().replace('gputopo_unassessed{code="pcie-device-lost"', "")
    (root / "away").rename(root / "sys/bus")
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    assert not agent.logged("pcie-device-lost")


def test_a_thread_that_comes_back_late_keeps_its_own_descriptors(tree: tuple[Path, str]) -> None:
    """A scan leaves a thread behind in a read. Whatever the next scans give back, it reads what it had opened, closes
    nothing of theirs, and its descriptors go when it is done."""
    root, gpu = tree
    hung, gate = threading.Event(), threading.Event()
    said: list[object] = []
    where = f"/sys/bus/pci/devices/{gpu}"
    module = ModuleType("gpu_topo_test_late")

    def collect(source: Source, context: Context) -> Facts:
        folder = source.dir(where)
        assert not isinstance(folder, Refusal)
        said.append(folder.read("current_link_width"))
        hung.set()
        gate.wait(WAIT)
        said.append(folder.read("current_link_width"))
        said.append(source.list("/sys/bus/pci/devices"))
        return Facts(SourceStatus("late", OK))

    module.collect = collect  # type: ignore[attr-defined]
    sys.modules["gpu_topo_test_late"] = module
    before = len(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    source = first = Kept(str(root))
    room = source.left
    memory = Memory()
    try:
        collectors = (Guarded(Collector("late", "gpu_topo_test_late")), *guarded())
        for number in range(4):
            source = source.successor()
            source.forget()
            source.begin()
            seen = look(source, Settings(timeout=0.4), memory, collectors)
            memory = seen.memory
            assert (status(seen, "late"), status(seen, "pcie")) == (TIMEOUT, "ok" if number else status(seen, "pcie"))
        assert hung.is_set()
        assert source is not first
        assert source.successor() is source
        # Numbers that were given back are taken at once: what the thread still holds must not be among them.
        files = [os.open(attribute(root, gpu, "vendor"), os.O_RDONLY) for _ in range(64)]
        gate.set()
        _until(lambda: len(said) == 3 and first._readers == 0 and not first._dirs)
        assert said[0] == said[1] == b"16\n"
        assert isinstance(said[2], tuple) and gpu in said[2]
        assert {os.pread(fd, 64, 0) for fd in files} == {attribute(root, gpu, "vendor").read_bytes()}
        for fd in files:
            os.close(fd)
        source.begin()
        assert status(look(source, Settings(timeout=WAIT), memory, collectors), "late") == OK
        source.close()
        assert source.left == room
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gate.set()
        del sys.modules["gpu_topo_test_late"]
        assert set(threading.enumerate()) <= threads


def _until(happened: Callable[[], object]) -> None:
    ends = threading.Event()
    for _ in range(int(WAIT * 100)):
        if happened():
            return
        ends.wait(0.01)
    raise AssertionError("it did not happen")
