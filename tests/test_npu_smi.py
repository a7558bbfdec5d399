"""npu-smi info: the tables of several generations of Ascend NPUs, whole, quoted and cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.npu_smi import READER, read
from gpu_topo.model.facts import Facts

RULE = "+---------------------------+---------------+----------------------------------------------------+\n"
HEADING = "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"


def title(version: str = "24.1.rc2") -> str:
    return f"| npu-smi {version}                 Version: {version}                                             |\n"


def chip(npu: int, name: str, second: str, bus: str, health: str = "OK") -> str:
    """The two lines of one chip and the rule below them."""
    return (
        f"| {npu:<6}{name:<20}| {health:<14}| 92.5        40                0    / 0             |\n"
        f"| {second:<26}| {bus:<14}| 0           0    / 0          3397 / 65536         |\n{RULE}"
    )


def table(*chips: str, second: str = "Chip") -> str:
    return (
        RULE
        + title()
        + HEADING
        + f"| {second:<26}| Bus-Id        | AICore(%)   Memory-Usage(MB)     |\n"
        + "".join(chips)
    )


ATLAS_800 = table(*(chip(n, "910B3", "0", f"0000:{bus}:00.0") for n, bus in enumerate(("C1", "C2", "81", "82"))))
A3 = table(
    chip(0, "Ascend910", "0     0", "0000:9D:00.0"),
    chip(0, "Ascend910", "1     1", "0000:9F:00.0"),
    chip(6, "Ascend910", "0     12", "0000:15:00.0", health="Alarm"),
    second="Chip  Phy-ID",
)
CARDS = table(
    chip(32, "310P3", "0       0", "0000:01:00.0"),
    chip(32, "310P3", "1       1", "0000:01:00.0"),
    chip(2144, "310P3", "0       2", "0000:86:00.0"),
    second="Chip    Device",
)


def one(text: str) -> Facts:
    (sample,) = read(clean(text).splitlines(), "test")
    return sample


def listed(sample: Facts) -> list[tuple[str | None, str | None, int | None]]:
    return [(gpu.name, gpu.address, gpu.ordinal) for gpu in sample.gpus]


def test_one_chip_to_an_npu() -> None:
    """910 and 910B: the number of the NPU is the one that matrices use."""
    sample = one(ATLAS_800)
    assert listed(sample)[0] == ("NPU0", "0000:c1:00.0", 0)
    assert listed(sample)[3] == ("NPU3", "0000:82:00.0", 3)
    assert {(gpu.vendor_id, gpu.device_id, gpu.model) for gpu in sample.gpus} == {(0x19E5, None, "Ascend 910B3")}
    assert sample.source.status == "ok"


def test_two_dies_to_an_npu() -> None:
    """910C: matrices use the physical number, which the second line has; health is no matter of topology."""
    assert listed(one(A3)) == [
        ("Phy-ID0", "0000:9d:00.0", 0),
        ("Phy-ID1", "0000:9f:00.0", 1),
        ("Phy-ID12", "0000:15:00.0", 12),
    ]


def test_cards_for_inference() -> None:
    """310P: numbers of NPUs have gaps, Device is the index; two chips of a card may share one function, and are parts
    of one device."""
    assert listed(one(CARDS)) == [
        ("NPU32", "0000:01:00.0", 0),
        ("NPU32.1", "0000:01:00.0", 0),
        ("NPU2144", "0000:86:00.0", 2),
    ]


def test_columns_of_their_own() -> None:
    """The 950's table has the name in a column of its own, and no number on the second line."""
    text = (
        "| npu-smi 26.0                             Version: 26.0                                  |\n"
        "| NPU ID | Name             | Health        | Power(W)    Temp(C)     Hugepages-Usage(page) |\n"
        "|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)   |\n"
        "| 0      | 950PR            | OK            | 120.1       40          0     / 0             |\n"
        "|        |                  | 0000:01:00.0  | 0           0    / 0    3398  / 131072        |\n"
        "| 1      | 950PR            | OK            | 120.1       40          0     / 0             |\n"
        "|        |                  | NA            | 0           0    / 0    3398  / 131072        |\n"
    )
    assert listed(one(text)) == [("NPU0", "0000:01:00.0", 0), ("NPU1", None, 1)]


