"""nvidia-smi nvlink and -L: links, their other ends, their errors, and what is said instead of links."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_nvlink import READER, read
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import CUT_SHORT, LISTED, NvLink
from gpu_topo.model.reading import Reading, Unknown


def recorded(path: Path) -> list[str]:
    return [clean(line) for line in path.read_text(encoding="utf-8").splitlines()]


def one(text: str) -> Facts:
    (sample,) = read(text.splitlines(), "test")
    return sample


def links(nvlinks: Reading[tuple[NvLink, ...]]) -> tuple[NvLink, ...]:
    assert nvlinks is not None
    assert not isinstance(nvlinks, Unknown)
    return nvlinks


def test_eight_gpus(corpus: Path) -> None:
    """Eight A100 with twelve links each, as the recording counts them."""
    lines = recorded(corpus / "l02-a100-azure-nvlinks-ok" / "nvlink-s.txt")
    (sample,) = read(lines, "l02")
    assert [gpu.ordinal for gpu in sample.gpus] == list(range(8))
    assert sum(len(links(gpu.nvlinks)) for gpu in sample.gpus) == sum("GB/s" in line for line in lines) == 96
    assert {link.state for gpu in sample.gpus for link in links(gpu.nvlinks)} == {"active"}
    assert {link.gbs for gpu in sample.gpus for link in links(gpu.nvlinks)} == {25.0}
    assert len({gpu.uuid for gpu in sample.gpus}) == 8
    assert sample.driver
    assert sample.driver.lists_all


def test_all_links_inactive(corpus: Path) -> None:
    """ "All links are inactive" does not tell their number: no link, and a reason."""
    (gpu,) = read(recorded(corpus / "l03-azure-nhc-bad-nvlink" / "nvlink-s.txt"), "l03")[0].gpus
    assert (gpu.ordinal, gpu.model) == (6, "NVIDIA A100-SXM4-80GB")
    assert gpu.nvlinks == ()
    assert gpu.unknowns["nvlink"] == "all links are inactive"
    (sample,) = read(recorded(corpus / "l03-azure-nhc-bad-nvlink" / "nvlink-s-good.txt"), "l03")
    assert [link.number for link in links(sample.gpus[0].nvlinks)] == list(range(12))
    assert sample.driver
    assert not sample.driver.lists_all


def test_list_and_links_of_one_machine(corpus: Path) -> None:
    """-L and nvlink -s of one H200 are one sample with line rates as printed."""
    (sample,) = read(recorded(corpus / "c01-h200-vm-idle-load" / "capture.txt"), "c01")
    (gpu,) = sample.gpus
    assert {link.gbs for link in links(gpu.nvlinks)} == {26.562}
    assert len(links(gpu.nvlinks)) == 18


def test_mig(corpus: Path) -> None:
    """Under MIG the links are unknown, neither absent nor inactive, and the partitions are counted."""
    (gpu,) = read(recorded(corpus / "c04-h200-mig" / "capture.txt"), "c04")[0].gpus
    assert gpu.mig is True
    assert gpu.partitions == 5
    assert isinstance(gpu.nvlinks, Unknown)


@pytest.mark.parametrize("name", ["c05-l40s", "c06-rtx4080s-gen1-idle-gen4-load"])
def test_no_nvlink(corpus: Path, name: str) -> None:
    """A card without NVLink has no links, and nothing is unknown."""
    (gpu,) = read(recorded(corpus / name / "capture.txt"), name)[0].gpus
    assert gpu.nvlinks == ()
    assert gpu.unknowns == {}


def test_spellings_of_inactive() -> None:
    """Both spellings of an inactive link, and a future word for a state that nobody knows yet."""
    sample = one(
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n"
        "\t Link 0: <inactive>\n"
        "\t Link 1: inActive\n"
        "\t Link 2: 26.562 GB/s\n"
        "\t Link 3: sleeping\n"
    )
    assert [link.state for link in links(sample.gpus[0].nvlinks)] == ["inactive", "inactive", "active", "unknown"]


def test_message_behind_the_heading() -> None:
    """Some releases print the message on the GPU's own line."""
    sample = one(
        "GPU 0: NVIDIA RTX 4000 (UUID: GPU-a) Device does not have or support Nvlink\n"
        "GPU 1: Quadro RTX 5000 (UUID: GPU-b) NVML: Unable to retrieve Nvlink information as all links are inActive\n"
    )
    assert [gpu.nvlinks for gpu in sample.gpus] == [(), ()]
    assert [dict(gpu.unknowns) for gpu in sample.gpus] == [{}, {"nvlink": "all links are inactive"}]


def test_short_form() -> None:
    """Older drivers print no UUID; a paste may begin with the links."""
    sample = one("GPU 0: Tesla V100-SXM2-16GB\n\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n")
    assert READER.begins("GPU 0: Tesla V100-SXM2-16GB")
    assert sample.gpus[0].model == "Tesla V100-SXM2-16GB"
    assert len(links(sample.gpus[0].nvlinks)) == 2
    sample = one("\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n")
    assert sample.gpus[0].ordinal is None
    assert len(links(sample.gpus[0].nvlinks)) == 2


STATUS = "GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
REMOTES = "GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)\n\t Link 0: Remote Device 00000000:D5:00.0: Link 7\n"
ERRORS = (
    "GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)\n"
    "\t Link 0: Replay Errors: 3\n"
    "\t Link 0: CRC Errors: 0\n\n"
    "\t Link 1: Replay Errors: 0\n"
)


