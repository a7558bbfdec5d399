"""The table of plain nvidia-smi: every driver generation's, cut off, quoted, wrapped, and of GPUs that are lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.assemble import assemble
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_table import READER, read
from gpu_topo.collectors.recording import readers
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.reading import FAILED, NOT_RECORDED, Unknown
from tests.commands import audit

HEAD = """\
Tue Mar  4 10:11:12 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
BORDER = "+-----------------------------------------+------------------------+----------------------+\n"
TAIL = """

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            4711      C   python | 00000000:99:00.0 Off | 0 |     7000MiB |
+-----------------------------------------------------------------------------------------+
"""
OLD = """\
+------------------------------------------------------+
| NVIDIA-SMI 331.62     Driver Version: 331.62         |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla K40m          Off  | 0000:02:00.0     Off |                    0 |
| N/A   33C    P0    60W / 235W |     11MiB / 11519MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   1  GeForce GTX 680     Off  | 0000:84:00.0     N/A |                  N/A |
| 30%   39C  N/A     N/A /  N/A |      9MiB /  4095MiB |     N/A      Default |
+-------------------------------+----------------------+----------------------+
|   2  GeForce GTX TIT...  Off  | 00008ED0:0A:00.0  On |                  N/A |
| 26%   36C    P8    14W / 250W |      2MiB /  6082MiB |     12%   E. Process |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Compute processes:                                               GPU Memory |
|  GPU       PID  Process name                                     Usage      |
|=============================================================================|
+-----------------------------------------------------------------------------+
"""


def gpu(index: int, bus: str, name: str = "NVIDIA A100-SXM4-80GB", perf: str = "P0", use: str = "0%") -> str:
    """The rows of one GPU as driver 570 prints them."""
    return (
        f"|   {index}  {name:<27} On  |   00000000:{bus}:00.0 Off |                    0 |\n"
        f"| N/A   34C    {perf:<4}           61W /  400W |       1MiB /  81920MiB | {use:>7}      Default |\n"
        f"|                                         |                        |             Disabled |\n{BORDER}"
    )


LOST = f"""\
|   1  ERR!                           On  |   00000000:0F:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!           ERR! /  ERR!   |       1MiB /  81920MiB |    ERR!      Default |
|                                         |                        |                 ERR! |
{BORDER}"""
TWO = HEAD + gpu(0, "07") + gpu(1, "0F", perf="P8", use="5%") + TAIL


def one(text: str) -> Facts:
    """The only sample of a text."""
    (sample,) = read(text.splitlines(), "t")
    return sample


def lists_all(sample: Facts) -> bool:
    assert sample.driver
    return sample.driver.lists_all


def test_a_table() -> None:
    """Index, name, address, P-state, utilisation, MIG mode and driver; nothing is said of the link."""
    sample = one(TWO)
    assert sample.gpus == (
        DriverGpu("0000:07:00.0", 0, model="NVIDIA A100-SXM4-80GB", pstate=0, utilization=0, mig=False),
        DriverGpu("0000:0f:00.0", 1, model="NVIDIA A100-SXM4-80GB", pstate=8, utilization=5, mig=False),
    )
    assert sample.driver
    assert sample.driver.version == "570.86.10"
    assert (sample.source.status, sample.source.detail) == ("ok", "")


