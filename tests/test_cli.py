"""The command line: exit statuses, one line for whatever a user got wrong, and nothing but the report on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_topo import __version__
from gpu_topo.agent import cli
from gpu_topo.classifier import RULES
from tests.commands import Run, degraded, gpu_topo, healthy, one_line, process, warned
from tests.trees import Machine

__all__ = ["degraded", "gpu_topo", "healthy", "warned"]  # fixtures


CODES = [rule.code for rule in RULES]


# --- exit status -----------------------------------------------------------------------------------------------------


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


# --- selecting rules -------------------------------------------------------------------------------------------------


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
    assert gpu_topo("inspect", "--root", healthy, "--expect", "gpus=8", "--expect", "nics=1").status == 2
    for wrong in ("gpus", "gpus=", "gpus=x", "gpus=-1", "gpu=8", "=8", "", ",", "gpus=1,gpus=2"):
        assert one_line(gpu_topo("inspect", "--root", healthy, "--expect", wrong)), wrong


# --- output ----------------------------------------------------------------------------------------------------------


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
    assert ran.returncode == 2


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


# --- help and wrong usage --------------------------------------------------------------------------------------------


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
    ran = gpu_topo()
    assert (ran.status, ran.out) == (3, "")
    assert ran.err == cli.help_text()


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
        ("inspect", "--root", ""),
        ("inspect", "--example", "--baseline", ""),
        ("inspect", "--example", "--config.file", ""),
        ("inspect", "--example", "--output", ""),
        ("inspect", "--example", "--only", "pcie-errors", "--skip", "pcie-errors"),
        ("inspect", "--example", *(word for code in CODES for word in ("--skip", code))),
        ("baseline", "diff", "--timeout", "nan"),
        ("baseline", "diff", "--file", ""),
        ("baseline", "accept", "pcie-errors", "*", "--reason", "x", "--until", "", "--file", "/missing/baseline.json"),
        ("rules", "no-such-rule"),
        ("matrix", "--format", "svg"),
    ],
)
def test_wrong_usage(gpu_topo: Run, arguments: Sequence[str]) -> None:
    """Wrong usage is one line with a hint, and exit status 3."""
    assert one_line(gpu_topo(*arguments))


HOSTILE = "\x1b[31mx\ny\u202e\x9b"


@pytest.mark.parametrize(
    "arguments",
    [
        (HOSTILE,),
        ("inspect", f"--{HOSTILE}"),
        ("inspect", "--root", HOSTILE),
        ("inspect", "--only", HOSTILE),
        ("inspect", "--expect", HOSTILE),
        ("inspect", "--expect", f"{HOSTILE}=1,{HOSTILE}=2"),
        ("inspect", "--format", HOSTILE),
        ("inspect", "--timeout", HOSTILE),
        ("inspect", "--config.file", HOSTILE),
        ("inspect", "--example", "--baseline", HOSTILE),
        ("inspect", "--example", "--output", f"/missing/{HOSTILE}"),
        ("inspect", f"/missing/{HOSTILE}"),
        ("textfile", "--output", HOSTILE),
        ("baseline", "diff", HOSTILE),
        ("config", HOSTILE),
        ("rules", HOSTILE),
    ],
)
def test_what_is_quoted_cannot_speak_to_the_terminal(gpu_topo: Run, arguments: Sequence[str]) -> None:
    """Whatever a message quotes, it is one line of printable characters."""
    assert one_line(ran := gpu_topo(*arguments))
    assert ran.err.removesuffix("\n").isprintable()


def test_command_that_was_meant(gpu_topo: Run) -> None:
    """A misspelt command gets the one that was meant."""
    assert "inspect" in gpu_topo("inpsect").err


@pytest.mark.parametrize("code", CODES)
def test_rules_explain_themselves(gpu_topo: Run, code: str) -> None:
    """Every rule has its page."""
    ran = gpu_topo("rules", code)
    assert (ran.status, ran.err) == (0, "")
    assert code in ran.out
