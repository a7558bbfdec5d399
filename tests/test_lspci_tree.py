"""The drawn tree: addresses and parents, against lspci itself and however the drawing was pasted."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_topo.collectors.readers import lspci
from gpu_topo.collectors.readers.lspci_tree import begins, read
from gpu_topo.model.pci import Function

DRAWING = r"""-+-[10000:e0]-+-06.0-[e1]----00.0  Samsung Electronics Co Ltd NVMe SSD Controller PM9A1/PM9A3/980PRO
 +-[0000:80]-+-00.0  Intel Corporation Device 09a2
 |           \-01.0-[81-85]----00.0-[82-85]--+-00.0-[83]----00.0  NVIDIA Corporation GA100 [A100 SXM4 40GB]
 |                                           +-01.0-[84]--+-00.0  Mellanox Technologies MT28908 Family [ConnectX-6]
 |                                           |            \-00.1  Mellanox Technologies MT28908 Family [ConnectX-6]
 |                                           \-1f.0-[85]--
 \-[0000:00]-+-00.0  Intel Corporation Device [8086:09a2]
             \-1f.2  Intel Corporation C620 Series Chipset Family Power Management Controller
"""


def drawn(text: str) -> dict[str, Function]:
    (facts,) = read(text.split("\n"), "test")
    assert facts.structure_only
    return {function.address: function for function in facts.functions}


def test_parents_follow_the_drawing() -> None:
    """Every function hangs below the bridge that its bus is drawn behind, and root buses below their host bridge."""
    tree = drawn(DRAWING)
    assert {address: function.parent for address, function in tree.items()} == {
        "10000:e0:06.0": None,
        "10000:e1:00.0": "10000:e0:06.0",
        "0000:80:00.0": None,
        "0000:80:01.0": None,
        "0000:81:00.0": "0000:80:01.0",
        "0000:82:00.0": "0000:81:00.0",
        "0000:82:01.0": "0000:81:00.0",
        "0000:82:1f.0": "0000:81:00.0",
        "0000:83:00.0": "0000:82:00.0",
        "0000:84:00.0": "0000:82:01.0",
        "0000:84:00.1": "0000:82:01.0",
        "0000:00:00.0": None,
        "0000:00:1f.2": None,
    }
    assert tree["0000:83:00.0"].name == "NVIDIA Corporation GA100 [A100 SXM4 40GB]"
    assert tree["0000:83:00.0"].vendor_id == 0x10DE
    assert tree["0000:83:00.0"].host_bridge == "pci0000:80"
    assert (tree["0000:81:00.0"].secondary_bus, tree["0000:81:00.0"].subordinate_bus) == (0x82, 0x85)
    assert tree["0000:82:1f.0"].bridge
    assert not tree["0000:84:00.0"].bridge
    assert tree["0000:00:00.0"].device_id == 0x09A2


@pytest.mark.parametrize(
    "paste",
    [
        lambda text: "".join(f"    {line}\n" for line in text.split("\n")),
        lambda text: "".join(f"> {line}\n" for line in text.split("\n")),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: f"$ lspci -tv\n{text}\nThat is all there is.\n",
        lambda text: text.translate(str.maketrans("|", "│")).replace("\\-", "└─").replace(" +-", " ├─"),
        lambda text: text.rstrip() + "\r\n",
    ],
)
def test_however_it_was_pasted(paste: Callable[[str], str]) -> None:
    """Indented, quoted, doubled lines, prose around, box drawings: the same tree."""
    assert drawn(paste(DRAWING)) == drawn(DRAWING)


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_lines_that_a_terminal_has_cut(columns: int) -> None:
    """A narrow terminal breaks long lines; parents and addresses survive where the break is no ambiguous blank."""
    cut = [line[at : at + columns] for line in DRAWING.split("\n") for at in range(0, max(len(line), 1), columns)]
    whole = drawn(DRAWING)
    for address, function in drawn("\n".join(cut)).items():
        assert function.parent == whole[address].parent


def test_one_root_bus_and_no_domain() -> None:
    """A single root bus is drawn without the bar, and very old editions print no domain."""
    assert set(drawn("-[0000:00]-+-00.0\n           \\-1c.0-[01]----00.0\n")) == {
        "0000:00:00.0",
        "0000:00:1c.0",
        "0000:01:00.0",
    }
    assert drawn("-[00]---01.0-[01]----00.0\n")["0000:01:00.0"].parent == "0000:00:01.0"


def test_the_first_line_is_known() -> None:
    """Only the first line of a tree begins one."""
    first, *others = DRAWING.rstrip().split("\n")
    assert begins(first)
    assert not any(begins(line) for line in others)
    assert not begins("- [ ] a task")
    assert not begins("-[a list]-")


def test_two_drawings_are_two_samples() -> None:
    """A file may hold several."""
    assert len(read((DRAWING + DRAWING).split("\n"), "test")) == 2


def test_a_bridge_never_leads_to_its_own_or_a_lower_bus() -> None:
    """Damage cannot make a loop of parents."""
    tree = drawn("-[0000:05]---00.0-[05]----00.0-[03]----00.0\n")
    assert set(tree) == {"0000:05:00.0"}


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_agrees_with_bus_numbers_of_every_recorded_tree(corpus: Path, tmp_path: Path) -> None:
    """lspci -tv and lspci -vvv of one machine lead to the same functions below the same parents."""
    compared = 0
    for archive in sorted(corpus.glob("m0*/sysfs-rebuilt.tar.gz")):
        root = tmp_path / archive.parent.name
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="tar")
        command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci"]
        printed = [
            subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout.split("\n")
            for options in (["-tvnn"], ["-vvvnn"])
        ]
        (tree,), (text,) = read(printed[0], "tree"), lspci.read(printed[1], "text")
        by_text = {function.address: function for function in text.functions}
        assert set(by_text) == {function.address for function in tree.functions}
        for function in tree.functions:
            other = by_text[function.address]
            assert function.parent == other.parent
            assert function.host_bridge == other.host_bridge
            if function.device_id is not None:
                assert function.device_id == other.device_id
            compared += 1
    assert compared > 300


@settings(max_examples=200)
@given(st.data())
def test_damaged_drawings_are_read_without_an_exception(data: st.DataObject) -> None:
    """Characters replaced, removed, doubled, lines cut: no exception, and parents that exist."""
    text = DRAWING
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 40)))
        text = text[:at] + data.draw(st.text(alphabet=" -+|\\[]:.0123456789abcdef\n\t", max_size=8)) + text[end:]
    for facts in read(text.split("\n"), "test"):
        addresses = {function.address for function in facts.functions}
        assert all(function.parent is None or function.parent in addresses for function in facts.functions)


@pytest.mark.parametrize(
    "text",
    [
        "-[0000:00]-" + "-" * 1_000_000,
        "-[0000:00]---" + "00.0-[01]----" * 80_000,
        "-[0000:00]-+-00.0\n" + " " * 11 + "|" * 500_000,
        "-[0000:00]-+-00.0\n" * 50_000,
        "-[0000:00]-+-00.0\n" + "x" * 18 + ("\n" + "x" * 18) * 100_000,
    ],
)
def test_hostile_drawings_take_linear_time(text: str) -> None:
    """Megabytes of one line, or of lines that look cut, end soon."""
    before = time.process_time()
    read(text.split("\n"), "test")
    assert time.process_time() - before < 10
