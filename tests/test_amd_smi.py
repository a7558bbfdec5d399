"""amd-smi: blocks of list, static and metric, and the matrices of topology and xgmi."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.classifier import classify
from gpu_topo.classifier.xgmi import RULES
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers import amd_smi, amd_smi_topology
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.model.facts import Facts
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import Unknown
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.paths import path
from tests.amd_smi_texts import HIVES, matrix, showbus, topology

EIGHT = sorted(HIVES)


def node_of(tmp_path: Path, *texts: str) -> Node:
    names = []
    for number, text in enumerate(texts):
        names.append(str(tmp_path / f"{number}.txt"))
        Path(names[-1]).write_text(text, encoding="utf-8")
    return assemble([fact for found in read_inputs(names) for fact in found.facts])


def tables(text: str) -> Facts:
    (sample,) = amd_smi_topology.read(clean(text).splitlines(), "t")
    return sample


def blocks(text: str) -> list[Facts]:
    return amd_smi.read(clean(text).splitlines(), "t")


def blamed(node: Node) -> list[str]:
    return [found.subject for found in RULES[0].judge(node, Past(), Policy()) if isinstance(found, Finding)]


def mesh(rate: str = "50000-50000", weight: int = 15, addresses: list[str] = EIGHT) -> str:
    return topology(addresses, lambda i, j: weight, lambda i, j: "XGMI", lambda i, j: rate)


def states(cell: dict[tuple[int, int], str], usual: str = "U", count: int = 8) -> str:
    """`amd-smi xgmi --link-status`."""
    names = [f"GPU{n}" for n in range(count)]
    rows = matrix(names, lambda i, j: cell.get((min(i, j), max(i, j)), usual), "SELF")
    lines = [f"       bdf           {rows[0].strip()}"]
    lines += [row.replace(name, f"{name}   {EIGHT[n]}", 1) for n, (name, row) in enumerate(zip(names, rows[1:]))]  # noqa: B905
    return "\n".join(["XGMI LINK STATUS:", *lines, "", "", "Legend:", "  SELF = Current GPU", ""])


def test_a_full_mesh(tmp_path: Path) -> None:
    """Addresses, one link and 50 GB/s for each pair."""
    sample = tables(mesh())
    assert [gpu.address for gpu in sample.gpus] == EIGHT
    assert {(link.links, link.gbs, link.state) for link in sample.accelerator_links} == {(1, 50.0, ACTIVE)}
    assert len(sample.accelerator_links) == 28
    node = node_of(tmp_path, mesh())
    assert interconnect(node).shape == "full-mesh"
    assert path(node, EIGHT[0], EIGHT[7]).kind == "XG1"
    assert blamed(node) == []


@pytest.mark.parametrize("weight", [15, 0, 41])
def test_drivers_that_know_no_bandwidth(tmp_path: Path, weight: int) -> None:
    """0-0 for every pair says nothing; guests weigh links with 0 or 41."""
    sample = tables(mesh("0-0", weight))
    assert {(link.gbs, link.state) for link in sample.accelerator_links} == {(None, ACTIVE)}
    assert all(isinstance(link.links, Unknown) for link in sample.accelerator_links)
    assert path(node_of(tmp_path, mesh("0-0", weight)), EIGHT[0], EIGHT[7]).kind == "XG"


def test_a_bandwidth_that_contradicts_the_weight() -> None:
    """Some pairs have one; this one weighs like a link and has none, or the other way round."""
    for weight, rate in ((15, "0-0"), (30, "50000-50000")):
        odd = {(0, 1): (weight, rate), (1, 0): (weight, rate)}

        def cell(i: int, j: int, odd: dict[tuple[int, int], tuple[int, str]] = odd) -> tuple[int, str]:
            return odd.get((i, j), (15, "50000-50000"))

        text = topology(EIGHT[:4], lambda i, j: cell(i, j)[0], lambda i, j: "XGMI", lambda i, j: cell(i, j)[1])
        found = [link.state for link in tables(text).accelerator_links if {link.a, link.b} == set(EIGHT[:2])]
        assert found == [UNKNOWN_STATE]


def test_consumer_cards(tmp_path: Path) -> None:
    """Two cards that only PCIe joins: no link, and no question."""
    text = topology(EIGHT[:2], lambda i, j: 40, lambda i, j: "PCIE", lambda i, j: "N/A")
    node = node_of(tmp_path, text)
    assert len(node.gpus) == 2
    assert node.accelerator_links == ()
    assert list(RULES[0].judge(node, Past(), Policy())) == []


def test_a_lost_member(tmp_path: Path) -> None:
    """Seven reach each other, one nobody."""

    def joined(i: int, j: int) -> bool:
        return 3 not in (i, j)

    text = topology(
        EIGHT,
        lambda i, j: 15 if joined(i, j) else 72,
        lambda i, j: "XGMI" if joined(i, j) else "PCIE",
        lambda i, j: "50000-50000" if joined(i, j) else "N/A",
    )
    assert blamed(node_of(tmp_path, text)) == [EIGHT[3]]


def test_partitions_are_one_device() -> None:
    """They are further functions of it."""
    names = [f"0000:{bus}:00.{n}" for bus in ("0c", "22") for n in range(8)]
    text = topology(names, lambda i, j: 13 if i // 8 == j // 8 else 41, lambda i, j: "XGMI", lambda i, j: "0-0")
    sample = tables(text)
    assert [(gpu.address, gpu.partitions) for gpu in sample.gpus] == [("0000:0c:00.0", 8), ("0000:22:00.0", 8)]
    assert [(link.a, link.b, link.state) for link in sample.accelerator_links] == [
        ("0000:0c:00.0", "0000:22:00.0", ACTIVE)
    ]


def test_cut_off_anywhere_nobody_is_blamed() -> None:
    """The tables end in the middle: what follows is not known."""
    for text in (mesh(), states({})):
        for at in range(0, len(text), 11):
            facts = amd_smi_topology.read(clean(text[:at]).splitlines(), "t")
            assert blamed(assemble(facts)) == []
            assert {link.links for fact in facts for link in fact.accelerator_links if link.links == 1} <= {1}


def test_a_link_that_is_down(tmp_path: Path) -> None:
    """amd-smi xgmi says so, before or after a topology that lists it all the same, and keeps what that knows."""
    down = states({(0, 1): "D"})
    for texts in ((down, mesh()), (mesh(), down), (mesh() + down,), (down + "$ amd-smi topology\n" + mesh(),)):
        node = node_of(tmp_path, *texts)
        assert len(node.accelerator_links) == 28
        (link,) = [link for link in node.accelerator_links if link.state == INACTIVE]
        assert (link.a, link.b) == (EIGHT[0], EIGHT[1])
        assert blamed(node) == EIGHT[:2]


def test_guests_that_call_all_links_down(tmp_path: Path) -> None:
    """The driver hides the state there, and older versions printed that as down; N/A is no state at all."""
    node = node_of(tmp_path, states({}, "D"))
    assert {link.state for link in node.accelerator_links} == {UNKNOWN_STATE}
    assert blamed(node) == []
    assert any(isinstance(told, Unassessed) for told in RULES[0].judge(node, Past(), Policy()))
    assert node_of(tmp_path, states({}, "N/A")).accelerator_links == ()
    assert node_of(tmp_path, states({}, "X")).accelerator_links == ()


def test_other_tables_of_xgmi_give_number_and_address() -> None:
    """What went over the links, and ports of which nothing tells where they lead."""
    sample = tables(
        "LINK METRIC TABLE:\n       bdf          bit_rate max_bandwidth link_type 0000:0c:00.0 0000:22:00.0\n"
        "GPU0   0000:0c:00.0 32 Gb/s  512 Gb/s      XGMI\n Read        N/A  2 KB\n Write       N/A  1 KB\n"
        "GPU1   0000:22:00.0 32 Gb/s  512 Gb/s      XGMI\n\n"
        "GPU LINK PORT STATUS:\n       bdf           port_num\nGPU0   0000:0c:00.0  U  U  D  X\n"
    )
    assert [(gpu.ordinal, gpu.address) for gpu in sample.gpus] == [(0, "0000:0c:00.0"), (1, "0000:22:00.0")]
    assert sample.accelerator_links == ()


LIST = """\
GPU: 0
    BDF: 0000:0c:00.0
    UUID: 00ff74a1-0000-1000-8000-000000000001
    KFD_ID: 1
    NODE_ID: 2
    PARTITION_ID: 0