def test_old_tables() -> None:
    """Drivers before 450 have no MIG line, before 384 addresses of four digits, and GeForce cards said little."""
    sample = one(OLD)
    assert [(g.ordinal, g.address, g.pstate, g.utilization, g.mig) for g in sample.gpus] == [
        (0, "0000:02:00.0", 0, 0, None),
        (1, "0000:84:00.0", None, None, None),
        (2, "8ed0:0a:00.0", 8, 12, None),
    ]
    assert not any(g.lost for g in sample.gpus)


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ("| NVIDIA-SMI 615.71.09       KMD Version: 615.71.09   CUDA UMD Version: 13.4 |", "615.71.09"),
        ("| NVIDIA-SMI 450.66       Driver Version: 418.67       CUDA Version: 10.1    |", "418.67"),
        ("| NVIDIA-SMI 4.304.54   Driver Version: 304.54         |", "304.54"),
    ],
)
def test_banners(banner: str, version: str) -> None:
    """The driver's version counts, not that of the tool, which a container may bring along."""
    assert READER.begins(banner)
    driver = one(f"{banner}\n{gpu(0, '07')}").driver
    assert driver
    assert driver.version == version


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("|   0  NVIDIA GeForce RTX 3060 Ti   WDDM  | 00000000:01:00.0  On |  N/A |", "NVIDIA GeForce RTX 3060 Ti"),
        ("|   0  Tesla V100-PCIE-16GB  TCC  | 00000000:01:00.0 Off |  N/A |", "Tesla V100-PCIE-16GB"),
        ("|   0  Tesla K20m               | 0000:02:00.0     Off |     0 |", "Tesla K20m"),
        ("|   0  Quadro K620 Off          | 00000000:03:00.0  On |  N/A  |", "Quadro K620"),
    ],
)
def test_names(row: str, name: str) -> None:
    """The name ends before persistence mode or driver model, where there is one."""
    assert READER.begins(row)
    assert one(row).gpus[0].model == name


def test_a_name_that_is_cut_off() -> None:
    """It is no name: it would replace a whole one, or pass for that of another part."""
    cut = one(HEAD + gpu(0, "07", "NVIDIA GeForce RTX 4080 ...")).gpus[0]
    assert isinstance(cut.model, Unknown)
    assert cut.model.why == NOT_RECORDED
    query = readers()["nvidia_smi_query"].read(
        ["GPU 00000000:07:00.0", "  Product Name : NVIDIA GeForce RTX 4080"], "q"
    )
    for order in ([query[0], one(HEAD + gpu(0, "07", "NVIDIA GeForce RTX 4080 ..."))],) * 2:
        (seen,) = assemble(order).gpus
        assert seen.model == "NVIDIA GeForce RTX 4080"
        order.reverse()


def test_a_lost_gpu() -> None:
    """ERR! in all that a present GPU answers means lost, as in nvidia-smi -q; its address is still told."""
    sample = one(HEAD + gpu(0, "07") + LOST + TAIL)
    healthy, lost = sample.gpus
    assert (healthy.lost, lost.lost, lost.address) == (False, True, "0000:0f:00.0")
    for value in (lost.model, lost.pstate, lost.utilization, lost.mig):
        assert isinstance(value, Unknown)
        assert value.why == FAILED
    assert (sample.source.status, sample.source.detail) == ("partial", "1 of 2 GPUs lost")


def test_one_error_is_no_lost_gpu() -> None:
    """A power reading fails now and then, and a newer tool finds no MIG mode in an older driver."""
    text = gpu(0, "07").replace("61W", "ERR!").replace("Disabled", "    ERR!")
    (seen,) = one(HEAD + text).gpus
    assert (seen.lost, seen.pstate, seen.utilization) == (False, 0, 0)
    assert isinstance(seen.mig, Unknown)


def test_mig() -> None:
    """MIG devices are counted, and are no GPUs; without their list, or with one that is cut off, their number is not
    known."""
    on = gpu(0, "07", use="N/A").replace("Disabled", "Enabled*") + gpu(1, "0F")
    rows = "".join(
        f"|  0   {n:>2}   0   {n}  |              12MiB /  9856MiB    | 14      0 |  1   0    1    0    0 |\n"
        "|                  |               0MiB / 16383MiB    |           |                       |\n"
        for n in range(3)
    )
    listed = "\n| MIG devices:                                      |\n| GPU  GI  CI  MIG |\n" + rows
    assert [(g.mig, g.partitions, g.utilization) for g in one(HEAD + on + listed + TAIL).gpus] == [
        (True, 3, None),
        (False, None, 0),
    ]
    assert [g.partitions for g in one(HEAD + on + TAIL).gpus] == [None, None]
    assert [g.partitions for g in one(HEAD + on + listed).gpus] == [None, None]


