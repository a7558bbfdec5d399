"""The daemon when its disk is full or read-only, when it is killed while it writes, and when the clock is set.

The file systems are real ones, made for the test and mounted; that takes root.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_topo.agent.life import Life
from gpu_topo.agent.state import State, StateFile
from gpu_topo.agent.watch import Memory, Settings, boot_clock, look
from gpu_topo.model.finding import CRITICAL
from gpu_topo.source import Live, Refusal
from gpu_topo.source.kept import Kept
from gpu_topo.source.kept_dir import KeptDir
from tests.lab.hgx import Hgx
from tests.lab.processes import Process, free_port, get, until

WAIT = 120.0  # at most; nothing below waits longer than it has to
LAST_WRITE = "gputopo_state_last_write_successful"
BLOCK = 4096


class Daemon(Process):
    """`gpu-topo serve` of a tree, in a process of its own, that scans every second."""

    def __init__(self, tree: Hgx, state: Path, log: Path) -> None:
        self.state = state / "state.json"
        self.tree = tree
        port = free_port()
        self.url = url = f"http://127.0.0.1:{port}"
        serve = [sys.executable, "-m", "gpu_topo.agent", "serve", f"--root={tree.root}", f"--state.directory={state}"]
        pace = ["--scan.interval=1s", "--scan.timeout=60s", "--scan.boot-grace=0s"]
        super().__init__([*serve, *pace, f"--web.listen-address=127.0.0.1:{port}"], log, f"{url}/readyz")

    def value(self, series: str) -> float | None:
        """The value of the first series that begins so, None where there is none."""
        for line in (get(f"{self.url}/metrics") or "").splitlines():
            if line.startswith(series):
                return float(line.rpartition(" ")[2])
        return None

    def shows(self, series: str, value: float | None) -> None:
        """Wait until a series has this value."""
        until(lambda: self.value("gputopo_build_info") and self.value(series) == value, WAIT, series, self.tail)

    def pass_scans(self, number: int) -> None:
        """Wait for so many more scans."""
        until(lambda: self.value("gputopo_scans_total"), WAIT, "a scan", self.tail)
        goal = (self.value("gputopo_scans_total") or 0) + number
        until(lambda: (self.value("gputopo_scans_total") or 0) >= goal, WAIT, f"{number} scans", self.tail)

    def logged(self, words: str) -> list[str]:
        """The lines of its log with these words."""
        return [line for line in self.log.read_text().splitlines() if words in line]


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons, one after the other, of one tree where no other is given."""
    tree = Hgx(tmp_path / "standard", nvswitches=False)
    boot_id = tree.root / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("a-boot\n")
    daemons: list[Daemon] = []

    def begin(state: Path, tree: Hgx = tree) -> Daemon:
        daemons.append(Daemon(tree, state, tmp_path / f"log{len(daemons)}"))
        daemons[-1].start(WAIT)
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.stop(signal.SIGKILL)


def narrow(tree: Hgx) -> str:
    """A GPU gets half its lanes: the series of the finding, and when it began."""
    tree.link(tree.gpus[1], width=8)
    labels = f'code="pcie-width-degraded",severity="critical",subject="{tree.gpus[1]}"'
    return f"gputopo_finding_since_timestamp_seconds{{{labels}}}"


