"""The bench: its trees are sound, its floor reads them, and its lines say what they mean. Nothing here is timed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.line import Line
from bench.measure import interleaved, number, ratio, run
from bench.trees import build
from gpu_topo.agent.inspect import audit
from gpu_topo.source import Live, Tree
from tests.fakenvml import compiler


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest tree of the bench, with one virtual function a NIC, on disk."""
    root = tmp_path_factory.mktemp("tree")
    build(virtual_functions=1).write(root)
    return root


def test_a_tree_has_as_many_functions_as_it_says() -> None:
    """200 in each domain, virtual functions besides."""
    assert build(2).functions == 400
    assert build(1, 3).functions == 230


def test_a_tree_is_a_healthy_machine() -> None:
    """The audit reads every value and finds no degraded link or port."""
    machine = build()
    report = audit(_in_memory(machine.files, machine.links, machine.folders))
    assert len(report.node.devices) == 200
    assert not report.node.unread
    assert not [f for f in report.findings if "degraded" in f.code]


def test_a_degraded_tree_is_seen() -> None:
    """The slow GPU, the port that is down and the slow NVSwitch are findings."""
    machine = build(degraded=True)
    report = audit(_in_memory(machine.files, machine.links, machine.folders))
    codes = {(f.code, f.subject) for f in report.findings}
    assert ("pcie-width-degraded", "0000:4a:00.0") in codes
    assert "port-down" in {code for code, _ in codes}
    assert ("pcie-speed-degraded", "0000:dc:00.0") in codes


def _in_memory(files: dict[str, bytes], links: dict[str, str], folders: list[str]) -> Tree:
    return Tree({**files, **links}, folders=folders)


def test_on_disk_as_in_memory(tree: Path) -> None:
    """The written tree is audited like the one in memory."""
    machine = build(virtual_functions=1)
    here = audit(_in_memory(machine.files, machine.links, machine.folders))
    there = audit(Live(str(tree)))
    assert there.node.devices == here.node.devices
    assert there.findings == here.findings


def test_lspci_reads_the_tree_without_complaint(tree: Path) -> None:
    """Every configuration space decodes to its end."""
    if shutil.which("lspci") is None:
        pytest.skip("no lspci")
    command = ["lspci", "-vvv", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("\n\n") == 210
    assert "LnkSta:\tSpeed 32GT/s, Width x16" in text
    assert "<chain looped>" not in text
    assert "<chain broken>" not in text


def test_the_floor_reads_the_tree(tree: Path, tmp_path: Path) -> None:
    """The C program compiles without a warning and prints one number."""
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    floor = tmp_path / "floor"
    subprocess.run(
        [cc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(floor), str(bench.HERE / "floor.c")], check=True
    )
    assert number([str(floor), f"{tree}/sys/bus/pci/devices"]) > 0


@pytest.mark.parametrize("what", ["audit", "cold", "warm"])
def test_the_part_that_runs_inside_prints_a_number(tree: Path, what: str) -> None:
    """It measures whatever gpu-topo its interpreter has."""
    assert number([sys.executable, str(bench.HERE / "inside.py"), what, str(tree)]) > 0


# What an audit does without: each takes as long to load as dozens of functions to read. What brought one in, shows
# `python -X importtime`.
HEAVY = (
    *("argparse", "collections", "contextlib", "ctypes", "dataclasses", "enum", "functools", "gettext", "importlib"),
    *("json", "locale", "logging", "math", "operator", "pathlib", "re", "rich", "shutil", "socket", "subprocess"),
    *("threading", "types", "typing", "warnings"),
)


def test_an_audit_loads_little(tree: Path) -> None:
    """`inspect --json` of an ordinary machine starts without any of the standard library's heavier modules."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpu_topo.agent.cli import main\n"
        "main(['inspect', '--json', '--root', sys.argv[2]])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    # Without site: what the .pth files of an environment import is not ours.
    command = [sys.executable, "-I", "-S", "-c", code, str(bench.PROJECT), str(tree)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=False).stderr.split()
    assert "gpu_topo.exporters.json" in loaded
    assert [name for name in loaded if name in HEAVY] == []


def test_jobs_take_turns() -> None:
    """Each job runs once a round, in order, and the ratio is the median of the rounds'."""
    order: list[str] = []

    def job(name: str, values: list[float]) -> float:
        order.append(name)
        return values.pop(0)

    ours, theirs = [3.0, 8.0, 4.0], [1.0, 2.0, 1.0]
    found = interleaved({"ours": lambda: job("ours", ours), "theirs": lambda: job("theirs", theirs)}, 3)
    assert order == ["ours", "theirs"] * 3
    assert ratio(found["ours"], found["theirs"]) == 4.0


def test_a_run_has_a_cost() -> None:
    """CPU time and peak memory of a process; one that is killed is an error and no result."""
    cost = run([sys.executable, "-c", "pass"])
    assert cost.cpu > 0
    assert 1 < cost.peak < 1000
    with pytest.raises(RuntimeError, match="SIGTERM"):
        run([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"])


def test_a_line_says_whether_the_goal_is_met() -> None:
    """met, MISSED, or why there is no value: a miss is not hidden."""
    assert "met" in str(Line("x", 1.5, 1.5))
    assert "MISSED" in str(Line("x", 1.51, 1.5))
    assert "not measured: no lspci" in str(Line("x", None, 1.5, note="no lspci"))
