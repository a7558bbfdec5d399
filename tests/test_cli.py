"""The command line: exit statuses, one line for whatever a user got wrong, and nothing but the report on stdout."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_topo import __version__
from gpu_topo.agent import cli
from gpu_topo.agent.inspect import conclude
from gpu_topo.agent.scan import scan
from gpu_topo.classifier import RULES
from gpu_topo.collectors import Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.source import Source
from tests import trees
from tests.trees import GEN4, GEN5, Machine

CODES = [rule.code for rule in RULES]


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def gpu_topo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; standard output is no terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("GPU_TOPO_CONFIG", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        said = capsys.readouterr()
        return Ran(status, said.out, said.err)

    return run


def process(*arguments: object, stdin: bytes | None = None, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a command as a process of its own."""
    command = [sys.executable, "-m", "gpu_topo.agent", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    environment.pop("NO_COLOR", None)
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=environment, check=False)


def server(width: int = 16, nic_speed: float = GEN5) -> Machine:
    """A server of which a GPU's lanes and a NIC's speed may be degraded."""
    machine = Machine()
    host = machine.host(0x10)
    machine.gpu(machine.root_port(host), trees.L40S, link=(GEN4, width), most=(GEN4, 16))
    machine.nic(machine.root_port(host), link=(nic_speed, 16))
    return machine


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return server().write(tmp_path / "healthy")


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    return server(nic_speed=GEN4).write(tmp_path / "warned")


@pytest.fixture
def degraded(tmp_path: Path) -> Path:
    return server(width=8).write(tmp_path / "degraded")


# --- exit status -----------------------------------------------------------------------------------------------


def test_status_of_each_verdict(gpu_topo: Run, healthy: Path, warned: Path, degraded: Path) -> None:
    """0 nothing, 1 a warning, 2 critical, as monitoring plug-ins have it."""
    assert gpu_topo("inspect", "--root", healthy).status == 0
    assert gpu_topo("inspect", "--root", warned).status == 1
    assert gpu_topo("inspect", "--root", degraded).status == 2


@pytest.mark.parametrize(
    ("fail_on", "statuses"), [("warning", (0, 1, 2)), ("critical", (0, 0, 2)), ("never", (0, 0, 0))]
)
def test_fail_on(
    gpu_topo: Run, healthy: Path, warned: Path, degraded: Path, fail_on: str, statuses: tuple[int, int, int]
) -> None:
    """--fail-on moves the threshold of the exit status, and not the verdict."""
    found = [
        gpu_topo("inspect", "--root", root, "--json", "--fail-on", fail_on) for root in (healthy, warned, degraded)
    ]
    assert tuple(ran.status for ran in found) == statuses
    assert [json.loads(ran.out)["verdict"] for ran in found] == ["ok", "warning", "critical"]


def test_no_accelerator(gpu_topo: Run, tmp_path: Path) -> None:
    """A machine without any accelerator is ok, and the report says that there is none."""
    machine = Machine()
    machine.nic(machine.root_port(machine.host()))
    ran = gpu_topo("inspect", "--root", machine.write(tmp_path))
    assert ran.status == 0
    assert "no accelerator" in ran.out.lower() or "no gpu" in ran.out.lower()


def test_nothing_assessed(gpu_topo: Run, tmp_path: Path) -> None:
    """An accelerator that no rule could judge is unknown: 0, or 3 with --require-assessed."""
    listing = tmp_path / "lspci-nn.txt"
    listing.write_text("65:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n")
    ran = gpu_topo("inspect", listing, "--json")
    assert (ran.status, json.loads(ran.out)["verdict"]) == (0, "unknown")
    assert gpu_topo("inspect", listing, "--require-assessed").status == 3


# --- selecting rules -------------------------------------------------------------------------------------------


