"""nvidia-smi topo -m and -p2p: real matrices, every shape that people paste, and tables that do not line up."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.agent.cli import main
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_topo import READER, read
from gpu_topo.model.facts import Facts
from gpu_topo.model.reading import Unknown

MATRICES = [
    "p01-8gpu-nv18-10nics/nvidia-smi-topo-m.txt",
    "p11-ml-engineering/nvidia-smi-topo-m.txt",
    "p12-ml-engineering/nvidia-smi-topo-m.txt",
    "p13-ml-engineering/nvidia-smi-topo-m.txt",
    "m23-4xrtx6000ada-esc8000/nvidia-smi-topo-m.txt",
]


def one(text: str) -> Facts:
    (sample,) = read(clean(text).splitlines(), "test")
    return sample


def pairs(sample: Facts) -> dict[tuple[str, str], str | None]:
    return {(peer.a, peer.b): peer.kind for peer in sample.peers}


@pytest.mark.parametrize("recording", MATRICES)
def test_recordings(corpus: Path, recording: str) -> None:
    """Every cell of a real matrix is a pair, counted and compared without the reader."""
    text = clean((corpus / recording).read_text(encoding="utf-8"))
    sample = one(text)
    legend = dict(re.findall(r"(NIC\d+): (\S+)", text))
    rows = [line.split() for line in text.splitlines() if re.match(r"(GPU|NIC)\d+\s+(X|[A-Z]+\d*)\s", line)]
    names = [legend.get(row[0], row[0]) for row in rows]
    found = pairs(sample)
    assert len(found) == len(rows) * (len(rows) - 1) // 2
    for (i, a), (j, b) in itertools.combinations(enumerate(names), 2):
        assert found[a, b] == rows[i][j + 1] == rows[j][i + 1]
    assert [gpu.ordinal for gpu in sample.gpus] == list(range(sum(row[0].startswith("GPU") for row in rows)))
    assert [port.device for port in sample.ports] == list(legend.values())
    assert [gpu.local_cpus for gpu in sample.gpus] == [row[len(rows) + 1] for row in rows if row[0].startswith("GPU")]
    numa = [row[len(rows) + 2] for row in rows if row[0].startswith("GPU")]
    for gpu, printed in zip(sample.gpus, numa, strict=True):
        assert gpu.numa_node == int(printed) if printed != "N/A" else isinstance(gpu.numa_node, Unknown)
    assert sample.source.status == "ok"
    assert READER.begins(text.splitlines()[0])
    assert sum(READER.begins(line) for line in text.splitlines()) == 1


def test_escape_sequences() -> None:
    """The underlined heading of a terminal and tabs between cells."""
    sample = one(
        "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV4\t0-9\t0\t\tN/A\n"
        "GPU1\tNV4\t X \t0-9\t0\t\tN/A\n"
    )
    assert pairs(sample) == {("GPU0", "GPU1"): "NV4"}


def test_older_heading_with_rdma_names() -> None:
    """Older drivers print the RDMA devices themselves as columns, and only CPU affinity behind them."""
    sample = one(
        "        GPU0    GPU1    mlx5_0  bnxt_re1  CPU Affinity\n"
        "GPU0     X      SOC     PIX     NODE      0-11\n"
        "GPU1    SOC      X      SOC     SOC       12-23\n"
        "mlx5_0  PIX     SOC      X      PHB\n"
        "bnxt_re1 NODE   SOC     PHB      X\n"
    )
    assert pairs(sample)["GPU0", "GPU1"] == "SYS"
    assert pairs(sample)["GPU0", "mlx5_0"] == "PIX"
    assert pairs(sample)["mlx5_0", "bnxt_re1"] == "PHB"
    assert [port.device for port in sample.ports] == ["mlx5_0", "bnxt_re1"]
    assert [gpu.local_cpus for gpu in sample.gpus] == ["0-11", "12-23"]
    assert [gpu.numa_node for gpu in sample.gpus] == [None, None]


def test_heading_out_of_line() -> None:
    """Cells that do not stand below their headings are read by their order."""
    sample = one(
        "\t\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity    NUMA Affinity\n"
        "GPU0\t X \t\tNV1\t    NV2\t    PIX\t0-23,48-71\t\t0\n"
        "GPU1\tNV1\t \tX \t\tSYS\tSYS\t\t0-23,48-71\t\t0\n"
        "GPU2\tNV2\t\tSYS\t\tX\tSYS\t24-47,72-95\t\t1\n"
    )
    assert pairs(sample)["GPU0", "GPU2"] == "NV2"
    assert pairs(sample)["GPU1", "GPU2"] == "SYS"
    assert [gpu.numa_node for gpu in sample.gpus] == [0, 0, 1]
    assert sample.source.status == "partial"  # the row of mlx5_0 is missing


def test_row_that_does_not_fit() -> None:
    """A row whose X stands in a foreign column is left out, and the source says so."""
    sample = one("     GPU0 GPU1 GPU2 CPU Affinity\nGPU0  X  PIX SYS 0-3\nGPU1  X  PIX 0-3\nGPU2 SYS PXB X 0-3\n")
    assert pairs(sample) == {("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "PXB"}
    assert sample.source.status == "partial"


def test_wrapped_by_a_narrow_terminal() -> None:
    """Heading, rows and CPU lists that a narrow terminal wrapped are put together."""
    sample = one(
        "        GPU0    GPU1    GPU2\n"
        "GPU3    CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV12    NV12\n"
        "NV12    0-15,64-\n"
        "79      0\n"
        "GPU1    NV12     X      NV12\n"
        "NV12    0-15    0\n"
        "GPU2    NV12    NV12     X\n"
        "NV12    16-31   1\n"
        "GPU3    NV12    NV12    NV12\n"
        " X      16-31   1\n"
    )
    assert len(sample.peers) == 6
    assert {peer.kind for peer in sample.peers} == {"NV12"}
    assert sample.gpus[0].local_cpus == "0-15,64-79"
    assert [gpu.numa_node for gpu in sample.gpus] == [0, 0, 1, 1]


def test_nics_without_legend() -> None:
    """NICs that no legend names keep the matrix's names, and no port is made of them."""
    sample = one("     GPU0 NIC0 CPU Affinity NUMA Affinity\nGPU0  X  PXB 0-7 N/A\nNIC0 PXB  X\n")
    assert pairs(sample) == {("GPU0", "NIC0"): "PXB"}
    assert sample.ports == ()


