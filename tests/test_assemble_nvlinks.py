"""NVLinks of lists, of counts and of recordings that end early; and recordings that are read twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.assemble.nvlinks import completed
from gpu_topo.classifier import classify
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.finding import Finding
from gpu_topo.model.gpu import ACTIVE, COUNTED, CUT_SHORT, INACTIVE, DriverGpu, NvLink
from gpu_topo.model.node import Node
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known

H100 = "NVIDIA H100 80GB HBM3"


def status(numbers: range, down: tuple[int, int] | None = None, model: str = H100, links: int = 18) -> str:
    """`nvidia-smi nvlink -s` of those GPUs; down: a GPU and its link that is not up."""
    lines = []
    for gpu in numbers:
        lines.append(f"GPU {gpu}: {model} (UUID: GPU-00000000-0000-0000-0000-{gpu:012d})")
        lines += [f"\t Link {n}: {'<inactive>' if (gpu, n) == down else '26.562 GB/s'}" for n in range(links)]
    return "\n".join(lines) + "\n"


def read(*paths: Path) -> Node:
    """The machine in those recordings, in that order."""
    return assemble([fact for found in read_inputs([str(path) for path in paths]) for fact in found.facts])


def findings(node: Node) -> tuple[Finding, ...]:
    return tuple(classify(node).findings)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a text to a file."""

    def write(text: str) -> Path:
        path = tmp_path / "nvlink-s.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_reading_a_recording_twice_changes_nothing(corpus: Path) -> None:
    """The same output twice is the same machine: its findings and open questions stay."""
    read_ones = 0
    for path in sorted(corpus.glob("*/*")):
        if path.suffix not in (".txt", ".xml"):
            continue
        (found,) = read_inputs([str(path)])
        if not found.facts:
            continue
        once, twice = (classify(assemble(found.facts * times)) for times in (1, 2))
        assert once == twice, path
        read_ones += 1
    assert read_ones > 50


@pytest.mark.parametrize("order", ["sx", "xs", "sxx", "xsx", "xxs"])
def test_a_count_never_overrules_a_list(order: str, corpus: Path, write: Callable[[str], Path]) -> None:
    """Before or behind NCCL's XML, once or twice: the link that is printed as inactive is down."""
    paths = {"s": write(status(range(8), down=(3, 7))), "x": corpus / "x08-oci-h100" / "topo.xml"}
    node = read(*(paths[name] for name in order))
    found = [finding for finding in findings(node) if finding.code == "nvlink-inactive"]
    assert [finding.summary.partition(" has ")[2] for finding in found] == ["17 of 18 NVLinks up (down: 7)"]
    assert [len(known(gpu.nvlinks) or ()) for gpu in node.gpus] == [18] * 8
    assert {link.remote_kind for gpu in node.gpus for link in known(gpu.nvlinks) or () if link.state == ACTIVE} == {
        "nvswitch"
    }


def test_a_count_fills_in_what_no_list_says() -> None:
    """Of a GPU of which nothing else tells, the count is all; of a list of errors, states and ends are its own."""
    counted = (NvLink(0, ACTIVE, remote_kind="gpu", remote="b"), NvLink(1, ACTIVE, remote_kind="gpu", remote="c"))
    assert completed(None, counted) == counted
    assert completed(Unknown(NOT_RECORDED, "x"), counted) == counted
    assert completed((), counted) == ()
    errors = (NvLink(4, errors={"replay": 1}), NvLink(5, errors={"replay": 2}))
    assert completed(errors, counted) == (
        NvLink(4, ACTIVE, remote_kind="gpu", remote="b", errors={"replay": 1}),
        NvLink(5, ACTIVE, remote_kind="gpu", remote="c", errors={"replay": 2}),
    )


def test_ends_that_differ_are_dealt_only_where_the_numbers_agree() -> None:
    """With one of three links down, which of two ends it had is not known."""
    ends = [("gpu", "b"), ("gpu", "c"), ("gpu", "c")]
    counted = tuple(NvLink(n, ACTIVE, remote_kind=kind, remote=end) for n, (kind, end) in enumerate(ends))
    up = (NvLink(0, ACTIVE), NvLink(1, ACTIVE), NvLink(2, INACTIVE))
    found = known(completed(up, counted)) or ()
    assert [(link.state, link.remote_kind, link.remote) for link in found] == [
        (ACTIVE, "gpu", None),
        (ACTIVE, "gpu", None),
        (INACTIVE, "unknown", None),
    ]
    told = (NvLink(0, ACTIVE, remote="d"), NvLink(1, ACTIVE), NvLink(2, ACTIVE))
    assert [link.remote for link in known(completed(told, counted)) or ()] == ["d", None, None]


def test_a_jobs_index_does_not_overrule_the_drivers() -> None:
    """NCCL numbers the GPUs that a job sees, in its own order."""
    job = Facts(
        SourceStatus("NCCL XML", OK),
        gpus=(DriverGpu("0000:65:00.0", 1, nvlinks_are=COUNTED), DriverGpu("0000:66:00.0", 0, nvlinks_are=COUNTED)),
        structure_only=True,
    )
    driver = Facts(SourceStatus("q", OK), gpus=(DriverGpu("0000:65:00.0", 0), DriverGpu("0000:66:00.0", 1)))
    listed = Facts(SourceStatus("s", OK), gpus=(DriverGpu(None, 0, nvlinks=(NvLink(0, ACTIVE),)), DriverGpu(None, 1)))
    for order in permutations((job, driver, listed)):
        gpus = assemble(order).gpus
        assert [(gpu.ordinal, gpu.address) for gpu in gpus] == [(0, "0000:65:00.0"), (1, "0000:66:00.0")]
        assert known(gpus[0].nvlinks) == (NvLink(0, ACTIVE),)


@pytest.mark.parametrize("cut", [1, 5, 15, 60, 200, 300, 390])
def test_links_that_a_cut_recording_does_not_hold_are_unknown(cut: int, write: Callable[[str], Path]) -> None:
    """Wherever the text of a last GPU ends, none of its links is down."""
    for whole in (status(range(8)), status(range(1))):
        node = read(write(whole[:-cut]))
        assert [f for f in findings(node) if f.severity != "info"] == []
        assert len(known(node.gpus[-1].nvlinks) or range(18)) == 18


def test_a_link_that_a_cut_recording_prints_as_down_is_down(write: Callable[[str], Path]) -> None:
    """The end of the recording takes back nothing of what is in it."""
    node = read(write(status(range(8), down=(7, 2))[:-100]))
    assert [finding.code for finding in findings(node)] == ["nvlink-inactive"]


def test_a_middle_gpu_with_fewer_links_is_a_fact(write: Callable[[str], Path]) -> None:
    """What follows it shows that its list is whole."""
    text = status(range(3)) + status(range(3, 4), links=17) + status(range(4, 8))
    assert [finding.subject for finding in findings(read(write(text)))] == ["GPU3"]


def test_one_whole_list_settles_it() -> None:
    """Of two looks at a GPU, one of which is cut short, the whole one counts."""
    whole = tuple(NvLink(n, ACTIVE) for n in range(18))
    looks = [
        Facts(SourceStatus("s", OK), gpus=(DriverGpu("0000:65:00.0", 0, model=H100, nvlinks=links, nvlinks_are=are),))
        for links, are in ((whole, "listed"), (whole[:7], CUT_SHORT))
    ]
    for order in permutations(looks):
        assert known(assemble(order).gpus[0].nvlinks) == whole
    assert assemble(looks[1:]).gpus[0].nvlinks == Unknown(
        NOT_RECORDED, "nvidia-smi nvlink: the recording ends before the last link"
    )
