"""The bench: every goal of cost in one run, each line with its goal, its value, and met or MISSED.

Only ratios travel between machines, so each is taken between programs that run in turn on the same tree. A few goals
are milliseconds or MiB by their nature. A program that is not here is said to be missing, and its lines are left out.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import daemon
from bench.install import installed
from bench.line import Line
from bench.measure import Job, interleaved, number, ratio, run

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
ROOM = 3 << 30  # bytes that the trees take, each of their 320,000 files a page


class Tree(NamedTuple):
    """A tree of the bench, and what an audit of it may cost over lspci -vvv."""

    name: str
    words: str
    copies: int
    virtual_functions: int
    over_lspci: float


TREES = (
    Tree("x1", "200 functions", 1, 0, 1.5),
    Tree("x5", "1,000 functions", 5, 0, 0.6),
    Tree("x25", "5,000 functions", 25, 0, 0.4),
    Tree("vf", "200 + 1,000 virtual functions", 1, 100, 0.4),
)


def main() -> int:
    """Run the bench. A missed goal is printed and changes nothing else: a noisy machine is no failure."""
    parser = argparse.ArgumentParser(prog="bench", description="Print what gpu-topo costs, beside what it is held to.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each measurement (default 7)")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the trees there, and use the ones that are")
    parser.add_argument(
        "--node-exporter",
        metavar="PROGRAM",
        help="compare the daemon with this one (default: the one on PATH; the collector pcidevice came with 1.10)",
    )
    given = parser.parse_args()
    programs = installed(PROJECT, PROJECT / ".benchmarks" / "venv")
    folder = given.keep or Path(tempfile.mkdtemp(prefix="gpu-topo-bench-", dir=_roomy()))
    try:
        print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, trees in {folder}, {given.rounds} rounds\n")
        for line in results(programs, folder, given.rounds, given.node_exporter):
            print(line, flush=True)
    finally:
        if given.keep is None:
            shutil.rmtree(folder)
    return 0


def _roomy() -> str | None:
    """Where the trees go: memory, where there is enough of it."""
    shm = "/dev/shm"
    if os.path.isdir(shm) and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > ROOM:
        return shm
    return None


def results(programs: Path, folder: Path, rounds: int, node_exporter: str | None) -> Iterator[Line]:
    """All lines, each as soon as it is known."""
    for tree in TREES:
        grow(tree, folder / tree.name)
    yield from whole_process(programs, folder, rounds)
    yield from in_process(programs, folder, rounds)
    yield start(programs, rounds)
    yield from nvml(programs, folder, rounds)
    yield from daemon.lines(programs, folder / "x1", rounds, node_exporter)


def grow(tree: Tree, root: Path) -> None:
    """Put a tree on disk, in a process of its own so that this one stays small."""
    if root.exists():
        return
    root.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.trees", str(root), str(tree.copies), str(tree.virtual_functions)]
    subprocess.run(command, cwd=PROJECT, check=True)


def whole_process(programs: Path, folder: Path, rounds: int) -> Iterator[Line]:
    """`inspect --json` from start to end beside lspci, and its peak memory."""
    inspect = [str(programs / "gpu-topo"), "inspect", "--json", "--root"]
    have_lspci = shutil.which("lspci") is not None
    peak = 0.0
    for tree in TREES:
        root = str(folder / tree.name)
        lspci = ["lspci", "-vvv", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci"]
        jobs: dict[str, Job] = {"ours": partial(cpu, [*inspect, root])}
        if have_lspci:
            jobs["lspci"] = partial(cpu, lspci)
        found = interleaved(jobs, rounds)
        what = f"inspect --json over lspci -vvv, {tree.words}"
        if have_lspci:
            note = f"{median(found['ours']) * 1000:.0f} ms over {median(found['lspci']) * 1000:.0f} ms"
            yield Line(what, ratio(found["ours"], found["lspci"]), tree.over_lspci, note=note)
        else:
            yield Line(what, None, tree.over_lspci, note="no lspci")
        peak = max(peak, run([*inspect, root]).peak)
    yield Line("peak memory of inspect --json, 5,000 functions", peak, 60, " MiB")


def in_process(programs: Path, folder: Path, rounds: int) -> Iterator[Line]:
    """Reading, model and findings beside the C floor, and how they grow."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    floor = folder / "floor"
    if compiler:
        subprocess.run([compiler, "-O2", "-o", str(floor), str(HERE / "floor.c")], check=True)
    took: dict[str, float] = {}
    for tree in TREES:
        root = str(folder / tree.name)
        ours = [str(programs / "python"), "-I", str(HERE / "inside.py"), "audit", root]
        jobs: dict[str, Job] = {"ours": partial(number, ours)}
        if compiler:
            jobs["floor"] = partial(number, [str(floor), f"{root}/sys/bus/pci/devices"])
        found = interleaved(jobs, rounds)
        took[tree.name] = median(found["ours"])
        what = f"read + model + findings over the C floor, {tree.words}"
        if compiler:
            note = f"{took[tree.name]:.1f} ms over {median(found['floor']):.1f} ms"
            yield Line(what, ratio(found["ours"], found["floor"]), 2.0, note=note)
        else:
            yield Line(what, None, 2.0, note="no C compiler")
    yield Line("scaling exponent, 200 to 5,000 functions", math.log(took["x25"] / took["x1"], 25), 1.1)


def cpu(command: list[str]) -> float:
    """CPU seconds of one run."""
    return run(command).cpu


def start(programs: Path, rounds: int) -> Line:
    """`gpu-topo --version` beside an interpreter that does nothing."""
    bare, version = [str(programs / "python"), "-c", "pass"], [str(programs / "gpu-topo"), "--version"]
    found = interleaved({"ours": partial(cpu, version), "bare": partial(cpu, bare)}, 3 * rounds)
    note = f"{median(found['ours']) * 1000:.1f} ms over {median(found['bare']) * 1000:.1f} ms"
    return Line("gpu-topo --version over python -c pass", ratio(found["ours"], found["bare"]), 2.5, note=note)


def nvml(programs: Path, folder: Path, rounds: int) -> Iterator[Line]:
    """All questions to a fake NVML of eight GPUs with 18 links each, and none to a machine without a driver."""
    inside = [str(programs / "python"), "-I", str(HERE / "inside.py")]
    what = "NVML, 8 GPUs with 18 links each, all questions"
    try:
        from tests.fakenvml import Machine, build, states

        machine = Machine(build(folder / "fakenvml"), folder, states.hgx_h100())
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        yield Line(what, None, 150, " ms", f"no fake library ({error})")
    else:
        environment = {**os.environ, **machine.environment}
        asked = [number([*inside, "nvml"], environment) for _ in range(rounds)]
        yield Line(what, median(asked), 150, " ms")
    what = "NVML on a machine without a driver"
    if os.path.exists("/proc/driver/nvidia"):
        yield Line(what, None, 3, " ms", "this machine has a driver")
    else:
        yield Line(what, median(number([*inside, "no-driver"]) for _ in range(rounds)), 3, " ms")


if __name__ == "__main__":
    sys.exit(main())