def test_grace() -> None:
    """A GPU that is a NUMA node of its own is coherent with its CPU."""
    sample = one("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t1\n")
    assert sample.gpus[0].c2c is True
    assert sample.gpus[0].numa_node == 0


def test_many_devices() -> None:
    """Sixteen GPUs and forty NICs: every pair once."""
    names = [f"GPU{n}" for n in range(16)] + [f"NIC{n}" for n in range(40)]
    text = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\n"
    for row in names:
        text += row + "\t" + "\t".join(" X " if row == name else "SYS" for name in names) + "\t0-9\t0\n"
    text += "\nNIC Legend:\n\n" + "".join(f"  NIC{n}: mlx5_{n}\n" for n in range(40))
    sample = one(text)
    assert len(sample.peers) == 56 * 55 // 2
    assert len(sample.ports) == 40


def test_quoted() -> None:
    """A matrix in a quoted mail or a comment."""
    sample = one("#\tGPU0\tGPU1\tCPU Affinity\n# GPU0\t X \tSYS\t48-63\n# GPU1\tSYS\t X \t0-15\n")
    assert pairs(sample) == {("GPU0", "GPU1"): "SYS"}


P2P = (
    " \tGPU0\tGPU1\n"
    " GPU0\tX\t{0}\n"
    " GPU1\t{1}\tX\n\n"
    "Legend:\n\n"
    "  X    = Self\n"
    "  OK   = Status Ok\n"
    "  NS   = Not supported\n"
)


