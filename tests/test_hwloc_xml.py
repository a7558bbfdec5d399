"""hwloc XML: structure, NUMA nodes, NVLinks and ports; lstopo itself is the witness."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_topo.collectors.readers.hwloc_xml import READER, read
from gpu_topo.model.facts import FAILED, Facts
from gpu_topo.model.gpu import COUNTED
from gpu_topo.model.reading import Unknown, known

NEW_FORMATS = ["h03-lassen-power9-4v100", "h05-corona-mi50-8gpu", "h06-pascal-p100", "h07-aws-g4dn-metal-8t4"]


def facts_of(text: str) -> Facts:
    (facts,) = read(text.splitlines(), "t.xml")
    return facts


def machine(inside: str, after: str = "", version: str = "2.0") -> str:
    return (
        f'<topology version="{version}"><object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000001">'
        '<object type="NUMANode" os_index="0" cpuset="0x0000000f" nodeset="0x00000001" gp_index="2"/>'
        f"{inside}</object>{after}</topology>"
    )


def gpu(address: str, index: int, device: str = "1db1") -> str:
    return (
        f'<object type="PCIDev" gp_index="{index + 100}" pci_busid="{address}" '
        f'pci_type="0302 [10de:{device}] [10de:1212] a1" pci_link_speed="15.753846">'
        f'<object type="OSDev" gp_index="{index}" name="nvml{index}" subtype="NVML" osdev_type="1"/></object>'
    )


def lstopo(*arguments: str) -> str:
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo is not installed")
    run = subprocess.run(["lstopo-no-graphics", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout


@pytest.mark.parametrize("name", NEW_FORMATS)
def test_devices_and_links_agree_with_lstopo(corpus: Path, name: str) -> None:
    """Every PCI device has the ids and, where it is no GPU, the bandwidth that lstopo prints for it."""
    path = corpus / name / "hwloc.xml"
    functions = {f.address: f for f in facts_of(path.read_text()).functions}
    printed = lstopo("-i", str(path), "-v", "--no-factorize", "--of", "console")
    seen = 0
    for line in printed.splitlines():
        found = re.search(r"PCI.*busid=(\S+) id=(\w+):(\w+) class=(\w+)\(.*?\)(?: link=([\d.]+)GB/s)?", line)
        if not found:
            continue
        seen += 1
        function = functions[found[1]]
        assert (function.vendor_id, function.device_id) == (int(found[2], 16), int(found[3], 16))
        assert (function.class_code or 0) >> 8 == int(found[4], 16)
        if not found[4].startswith("03") and found[5]:
            assert known(function.link_gbs) == pytest.approx(float(found[5]), rel=0.05)  # it prints whole GB/s
    assert seen > 5


@pytest.mark.parametrize("name", NEW_FORMATS)
def test_old_format_tells_the_same(corpus: Path, tmp_path: Path, name: str) -> None:
    """Exported in the format of hwloc 1, where NUMA nodes contain devices, a machine has the same tree and nodes."""
    path = corpus / name / "hwloc.xml"
    old = tmp_path / "old.xml"
    lstopo("-i", str(path), "--export-xml-flags", "1", "--of", "xml", str(old))
    text = old.read_text()
    assert "<topology>" in text
    new = {f.address: f for f in facts_of(path.read_text()).functions}
    for function in facts_of(text).functions:
        twin = new[function.address]
        assert function.parent == twin.parent
        assert function.numa_node == twin.numa_node
        assert function.secondary_bus == twin.secondary_bus
        assert function.host_bridge == twin.host_bridge


def test_parents_agree_with_bus_numbers(corpus: Path) -> None:
    """The bridge above a device is the one whose secondary bus the device sits on."""
    for path in sorted(corpus.glob("h*/hwloc.xml")):
        functions = facts_of(path.read_text()).functions
        by_bus = {
            (f.address.rsplit(":", 2)[0], f.secondary_bus): f.address for f in functions if f.secondary_bus is not None
        }
        for function in functions:
            domain, bus, _ = function.address.rsplit(":", 2)
            assert function.parent == by_bus.get((domain, int(bus, 16))), (path, function.address)


def test_numa_node_of_a_socket_with_gpu_memory_nodes() -> None:
    """Memory of GPUs in a socket's nodeset does not hide which node its devices belong to."""
    text = (
        '<topology version="2.0"><object type="Machine" cpuset="0xff" nodeset="0xf">'
        '<object type="Package" os_index="0" cpuset="0x0f" nodeset="0x5">'
        '<object type="NUMANode" os_index="0" cpuset="0x0f" nodeset="0x1"/>'
        '<object type="NUMANode" os_index="2" subtype="GPUMemory" cpuset="0x0" nodeset="0x4"/>'
        '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">'
        '<object type="PCIDev" pci_busid="0000:00:01.0" pci_type="0200 [15b3:1019] [15b3:0001] 00"/>'
        "</object></object></object></topology>"
    )
    (function,) = facts_of(text).functions
    assert function.numa_node == 0
    assert function.local_cpus == "0-3"
    assert function.parent is None
    assert function.host_bridge == "pci0000:00"


def test_numa_node_is_unknown_across_nodes() -> None:
    """A device that hangs from the whole machine with two nodes belongs to none that is known."""
    text = (
        '<topology version="2.0"><object type="Machine" cpuset="0xff" nodeset="0x3">'
        '<object type="NUMANode" os_index="0" cpuset="0x0f" nodeset="0x1"/>'
        '<object type="NUMANode" os_index="1" cpuset="0xf0" nodeset="0x2"/>'
        '<object type="PCIDev" pci_busid="0000:00:01.0" pci_type="0200 [15b3:1019] [15b3:0001] 00"/>'
        "</object></topology>"
    )
    facts = facts_of(text)
    assert isinstance(facts.functions[0].numa_node, Unknown)
    assert isinstance(facts.functions[0].parent, Unknown), "no bridge was recorded at all"
    assert facts.platform is not None
    assert facts.platform.numa_count == 2


