"""lspci and trees on disk as witnesses of the PCIe collector, on a synthetic node and on every recorded tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_topo.model.pci import Function
from gpu_topo.model.reading import known
from gpu_topo.source import Live
from gpu_topo.topology.buses import place
from tests import trees
from tests.trees import GEN4, Machine, by_address

needs_lspci = pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci (pciutils) is not installed")


class Said(NamedTuple):
    """What lspci says of one function."""

    width: int | None
    speed: float | None
    most_width: int | None
    bridges: tuple[str, ...]  # above it, root first
    acs: frozenset[str] | None


def lspci(root: Path, *flags: str) -> str:
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci", "-D", "-n", *flags]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    return run.stdout


def ask_lspci(root: Path) -> dict[str, Said]:
    """Every function with link and bridges above, by the simplest reading of lspci's own words."""
    above: dict[str, tuple[str, ...]] = {}
    for line in lspci(root, "-PP").splitlines():
        domain, _, rest = line.split(" ", 1)[0].partition(":")
        steps = [f"{domain}:{step}" for step in rest.split("/")]
        above[steps[-1]] = tuple(steps[:-1])
    found = {}
    for block in lspci(root, "-vvv").split("\n\n"):
        address = block.split(" ", 1)[0].strip()
        status = re.search(r"LnkSta:\s*Speed ([\d.]+)GT/s.*?, Width x(\d+)", block)
        capability = re.search(r"LnkCap:.*?Width x(\d+)", block)
        control = re.search(r"ACSCtl:\s*(.*)", block)
        if not address:
            continue
        # Without configuration space lspci cannot know which bus a bridge leads to.
        found[address] = Said(
            int(status[2]) if status else None,
            float(status[1]) if status else None,
            int(capability[1]) if capability else None,
            above.get(address, ()),
            frozenset(re.findall(r"(\w+)\+", control[1])) if control else None,
        )
    return found


def recorded_trees(corpus: Path) -> Iterator[Path]:
    yield from sorted((*corpus.glob("*/tree.tar.gz"), *corpus.glob("*/sysfs-rebuilt.tar.gz")))


def compare(root: Path, functions: Mapping[str, Function]) -> tuple[int, list[str]]:
    """How many values agree, and which do not."""
    agree, differ = 0, []
    listed = ask_lspci(root)
    for address, said in listed.items():
        function = functions.get(address)
        if function is None:
            differ.append(f"{address} is not there")
            continue
        link = function.link
        # A bridge that the recording names and does not hold is nothing that lspci could know.
        above = tuple(step for step in bridges_above(functions, address) if step in listed)
        ours: dict[str, object] = {"above": above} if said.bridges else {}
        theirs: dict[str, object] = {"above": said.bridges}
        if link is not None and function.answers is not False:
            ours |= {"width": known(link.width), "speed": known(link.speed_gts), "most": known(link.max_width)}
            theirs |= {"width": said.width or None, "speed": said.speed, "most": said.most_width or None}
        if isinstance(function.acs, frozenset) and function.answers is not False:
            ours["acs"], theirs["acs"] = function.acs, said.acs
        for what, value in ours.items():
            if value is None or theirs[what] is None:
                continue
            agree += value == theirs[what]
            if value != theirs[what]:
                differ.append(f"{address} {what}: {value}, lspci says {theirs[what]}")
    return agree, differ


def bridges_above(functions: Mapping[str, Function], address: str) -> tuple[str, ...]:
    steps: list[str] = []
    parent = known(functions[address].parent)
    while parent is not None:
        steps.insert(0, parent)
        parent = known(functions[parent].parent)
    return tuple(steps)


@needs_lspci
def test_lspci_agrees_on_a_synthetic_node(tmp_path: Path) -> None:
    """On a tree of switches, sockets and conventional bridges lspci finds the same links and bridges."""
    machine = Machine(config=True, numa=2)
    for bus, numa in ((0x00, 0), (0x40, 1), (0x80, 1)):
        host = machine.host(bus, numa=numa)
        switch = machine.switch(machine.root_port(host))
        machine.gpu(machine.down(switch), link=(GEN4, 8))
        inner = machine.switch(machine.down(switch))
        machine.nic(machine.down(inner))
        machine.nvme(machine.down(inner), link=(GEN4, 2))
        trees.display(machine, host)
    root = machine.write(tmp_path)
    agree, differ = compare(root, by_address(trees.collect(Live(str(root)))))
    assert differ == []
    assert agree > 60


@needs_lspci
@pytest.mark.slow
def test_lspci_agrees_on_every_recorded_tree(corpus: Path, tmp_path: Path) -> None:
    """Width, speed, ACS and bridges above of every function with configuration space are those that lspci reads."""
    agree, differ = 0, []
    for path in recorded_trees(corpus):
        root = tmp_path / path.parent.name
        with tarfile.open(path) as tar:
            tar.extractall(root, filter="tar")
        functions = {f.address: f for f in place(trees.collect(Live(str(root))).functions)}
        same, other = compare(root, functions)
        agree += same
        differ += [f"{path.parent.name} {what}" for what in other]
    assert "\n".join(differ) == ""
    assert agree > 700


def test_live_trees_answer_like_trees_in_memory(tmp_path: Path) -> None:
    """A tree on disk gives the same facts as the same tree in memory."""
    machine = Machine(config=True)
    switch = machine.switch(machine.root_port(machine.host()))
    machine.nic(machine.down(switch))
    machine.slot("7", machine.gpu(machine.down(switch)))
    root = machine.write(tmp_path)
    assert trees.collect(Live(str(root))).functions == machine.facts().functions