@pytest.mark.parametrize(
    ("command", "capabilities"),
    [
        ("", {"read"}),
        ("$ nvidia-smi topo -p2p r\n", {"read"}),
        ("root@node:~# nvidia-smi topo -p2p w\n", {"write"}),
        ("nvidia-smi topo -p2p n\n", {"nvlink"}),
        ("# $ nvidia-smi topo -p2p rw\n", {"read", "write"}),
        ("nvidia-smi topo --p2pstatus a\n", {"atomics"}),
    ],
)
def test_p2p(command: str, capabilities: set[str]) -> None:
    """The command names the capability; without it the matrix is taken for reading."""
    sample = one(command + P2P.format("OK", "OK"))
    (peer,) = sample.peers
    assert peer.kind is None
    assert peer.p2p == dict.fromkeys(capabilities, "OK")
    if command:
        assert READER.begins(command.rstrip())


def test_p2p_one_way() -> None:
    """Where the two directions differ, the one that does not work is kept."""
    assert one(P2P.format("OK", "CNS")).peers[0].p2p == {"read": "CNS"}
    assert one(P2P.format("GNS", "OK")).peers[0].p2p == {"read": "GNS"}


def test_two_matrices() -> None:
    """Each matrix is a sample, and a command counts for the next matrix only."""
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    first, second, third = read(
        (matrix + "nvidia-smi topo -p2p w\n" + P2P.format("OK", "OK") + P2P.format("NS", "NS")).splitlines(), "x"
    )
    assert first.peers[0].kind == "PHB"
    assert second.peers[0].p2p == {"write": "OK"}
    assert third.peers[0].p2p == {"read": "NS"}
    assert "-p2p" in third.source.name


@pytest.mark.parametrize(
    "line", ["GPU0 is lost", "GPU0", "GPU 0: NVIDIA H100 (UUID: GPU-1)", "GPU0\t X \tNV18\t0-3\t0", "  X    = Self"]
)
def test_no_heading(line: str) -> None:
    """Rows, legends and prose do not begin a matrix."""
    assert not READER.begins(line)


@given(st.text(alphabet="GPUNICX0123 \tSYOKmlx5_,-/A=:#\n", max_size=300))
def test_any_text(text: str) -> None:
    """No text makes the reader raise."""
    head = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    read((head + text).splitlines(), "test")
    read(text.splitlines(), "test")
    read((head + "GPU0\t X \tSYS\tPIX\t" + text).splitlines(), "test")
    READER.begins(text)


def test_much_text() -> None:
    """Long lines take time in proportion."""
    read(["GPU0 GPU1 CPU Affinity", "GPU0 X " + "SYS " * 200_000, "SYS " * 200_000, "GPU0 " * 100_000], "test")
    read(["nvidia-smi " * 50_000 + "p2p", "GPU" + " " * 500_000], "test")


def test_gpus_that_only_the_heading_names(corpus: Path) -> None:
    """A paste that was cut short still says how many GPUs there are: those without a row are not recorded, by name."""
    whole = (corpus / "p01-8gpu-nv18-10nics/nvidia-smi-topo-m.txt").read_text(encoding="utf-8")
    sample = one("\n".join(whole.splitlines()[:5]))
    assert [gpu.ordinal for gpu in sample.gpus] == list(range(8))
    assert [isinstance(gpu.numa_node, Unknown) for gpu in sample.gpus] == [False] * 4 + [True] * 4
    assert {gpu.local_cpus.why for gpu in sample.gpus if isinstance(gpu.local_cpus, Unknown)} == {"not-recorded"}
    assert (sample.source.status, sample.source.detail.startswith("no row of GPU4, GPU5, ")) == ("partial", True)
    # What rows hold of them counts.
    assert pairs(sample)["GPU3", "GPU7"] == "NV18"
    assert ("GPU4", "GPU5") not in pairs(sample)