def test_jetson() -> None:
    """A GPU that is not on PCI has no address."""
    row = "|   0  Orin (nvgpu)                  N/A  | N/A              N/A |                  N/A |\n"
    row += "| N/A   N/A  N/A               N/A /  N/A | Not Supported        |     N/A          N/A |\n"
    (seen,) = one(HEAD + row).gpus
    assert seen == DriverGpu(None, 0, model="Orin (nvgpu)")


def test_a_table_is_never_the_whole() -> None:
    """A container or a job is shown some GPUs only, numbered from 0, and prints the same table."""
    assert not lists_all(one(TWO))
    assert not lists_all(one(HEAD + gpu(0, "07") + gpu(1, "0F")))


def test_cut_anywhere() -> None:
    """Cut after any character, no value is another than in the whole table."""
    whole = {g.ordinal: g for g in one(TWO).gpus}
    for end in range(len(TWO) - len(TAIL)):
        for sample in read(TWO[:end].splitlines(), "t"):
            assert not lists_all(sample)
            for g in sample.gpus:
                mine = whole[g.ordinal]
                assert (g.address, g.model) == (mine.address, mine.model)
                assert g.pstate in (None, mine.pstate)
                assert g.utilization in (None, mine.utilization)
                assert g.mig in (None, mine.mig)


def test_processes_are_no_gpus() -> None:
    """A process may call itself as it likes, also like the row of a GPU."""
    assert [g.address for g in one(TWO).gpus] == ["0000:07:00.0", "0000:0f:00.0"]


def test_samples_over_time() -> None:
    """`watch` and `-l` print one table after the other: each is a sample, with or without its banner."""
    later = HEAD + gpu(0, "07", perf="P8", use="0%") + TAIL
    assert [s.gpus[0].pstate for s in read(("Every 1.0s: nvidia-smi\n" + TWO + later).splitlines(), "t")] == [0, 8]
    rows = gpu(0, "07") + gpu(1, "0F")
    assert [len(s.gpus) for s in read((rows + rows).splitlines(), "t")] == [2, 2]


@pytest.mark.parametrize("width", [72, 76, 80])
def test_wrapped(width: int) -> None:
    """Rows that a narrow page wrapped read the same."""
    lines = [line[at : at + width] for line in TWO.splitlines() for at in range(0, max(len(line), 1), width)]
    assert one("\n".join(lines)).gpus == one(TWO).gpus