# --- real file systems --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(kind: str, work: Path) -> Iterator[Path]:
    """A folder that is a small file system of its own. Skips the test where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    at, image = work / "disk", work / "disk.img"
    at.mkdir()
    if kind == "ext4":
        image.write_bytes(bytes(2 << 20))
        subprocess.run(["mke2fs", "-q", "-t", kind, "-O", "^has_journal", "-m", "0", image], check=True)
        command = ["mount", "-o", "loop", str(image), str(at)]
    else:
        command = ["mount", "-t", kind, "-o", "size=64k", kind, str(at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def remount(at: Path, how: str) -> None:
    """Make a mounted file system read-only (ro) or writable (rw). It is busy while a file is being written."""

    def done() -> bool:
        return subprocess.run(["mount", "-o", f"remount,{how}", str(at)], check=False).returncode == 0

    until(done, WAIT, f"remounted {how}")


def fill(at: Path) -> Path:
    """Leave room for one block, so that a longer file gets half-written: what takes the rest."""
    filler = at / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, bytes(BLOCK))
                os.fsync(fd)
        os.ftruncate(fd, os.fstat(fd).st_size // BLOCK * BLOCK - BLOCK)
        os.fsync(fd)
    finally:
        os.close(fd)
    return filler


def states(folder: Path) -> list[str]:
    """The files of the state directory, whole or not."""
    return sorted(name for name in os.listdir(folder) if "state" in name)


def raised(state: Path) -> list[str]:
    """The codes of what a state file holds as raised."""
    return [code for code, _, _, _, _, shown, _ in json.loads(state.read_bytes())["lives"] if shown]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk(kind: str, start: Start, tmp_path: Path) -> None:
    """The disk has no room for another state: the audit goes on, one warning, a metric, the old state whole; with
    room again it is saved at the next scan, and holds what was raised in the meantime."""
    with mounted(kind, tmp_path) as disk:
        daemon = start(disk)
        daemon.pass_scans(4)  # by then what it found at the start is saved
        daemon.shows(LAST_WRITE, 1.0)
        before = daemon.state.read_bytes()
        assert len(before) > BLOCK, "it would fit into what is left"
        filler = fill(disk)
        series = narrow(daemon.tree)
        daemon.shows(LAST_WRITE, 0.0)
        daemon.pass_scans(4)
        since = daemon.value(series)
        assert since
        report = json.loads(get(f"{daemon.url}/api/v1/report") or "")
        assert "pcie-width-degraded" in {finding["code"] for finding in report["findings"]}
        assert get(f"{daemon.url}/healthz") == "ok\n"
        assert len(daemon.logged("No space left on device")) == 1
        assert (daemon.state.read_bytes(), states(disk)) == (before, ["state.json"])
        filler.unlink()
        daemon.shows(LAST_WRITE, 1.0)
        assert len(daemon.logged("state.json")) == 2, "one line that it cannot, one that it can again"
        assert "pcie-width-degraded" in raised(daemon.state)
        daemon.stop(signal.SIGKILL)
        again = start(disk)
        again.pass_scans(1)
        assert (again.value(series), again.logged("pcie-width-degraded"), again.logged("state.json")) == (since, [], [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_read_only_state_directory(kind: str, start: Start, tmp_path: Path) -> None:
    """The file system turns read-only: the audit goes on with one warning. A daemon that starts on it knows its past,
    and saves as soon as it can."""
    with mounted(kind, tmp_path) as disk:
        daemon = start(disk)
        series = narrow(daemon.tree)
        until(lambda: daemon.state.exists() and "pcie-width-degraded" in raised(daemon.state), WAIT, "saved")
        since, before = daemon.value(series), daemon.state.read_bytes()
        remount(disk, "ro")
        daemon.tree.port(5, up=False)
        port_down = 'gputopo_finding{code="port-down",severity="critical",subject="mlx5_5/1"}'
        daemon.shows(port_down, 1.0)
        daemon.shows(LAST_WRITE, 0.0)
        daemon.pass_scans(3)
        assert len(daemon.logged("Read-only file system")) == 1
        daemon.stop(signal.SIGTERM)
        assert len(daemon.logged("state.json")) == 1
        assert daemon.state.read_bytes() == before
        again = start(disk)
        again.shows(port_down, 1.0)
        again.shows(LAST_WRITE, 0.0)
        again.pass_scans(2)
        assert again.value(series) == since
        assert len(again.logged("state.json")) == len(again.logged("Read-only file system")) == 1
        remount(disk, "rw")
        again.shows(LAST_WRITE, 1.0)
        assert {"pcie-width-degraded", "port-down"} <= set(raised(again.state))


def test_a_damaged_state_that_cannot_be_set_aside(start: Start, tmp_path: Path) -> None:
    """On a read-only disk a damaged state stays where it is: said once, and the daemon starts without a past."""
    with mounted("tmpfs", tmp_path) as disk:
        (disk / "state.json").write_text('{"format": 1, "boot_id"')
        remount(disk, "ro")
        daemon = start(disk)
        daemon.shows(LAST_WRITE, 0.0)
        daemon.pass_scans(2)
        assert len(daemon.logged("is damaged")) == len(daemon.logged("cannot be written")) == 1


# --- kill -9 --------------------------------------------------------------------------------------------------------

# Forks a process that saves one state after another, kills it at a random moment, and loads what it left.
KILLER = """
import json, os, random, signal, sys, time
from gpu_topo.agent.history import History
from gpu_topo.agent.state import State, StateFile

def state(n):
    return State(History(downs_total={f"mlx5_{i}/1": n for i in range(2000)}))

def save_for_ever(folder, wire):
    file = StateFile(folder, "boot", print)
    n = file.load(1.0).history.downs_total.get("mlx5_0/1", 0)
    while True:
        n += 1
        file.save(state(n))
        os.write(wire, b"%8d" % n)

folder, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
halves, wrong, last = 0, [], 0
for _ in range(rounds):
    ears, mouth = os.pipe()
    pid = os.fork()
    if pid == 0:
        save_for_ever(folder, mouth)
    os.close(mouth)
    os.read(ears, 8)  # it is under way
    time.sleep(chance.random() * 0.02)  # a moment that nobody chose is what this is about
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told = b""
    while data := os.read(ears, 65536):
        told += data
    os.close(ears)
    saved = int(told[-8:]) if told else None
    halves += any(name.endswith(".new") for name in os.listdir(folder))
    trouble = []
    found = StateFile(folder, "boot", trouble.append).load(1.0)
    n = found.history.downs_total.get("mlx5_0/1", 0)
    if trouble or found != state(n) or (saved is not None and n not in (saved, saved + 1)) or n < last:
        wrong.append([saved, n, last, trouble])
    last = n
    if os.listdir(folder) != ["state.json"]:
        wrong.append(os.listdir(folder))
