"""nvidia-smi --query-gpu as CSV: which field is which, samples over time, refusals, and rows that are cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.assemble import assemble
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_csv import READER, read
from gpu_topo.collectors.recording import readers
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import LOST, MALFORMED, Unknown, known
from tests.commands import audit

FIELDS = (
    "index, name, uuid, pci.bus_id, pstate, utilization.gpu [%], pcie.link.gen.current, pcie.link.gen.max, "
    "pcie.link.width.current, pcie.link.width.max, driver_version"
)


def row(index: int, bus: str, **other: object) -> str:
    """A row below FIELDS of a GPU under load at Gen4 x16."""
    cells = {"name": "NVIDIA RTX A5000", "perf": "P2", "use": "97 %", "gen": 4, "max": 4, "width": 16, **other}
    return (
        f"{index}, {cells['name']}, GPU-0000000{index}-1111-2222-3333-444455556666, 00000000:{bus}:00.0, "
        f"{cells['perf']}, {cells['use']}, {cells['gen']}, {cells['max']}, {cells['width']}, 16, 570.86.10"
    )


def samples(*lines: str) -> list[Facts]:
    return read([*"\n".join(lines).splitlines(), ""], "t")


def one(*lines: str) -> DriverGpu:
    """The only GPU of a text that holds one."""
    (sample,) = samples(*lines)
    (gpu,) = sample.gpus
    return gpu


def subjects(report: dict[str, Any], part: str, code: str) -> list[str]:
    return [found["subject"] for found in report[part] if found["code"] == code]


def test_a_query() -> None:
    """The header tells the fields; what they say is what nvidia-smi -q says."""
    (sample,) = samples(FIELDS, row(0, "17"), row(1, "65", gen=1, perf="P8", use="0 %", width=8))
    assert [(g.address, g.ordinal, g.model, g.pstate, g.utilization) for g in sample.gpus] == [
        ("0000:17:00.0", 0, "NVIDIA RTX A5000", 2, 97),
        ("0000:65:00.0", 1, "NVIDIA RTX A5000", 8, 0),
    ]
    assert [g.link for g in sample.gpus] == [LinkEnd(16.0, 16, 16.0, 16), LinkEnd(2.5, 8, 16.0, 16)]
    assert sample.gpus[1].uuid == "GPU-00000001-1111-2222-3333-444455556666"
    assert sample.driver
    assert sample.driver.version == "570.86.10"


def test_without_units_and_under_other_names() -> None:
    """nounits leaves the numbers, and fields have older and newer names."""
    gpu = one(
        "gpu_bus_id,gpu_name,utilization.gpu,pcie.link.gen.gpucurrent,pcie.link.width.current",
        "0000000A:01:00.0,Tesla T4,12,3,8",
    )
    assert (gpu.address, gpu.model, gpu.utilization) == ("000a:01:00.0", "Tesla T4", 12)
    assert gpu.link == LinkEnd(8.0, 8)


def test_what_each_maximum_means() -> None:
    """max is what GPU and system can do together: no slot is blamed for it. gpumax and hostmax are each end's own."""
    header = "index, pci.bus_id, pcie.link.gen.current, pcie.link.gen.max, pcie.link.gen.gpumax, pcie.link.gen.hostmax"
    gpu = one(header, "0, 00000000:01:00.0, 1, 3, 4, 3")
    assert gpu.link == LinkEnd(2.5, None, 8.0, None)
    assert (gpu.gpu_max_speed_gts, gpu.host_max_speed_gts) == (16.0, 8.0)
    guest = one(header, "0, 00000000:01:00.0, 5, 5, 5, [N/A]")
    assert guest.host_max_speed_gts is None