def test_a_cut_matrix_leaves_the_shape_open(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four rows of eight are no machine of four GPUs, and no interconnect of four."""
    whole = (corpus / "p01-8gpu-nv18-10nics/nvidia-smi-topo-m.txt").read_text(encoding="utf-8")
    cut = tmp_path / "cut.txt"
    cut.write_text("\n".join(whole.splitlines()[:5]), encoding="utf-8")
    main(["inspect", "--json", str(cut)])
    report = json.loads(capsys.readouterr().out)
    assert len(report["gpus"]) == 8
    assert (report["interconnect"]["shape"], report["interconnect"]["max_tensor_parallel"]) == ("unknown", None)
    open_questions = {(u["code"], u["subject"]) for u in report["unassessed"]}
    assert ("nvlink-partial", "node") in open_questions
    assert ("cross-numa-nic", "GPU7") in open_questions


LEGEND = (
    "     GPU0 NIC0 NIC1 CPU Affinity NUMA Affinity\n"
    "GPU0  X  PXB SYS 0-7 0\n"
    "NIC0 PXB  X SYS\n"
    "NIC1 SYS SYS X\n"
    "\nNIC Legend:\n"
)


@pytest.mark.parametrize(
    ("legend", "names", "ports"),
    [
        ("  NIC0: mlx5_0\n  NIC1: mlx5_1\n", ("mlx5_0", "mlx5_1"), ["mlx5_0", "mlx5_1"]),
        ("  NIC0: mlx5_0\n", ("NIC0", "NIC1"), []),  # its last line may be the beginning of mlx5_01
        ("  NIC0: mlx5_0\n  NIC1: mlx5_", ("mlx5_0", "NIC1"), []),
        ("  NIC0: mlx5_0\n  NIC1: mlx5_0", ("mlx5_0", "NIC1"), []),  # of mlx5_00: no two have one name
        ("  NIC0: mlx5_0\n  NI", ("mlx5_0", "NIC1"), []),
    ],
)
def test_a_legend_that_is_cut_off(legend: str, names: tuple[str, str], ports: list[str]) -> None:
    """NICs that the legend does not reach keep the matrix's names, and no port is made of the others alone."""
    sample = one(LEGEND + legend)
    assert {peer.b for peer in sample.peers if peer.a == "GPU0"} == set(names)
    assert [port.device for port in sample.ports] == ports


def test_nics_below_a_cut_legend_stay_adapters(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A matrix whose legend is cut off says of the adapters what it says without any legend."""
    whole = (corpus / "p01-8gpu-nv18-10nics/nvidia-smi-topo-m.txt").read_text(encoding="utf-8")
    said = []
    for end in ("NIC2:", "NIC Legend:", "  NIC9:"):
        cut = tmp_path / "cut.txt"
        cut.write_text(whole[: whole.index(end)], encoding="utf-8")
        assert main(["inspect", "--json", str(cut)]) == 0
        report = json.loads(capsys.readouterr().out)
        said.append((report["findings"], {row["nic_to_gpu_ratio"] for row in report["placement"]}))
    assert said == [([], {1.25})] * 3


def test_the_last_word_of_a_row_that_is_cut_off() -> None:
    """NV1 may be the beginning of NV18, 0-1 of 0-15: neither counts at the end of a text."""
    heading = "     GPU0 GPU1 GPU2 CPU Affinity NUMA Affinity\n"
    assert pairs(one(heading + "GPU0 X NV18 NV1")) == {("GPU0", "GPU1"): "NV18"}
    assert one(heading + "GPU0 X NV18 NV18 0-1").gpus[0].local_cpus is None
    assert one(heading + "GPU0 X NV18 NV18 0-15 0\n").gpus[0].local_cpus == "0-15"