def test_an_older_table_of_a_chip_without_address() -> None:
    """A name that is a number, and an NPU that is part of a processor."""
    text = (
        "| npu-smi 21.0.3                       Version: 21.0.3                         |\n"
        "| NPU     Name      | Health          | Power(W)          Temp(C)              |\n"
        "| Chip    Device    | Bus-Id          | AICore(%)         Memory-Usage(MB)     |\n"
        "+===================+=================+========================================+\n"
        "| 0       310       | OK              | 12.8              49                   |\n"
        "| 0       0         | NA              | 0                 2621 / 8192          |\n"
    )
    assert listed(one(text)) == [("NPU0", None, 0)]


def test_processes_are_no_chips() -> None:
    """The table of processes below has numbers in the same place."""
    processes = (
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
        "| 0       0                 | 124528        | python                   | 17400                   |\n"
        "| No running processes found in NPU 1                                                            |\n"
    )
    assert listed(one(ATLAS_800 + processes)) == listed(one(ATLAS_800))


def test_samples_over_time() -> None:
    """Each title begins a sample, and so does a heading without one."""
    assert len(read((ATLAS_800 + ATLAS_800).splitlines(), "t")) == 2
    untitled = "".join(ATLAS_800.splitlines(keepends=True)[2:])
    assert len(read((untitled + untitled).splitlines(), "t")) == 2


@pytest.mark.parametrize("kept", ["| 3     910B3               | OK  ", "| 0                         | 0000:82:0"])
def test_cut_within_a_chip(kept: str) -> None:
    """A chip whose second line is cut off has no address that could be told: it is left out, and the source says so."""
    text = ATLAS_800[: ATLAS_800.rindex(kept[:28]) + len(kept)]
    sample = one(text)
    assert [gpu.ordinal for gpu in sample.gpus] == [0, 1, 2]
    assert sample.source.status == "partial"


def test_a_second_line_alone() -> None:
    """Whose NPU it is nothing tells."""
    lines = [line for line in ATLAS_800.splitlines() if not line.startswith("| 1 ")]
    sample = one("\n".join(lines))
    assert [gpu.ordinal for gpu in sample.gpus] == [0, 2, 3]
    assert sample.source.status == "partial"


def test_first_lines() -> None:
    """The table's title and heading, with the bar that is the table's own and not a mark of quotation."""
    lines = ATLAS_800.splitlines()
    assert [line for line in lines if READER.begins(line)] == lines[1:3]
    assert READER.begins("> " + lines[1])
    assert not READER.begins(lines[1].removeprefix("| "))
    for line in ("npu-smi info", "| NPU     Chip              | Process id    |", "| 0     910B3               | OK |"):
        assert not READER.begins(line)


def report(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main(["inspect", "--json", str(path)])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("quote", ["", "> ", ">", "# ", "| ", "    ", "node7: "])
def test_quoted(quote: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As people paste it, the bars notwithstanding; the NPUs are accelerators at their addresses."""
    path = tmp_path / "mail.txt"
    path.write_text("".join(f"{quote}{line}\n" for line in ATLAS_800.splitlines()))
    devices = report(path, capsys)["devices"]
    assert isinstance(devices, list)
    assert [(d["address"][5:7], d["kind"], d["name"]) for d in devices] == [
        (bus, "accelerator", "Ascend 910B3") for bus in ("81", "82", "c1", "c2")
    ]


def test_beside_lspci(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One machine's NPUs in two outputs are counted once."""
    path = tmp_path / "both.txt"
    functions = "".join(
        f"{bus}:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802] (rev 20)\n"
        for bus in ("81", "82", "c1", "c2")
    )
    path.write_text(f"$ lspci -nn\n{functions}$ npu-smi info\n{ATLAS_800}")
    found = report(path, capsys)
    devices, gpus = found["devices"], found["gpus"]
    assert isinstance(devices, list)
    assert isinstance(gpus, list)
    assert [d["device_id"] for d in devices] == ["d802"] * 4
    assert next((g["index"], g["address"]) for g in gpus) == (0, "0000:c1:00.0")
    assert len(gpus) == 4


def test_addresses_that_were_masked() -> None:
    """NPUs are told apart by their numbers."""
    for mask in ("0000:xx:00.0", "0000:00:00.0", "0000:01:00.0"):
        rows = [
            "| npu-smi 25.2.0                   Version: 25.2.0                 |",
            "| NPU   Name                | Health        | Power(W)    Temp(C)   |",
            "| Chip                      | Bus-Id        | AICore(%)             |",
        ]
        for number in range(2):
            rows.append(f"| {number}     910B4-1             | OK            | 88.2        30         |")
            rows.append(f"| 0                         | {mask}  | 0           0    / 0   |")
        assert listed(one("\n".join(rows) + "\n")) == [("NPU0", None, 0), ("NPU1", None, 1)]