@pytest.mark.parametrize("maxima", [("pcie.link.gen.max", ""), ("pcie.link.gen.gpumax, pcie.link.gen.hostmax", ", 3")])
def test_a_slot_is_only_blamed_by_what_the_host_can_do(
    maxima: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Gen4 GPU that can have Gen3 with its system is in a slower slot only where hostmax says so."""
    fields, host = maxima
    text = f"index, pci.bus_id, pcie.link.gen.current, pcie.link.width.current, pcie.link.width.max, {fields}\n"
    report = audit(f"{text}0, 00000000:01:00.0, 3, 16, 16, {4 if host else 3}{host}\n\n", tmp_path, capsys)
    assert subjects(report, "findings", "pcie-slot-limited") == (["0000:01:00.0"] if host else [])
    assert report["devices"][0]["link"]["port_max_speed_gts"] == (8.0 if host else None)


def test_other_fields() -> None:
    """MIG, ids, fabric registration, chip-to-chip links; columns that say nothing of the topology are passed over."""
    gpu = one(
        "index, pci.device_id, mig.mode.current, c2c.mode, clocks_event_reasons.active, clocks_event_reasons.gpu_idle, "
        "clocks_event_reasons.sw_power_cap, fabric.state, fabric.status, fabric.cliqueId, fabric.health.summary",
        "2, 0x233010DE, Enabled, [N/A], 0x0000000000000004, Not Active, Active, Completed, Success, 7, Healthy",
    )
    assert (gpu.vendor_id, gpu.device_id, gpu.mig, gpu.c2c, gpu.partitions) == (0x10DE, 0x2330, True, None, None)
    fabric = known(gpu.fabric)
    assert fabric is not None
    assert (fabric.state, fabric.status, fabric.clique, fabric.health) == (
        "Completed",
        "Success",
        7,
        {"summary": "Healthy"},
    )
    assert gpu.link is None


def test_a_chip_to_chip_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a GB10 shows as its PCIe link means nothing, and its name tells that it is one."""
    header = "index, name, pci.bus_id, pcie.link.gen.max, pcie.link.gen.gpucurrent, pcie.link.gen.gpumax, "
    header += "pcie.link.gen.hostmax, pcie.link.width.current, pcie.link.width.max"
    report = audit(f"{header}\n0, NVIDIA GB10, 0000000F:01:00.0, 1, 1, 5, 5, 1, 16\n\n", tmp_path, capsys)
    assert not report["findings"]
    assert subjects(report, "unassessed", "pcie-width-degraded") == ["000f:01:00.0"]


def test_refusals() -> None:
    """Not supported is none, a refusal is unknown with its reason; a lost GPU is lost, one broken reading is not."""
    gpu = one(FIELDS, row(0, "17", perf="[Not Supported]", use="[N/A]", gen="[Unknown Error]"))
    assert (gpu.pstate, gpu.utilization, gpu.lost) == (None, None, False)
    assert gpu.link is not None
    assert isinstance(gpu.link.speed_gts, Unknown)
    for word in ("[GPU is lost]", "[Unknown Error]", "[GPU requires reset]"):
        gpu = one(FIELDS, row(0, "17", perf=word, use=word, gen=word, width=word))
        assert gpu.lost
        assert isinstance(gpu.utilization, Unknown)
    assert one("index, temperature.gpu, utilization.gpu [%]", "3, [GPU is lost], [GPU is lost]").utilization == Unknown(
        LOST, "nvidia-smi: utilization/gpu: GPU is lost"
    )


def test_samples_over_time() -> None:
    """`-l 1` prints the header once: a GPU that comes again begins the next sample, oldest first."""
    found = samples(FIELDS, row(0, "17", gen=1), row(1, "65"), row(0, "17", gen=4), row(1, "65"), FIELDS, row(0, "17"))
    assert [len(sample.gpus) for sample in found] == [2, 2, 1]
    assert [g.link.speed_gts for sample in found for g in sample.gpus[:1] if g.link] == [2.5, 16.0, 16.0]


IDLE, BUSY = {"gen": 1, "perf": "P8", "use": "0 %"}, {"gen": 1, "perf": "P0", "use": "97 %"}
HOST = FIELDS.replace("pcie.link.gen.max", "pcie.link.gen.gpumax").replace("driver_version", "pcie.link.gen.hostmax")


def host_row(**other: object) -> str:
    return row(0, "17", **other).replace("570.86.10", "4")


@pytest.mark.parametrize(
    ("rows", "degraded"),
    [
        ([IDLE, IDLE], False),
        ([BUSY, {"gen": 4}], False),
        ([BUSY, BUSY], True),
        ([{**BUSY, "use": "[N/A]"}] * 2, False),
    ],
)
def test_idle_is_not_degraded(
    rows: list[dict[str, object]], degraded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best sample judges a link's speed; low and idle is no finding, low at work is one."""
    report = audit("\n".join([HOST, *(host_row(**sample) for sample in rows)]) + "\n\n", tmp_path, capsys)
    assert subjects(report, "findings", "pcie-speed-degraded") == (["0000:17:00.0"] if degraded else [])
    assert not [f for f in report["findings"] if f["code"] != "pcie-speed-degraded"]


def test_twins_are_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no source tells ids, a busy GPU at full speed says nothing of a GPU of another name."""
    other = row(1, "65", name="NVIDIA T400").replace("570.86.10", "4")
    for name, severity in (("NVIDIA RTX A5000", "info"), ("NVIDIA T400", "warning")):
        report = audit("\n".join([HOST, host_row(**BUSY, name=name), other]) + "\n\n", tmp_path, capsys)
        assert [f["severity"] for f in report["findings"] if f["code"] == "pcie-speed-degraded"] == [severity]


@pytest.mark.parametrize(
    "command",
    [
        "$ nvidia-smi --query-gpu=index,pcie.link.width.current --format=csv,noheader",
        "user@node:~$ sudo nvidia-smi -i 0 --query-gpu index,pcie.link.width.current --format=csv,noheader",
        "# /usr/bin/nvidia-smi --format=csv,noheader,nounits --query-gpu=index,pcie.link.width.current -l 1",
        "PS C:\\Users\\a> nvidia-smi.exe --query-gpu=index,pcie.link.width.current --format=csv,noheader",
        "Every 1.0s: nvidia-smi --query-gpu=index,pcie.link.width.current --format=csv,noheader",
    ],
)
def test_the_command_names_the_fields(command: str) -> None:
    """Without a header the command line in front of the rows tells what they are."""
    assert READER.begins(command)
    assert one(command, "1, 8").link == LinkEnd(width=8)


@pytest.mark.parametrize(
    "line",
    [
        "0, NVIDIA H100 80GB HBM3, 00000000:17:00.0, 5, 16",
        "index, name, value",
        "a, b, utilization.gpu is the share of time",
        "        Name                  : /usr/bin/nvidia-smi --query-gpu=index,name",
        "root  4711  0.0  nvidia-smi --query-gpu=index,name --format=csv",
        "GPU 0: NVIDIA H100 80GB HBM3, pstate",
    ],
)
def test_what_begins_nothing(line: str) -> None:
    """Rows without a header, prose, and the names of processes."""
    assert not READER.begins(line)


def test_without_header_nothing_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows alone could be anything."""
    assert audit("0, NVIDIA H100 80GB HBM3, 00000000:17:00.0, 5, 16\n", tmp_path, capsys) == {}


NAMELESS = "name, pcie.link.gen.current, pcie.link.width.current, pcie.link.width.max"


def test_rows_that_name_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row is the machine's only GPU. Several are several GPUs, or one over time: they are not read, and a machine
    without GPUs is not made of them."""
    report = audit(f"{NAMELESS}\nNVIDIA RTX A5000, 4, 8, 16\n\n", tmp_path, capsys)
    assert len(report["gpus"]) == 1
    assert len(subjects(report, "findings", "pcie-link-unexplained")) == 1
    assert audit(f"{NAMELESS}\nNVIDIA RTX A5000, 4, 8, 16\nNVIDIA RTX A5000, 4, 16, 16\n\n", tmp_path, capsys) == {}
    found = samples(f"count, {NAMELESS}", "1, NVIDIA RTX A5000, 4, 8, 16", "1, NVIDIA RTX A5000, 4, 16, 16")
    assert [g.link.width for sample in found for g in sample.gpus if g.link] == [8, 16]


def test_a_row_without_a_name_and_other_recordings() -> None:
    """It is the only GPU where others tell of one; of several it is none, and no further one."""
    (nameless,) = samples(NAMELESS, "NVIDIA RTX A5000, 4, 8, 16")
    (first,) = samples("index, pci.bus_id", "0, 00000000:17:00.0")
    (both,) = samples("index, pci.bus_id", "0, 00000000:17:00.0", "1, 00000000:65:00.0")
    (seen,) = assemble([nameless, first]).gpus
    assert (seen.address, seen.driver_link.width if seen.driver_link else None) == ("0000:17:00.0", 8)
    assert [gpu.address for gpu in assemble([nameless, both]).gpus] == ["0000:17:00.0", "0000:65:00.0"]


def test_a_query_of_some_fields_takes_nothing_back() -> None:
    """What a later query did not ask for stays as it was, of the link too."""
    (whole,) = samples(FIELDS, row(0, "17"))
    (part,) = samples("index, pcie.link.gen.current", "0, 1")
    (seen,) = assemble([whole, part]).gpus
    link = seen.driver_link
    assert link is not None
    assert (link.speed_gts, link.width, link.max_speed_gts) == (2.5, 16, 16.0)
    assert (seen.model, seen.pstate, seen.utilization) == ("NVIDIA RTX A5000", 2, 97)
    drivers = assemble([whole, part]).drivers
    assert drivers["nvml"].version == "570.86.10"


def test_count_tells_whether_these_are_all() -> None:
    """A list is whole only where the field `count` says so: -i selects, and pastes lose rows."""
    for count, listed, detail in ((2, True, ""), (8, False, "2 of 8 GPUs in it")):
        (sample,) = samples("count, index, pci.bus_id", *(f"{count}, {n}, 00000000:1{n}:00.0" for n in range(2)))
        assert sample.driver
        assert (sample.driver.lists_all, sample.source.detail) == (listed, detail)
    (sample,) = samples(FIELDS, row(0, "17"), row(1, "65"))
    assert sample.driver
    assert not sample.driver.lists_all


@pytest.mark.parametrize(
    ("header", "cells", "attribute", "value"),
    [
        ("index, pcie.link.width.current", "0, 1", "link", LinkEnd()),  # of 16
        ("index, pcie.link.width.current", "0, 8", "link", LinkEnd(width=8)),
        ("index, pstate", "0, P1", "pstate", None),  # of P12
        ("index, pstate", "0, P8", "pstate", 8),
        ("index, fabric.status", "0, Succ", "fabric", None),
        ("index, driver_version, name", "0, 535.1, NVIDIA A10", "model", "NVIDIA A10"),
    ],
)
def test_the_last_cell_may_be_cut_off(header: str, cells: str, attribute: str, value: object) -> None:
    """Where a recording ends with a cell that may go on, that cell is not read; with anything behind it, it is."""
    (sample,) = read([header, cells], "t")
    found = getattr(sample.gpus[0], attribute)
    assert found == value or (attribute == "link" and found is None and value == LinkEnd())
    (sample,) = read([header, cells, ""], "t")
    assert sample.gpus[0].ordinal == 0


def test_a_name_cut_off_beside_a_longer_one() -> None:
    """NVIDIA A10 is no other GPU beside an NVIDIA A100 where the recording ends with it."""
    (sample,) = read(
        ["index, name, memory.total [MiB], name", "0, x, 1 MiB, NVIDIA A100", "1, x, 1 MiB, NVIDIA A10"], "t"
    )
    assert sample.gpus[0].model == "NVIDIA A100"
    assert sample.gpus[1].model != "NVIDIA A10"


def test_cut_anywhere() -> None:
    """Cut after any character, no value is another than in the whole text."""
    text = "\n".join([FIELDS, row(0, "17"), row(1, "65", gen=1, perf="P12", width=16)])
    (whole,) = samples(text)
    for end in range(len(text)):
        for sample in read(text[:end].splitlines(), "t"):
            assert sample.driver
            assert not sample.driver.lists_all
            for gpu in sample.gpus:
                assert gpu.ordinal is not None
                mine = whole.gpus[gpu.ordinal]
                assert gpu.pstate in (None, mine.pstate), text[:end]
                assert gpu.address in (None, mine.address)
                assert gpu.model in (None, mine.model)
                assert mine.link is not None
                if gpu.link is not None:
                    assert known(gpu.link.width) in (None, mine.link.width)
                    assert known(gpu.link.speed_gts) in (None, mine.link.speed_gts)


@pytest.mark.parametrize("width", [50, 64, 76])
def test_wrapped(width: int) -> None:
    """A header and rows that a narrow page wrapped at blanks read the same."""
    import textwrap

    lines = [piece for line in (FIELDS, row(0, "17"), row(1, "65")) for piece in textwrap.wrap(line, width)]
    if any(piece.startswith("[%]") for piece in lines):
        pytest.skip("a unit of its own")
    assert samples(*lines)[0].gpus == samples(FIELDS, row(0, "17"), row(1, "65"))[0].gpus


@pytest.mark.parametrize("mark", ["> ", "    ", "# "])
def test_quoted(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quoted or indented query is read, with prose around it."""
    pasted = "\n".join(mark + line for line in (FIELDS, row(0, "17"), row(1, "65")))
    report = audit(f"Hello,\n\n{pasted}\n\nis this right?\n", tmp_path, capsys)
    assert [gpu["address"] for gpu in report["gpus"]] == ["0000:17:00.0", "0000:65:00.0"]


def test_other_queries_are_no_gpus() -> None:
    """--query-compute-apps and the like have a row for each process or page."""
    for header, other in (
        ("pid, process_name, used_gpu_memory [MiB]", "4711, python, 500 MiB"),
        ("gpu_name, gpu_bus_id, pid", "NVIDIA H100, 00000000:99:00.0, 4711"),
        ("gpu_uuid, retired_pages.address, retired_pages.cause", "GPU-99999999-1111, 0x01, Double Bit ECC"),
    ):
        found = samples("index, name, pci.bus_id", "0, NVIDIA H100, 00000000:17:00.0", header, other)
        assert [gpu.address for sample in found for gpu in sample.gpus] == ["0000:17:00.0"]


def test_a_width_that_makes_no_sense() -> None:
    """Malformed is unknown, never a number."""
    gpu = one(FIELDS, row(0, "17", width="sixteen"))
    assert gpu.link is not None
    assert isinstance(gpu.link.width, Unknown)
    assert gpu.link.width.why == MALFORMED


@pytest.mark.parametrize(
    "recording", ["c01-h200-vm-idle-load", "c04-h200-mig", "c05-l40s", "c06-rtx4080s-gen1-idle-gen4-load"]
)
def test_recordings(corpus: Path, recording: str) -> None:
    """CSV and -q in one recording, taken one after the other, agree on what does not change between them."""
    lines = [clean(line) for line in (corpus / recording / "capture.txt").read_text("utf-8").splitlines()]
    queries = readers()["nvidia_smi_query"].read(lines, recording)
    tables = [sample for sample in read(lines, recording) if sample.gpus]
    assert len(tables) == len(queries) == 2
    for csv, query in zip(tables, queries, strict=True):
        assert csv.driver
        assert csv.driver == query.driver
        for a, b in zip(csv.gpus, query.gpus, strict=True):
            fields = (
                "address",
                "ordinal",
                "uuid",
                "model",
                "vendor_id",
                "device_id",
                "pstate",
                "mig",
                "c2c",
                "fabric",
                "lost",
            )
            assert [getattr(a, field) for field in fields] == [getattr(b, field) for field in fields]
            assert a.link == b.link
            assert a.gpu_max_speed_gts == b.gpu_max_speed_gts


@given(st.text(alphabet=st.characters() | st.sampled_from(",\n[]0123456789"), max_size=300))
def test_any_text(noise: str) -> None:
    """No text makes the reader raise, alone or below a header."""
    for line in noise.splitlines():
        READER.begins(line)
    read([FIELDS, *noise.splitlines(), row(0, "17")], "t")


def test_a_long_log() -> None:
    """A log of a day is read to its end, and of its samples the last thousand count."""
    found = samples("index, utilization.gpu [%]", *(f"{n % 8}, {n // 8 % 100} %" for n in range(8 * 1_234)))
    assert len(found) == 1_000
    assert [gpu.utilization for gpu in found[-1].gpus] == [33] * 8
    assert found[0].source.detail == "the last 1000 of 1234 samples are looked at"
