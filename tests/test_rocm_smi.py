"""rocm-smi: matrices, addresses and the table of devices; what contradicts itself or is cut off is unknown."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.assemble import assemble
from gpu_topo.classifier.xgmi import RULES
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.rocm_smi import READER, read
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.model.facts import Facts
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.gpu import ACTIVE, UNKNOWN_STATE
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import Unknown, known
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.paths import path
from tests.amd_smi_texts import HIVES, log, matrix, showbus, showtopo, title, two_hives, weigh

# Which of eight dies of four packages are joined: two to four links inside a package, one or two between some.
DIES = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 2): 1, (1, 3): 1, (0, 6): 2, (1, 5): 1, (2, 4): 2, (3, 7): 1,
        (4, 6): 1, (5, 7): 1}  # fmt: skip


def one(text: str) -> Facts:
    (sample,) = read(clean(text).splitlines(), "t")
    return sample


def node_of(tmp_path: Path, *texts: str) -> Node:
    names = []
    for number, text in enumerate(texts):
        names.append(str(tmp_path / f"{number}.txt"))
        Path(names[-1]).write_text(text, encoding="utf-8")
    facts = [fact for found in read_inputs(names) for fact in found.facts]
    return assemble(facts)


def told(node: Node) -> tuple[list[str], int]:
    """Who is blamed, and how many questions stay open."""
    answers = list(RULES[0].judge(node, Past(), Policy()))
    return (
        [a.subject for a in answers if isinstance(a, Finding)],
        sum(isinstance(a, Unassessed) for a in answers),
    )


def dies(i: int, j: int) -> bool:
    return (min(i, j), max(i, j)) in DIES


def test_two_hives() -> None:
    """A link for each pair one hop apart, its count unknown; the way across processors is stated."""
    sample = one(showtopo(8, *weigh(two_hives), [0] * 4 + [1] * 4))
    assert len(sample.accelerator_links) == 12
    assert {link.state for link in sample.accelerator_links} == {ACTIVE}
    assert all(isinstance(link.links, Unknown) and link.gbs is None for link in sample.accelerator_links)
    assert [gpu.numa_node for gpu in sample.gpus] == [0] * 4 + [1] * 4
    assert {gpu.vendor_id for gpu in sample.gpus} == {0x1002}
    assert {peer.kind for peer in sample.peers} == {"SYS"}
    assert len(sample.peers) == 16
    assert sample.source.status == "ok"


def test_numbers_get_the_addresses_of_showbus(tmp_path: Path) -> None:
    """In one paste or in several files; rocm-smi does not number in the order of addresses."""
    topo = showtopo(8, *weigh(two_hives))
    for node in (node_of(tmp_path, topo, showbus(HIVES)), node_of(tmp_path, showbus(HIVES) + "$ rocm-smi\n" + topo)):
        assert list(node.devices) == sorted(HIVES)
        ends = {(link.a, link.b) for link in node.accelerator_links}
        assert ends == {tuple(sorted((HIVES[i], HIVES[j]))) for i, j in combinations(range(8), 2) if i // 4 == j // 4}
        assert interconnect(node).max_tensor_parallel == 4
        assert told(node) == ([], 0)


def test_a_matrix_alone(tmp_path: Path) -> None:
    """GPUs without addresses, and the kinds of the matrix: XG without a number that nobody printed."""
    node = node_of(tmp_path, showtopo(8, *weigh(two_hives), [0] * 4 + [1] * 4))
    assert list(node.devices) == [f"GPU{n}" for n in range(8)]
    assert path(node, "GPU0", "GPU1").kind == "XG"
    assert path(node, "GPU0", "GPU4").kind == "SYS"


def test_with_lspci_nothing_is_counted_twice(tmp_path: Path) -> None:
    """The same GPUs, by address; without addresses they are some of those on the bus."""
    lspci = "".join(
        f"{address} Display controller [0380]: Advanced Micro Devices, Inc. [AMD/ATI] Vega 20 [1002:66a1] (rev 01)\n"
        for address in HIVES
    )
    topo = showtopo(8, *weigh(two_hives))
    assert len(node_of(tmp_path, lspci, topo, showbus(HIVES)).gpus) == 8
    node = node_of(tmp_path, lspci, topo)
    assert (len(node.devices), len(node.gpus)) == (8, 8)
    assert interconnect(node).shape == "unknown"
    assert told(node) == ([], 1)


def test_a_member_that_lost_its_hive(tmp_path: Path) -> None:
    """It has links to nobody while nearly all others have some."""

    def lost(i: int, j: int) -> bool:
        return two_hives(i, j) and 2 not in (i, j)

    assert told(node_of(tmp_path, showtopo(8, *weigh(lost)))) == (["GPU2"], 0)
    full = weigh(lambda i, j: 2 not in (i, j))
    assert "GPU2" in told(node_of(tmp_path, showtopo(8, *full)))[0]
    assert "GPU2" in told(node_of(tmp_path, showtopo(4, *full)))[0]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_without_xgmi_nothing_is_said(tmp_path: Path, count: int) -> None:
    """Cards that only PCIe joins."""
    node = node_of(tmp_path, showtopo(count, lambda i, j: 40, lambda i, j: 2, lambda i, j: "PCIE"))
    assert len(node.gpus) == count
    assert node.accelerator_links == ()
    assert told(node) == ([], 0)


def test_ways_through_other_gpus_are_no_links(tmp_path: Path) -> None:
    """Two dies a package: all is called XGMI and one hop, and only the weight tells which ways are direct."""
    text = showtopo(8, lambda i, j: 15 if dies(i, j) else 30, lambda i, j: 1, lambda i, j: "XGMI")
    sample = one(text)
    assert {(int(link.a[3:]), int(link.b[3:])) for link in sample.accelerator_links} == set(DIES)
    assert told(node_of(tmp_path, text)) == ([], 0)
    hops = one(showtopo(8, None, lambda i, j: 1 if dies(i, j) else 2, lambda i, j: "XGMI")).accelerator_links
    # That hops are more than one is told, that one hop is a direct link is not.
    assert {(int(link.a[3:]), int(link.b[3:])) for link in hops} == set(DIES)
    assert {link.state for link in hops} == {UNKNOWN_STATE}


def test_the_type_alone_does_not_tell_a_link_from_a_way(tmp_path: Path) -> None:
    """`--showtopotype`: the matrix shows what was printed, shape and rule stay open."""
    node = node_of(tmp_path, showtopo(8, None, None, lambda i, j: "XGMI"), showbus(HIVES))
    assert path(node, HIVES[0], HIVES[5]).kind == "XG"
    assert interconnect(node).shape == "unknown"
    assert told(node) == ([], 1)


def test_bandwidths_give_the_number_of_links(tmp_path: Path) -> None:
    """MB/s of one link and of all; 0-0 is no link, and where all are 0-0 the driver does not know."""
    names = [f"GPU{n}" for n in range(8)]

    def rate(i: int, j: int) -> str:
        count = DIES.get((min(i, j), max(i, j)))
        return f"50000-{count * 50000}" if count else "0-0"

    text = log(title("Bandwidth"), *matrix(names, rate, "N/A"), "Format: min-max; Units: mps")
    sample = one(text)
    found = {(int(link.a[3:]), int(link.b[3:])): known(link.links) for link in sample.accelerator_links}
    assert found == DIES
    assert {known(link.gbs) for link in sample.accelerator_links} == {50.0, 100.0, 200.0}
    assert told(node_of(tmp_path, text)) == ([], 0)
    assert one(log(title("Bandwidth"), *matrix(names, lambda i, j: "0-0", "N/A"))).accelerator_links == ()


@pytest.mark.parametrize(
    ("weight", "hops", "kinds"),
    [(15, 1, ("XGMI", "PCIE")), (15, 2, ("XGMI", "XGMI")), (15, 1, ("PCIE", "PCIE")), (40, 1, ("PCIE", "PCIE"))],
)
def test_contradictions_are_unknown(weight: int, hops: int, kinds: tuple[str, str]) -> None:
    """Directions that differ, a weight of xGMI on a PCIe way, several hops at the weight of one."""
    sample = one(showtopo(2, lambda i, j: weight, lambda i, j: hops, lambda i, j: kinds[i]))
    assert [link.state for link in sample.accelerator_links] == [UNKNOWN_STATE]
    assert sample.peers == ()


def test_words_that_are_no_types_are_unknown(tmp_path: Path) -> None:
    """A cell that the tool could not fill is neither a link nor none."""

    def kind(i: int, j: int) -> str:
        return "N/A" if {i, j} == {0, 1} else "XGMI"

    node = node_of(tmp_path, showtopo(4, lambda i, j: 15, lambda i, j: 1, kind))
    assert {link.state for link in node.accelerator_links if {link.a, link.b} == {"GPU0", "GPU1"}} == {UNKNOWN_STATE}
    assert told(node) == ([], 1)


@pytest.mark.parametrize(
    "text",
    [
        showtopo(8, *weigh(two_hives)),
        showtopo(8, *weigh(lambda i, j: True)),
        showtopo(8, *weigh(lambda i, j: i // 2 == j // 2)),
        showtopo(8, lambda i, j: 15 if dies(i, j) else 30, lambda i, j: 1, lambda i, j: "XGMI"),
        showtopo(8, *weigh(lambda i, j: False)),
    ],
)
def test_cut_off_anywhere_nobody_is_blamed(text: str) -> None:
    """Whatever is missing, healthy machines stay healthy or unknown."""
    for at in range(0, len(text), 7):
        assert told(assemble(read(clean(text[:at]).splitlines(), "t")))[0] == []


def test_partitions_are_one_device(tmp_path: Path) -> None:
    """Two GPUs of eight partitions: by weight where there are no addresses, by address where there are."""

    def weight(i: int, j: int) -> int:
        return 13 if i // 8 == j // 8 else 41

    text = showtopo(16, weight, lambda i, j: 1, lambda i, j: "XGMI", [0] * 8 + [1] * 8)
    sample = one(text)
    assert [(gpu.ordinal, gpu.partitions) for gpu in sample.gpus] == [(0, 8), (8, 8)]
    (link,) = sample.accelerator_links
    assert (link.a, link.b, link.state) == ("GPU0", "GPU8", ACTIVE)
    bus = showbus([f"000{n // 8}:01:00.{n % 8}" for n in range(16)])
    node = node_of(tmp_path, text, bus)
    assert [gpu.address for gpu in node.gpus] == ["0000:01:00.0", "0001:01:00.0"]
    assert {gpu.partitions for gpu in node.gpus} == {8}
    assert [(link.a, link.b) for link in node.accelerator_links] == [("0000:01:00.0", "0001:01:00.0")]


def test_an_address_that_two_claim_is_nobodys() -> None:
    """Some versions lost the domain of partitions."""
    sample = one(showbus(["0000:01:00.0", "0000:01:00.1", "0000:01:00.0", "0000:01:00.1", "0000:05:00.0"]))
    assert [(gpu.ordinal, gpu.address) for gpu in sample.gpus] == [
        (0, None), (1, None), (2, None), (3, None), (4, "0000:05:00.0")
    ]  # fmt: skip
    assert sample.source.status == "partial"


def test_older_fields_and_no_numa_node() -> None:
    """`GPU 0` instead of `GPU[0]`; -1 is no node."""
    sample = one("GPU 0          : (Topology) Numa Node: 0\nGPU 0          : (Topology) Numa Affinity: -1\n")
    assert isinstance(sample.gpus[0].numa_node, Unknown)


def test_table_of_devices(tmp_path: Path) -> None:
    """Device ids and partitions of plain `rocm-smi`, below the rule that stands in the middle of it."""
    text = log(
        title("Concise Info"),
        "Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK    Fan  Perf  PwrCap",
        "              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)",
        "=" * 90,
        "0       2     0x74a1,   3771   47.0\u00b0C      154.0W    NPS4, CPX, 0        133Mhz  900Mhz  0%   auto",
        "1       3     N/A,      62138  N/A         N/A       N/A, N/A, 1         N/A     N/A     0%   n/a   N/A",
        "2       4     0x74a1,   1111   47.0\u00b0C      154.0W    NPS4, CPX, 0        133Mhz  900Mhz  0%   auto",
        "=" * 90,
    )
    node = node_of(tmp_path, text)
    assert [(gpu.ordinal, gpu.partitions) for gpu in node.gpus] == [(0, 2), (2, None)]
    assert {device.function.device_id for device in node.devices.values()} == {0x74A1}
    assert "MI300X" in node.devices["GPU0"].name


def test_other_makers_keep_their_numbers(tmp_path: Path) -> None:
    """GPU 0 of nvidia-smi is not GPU[0] of rocm-smi."""
    smi = "GPU 00000000:65:00.0\n    Product Name : NVIDIA H100 PCIe\n    GPU UUID : GPU-1\n"
    nvidia = "==============NVSMI LOG==============\nAttached GPUs : 1\n" + smi
    amd = log(title("Concise Info"), "0       1     0x744c,   34156  32.0C  58.0W  N/A, N/A, 0  527Mhz")
    node = node_of(tmp_path, nvidia, amd)
    (gpu,) = [gpu for gpu in node.gpus if gpu.address == "0000:65:00.0"]
    assert gpu.vendor_id != 0x1002


def test_wrapped_quoted_and_squeezed() -> None:
    """A narrow terminal, a mail, and a page that made one space of many."""
    text = showtopo(8, *weigh(two_hives))
    wrapped = "\n".join(part for line in text.splitlines() for part in _wrap(line))
    for changed in (wrapped, "\n".join(" ".join(line.split()) for line in text.splitlines())):
        assert one(changed).accelerator_links == one(text).accelerator_links


def _wrap(line: str) -> list[str]:
    return [line] if "=" in line or len(line) < 80 else [line[:78], line[78:]]


def test_in_one_file_with_nvidia_smi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headings look alike; each matrix goes to its own reader."""
    nvidia = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    for text in (showtopo(2, *weigh(lambda i, j: True)) + nvidia, nvidia + showtopo(2, *weigh(lambda i, j: True))):
        (found,) = read_inputs([_write(tmp_path, text)])
        assert [len(fact.accelerator_links) for fact in found.facts].count(1) == 1
        assert [fact.peers[0].kind for fact in found.facts if fact.peers] == ["NV4"]
    quoted = "".join(f"> {line}\n" for line in showtopo(4, *weigh(lambda i, j: True)).splitlines())
    assert main(["matrix", "--format", "json", _write(tmp_path, quoted)]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert "XG" in json.dumps(cells)


def _write(folder: Path, text: str) -> str:
    name = folder / "mixed.txt"
    name.write_text(text, encoding="utf-8")
    return str(name)


def test_two_samples_of_one_machine(tmp_path: Path) -> None:
    """The last one is its state."""
    before = showtopo(4, *weigh(lambda i, j: True))
    after = showtopo(4, *weigh(lambda i, j: 0 not in (i, j)))
    assert len(read(clean(before + after).splitlines(), "t")) == 2
    assert "GPU0" in told(node_of(tmp_path, before + after))[0]
    assert told(node_of(tmp_path, after + before)) == ([], 0)


def test_the_report_follows_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kind without a number, a count that is null."""
    main(["inspect", "--json", _write(tmp_path, showtopo(4, *weigh(lambda i, j: True)))])
    report = json.loads(capsys.readouterr().out)
    assert {link["links"] for link in report["accelerator_links"]} == {None}
    assert {found["kind"] for found in report["paths"]} == {"XG"}


def test_first_lines() -> None:
    """Titles, fields and rows; nothing of what nvidia-smi prints."""
    for line in (title("Weight between two GPUs"), "GPU[3]\t\t: PCI Bus: 0000:63:00.0", title("Concise Info")):
        assert READER.begins(line)
    for line in (
        "=" * 80,
        "\tGPU0\tGPU1\tCPU Affinity",
        "GPU 0: NVIDIA H100",
        title("NVSMI LOG"),
        "GPU[0] : Fan RPM: 0",
    ):
        assert not READER.begins(line)


def test_beside_integrated_graphics(tmp_path: Path) -> None:
    """Graphics of the processor are none of the GPUs that rocm-smi numbers, and these are AMD's."""
    lspci = (
        "00:02.0 VGA compatible controller [0300]: Intel Corporation AlderLake-S GT1 [UHD Graphics 770] [8086:4680]\n"
    )
    node = node_of(tmp_path, showtopo(8, *weigh(two_hives)), lspci)
    numbered = [gpu for gpu in node.gpus if gpu.address.startswith("GPU")]
    assert [gpu.vendor_id for gpu in numbered] == [0x1002] * 8
    assert {gpu.address for gpu in numbered} <= node.devices.keys()