def test_only_and_skip(gpu_topo: Run, degraded: Path) -> None:
    """--only leaves one rule, --skip leaves one out; both may be repeated."""

    def codes(*flags: str) -> set[str]:
        report = json.loads(gpu_topo("inspect", "--root", degraded, "--json", *flags).out)
        return {item["code"] for item in (*report["findings"], *report["unassessed"])}

    assert codes("--only", "pcie-width-degraded") == {"pcie-width-degraded"}
    assert "pcie-width-degraded" not in codes("--skip", "pcie-width-degraded")
    assert codes("--only", "pcie-width-degraded", "--only", "pcie-slot-limited") <= {
        "pcie-width-degraded",
        "pcie-slot-limited",
    }
    assert gpu_topo("inspect", "--root", degraded, "--skip", "pcie-width-degraded").status == 0


def test_rules_left_out_are_told(gpu_topo: Run, healthy: Path, degraded: Path) -> None:
    """A report by some rules says so, and is no all-clear for the links that no rule looked at."""
    report = json.loads(gpu_topo("inspect", "--root", degraded, "--json", "--only", "numa-unknown").out)
    assert report["verdict"] == "unknown"
    assert report["notes"] == [f"Only 1 of {len(CODES)} rules judged: numa-unknown."]
    assert gpu_topo("inspect", "--root", degraded, "--only", "numa-unknown", "--require-assessed").status == 3
    skipped = gpu_topo("inspect", "--root", healthy, "--skip", "numa-unknown")
    assert f"{len(CODES) - 1} of {len(CODES)} rules judged; left out: numa-unknown." in skipped.out
    assert "rules judged" not in gpu_topo("inspect", "--root", healthy).out


@pytest.mark.parametrize("flag", ["--only", "--skip"])
def test_unknown_code(gpu_topo: Run, healthy: Path, flag: str) -> None:
    """A rule that does not exist is wrong usage, with the one that was meant."""
    ran = gpu_topo("inspect", "--root", healthy, flag, "pcie-width-degrade")
    assert one_line(ran)
    assert ran.err.startswith(f"gpu-topo: {flag} names no rule 'pcie-width-degrade'; did you mean")


def test_expect(gpu_topo: Run, healthy: Path) -> None:
    """Fewer than expected is critical; as many is not; nonsense is wrong usage."""
    assert gpu_topo("inspect", "--root", healthy, "--expect", "gpus=1,nics=1").status == 0
    assert gpu_topo("inspect", "--root", healthy, "--expect", "gpus=8").status == 2
    for wrong in ("gpus", "gpus=", "gpus=x", "gpus=-1", "gpu=8", "=8"):
        assert one_line(gpu_topo("inspect", "--root", healthy, "--expect", wrong)), wrong


# --- output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html", "svg", "prometheus"])
def test_output_file(gpu_topo: Run, degraded: Path, tmp_path: Path, form: str) -> None:
    """--output writes the same report to a file, and nothing to standard output."""
    target = tmp_path / "report"
    ran = gpu_topo("inspect", "--root", degraded, "--format", form, "--output", target)
    assert (ran.status, ran.out, ran.err) == (2, "", "")
    assert target.stat().st_size > 200
    assert [path.name for path in tmp_path.glob("report*")] == ["report"]


def test_output_that_cannot_be_written(gpu_topo: Run, healthy: Path, tmp_path: Path) -> None:
    """A folder that is not there is one line, and no report is half written."""
    assert one_line(gpu_topo("inspect", "--root", healthy, "--output", tmp_path / "missing" / "report.json"))
    assert one_line(gpu_topo("inspect", "--root", healthy, "--output", tmp_path))