def test_questions_are_joined() -> None:
    """-s, -R and -e of the same GPUs are one sample: state, rate, other end and errors of each link."""
    first, second = links(one(STATUS + REMOTES + ERRORS).gpus[0].nvlinks)
    assert first == NvLink(0, "active", None, "unknown", "0000:d5:00.0", 26.562, {"replay_errors": 3, "crc_errors": 0})
    assert (second.state, second.remote, second.errors) == ("inactive", None, {"replay_errors": 0})


def test_same_question_twice() -> None:
    """The same question asked twice gives two samples, oldest first."""
    before, after = read((STATUS + STATUS.replace("26.562 GB/s", "<inactive>")).splitlines(), "test")
    assert links(before.gpus[0].nvlinks)[0].state == "active"
    assert links(after.gpus[0].nvlinks)[0].state == "inactive"


def test_remotes_alone() -> None:
    """A link that knows its other end is up; whether that is a GPU or a switch, the output does not tell."""
    (link,) = links(one(REMOTES).gpus[0].nvlinks)
    assert (link.state, link.remote, link.remote_kind, link.gbs) == ("active", "0000:d5:00.0", "unknown", None)


def test_errors_alone() -> None:
    """Error counters say nothing of a link's state."""
    assert {link.state for link in links(one(ERRORS).gpus[0].nvlinks)} == {"unknown"}


def test_list() -> None:
    """-L names GPUs; of links nothing is said."""
    sample = one(
        "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-1)\n"
        "  MIG 1g.5gb     Device  0: (UUID: MIG-1)\n"
        "GPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-2)\n"
    )
    assert [gpu.nvlinks for gpu in sample.gpus] == [None, None]
    assert [gpu.partitions for gpu in sample.gpus] == [1, None]
    assert [gpu.mig for gpu in sample.gpus] == [True, None]
    assert sample.source.name == "nvidia-smi -L (test)"


def test_lost() -> None:
    """A GPU that is lost while it is asked."""
    assert (
        one("GPU 0: NVIDIA H100 (UUID: GPU-1)\nNVML: Unable to retrieve NVLink information: GPU is lost\n").gpus[0].lost
    )


def test_capabilities() -> None:
    """nvlink -c is no answer about links' states."""
    sample = one(
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0, P2P is supported: true\n\t Link 0, SLI is supported: false\n"
    )
    assert sample.gpus[0].nvlinks is None


def test_prompt_behind_a_list() -> None:
    """A command that follows is no answer."""
    sample = one("GPU 0: NVIDIA H100 (UUID: GPU-1)\n/usr/bin/nvidia-smi nvlink --errorcounters\n")
    assert sample.gpus[0].nvlinks is None
    assert sample.gpus[0].unknowns == {}


@pytest.mark.parametrize("line", ["GPU 0: fell off the bus", "GPU 00000000:17:00.0", "Link 0: see above", "GPU0 X NV4"])
def test_prose(line: str) -> None:
    """Prose and other outputs do not begin a list."""
    assert not READER.begins(line)
    assert read([line], "test") == []


@given(st.text(alphabet="GPU 01:Link<inactive>GB/s()UUID.\nMIG,Errors", max_size=300))
def test_any_text(text: str) -> None:
    """No text makes the reader raise."""
    read(text.splitlines(), "test")
    read((STATUS + text + REMOTES).splitlines(), "test")
    READER.begins(text)


def test_much_text() -> None:
    """Long lines and many outputs take time in proportion."""
    read(["GPU 0: NVIDIA H100 (UUID: GPU-1)"] * 50_000, "test")
    read([STATUS.splitlines()[0], "Link 0: " + "Errors " * 100_000, "GPU 1: " + "(" * 500_000, " " * 500_000], "test")


def test_a_list_at_the_end_of_the_text_may_be_cut_short() -> None:
    """More links may have followed the last one; a line behind them, or another GPU, says that there were none."""
    assert [gpu.nvlinks_are for gpu in one(STATUS + STATUS.replace("GPU 0", "GPU 1")).gpus] == [LISTED, CUT_SHORT]
    assert one(STATUS + "done.\n").gpus[0].nvlinks_are == LISTED
    assert one(STATUS + "\t Li").gpus[0].nvlinks_are == CUT_SHORT


def test_one_whole_list_of_links_is_enough() -> None:
    """Where -s names all links, -R or -e behind it may be cut short."""
    sample = one(STATUS + STATUS.replace("GPU 0", "GPU 1") + REMOTES)
    assert {gpu.nvlinks_are for gpu in one(STATUS + REMOTES).gpus} == {LISTED}
    assert len(links(sample.gpus[0].nvlinks)) == 2


@pytest.mark.parametrize(
    ("last", "model", "uuid"),
    [
        ("GPU 1: NVIDIA H10", None, None),
        ("GPU 1: NVIDIA H100 PCIe (UUID: GPU-0", "NVIDIA H100 PCIe", None),
        ("GPU 1: NVIDIA H100 PCIe (UUID: GPU-2)", "NVIDIA H100 PCIe", "GPU-2"),
    ],
)
def test_a_heading_that_is_cut_off(last: str, model: str | None, uuid: str | None) -> None:
    """Half a name is no model, half a UUID is none."""
    gpu = one(STATUS + last).gpus[1]
    assert (gpu.model, gpu.uuid, gpu.nvlinks) == (model, uuid, None)
