"""npu-smi info -t topo: how Ascend NPUs are connected, and what follows of a pair that is not as the others are."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.npu_smi_topo import READER, read
from gpu_topo.model.facts import Facts
from gpu_topo.model.reading import Unknown
from tests.test_npu_smi import chip, table

Kinds = Callable[[int, int], str]

EIGHT = [f"NPU{n}" for n in range(8)]
# Two NPUs of a 910B share a NUMA node; of a 910, one of each group of four.
CPUS_B = ["144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71"]
CPUS_A = ["0-23", "24-47", "48-71", "72-95"] * 2
SWITCHES = "  PIX  = by one switch\n  PXB  = by switches\n"


def mesh(a: int, b: int) -> str:
    """910B: each with each."""
    return "HCCS"


def two_fours(a: int, b: int) -> str:
    """910: two groups of four."""
    return "HCCS" if a // 4 == b // 4 else "PHB" if a % 4 == b % 4 else "SYS"


def dies(a: int, b: int) -> str:
    """910C: the two dies of a package, and the others through a switch."""
    return "SIO" if a // 2 == b // 2 else "HCCS_SW"


def but(kinds: Kinds, **pairs: str) -> Kinds:
    """Some pairs otherwise: _1_2="SYS"."""
    changed = {frozenset(map(int, pair.split("_")[1:])): kind for pair, kind in pairs.items()}
    return lambda a, b: changed.get(frozenset((a, b)), kinds(a, b))


def matrix(
    kinds: Kinds,
    names: Sequence[str] = EIGHT,
    cpus: Sequence[str] = (),
    legend: str = SWITCHES,
    places: Sequence[int] = (),
) -> str:
    """A matrix as npu-smi prints it. places: the numbers for which `kinds` is asked, where not all are shown."""
    places = places or range(len(names))
    text = "\t   " + "".join(f"{name:<11}" for name in names) + ("CPU Affinity" if cpus else "") + "\n"
    for row, name in enumerate(names):
        cells = ("X" if a == places[row] else kinds(places[row], a) for a in places)
        text += f"{name:<11}" + "".join(f"{cell:<11}" for cell in cells) + (cpus[row] if cpus else "") + "\n"
    return f"{text}\nLegend:\n\n  X    = itself\n{legend}  HCCS = linked\n  NA   = not known\n"


def one(text: str) -> Facts:
    (sample,) = read(clean(text).splitlines(), "test")
    return sample


def links(sample: Facts) -> dict[tuple[str, str], tuple[str, str]]:
    return {(link.a, link.b): (link.kind, link.state) for link in sample.accelerator_links}


def paths(sample: Facts) -> dict[tuple[str, str], str | None]:
    return {(peer.a, peer.b): peer.kind for peer in sample.peers}


def test_full_mesh() -> None:
    """Every pair once; how many links it has is not printed."""
    sample = one(matrix(mesh, cpus=CPUS_B))
    assert len(links(sample)) == 28
    assert set(links(sample).values()) == {("HCCS", "active")}
    assert {link.links for link in sample.accelerator_links} == {None}
    assert set(paths(sample).values()) == {"HC"}
    assert [(gpu.name, gpu.ordinal, gpu.local_cpus) for gpu in sample.gpus] == [
        (f"NPU{n}", n, CPUS_B[n]) for n in range(8)
    ]
    assert sample.source.status == "ok"


def test_packages_of_two_dies() -> None:
    """SIO is a link of its own kind, HCCS_SW one of HCCS; Arm hosts print no CPUs."""
    sample = one(matrix(dies, [f"Phy-ID{n}" for n in (2, 3, 12, 13)]))
    assert links(sample)["Phy-ID2", "Phy-ID3"] == ("SIO", "active")
    assert links(sample)["Phy-ID3", "Phy-ID12"] == ("HCCS", "active")
    assert len(links(sample)) == 6


def test_builds_of_other_vendors() -> None:
    """HCCS goes by XLink there."""
    sample = one(matrix(but(lambda a, b: "XLink_SW", _0_1="SIO", _2_3="XLink"), [f"Phy-ID{n}" for n in range(4)]))
    assert Counter(kind for kind, _ in links(sample).values()) == {"HCCS": 5, "SIO": 1}


def test_ways_over_pcie() -> None:
    """The kinds are those of nvidia-smi topo -m; PIB is several switches."""
    sample = one(matrix(but(lambda a, b: "SYS", _0_1="PIX", _1_2="PIB", _2_3="PHB"), EIGHT[:4], CPUS_B[:4]))
    assert list(paths(sample).values()) == ["PIX", "SYS", "SYS", "PXB", "SYS", "PHB"]
    assert links(sample) == {}


def test_not_told() -> None:
    """NA, a kind of another version, rows that disagree: such a pair may be linked or not."""
    text = matrix(but(mesh, _0_1="NA", _2_3="FOO_BAR"), cpus=CPUS_B)
    text = text.replace("NPU5       HCCS", "NPU5       SYS ", 1)
    sample = one(text)
    unknown = {pair for pair, (_, state) in links(sample).items() if state == "unknown"}
    assert unknown == {("NPU0", "NPU1"), ("NPU2", "NPU3"), ("NPU0", "NPU5")}
    assert unknown.isdisjoint(paths(sample))
    assert sample.source.status == "partial"


def test_phb_of_a_910() -> None:
    """npu-smi calls two NPUs of one NUMA node PHB there, linked or not; between the groups it says what it is."""
    text = matrix(but(two_fours, _2_3="PHB"), cpus=CPUS_A, legend="")
    assert links(one(text))["NPU2", "NPU3"] == ("HCCS", "unknown")
    assert ("NPU0", "NPU4") not in links(one(text))
    assert ("NPU2", "NPU3") not in links(one(text.replace("  HCCS =", SWITCHES + "  HCCS =")))


def test_columns_of_adapters() -> None:
    """What npu-smi fills by number is no fact of an adapter."""
    text = "NPU0 NPU1 NIC0 CPU Affinity\nNPU0 X UB UB 0-3\nNPU1 UB X NA 4-7\nNIC0 UB NA X\n\nNIC0: ens0\n"
    sample = one(text)
    assert [gpu.name for gpu in sample.gpus] == ["NPU0", "NPU1"]
    assert (sample.peers, sample.ports, sample.accelerator_links) == ((), (), ())
    assert sample.source.detail == "cells of a kind that is not known: UB"


def test_row_that_does_not_fit() -> None:
    """A lost cell shifts the others: the row counts for nothing, the other rows for all that they say."""
    text = matrix(mesh, cpus=CPUS_B).replace("NPU6       HCCS       ", "NPU6       ", 1)
    sample = one(text)
    assert sample.source.detail == "a row does not fit its heading"
    assert len([state for _, state in links(sample).values() if state == "active"]) == 28


def test_wrapped_by_a_narrow_terminal() -> None:
    """Heading, rows and lists of CPUs that go on on the next line."""
    sample = one(
        "      NPU0  NPU1\nNPU2  CPU Affinity\n"
        "NPU0  X     HCCS\nHCCS  0-23,\n96-119\nNPU1  HCCS  X\nHCCS  24-47\nNPU2  HCCS  HCCS\nX     48-71\n"
    )
    assert len(links(sample)) == 3
    assert [gpu.local_cpus for gpu in sample.gpus] == ["0-23,96-119", "24-47", "48-71"]


def test_cut_off() -> None:
    """Wherever the text ends, no pair is said to be what the whole does not say, and none is called down."""
    text = matrix(but(dies, _0_3="SYS", _2_7="PHB"), EIGHT, CPUS_B)
    whole = links(one(text))
    for end in range(text.index("NPU0       X"), text.index("Legend")):
        for sample in read(clean(text[:end]).splitlines(), "t"):
            for pair, (kind, state) in links(sample).items():
                assert state == "unknown" or whole[pair] == (kind, state)
            assert sample.source.status == ("partial" if end < text.index("NPU7       H") else sample.source.status)
            assert all(
                gpu.local_cpus is None or isinstance(gpu.local_cpus, Unknown) or gpu.local_cpus in text
                for gpu in sample.gpus
            )


def test_first_lines() -> None:
    """The heading alone, not the rows, the legend or a cell of prose."""
    lines = matrix(mesh, cpus=CPUS_B).splitlines()
    assert [line for line in lines if READER.begins(line)] == lines[:1]
    assert READER.begins("NPU0 CPU Affinity")
    for line in ("NPU0", "NPU 0", "NPU0 X", "NPU0 NPU0", "NPU0 GPU1", "see NPU0 NPU1", "NIC0 NPU0", ""):
        assert not READER.begins(line)


def test_many_names() -> None:
    """A heading longer than any machine's is none: its pairs would be more than the text has words."""
    assert read([" ".join(f"NPU{n}" for n in range(3000)), "NPU0 X HCCS"], "t") == []