print(json.dumps({"halves": halves, "wrong": wrong, "last": last}))
"""


@pytest.mark.slow
def test_killed_at_any_moment_of_a_write(tmp_path: Path) -> None:
    """Two hundred times kill -9 while one state after another is written: what is there is the last that was saved, or
    the one after it, whole; half-written files never take its place and are swept away."""
    seed = random.randrange(1 << 30)
    command = [sys.executable, "-c", KILLER, str(tmp_path), "200", str(seed)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert told["wrong"] == [], seed
    assert told["last"] >= 200
    assert told["halves"] > 0, "no kill fell into a write"


@pytest.mark.slow
def test_a_daemon_that_is_killed_again_and_again(start: Start, tmp_path: Path) -> None:
    """kill -9 of the whole daemon at random moments, while findings come and go: each next one reads its past."""
    folder = tmp_path / "state"
    folder.mkdir()
    chance = random.Random(5)
    for number in range(5):
        daemon = start(folder)
        for width in (8, 16, 4):
            daemon.tree.link(daemon.tree.gpus[number], width=width)
            daemon.send(signal.SIGHUP)
            daemon.pass_scans(1)
        end = chance.random() * 2
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert daemon._running is not None
            daemon._running.wait(end)
        daemon.stop(signal.SIGKILL)
        assert daemon.logged("state.json") == []
        assert daemon.logged("failed") == []
    assert json.loads((folder / "state.json").read_bytes())["format"] == 1


# --- reads that hang ------------------------------------------------------------------------------------------------


def test_a_read_that_returns_while_descriptors_are_given_back(tmp_path: Path) -> None:
    """What a scan left behind goes on reading while the next one begins anew: neither breaks the other."""
    for name in ("a", "b", "c"):
        (tmp_path / "sys" / name).mkdir(parents=True)
    source = Kept(str(tmp_path))
    source.begin()

    class Straggler(KeptDir):
        def release(self) -> None:
            super().release()
            source.dir("/sys/c")

    for name in ("a", "b"):
        assert not isinstance(source.dir(f"/sys/{name}"), Refusal)
    fd = source.open_dir("/sys/a")
    assert isinstance(fd, int)
    source._dirs["/sys/first"] = Straggler(source, "/sys/a", fd)
    source._dirs = dict(reversed(source._dirs.items()))
    source.forget()
    source.begin()
    assert list(source._dirs) == ["/sys/c"]
    source.close()


@pytest.mark.slow
def test_a_device_that_answers_again(start: Start, tmp_path: Path) -> None:
    """A device did not answer when the daemon first looked: once it does, without an event, nothing of that is kept."""
    tree = Hgx(tmp_path / "machine", nvswitches=False, config=True)
    gpu = tree.gpus[2]
    revive = tree.die(gpu)
    daemon = start(tmp_path, tree)
    lost = f'gputopo_finding{{code="pcie-device-lost",severity="critical",subject="{gpu}"}}'
    daemon.shows(lost, 1.0)
    assert daemon.value(f'gputopo_pcie_link_width{{address="{gpu}"}}') is None
    revive()
    daemon.pass_scans(3)  # the one under way, and two that see it
    assert daemon.value(lost) is None
    for name in ("width", "expected_width"):
        assert daemon.value(f'gputopo_pcie_link_{name}{{address="{gpu}"}}') == 16


# --- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [86400.0, -86400.0, 3.0])
def test_the_clock_is_set_while_the_daemon_is_down(jump: float, start: Start, tmp_path: Path) -> None:
    """What began an hour before the stop began an hour before the start, whatever the wall clock says by then."""
    tree = Hgx(tmp_path / "other")
    narrow(tree)
    source, settings, key = Live(str(tree.root)), Settings(boot_grace=0.0), ("pcie-width-degraded", tree.gpus[1])
    boot, wall = boot_clock(), 2_000_000_000.25
    seen = look(source, settings, Memory(), clock=lambda: boot, wall=lambda: wall)
    assert seen.memory.lives[key].since == wall
    offset = seen.memory.clock_offset
    assert offset is not None
    file = StateFile(str(tmp_path), "boot", pytest.fail)
    file.save(State(seen.memory.history, seen.memory.lives, round(offset)))
    kept = file.load(boot + 60)
    memory = Memory(kept.history, kept.lives, kept.clock_offset)
    after = look(source, settings, memory, clock=lambda: boot + 60, wall=lambda: wall + 60 + jump)
    moved = jump if abs(jump) > 5 else 0.0  # less is drift, not a setting
    assert after.memory.lives[key].since == pytest.approx(wall + moved, abs=0.5)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_is_damage(tmp_path: Path, number: str) -> None:
    """What Python's JSON takes for a number and JSON does not is a damaged file like any other."""
    told: list[str] = []
    file = StateFile(str(tmp_path), "boot", told.append)
    file.save(State(lives={("a", "b"): Life(1e9, 3, 0, CRITICAL, CRITICAL)}))
    path = tmp_path / "state.json"
    path.write_text(path.read_text().replace('"held"', number).replace(",3,0,", f",{number},0,"))
    assert file.load(100.0) == State()
    assert len(told) == 1 and "is damaged" in told[0]