def test_a_gpus_bandwidth_is_not_reported() -> None:
    """hwloc's figure of a GPU may be NVML's maximum; the bridge's above it is the link's own."""
    bridge = (
        '<object type="Bridge" bridge_type="1-1" bridge_pci="0000:[41-41]" pci_busid="0000:40:00.0" '
        f'pci_type="0604 [8086:2030] [0000:0000] 04" pci_link_speed="7.876923">{gpu("0000:41:00.0", 0)}</object>'
    )
    functions = {f.address: f for f in facts_of(machine(bridge)).functions}
    assert functions["0000:41:00.0"].link_gbs is None
    assert not functions["0000:41:00.0"].link_trusted
    assert functions["0000:40:00.0"].link_gbs == 7.877


@pytest.mark.parametrize(
    ("device", "values", "links"),
    [
        ("15f9", 40_000, 2),  # P100: 20 GB/s a link
        ("1db1", 50_000, 2),  # V100: 25 GB/s
        ("2204", 200_000, 4),  # RTX 3090: hwloc enters 50 GB/s, both directions
        ("20b0", 600_000, 12),  # A100
        ("20b0", 300_000, 12),  # the same, as older versions have it
        ("2330", 900_000, 18),  # H100
        ("2901", 1_800_000, 18),  # B200, at 100 GB/s
    ],
)
def test_nvlinks_from_the_matrix(device: str, values: int, links: int) -> None:
    """The bandwidth between two GPUs is a number of links of their generation."""
    matrix = (
        '<distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth" indexing="gp">'
        '<indexes length="4">0 1 </indexes>'
        f'<u64values length="9">1000000 {values} {values} 1000000 </u64values></distances2>'
    )
    facts = facts_of(machine(gpu("0000:04:00.0", 0, device) + gpu("0000:05:00.0", 1, device), matrix))
    nvlinks = known(facts.gpus[0].nvlinks)
    assert nvlinks is not None
    assert len(nvlinks) == links
    assert {(link.remote_kind, link.remote) for link in nvlinks} == {("gpu", "0000:05:00.0")}


def test_nvlinks_without_a_matrix_are_unknown() -> None:
    """Old versions of hwloc know no NVLinks: a file without them does not say that there are none."""
    facts = facts_of(machine(gpu("0000:04:00.0", 0)))
    assert isinstance(facts.gpus[0].nvlinks, Unknown)


def test_partitions_are_counted_on_their_gpu(corpus: Path) -> None:
    """Six rsmi devices of one PCI function are one GPU in six partitions, linked to the others by xGMI."""
    facts = facts_of((corpus / "h09-tuolumne-mi300a-cpx" / "hwloc.xml").read_text())
    assert [gpu.partitions for gpu in facts.gpus] == [6, 6, 6, 6]
    assert len(facts.accelerator_links) == 6


def test_ports_have_a_state_and_no_rate(corpus: Path) -> None:
    """hwloc records a port's state as a number, and no rate."""
    facts = facts_of((corpus / "h05-corona-mi50-8gpu" / "hwloc.xml").read_text())
    (port,) = facts.ports
    assert (port.device, port.port, port.address, port.state) == ("mlx5_0", 1, "0000:c4:00.0", "ACTIVE")
    assert port.netdev == "hsi0"
    assert isinstance(port.rate_gbps, Unknown)


def test_disks_are_grouped_by_controller(corpus: Path) -> None:
    """The namespaces of one NVMe controller are one storage device."""
    facts = facts_of((corpus / "h09-tuolumne-mi300a-cpx" / "hwloc.xml").read_text())
    first = next(block for block in facts.blocks if block.name == "nvme0")
    assert first.namespaces[:2] == ("nvme0n1", "nvme0n2")


@pytest.mark.parametrize(
    "text",
    [
        '<topology version="2.0"><object type="Machine">',
        '<topology version="2.0"><!DOCTYPE x [<!ENTITY a "b">]></topology>',
        '<topology version="2.0">&undefined;</topology>',
        '<topology version="2.0">' + '<object type="Group">' * 5000 + "</topology>",
    ],
)
def test_a_broken_document_fails_in_words(text: str) -> None:
    """Cut off, hostile or nested without end: one failed source, no exception."""
    assert facts_of(text).source.status == FAILED


def test_another_topology_is_not_ours() -> None:
    """An element of that name in some other format gives nothing."""
    assert read(["<topology>", "<node/>", "</topology>"], "t.xml") == []


def test_first_line() -> None:
    """Only the root element begins a document."""
    assert READER.begins('<topology version="2.0">')
    assert READER.begins("<topology>")
    assert not READER.begins("<topologyd/>")
    assert not READER.begins("see the <topology> element")


def test_links_of_the_recordings_are_numbered_from_zero(corpus: Path) -> None:
    """Links to several ends have one run of numbers, and are marked as counted."""
    seen = 0
    for path in sorted(corpus.glob("h*/hwloc.xml")):
        for sample in read(path.read_text(encoding="utf-8").splitlines(), path.name):
            for gpu in sample.gpus:
                links = known(gpu.nvlinks) or ()
                assert [link.number for link in links] == list(range(len(links))), path
                assert not links or gpu.nvlinks_are == COUNTED
                seen += len(links)
    assert seen