def inspected(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    path = folder / "npu.txt"
    path.write_text(text)
    main(["inspect", "--json", str(path)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def blamed(found: dict[str, Any]) -> list[str]:
    return [finding["subject"] for finding in found["findings"] if finding["code"] == "hccs-degraded"]


HEALTHY = {
    "910B": (matrix(mesh, cpus=CPUS_B), "full-mesh", 8),
    "two 910B boards": (
        matrix(lambda a, b: "HCCS" if a // 8 == b // 8 else "PIX", [f"NPU{n}" for n in range(16)]),
        "partial",
        8,
    ),
    "910": (matrix(two_fours, cpus=CPUS_A, legend=""), "partial", 4),
    "910C": (matrix(dies, [f"Phy-ID{n}" for n in range(16)]), "full-mesh", 16),
    "a package": (matrix(dies, ["Phy-ID12", "Phy-ID13"], places=(12, 13)), "pairs", 2),
    "some of a 910C": (matrix(dies, ["Phy-ID2", "Phy-ID3", "Phy-ID9"], places=(2, 3, 9)), "full-mesh", 3),
    "cards": (matrix(lambda a, b: "PHB" if a // 2 == b // 2 else "SYS", EIGHT[:4], CPUS_B[:4], ""), "none", 1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_designs_are_silent(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are built: meshes, two groups, packages on a switch, cards without links."""
    text, shape, largest = HEALTHY[name]
    found = inspected(text, tmp_path, capsys)
    assert found["findings"] == []
    assert (found["interconnect"]["shape"], found["interconnect"]["max_tensor_parallel"]) == (shape, largest)
    assert {device["kind"] for device in found["devices"]} == {"accelerator"}


@pytest.mark.parametrize(
    "shown", [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5), (0, 1, 2, 6), (4, 5), (0, 4), (1, 2, 3, 4, 5, 6, 7)]
)
def test_what_a_container_is_shown(shown: Sequence[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some of two groups: who has no partner here may have three that are hidden."""
    text = matrix(two_fours, [f"NPU{n}" for n in shown], legend="", places=shown)
    assert blamed(inspected(text, tmp_path, capsys)) == []


BROKEN = {
    "910B": (matrix(but(mesh, _2_5="SYS"), cpus=CPUS_B), ["NPU2", "NPU5"]),
    "910B behind one switch": (matrix(but(mesh, _0_1="PIX"), cpus=CPUS_B), ["NPU0", "NPU1"]),
    "910": (matrix(but(two_fours, _5_6="SYS"), cpus=CPUS_A, legend=""), ["NPU5", "NPU6"]),
    "910C": (matrix(but(dies, _4_9="SYS"), [f"Phy-ID{n}" for n in range(16)]), ["Phy-ID4", "Phy-ID9"]),
    "a 910B on its own": (matrix(but(mesh, **{f"_3_{n}": "PHB" for n in range(8) if n != 3}), cpus=CPUS_B), ["NPU3"]),
    "in a container": (matrix(but(mesh, _4_6="SYS"), EIGHT[3:], CPUS_B[3:], places=range(3, 8)), ["NPU4", "NPU6"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_pair_without_the_link_of_its_twins(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A connection that did not train shows at both ends, an NPU that was isolated at itself."""
    text, subjects = BROKEN[name]
    found = inspected(text, tmp_path, capsys)
    assert blamed(found) == subjects
    assert found["verdict"] == "warning"


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_cut_matrix_is_no_alarm(rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not recorded is told as such, and no shape is made of it."""
    for kinds in (mesh, two_fours):
        text = "\n".join(matrix(kinds, cpus=CPUS_B).splitlines()[: rows + 1])
        found = inspected(text, tmp_path, capsys)
        assert blamed(found) == []
        if rows < 7:
            assert "hccs-degraded" in {open_["code"] for open_ in found["unassessed"]}
            assert found["interconnect"]["shape"] == "unknown"


def test_with_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of npu-smi info says which NPU is at which address, whichever comes first."""
    buses = ("c1", "c2", "81", "82", "01", "02", "41", "42")
    cards = table(*(chip(n, "910B3", "0", f"0000:{bus.upper()}:00.0") for n, bus in enumerate(buses)))
    broken = matrix(but(mesh, _2_5="SYS"), cpus=CPUS_B)
    for text in (f"[root@a ~]# npu-smi info\n{cards}[root@a ~]# npu-smi info -t topo\n{broken}", broken + cards):
        found = inspected(text, tmp_path, capsys)
        assert sorted(blamed(found)) == ["0000:02:00.0", "0000:81:00.0"]
        assert len(found["devices"]) == len(found["gpus"]) == 8
        assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))
        kinds = {frozenset((path["a"], path["b"])): path["kind"] for path in found["paths"]}
        assert kinds[frozenset(("0000:02:00.0", "0000:81:00.0"))] == "SYS"
        assert Counter(kinds.values()) == {"HC": 27, "SYS": 1}


def test_addresses_without_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """lspci beside a matrix does not say which NPU is which: none is counted twice, and none is blamed."""
    functions = "".join(
        f"{n + 1:02x}:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802]\n"
        for n in range(8)
    )
    found = inspected(
        f"$ lspci -nn\n{functions}$ npu-smi info -t topo\n{matrix(but(mesh, _2_5='SYS'))}", tmp_path, capsys
    )
    assert len(found["devices"]) == len(found["gpus"]) == 8
    assert blamed(found) == []
    assert found["interconnect"]["shape"] == "unknown"
    assert "hccs-degraded" in {open_["code"] for open_ in found["unassessed"]}


def test_two_chips_behind_one_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a matrix says of them is no way between two devices."""
    cards = table(
        chip(0, "310P3", "0       0", "0000:01:00.0"),
        chip(0, "310P3", "1       1", "0000:01:00.0"),
        chip(1, "310P3", "0       2", "0000:02:00.0"),
        second="Chip    Device",
    )
    found = inspected(cards + matrix(lambda a, b: "PHB", EIGHT[:2], CPUS_B[:2], ""), tmp_path, capsys)
    assert [path["kind"] for path in found["paths"]] == ["PHB"]
    assert found["findings"] == []


@pytest.mark.parametrize("quote", ["> ", "# ", "| ", "    ", "node7: "])
def test_quoted(quote: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As mails and comments have it."""
    text = "".join(f"{quote}{line}\n" for line in matrix(but(mesh, _2_5="SYS"), cpus=CPUS_B).splitlines())
    assert blamed(inspected(text, tmp_path, capsys)) == ["NPU2", "NPU5"]


def test_matrix_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpu-topo matrix shows the kinds, HC without a number where none is known."""
    path = tmp_path / "topo.txt"
    path.write_text(matrix(two_fours, EIGHT[:6], CPUS_A[:6], ""))
    main(["matrix", "--format", "csv", str(path)])
    rows = [row.split(",") for row in capsys.readouterr().out.splitlines()]
    words = Counter(word.split()[0] for row in rows[1:] for word in row if word.strip())
    assert (words["HC"], words["PHB"], words["SYS"]) == (14, 4, 12)


def test_shuffled_columns() -> None:
    """Cells belong to the names of the heading, in whatever order it has them."""
    order = list(range(8))
    random.Random(3).shuffle(order)
    text = matrix(but(mesh, _2_5="SYS"), [f"NPU{n}" for n in order], places=order)
    assert {frozenset(pair): kind for pair, kind in paths(one(text)).items() if kind == "SYS"} == {
        frozenset(("NPU2", "NPU5")): "SYS"
    }