GPU: 1
    BDF: 0000:22:00.0
    UUID: 00ff74a1-0000-1000-8000-000000000002
    KFD_ID: 2
    NODE_ID: 3
    PARTITION_ID: 0

"""
STATIC = """\
CPU: 0
    SMU:
        FW_VERSION: 85.90.0
GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
        VENDOR_ID: 0x1002
        SUBVENDOR_ID: 0x1002
        DEVICE_ID: 0x74a1
    BUS:
        BDF: 0000:0c:00.0
        MAX_PCIE_WIDTH: 16
        MAX_PCIE_SPEED: 32 GT/s
        PCIE_INTERFACE_VERSION: Gen 5
    NUMA:
        NODE: 1
        AFFINITY: 1
"""
METRIC = """\
GPU: 0
    USAGE: N/A
    PCIE:
        WIDTH: 8
        SPEED: 2.5 GT/s
        BANDWIDTH: N/A
        REPLAY_COUNT: 7
    FAN:
        SPEED: 30 GT/s
        MAX: 255

"""


def test_list() -> None:
    """Number, address and UUID."""
    (sample,) = blocks(LIST)
    assert [(gpu.ordinal, gpu.address, gpu.uuid) for gpu in sample.gpus] == [
        (0, "0000:0c:00.0", "00ff74a1-0000-1000-8000-000000000001"),
        (1, "0000:22:00.0", "00ff74a1-0000-1000-8000-000000000002"),
    ]
    assert {gpu.vendor_id for gpu in sample.gpus} == {0x1002}
    assert len(blocks(LIST + LIST)) == 2
    assert [gpu.address for gpu in blocks(LIST + LIST)[1].gpus] == ["0000:0c:00.0", "0000:22:00.0"]


def test_static_and_metric_in_one_paste(tmp_path: Path) -> None:
    """Maxima of one, what runs of the other: shown, and not judged, since a GPU idles at fewer lanes."""
    node = node_of(tmp_path, LIST + STATIC + METRIC)
    (gpu, _) = node.gpus
    device = node.devices["0000:0c:00.0"]
    assert (gpu.model, gpu.replays, device.function.device_id) == ("AMD Instinct MI300X", 7, 0x74A1)
    assert device.function.numa_node == 1
    assert device.link is not None
    assert (device.link.width, device.link.max_width) == (8, 16)
    assert (device.link.speed_gts, device.link.max_speed_gts) == (2.5, 32.0)
    assert [found.code for found in classify(node).findings if found.code.startswith("pcie-")] == []


def test_what_is_not_known(tmp_path: Path) -> None:
    """N/A everywhere, as of integrated graphics; a block that tells nothing is no GPU."""
    text = "GPU: 0\n    BUS:\n        BDF: 0000:c4:00.0\n        MAX_PCIE_WIDTH: N/A\n        MAX_PCIE_SPEED: N/A\n"
    (sample,) = blocks(text + "    PCIE:\n        WIDTH: N/A\n        SPEED: N/A\n\n")
    assert sample.functions == ()
    assert blocks("GPU: 0\n    USAGE: N/A\nGPU: 1\n") == []
    (odd,) = blocks("GPU: 0\n    BDF: 0000:c4:00.0\n    PCIE:\n        WIDTH: 0\n        SPEED: 16 GT/s\n\n")
    assert odd.functions[0].link is not None
    assert isinstance(odd.functions[0].link.width, Unknown)


def test_a_value_that_was_cut_off() -> None:
    """1 may be the beginning of 16."""
    (sample,) = blocks("GPU: 0\n    BDF: 0000:c4:00.0\n    PCIE:\n        WIDTH: 1")
    assert sample.functions == ()


def test_partitions_of_the_list() -> None:
    """Further functions, or the same function with another PARTITION_ID."""
    for function in ("1", "0"):
        text = (
            "GPU: 0\n    BDF: 0000:0c:00.0\n    PARTITION_ID: 0\n\n"
            f"GPU: 1\n    BDF: 0000:0c:00.{function}\n    PARTITION_ID: 1\n\n"
        )
        (sample,) = blocks(text)
        assert [(gpu.ordinal, gpu.address, gpu.partitions) for gpu in sample.gpus] == [(0, "0000:0c:00.0", 2)]


def test_numbers_of_rocm_smi_and_addresses_of_amd_smi(tmp_path: Path) -> None:
    """One machine from all of them: each GPU once."""
    node = node_of(tmp_path, LIST, showbus(["0000:0c:00.0", "0000:22:00.0"]), mesh(addresses=EIGHT[:2]), METRIC)
    assert len(node.gpus) == 4  # two of the list, two of the mesh
    assert {gpu.address for gpu in node.gpus} == {"0000:0c:00.0", "0000:22:00.0", *EIGHT[:2]}


def test_first_lines() -> None:
    """Titles of tables and heads of blocks; rows of tables are not lspci's."""
    assert amd_smi.READER.begins("GPU: 0")
    assert not amd_smi.READER.begins("GPU: NVIDIA")
    assert amd_smi_topology.READER.begins("LINK TYPE TABLE:")
    assert not amd_smi_topology.READER.begins("ROUTING TABLE:")
    keeps = amd_smi_topology.READER.keeps
    assert keeps is not None
    assert keeps("0000:0c:00.0 SELF         XGMI")
    assert not keeps("0000:0c:00.0 Display controller: Advanced Micro Devices")


@pytest.mark.parametrize("head", ["AI_NIC", "NIC", "CPU", "BRCM_NIC", "FPGA"])
@pytest.mark.parametrize("quote", ["", "> ", "    "])
def test_blocks_of_other_devices(head: str, quote: str) -> None:
    """amd-smi lists its adapters behind its GPUs: whatever its block is called, it is none of the GPU's."""
    text = f"GPU: 0\n    BDF: 0000:05:00.0\n    NODE_ID: 2\n\n{head}: 0\n    BDF: 0000:09:00.0\n    UUID: x\n"
    (sample,) = blocks("".join(f"{quote}{line}\n" for line in text.splitlines()))
    assert [gpu.address for gpu in sample.gpus] == ["0000:05:00.0"]


def test_a_paste_that_lost_its_indentation() -> None:
    """Values that stand as far left as the GPU's own line are its values."""
    (sample,) = blocks("GPU: 0\nKFD_ID: 63484\nNODE_ID: 2\nBDF: 0000:05:00.0\nAI_NIC: 0\nBDF: 0000:09:00.0\n")
    assert [gpu.address for gpu in sample.gpus] == ["0000:05:00.0"]