@pytest.mark.parametrize("mark", ["> ", ">", "    ", "\t", "# ", "| "])
def test_quoted(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a mail, a comment or an indented block is read, and the output behind it too."""
    listed = "".join(
        f"GPU {n}: NVIDIA A100-SXM4-80GB (UUID: GPU-0000000{n}-1111-2222-3333-444444444444)\n" for n in (0, 1)
    )
    pasted = "\n".join(mark + line for line in (TWO + listed).splitlines())
    found = audit("Look at this:\n\n" + pasted + "\n\nThanks", tmp_path, capsys)["gpus"]
    assert [(g["address"], g["index"], g["uuid"][:12]) for g in found] == [
        ("0000:07:00.0", 0, "GPU-00000000"),
        ("0000:0f:00.0", 1, "GPU-00000001"),
    ]


def test_doubled_lines() -> None:
    """Some pages set a blank line between any two."""
    assert one(TWO.replace("\n", "\n\n")).gpus == one(TWO).gpus


def test_the_index_ties_a_matrix_to_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPU0 of `topo -m` is the GPU at the table's index 0, and nothing is counted twice."""
    matrix = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-63\t0\nGPU1\tPIX\t X \t0-63\t0\n"
    report = audit(TWO + "\n$ nvidia-smi topo -m\n" + matrix, tmp_path, capsys)
    assert [g["address"] for g in report["gpus"]] == ["0000:07:00.0", "0000:0f:00.0"]
    assert [d["address"] for d in report["devices"]] == ["0000:07:00.0", "0000:0f:00.0"]
    assert {(p["a"], p["b"], p["kind"]) for p in report["paths"]} == {("0000:07:00.0", "0000:0f:00.0", "PIX")}


LSPCI = "".join(
    f"{bus}:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
    "\tControl: I/O- Mem+ BusMaster+\n"
    "\tCapabilities: [78] Express (v2) Endpoint, MSI 00\n"
    "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
    "\t\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)\n"
    "\tKernel driver in use: nvidia\n\n"
    for bus in ("07", "0f", "47")
)


def test_a_gpu_that_the_table_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU on the bus that a table lacks is lost, or hidden from the container that asked: that is not known, whatever
    stands behind the table and lists nothing."""
    for table in (TWO, HEAD + gpu(0, "07") + gpu(1, "0F")):
        for behind in ("", "\n$ nvidia-smi topo -m\n\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"):
            report = audit(LSPCI + table + behind, tmp_path, capsys)
            assert len(report["gpus"]) == 3
            assert [f for f in report["findings"] if f["code"] == "gpu-lost"] == []
            assert [u["subject"] for u in report["unassessed"] if u["code"] == "gpu-lost"] == ["0000:47:00.0"]


def test_the_link_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table alone tells of no link: that is unassessed, and the verdict is not ok."""
    report = audit(TWO, tmp_path, capsys)
    assert report["verdict"] == "unknown"
    assert {u["code"] for u in report["unassessed"]} >= {"pcie-width-degraded", "pcie-speed-degraded"}
    assert not report["findings"]


def test_before_and_after_another_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tables in one paste that differ in the driver's version are of one machine, where they share a GPU."""
    assert len(audit(TWO + "\n" + TWO.replace("570.86.10", "580.95.05"), tmp_path, capsys)["gpus"]) == 2


@pytest.mark.parametrize("recording", ["c01-h200-vm-idle-load", "c04-h200-mig", "c05-l40s"])
def test_recordings(corpus: Path, recording: str) -> None:
    """Table and -q in one recording agree on every GPU."""
    lines = [clean(line) for line in (corpus / recording / "capture.txt").read_text("utf-8").splitlines()]
    tables = read(lines, recording)
    queries = readers()["nvidia_smi_query"].read(lines, recording)
    assert len(tables) == sum(bool(re.match(r"\| NVIDIA-SMI", line)) for line in lines) == 2
    for table, query in zip(tables, queries, strict=True):
        for a, b in zip(table.gpus, query.gpus, strict=True):
            assert (a.address, a.ordinal, a.model, a.pstate, a.mig) == (b.address, b.ordinal, b.model, b.pstate, b.mig)
            assert a.partitions in (None, b.partitions)


@given(st.text(max_size=200), st.integers(0, 3000), st.integers(0, 3000))
def test_any_text(noise: str, start: int, end: int) -> None:
    """No text makes the reader raise, nor a table with noise inside."""
    read((TWO[:start] + noise + TWO[end:]).splitlines(), "t")
    for line in noise.splitlines():
        READER.begins(line)


@pytest.mark.parametrize("mask", ["00000000:XX:00.0", "00000000:xx:xx.x", "00000000:00:00.0"])
def test_addresses_that_were_masked(mask: str) -> None:
    """The GPUs are known by their numbers, and the table is a table."""
    row = (
        "|   {0}  NVIDIA H100 80GB HBM3           On |   {1} Off |                    0 |\n"
        "| N/A   34C    P0              70W / 700W |        4MiB / 81559MiB |      0%      Default |\n"
    )
    (sample,) = read([clean(line) for line in (HEAD + row.format(0, mask) + row.format(1, mask)).splitlines()], "t")
    assert [(gpu.ordinal, gpu.address) for gpu in sample.gpus] == [(0, None), (1, None)]
