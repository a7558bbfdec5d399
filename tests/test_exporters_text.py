"""exporters/text.py: the report for a person at a terminal."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from gpu_topo.exporters import text
from gpu_topo.exporters.text import render, shell_lines
from gpu_topo.model.finding import CAUSE_BY_DESIGN, CAUSE_DENIED, CAUSE_NO_REFERENCE, Acceptance, Report, Unassessed
from gpu_topo.model.gpu import NvLink
from gpu_topo.model.host import Port
from gpu_topo.model.node import GPU, Gpu, Node
from gpu_topo.model.structure import GpuPlacement, Near, Placement, Setting
from tests import build

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\n"] + ["\u202e", "\u200f"]


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement that does not change with its advice, so that these tests are about the rendering alone."""

    def placement(node: Node, roles: object) -> Placement:
        cpus = ("0-55,112-167", "56-111,168-223")
        rows = tuple(
            GpuPlacement(gpu.address, i // 4, cpus[i // 4], (Near(str(node.ports[i].address), "", "PIX", 63.0),))
            for i, gpu in enumerate(node.gpus)
        )
        line = "export NCCL_IB_HCA=" + ",".join(port.device for port in node.ports)
        return Placement(rows, 1.0, 50.0, (Setting(line, "the fabric ports"),), "Good for groups of 8 inside NVLink.")

    monkeypatch.setattr(text, "placement", placement)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.usefixtures("placed")
def test_whole_report(width: int, expected: Callable[[str, str], None]) -> None:
    """A report with something in each of its parts, as expected to the letter."""
    expected(f"text-{width}.txt", render(build.faulty_report(), width))


@pytest.mark.parametrize("width", [40, 60, 80, 81, 120, 200, 250])
@pytest.mark.parametrize("make", [build.faulty_report, build.hostile_report])
def test_never_wider(width: int, make: Callable[[], Report]) -> None:
    """No line is longer than the width, whatever the names are."""
    assert max(cell_len(line) for line in render(make(), width).splitlines()) <= width


def test_worst_first() -> None:
    """Critical findings come before warnings, warnings before what is only worth knowing."""
    shown = render(build.faulty_report())
    codes = ("pcie-width-degraded", "nvlink-inactive", "pcie-speed-degraded", "pcie-uplink-oversubscribed")
    places = [shown.index(code) for code in codes]
    assert places == sorted(places)
    assert shown.startswith("CRITICAL  node7: 2 critical, 1 warning, 4 info\n")


def test_finding_is_complete() -> None:
    """A finding tells what, evidence, cost, impact, remedy and a command; the tree marks its hop."""
    shown = render(build.faulty_report(), 120)
    for piece in (
        "GPU0 runs at Gen5 x8, both ends can do Gen5 x16",
        "width 8 (expected 16), speed 32 GT/s",
        "31.5 GB/s in each direction",
        "1. Reseat the card.",
        "lspci -vvs 0000:13:00.0 | grep LnkSta:",
        "Gen5 x8   31.5 of 63.0  ◀ 1",
        "NVLink: 17 of 18 active, 425 GB/s",
        "not cabled (ops, until 2027-01-01)",
    ):
        assert piece in shown


def test_healthy_machine_in_two_lines() -> None:
    """A healthy machine takes two lines: what was checked, and what could not be."""
    device = build.device("0000:01:00.0", GPU, "GeForce", link=build.link())
    node = build.node([device], gpus=(Gpu("0000:01:00.0"),))
    unassessed = [Unassessed("acs-blocks-p2p", "node", "for root only", CAUSE_DENIED)]
    lines = render(build.report(node, [], unassessed)).splitlines()
    assert len(lines) == 2
    assert "1 PCIe link of 1 GPU checked, nothing wrong" in lines[0]
    assert "acs-blocks-p2p (denied)" in lines[1]


@pytest.mark.parametrize("width", [60, 80])
def test_healthy_line_fits(width: int) -> None:
    """The healthy node's first line is shortened rather than wrapped, however long its name is."""
    node = build.eight_gpus()
    node = node._replace(platform=node.platform._replace(hostname="gpu-node-0123.cluster.example.org"))
    lines = render(build.report(node), width).splitlines()
    assert lines[0].startswith("OK  gpu-node-0123")
    assert lines[1].strip() == "everything that applies here could be judged"


def test_links_of_unknown_state_are_not_checked() -> None:
    """NVLinks of which nobody knows the state do not count among what was checked."""
    node = build.eight_gpus()
    hidden = tuple(NvLink(number) for number in range(18))
    node = node._replace(gpus=tuple(gpu._replace(nvlinks=hidden, mig=True) for gpu in node.gpus))
    assert "NVLinks" not in render(build.report(node)).splitlines()[0]


def test_ports_without_devices_are_something() -> None:
    """ibstat names ports and no devices: the line does not say that there is no NIC."""
    ports = (Port("mlx5_0", 1, state="ACTIVE"), Port("mlx5_1", 1, state="ACTIVE"))
    names = [f"{port.device}/1" for port in ports]
    unassessed = [Unassessed("port-rate-degraded", name, "no equal board", CAUSE_NO_REFERENCE) for name in names]
    line = render(build.report(Node(ports=ports), [], unassessed)).splitlines()[0]
    assert line == "OK  this machine: 2 RDMA ports found, none judged"


def test_what_could_not_be_judged_was_not_checked() -> None:
    """A link or port that was read and could not be judged does not count among what was checked."""
    node = build.eight_gpus()
    unassessed = [Unassessed("pcie-width-degraded", gpu.address, "C2C", CAUSE_BY_DESIGN) for gpu in node.gpus]
    unassessed += [Unassessed("port-rate-degraded", "mlx5_0/1", "no equal board", CAUSE_NO_REFERENCE)]
    whole, less = (render(build.report(node, [], more), 200).splitlines()[0] for more in ([], unassessed))
    links = int(whole.split(" PCIe links")[0].split()[-1])
    assert f"{links - 8} PCIe links" in less
    assert "8 ports" in whole
    assert "7 ports" in less


def test_same_reason_is_one_line() -> None:
    """What could not be judged for one reason is one entry, however many devices it is about."""
    shown = render(build.faulty_report())
    assert "GPU0-GPU7: pcie-errors" in shown
    assert shown.count("AER counters are not readable here") == 1


def test_same_fault_is_one_entry() -> None:
    """Eight GPUs with one fault and one remedy are one entry that names each of them once."""
    node = build.eight_gpus()
    findings = [build.finding(subject=gpu.address, lost_gbs=31.5) for gpu in node.gpus]
    shown = render(build.report(node, findings), 100)
    assert "1  CRITICAL  pcie-width-degraded  GPU0-GPU7" in shown
    assert shown.count("1. Reseat the card.") == 1
    assert "252 GB/s in each direction" in shown


def test_accepted_is_apart() -> None:
    """An accepted finding does not count and stands at the end, with its reason."""
    accepted = build.finding(accepted=Acceptance("ops", "riser"))
    assert "riser (ops)" in render(build.report(build.eight_gpus(), [accepted]))
    unsigned = build.finding(accepted=Acceptance("", "riser", "2030-12-31"))
    assert "riser (until 2030-12-31)" in render(build.report(build.eight_gpus(), [unsigned]))
    shown = render(build.report(build.eight_gpus(), [accepted]))
    assert shown.startswith("OK")
    assert "Accepted as designed (1 finding)" in shown
    assert "riser (ops)" in shown


def test_no_colour_unless_asked() -> None:
    """Without colour there is no escape sequence; with it, the words are the same."""
    plain, coloured = render(build.faulty_report()), render(build.faulty_report(), color=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured


@pytest.mark.parametrize("width", [40, 80, 200])
def test_controls_never_reach_the_terminal(width: int) -> None:
    """Names and reasons from a recording are printed with their control characters spelled out."""
    shown = render(build.hostile_report(), width)
    assert not [character for character in CONTROLS if character in shown]
    coloured = render(build.hostile_report(), width, color=True)
    assert "\x1b[31mred" not in coloured


def test_ascii() -> None:
    """Where the encoding has no more than ASCII, lines and marks are drawn with it."""
    shown = render(build.faulty_report(), ascii_only=True)
    assert shown.isascii()
    assert "`- 0000:13:00.0" in shown
    assert "<< 1" in shown


def test_nothing_known() -> None:
    """A node of which nothing is known gives a report all the same."""
    assert render(build.report(Node(), verdict="unknown")).startswith("UNKNOWN")


@pytest.mark.parametrize("width", [20, 40, 80])
def test_shell_lines_join_again(width: int) -> None:
    """A long line for a shell is broken so that the shell reads what was meant."""
    line = "export NCCL_IB_HCA=" + ",".join(f"mlx5_{i}:1" for i in range(16))
    pieces = shell_lines(line, width)
    assert max(len(piece) for piece in pieces) <= width
    assert "".join(piece.removesuffix("\\") for piece in pieces) == line


COMMENTED = "numactl --cpunodebind=0 --membind=0 COMMAND  # local rank 0"


@pytest.mark.parametrize("width", range(40, 80, 3))
@pytest.mark.parametrize("line", ["# the '=' inside the quotes keeps mlx5_1 from meaning mlx5_10 too", COMMENTED])
def test_comments_stay_comments(line: str, width: int) -> None:
    """Pasted into a shell, no word of a comment becomes a command, and the command loses none of its own."""
    pieces = shell_lines(line, width)
    assert all(len(piece) <= width for piece in pieces)
    pasted = "\n".join(pieces).replace("\\\n", "").splitlines()
    commands = [piece.partition("#")[0].split() for piece in pasted]
    assert [words for words in commands if words] == [words for words in [line.partition("#")[0].split()] if words]
    said = " ".join(piece.partition("# ")[2] for piece in pasted).split()
    assert said == line.partition("# ")[2].split()


def test_what_is_pasted_runs(tmp_path: Path) -> None:
    """The block of the placement, from a narrow terminal, is a script in which only its commands run."""
    block = render(build.report(build.eight_gpus()), width=44).partition("Placement")[2]
    script = "\n".join(line for line in block.splitlines() if not line.startswith(" "))
    run = subprocess.run(
        ["sh", "-eu", "-c", f"numactl() {{ :; }}\n{script}"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "export" in script
    assert (run.returncode, run.stderr) == (0, "")