def test_no_colour_when_piped(gpu_topo: Run, degraded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No escape sequence reaches a pipe unless it is asked for; NO_COLOR and --color never hold everywhere."""
    assert "\x1b" not in gpu_topo("inspect", "--root", degraded).out
    assert "\x1b" in gpu_topo("inspect", "--root", degraded, "--color", "always").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in gpu_topo("inspect", "--root", degraded).out
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in gpu_topo("inspect", "--root", degraded, "--color", "never").out


def test_reader_that_leaves(degraded: Path) -> None:
    """`| head` ends the report quietly: no traceback, no message."""
    command = [sys.executable, "-m", "gpu_topo.agent", "inspect", "--root", str(degraded), "--json", "--all"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    near, far = os.pipe()
    os.close(near)  # the reader is gone before the first byte
    try:
        ran = subprocess.run(command, stdout=far, stderr=subprocess.PIPE, timeout=60, env=environment, check=False)
    finally:
        os.close(far)
    assert ran.stderr == b""
    assert ran.returncode in (0, 2)


def test_closed_output(degraded: Path, tmp_path: Path) -> None:
    """With standard output closed the report has nowhere to go, unless it goes to a file."""
    command = f"{sys.executable} -m gpu_topo.agent inspect --root {degraded} --json"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}

    def shell(line: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(line, shell=True, stderr=subprocess.PIPE, timeout=60, env=environment, check=False)

    ran = shell(f"{command} >&-")
    assert ran.returncode == 3
    assert ran.stderr.splitlines() == [b"gpu-topo: standard output: cannot be written: Bad file descriptor"]
    file = tmp_path / "report.json"
    ran = shell(f"{command} --output {file} >&-")
    assert (ran.returncode, ran.stderr) == (2, b"")
    assert json.loads(file.read_text())["verdict"] == "critical"


def test_full_disk(degraded: Path) -> None:
    """A report that cannot be written is one line and exit status 3, never a silent success."""
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is not on this machine")
    command = [sys.executable, "-m", "gpu_topo.agent", "inspect", "--root", str(degraded), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, env=environment, check=False)
    assert ran.returncode == 3
    assert len(ran.stderr.splitlines()) == 1


# --- help ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS])
def test_help_of_every_command(gpu_topo: Run, command: str) -> None:
    """--help of every command exits with 0 and is on standard output."""
    ran = gpu_topo(command, "--help")
    assert ran.status == 0
    assert ran.err == ""
    assert f"gpu-topo {command}" in ran.out


def test_help(gpu_topo: Run) -> None:
    """--help names every command and gives examples; without arguments it is wrong usage."""
    ran = gpu_topo("--help")
    assert ran.status == 0
    assert "examples:" in ran.out
    assert all(command.name in ran.out for command in cli.COMMANDS)
    assert "examples:" in gpu_topo("inspect", "--help").out
    assert gpu_topo().status == 3


def test_capture_names_its_version(gpu_topo: Run, healthy: Path) -> None:
    """The first line of a capture says which version recorded it, and whether identities were replaced."""
    first = json.loads(gpu_topo("capture", "--root", healthy, "-").out.splitlines()[0])
    assert first == {"format": "gpu-topo/capture/1", "version": __version__, "redacted": True}


def test_version() -> None:
    """--version is one line."""
    ran = process("--version")
    assert (ran.returncode, ran.stdout.decode()) == (0, f"gpu-topo {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("inpsect",),
        ("inspect", "--jsn"),
        ("inspect", "--format", "yaml"),
        ("inspect", "--timeout", "never"),
        ("inspect", "--timeout", "0"),
        ("inspect", "--timeout", "nan"),
        ("inspect", "--samples", "0"),
        ("inspect", "--fail-on", "info"),
        ("inspect", "--root"),
        ("inspect", "--config.file", "/missing/gpu-topo.toml"),
        ("inspect", "--baseline", "/missing/baseline.json"),
        ("rules", "no-such-rule"),
        ("matrix", "--format", "svg"),
    ],
)
def test_wrong_usage(gpu_topo: Run, arguments: Sequence[str]) -> None:
    """Wrong usage is one line with a hint, and exit status 3."""
    assert one_line(gpu_topo(*arguments))


def test_command_that_was_meant(gpu_topo: Run) -> None:
    """A misspelt command gets the one that was meant."""
    assert "inspect" in gpu_topo("inpsect").err


@pytest.mark.parametrize("code", CODES)
def test_rules_explain_themselves(gpu_topo: Run, code: str) -> None:
    """Every rule has its page."""
    ran = gpu_topo("rules", code)
    assert (ran.status, ran.err) == (0, "")
    assert code in ran.out


# --- bad input -------------------------------------------------------------------------------------------------


def one_line(ran: Ran) -> bool:
    """Whether a command ended with exit status 3, one line on standard error and nothing on standard output."""
    assert ran.status == 3, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("gpu-topo")
    return True


def jpeg(folder: Path) -> Path:
    path = folder / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)) * 64 + b"\xff\xd9")
    return path


def empty(folder: Path) -> Path:
    path = folder / "empty.txt"
    path.touch()
    return path


def truncated(folder: Path) -> Path:
    path = folder / "cut.log.gz"
    path.write_bytes(gzip.compress(os.urandom(50_000))[:20_000])
    return path


def huge(folder: Path) -> Path:
    path = folder / "huge.img"
    with open(path, "wb") as out:
        out.truncate(2 << 30)
    return path


def bomb(folder: Path) -> Path:
    """A small archive that claims a file of gigabytes."""
    path = folder / "bomb.tar.gz"
    with gzip.open(path, "wb", 1) as out:
        info = tarfile.TarInfo("sys/bus/pci/devices/0000:00:00.0/config")
        info.size = 1 << 30
        out.write(info.tobuf())
        for _ in range(256):
            out.write(bytes(1 << 20))
    return path


def bare_names(folder: Path) -> Path:
    """A tree of empty folders: addresses, and nothing of what hangs there."""
    path = folder / "names.tar"
    with tarfile.open(path, "w") as out:
        for number in range(32):
            member = tarfile.TarInfo(f"sys/bus/pci/devices/0000:{number:02x}:00.0")
            member.type = tarfile.DIRTYPE
            out.addfile(member)
    return path


def many(folder: Path) -> Path:
    """An archive with a great many members."""
    path = folder / "members.tar"
    header = tarfile.TarInfo("x").tobuf()
    with open(path, "wb") as out:
        out.writelines(header for _ in range(200_000))
    return path


def foreign_capture(folder: Path) -> Path:
    path = folder / "capture.json"
    path.write_text('{"format": "gpu-topo/capture/99", "version": "9"}\n')
    return path


def prose(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("The node was fine yesterday.\n" * 100)
    return path


def folder_without_machine(folder: Path) -> Path:
    path = folder / "folder"
    path.mkdir()
    return path


BAD = (jpeg, empty, truncated, huge, bomb, bare_names, many, foreign_capture, prose, folder_without_machine)


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_bad_file(gpu_topo: Run, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """One line that names the file, no traceback, exit status 3; quickly, whatever its size."""
    path = make(tmp_path)
    begun = time.monotonic()
    ran = gpu_topo("inspect", path)
    assert ran.status == 3
    assert ran.out == ""
    assert path.name in ran.err
    assert "Traceback" not in ran.err
    # The file is named in one line, and one more says that nothing is left to inspect.
    assert len(ran.err.splitlines()) <= 2, ran.err
    assert all(line.startswith("gpu-topo") for line in ran.err.splitlines())
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_other_files_are_still_read(gpu_topo: Run, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """A file that is not understood is named; the others are read and reported."""
    good = tmp_path / "lspci.txt"
    good.write_text(LSPCI)
    bad = make(tmp_path)
    ran = gpu_topo("inspect", bad, good, "--json")
    assert ran.status in (0, 1, 2)
    assert [device["address"] for device in json.loads(ran.out)["devices"] if device["kind"] == "gpu"] == [
        "0000:65:00.0"
    ]
    assert bad.name in ran.err
    assert len(ran.err.splitlines()) == 1


LSPCI = """\
64:00.0 PCI bridge: Intel Corporation Sky Lake-E PCI Express Root Port A (rev 04) (prog-if 00 [Normal decode])
\tBus: primary=64, secondary=65, subordinate=65, sec-latency=0
\tCapabilities: [90] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #5, Speed 8GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)

65:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] (rev a1)
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)
"""


def test_missing_file_and_root(gpu_topo: Run, tmp_path: Path) -> None:
    """What is not there is named."""
    for arguments in (("--root", tmp_path / "none"), (tmp_path / "none.txt",), ("--root", empty(tmp_path))):
        ran = gpu_topo("inspect", *arguments)
        assert ran.status == 3
        assert "none" in ran.err or "empty" in ran.err
        assert len(ran.err.splitlines()) <= 2


def test_root_without_pci(gpu_topo: Run, tmp_path: Path) -> None:
    """A tree in which no source can be read could not be inspected."""
    (tmp_path / "sys").mkdir()
    assert one_line(gpu_topo("inspect", "--root", tmp_path))


def test_root_and_file(gpu_topo: Run, healthy: Path, tmp_path: Path) -> None:
    """A tree and recordings are two machines."""
    assert one_line(gpu_topo("inspect", "--root", healthy, jpeg(tmp_path)))


def test_standard_input() -> None:
    """- reads standard input; nothing on it is one line."""
    ran = process("inspect", "-", "--json", stdin=LSPCI.encode())
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["verdict"] == "critical"
    ran = process("inspect", "-", stdin=b"")
    assert ran.returncode == 3
    assert b"Traceback" not in ran.stderr


def test_names_of_files_do_not_reach_the_terminal(gpu_topo: Run, tmp_path: Path) -> None:
    """A file whose name holds escape sequences and line breaks is named in one harmless line."""
    path = tmp_path / "a\x1b[31m\nb"
    path.write_bytes(b"\xff\xd8\xff")
    ran = gpu_topo("inspect", path)
    assert ran.status == 3
    assert "\x1b" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_hostile_tree_gives_no_traceback(gpu_topo: Run, tmp_path: Path) -> None:
    """A tree of nonsense, FIFOs and links that lead in circles or out of it is read like any other."""
    root = server(8).write(tmp_path / "tree")
    devices = root / trees.DEVICES[1:]
    folder = root / "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0"
    os.mkfifo(folder / "aer_dev_correctable")
    (folder / "driver").unlink()
    (folder / "driver").symlink_to("/etc")
    (devices / "0000:ff:1f.7").symlink_to("0000:ff:1f.7")
    (devices / "\x1b[31m").symlink_to("../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0")
    (devices / "not an address").write_text("nonsense")
    begun = time.monotonic()
    ran = gpu_topo("inspect", "--root", root)
    assert ran.status in (1, 2)
    assert "\x1b" not in ran.out + ran.err
    assert time.monotonic() - begun < 10


# --- sources that hang -----------------------------------------------------------------------------------------


class Hanging(Collector):
    """A source whose read never comes back."""

    def collect(self, source: Source, context: Context) -> Facts:
        gate = io.open(os.pipe()[0], "rb")  # noqa: UP020, SIM115  a pipe that nobody writes to
        gate.read()
        raise AssertionError


class Broken(Collector):
    """A source with a bug."""

    def collect(self, source: Source, context: Context) -> Facts:
        raise RuntimeError("a bug")


@pytest.mark.parametrize("position", [0, 1])
def test_source_that_hangs(position: int) -> None:
    """The report comes within the timeout, with what the hang does not touch, and names the source."""
    working = Collector("pcie", "gpu_topo.collectors.pcie")
    collectors = [working]
    collectors.insert(position, Hanging("stuck", ""))
    begun = time.monotonic()
    facts = scan(server(8).tree(), 1.0, collectors=collectors)
    assert time.monotonic() - begun < 2.0
    assert facts[position].source.name == "stuck"
    assert facts[position].source.status == "timeout"
    report = conclude(facts)
    assert [f.code for f in report.findings if f.severity == "critical"] == ["pcie-width-degraded"]


def test_several_sources_that_hang() -> None:
    """However many hang, the others get their turn and the whole stays within the timeout."""
    collectors = [Hanging(f"stuck{n}", "") for n in range(3)]
    collectors.append(Collector("pcie", "gpu_topo.collectors.pcie"))  # type: ignore[arg-type]
    begun = time.monotonic()
    facts = scan(server(8).tree(), 1.0, collectors=collectors)
    assert time.monotonic() - begun < 2.0
    assert [fact.source.status for fact in facts] == ["timeout"] * 3 + ["ok"]


def test_bug_is_a_traceback() -> None:
    """A bug in a source is not hidden behind a user's error."""
    with pytest.raises(RuntimeError, match="a bug"):
        scan(server().tree(), 1.0, collectors=[Broken("broken", "")])
