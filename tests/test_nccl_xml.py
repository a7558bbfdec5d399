"""NCCL and RCCL topology XML: structure only, and nothing that is a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_topo.collectors.readers.nccl_xml import READER, read
from gpu_topo.model.facts import FAILED, PARTIAL, Facts
from gpu_topo.model.gpu import COUNTED
from gpu_topo.model.reading import Unknown, known


def facts_of(text: str) -> Facts:
    (facts,) = read(text.splitlines(), "t.xml")
    return facts


def system(inside: str, cpu: str = 'numaid="0" affinity="00000000,0000ffff" arch="x86_64"') -> str:
    return f'<system version="1"><cpu {cpu}>{inside}</cpu></system>'


def pci(address: str, inside: str = "", kind: str = "0x030200", ids: str = 'vendor="0x10de" device="0x2330"') -> str:
    return f'<pci busid="{address}" class="{kind}" {ids} link_speed="32.0 GT/s PCIe" link_width="16">{inside}</pci>'


def test_every_pci_element_of_the_recordings_is_a_function(corpus: Path) -> None:
    """Each address in the text is a function; GPUs, links and names are as many as the tags say."""
    paths = sorted(corpus.glob("x*/topo.xml"))
    for path in paths:
        text = path.read_text()
        facts = facts_of(text)
        assert len(facts.functions) == text.count("<pci "), path
        assert len(facts.gpus) == text.count("<gpu "), path
        assert len(facts.accelerator_links) == text.count("<xgmi ") / 2, path
        assert all(f.link is None and not f.link_trusted for f in facts.functions), path
        assert facts.structure_only
    assert paths


def test_structure_and_place() -> None:
    """A function hangs from the enclosing one and has the NUMA node and CPUs of its <cpu>."""
    facts = facts_of(system(pci("0000:0c:00.0", pci("0000:0f:00.0"), "0x060400", 'vendor="0x1000" device="0xc030"')))
    bridge, gpu = facts.functions
    assert (bridge.bridge, bridge.parent) == (True, None)
    assert (gpu.parent, gpu.numa_node, gpu.local_cpus) == ("0000:0c:00.0", 0, "0-15")
    assert (gpu.vendor_id, gpu.device_id, gpu.class_code) == (0x10DE, 0x2330, 0x030200)


def test_numa_minus_one_is_unknown() -> None:
    """numaid -1 is no node."""
    (function,) = facts_of(system(pci("0000:0f:00.0"), 'numaid="-1"')).functions
    assert isinstance(function.numa_node, Unknown)


def test_nvlinks_are_counted_and_their_other_end_named() -> None:
    """count is a number of links; the class of the target tells an NVSwitch, a GPU and a processor."""
    gpu = (
        '<gpu dev="3" sm="90"><nvlink target="0000:04:00.0" count="2" tclass="0x068000"/>'
        '<nvlink target="0000:10:00.0" count="1" tclass="0x030200"/>'
        '<nvlink target="fffffff:ffff:ff" count="1" tclass="0x068000"/>'
        '<nvlink target="0004:00:00.0" count="1" tclass="0x068001"/></gpu>'
    )
    (found,) = facts_of(system(pci("0000:0f:00.0", gpu))).gpus
    links = known(found.nvlinks)
    assert links is not None
    assert [(link.remote_kind, link.remote) for link in links] == [
        ("nvswitch", "0000:04:00.0"),
        ("nvswitch", "0000:04:00.0"),
        ("gpu", "0000:10:00.0"),
        ("nvswitch", None),
        ("cpu", "0004:00:00.0"),
    ]
    assert [link.number for link in links] == [0, 1, 2, 3, 4]
    assert found.nvlinks_are == COUNTED
    assert found.ordinal == 3


def test_a_link_to_itself_leads_to_a_hidden_gpu(corpus: Path) -> None:
    """A guest that does not see the other GPU names the own one: twelve links whose end is not known."""
    gpu = facts_of((corpus / "x13-azure-ncv4" / "topo.xml").read_text()).gpus[0]
    links = known(gpu.nvlinks)
    assert links is not None
    assert len(links) == 12
    assert {link.remote for link in links} == {None}


def test_gpu_without_links_has_none_and_device_without_gpu_tag_is_not_asked() -> None:
    """A <gpu> element without <nvlink> says that there is none; without a <gpu> element nothing is said."""
    facts = facts_of(system(pci("0000:0f:00.0", '<gpu dev="0" sm="86"/>') + pci("0000:10:00.0")))
    assert [(gpu.address, gpu.nvlinks) for gpu in facts.gpus] == [("0000:0f:00.0", ())]


def test_xgmi_is_one_link_for_both_directions() -> None:
    """Both ends list the same bond; it is reported once, with the number of links."""
    ids = 'vendor="0x1002" device="0x740c"'
    text = system(
        pci("0000:29:00.0", '<gpu dev="0"><xgmi target="0000:2c:00.0" count="4"/></gpu>', "0x038000", ids)
        + pci("0000:2c:00.0", '<gpu dev="1"><xgmi target="0000:29:00.0" count="4"/></gpu>', "0x038000", ids)
    )
    (link,) = facts_of(text).accelerator_links
    assert (link.kind, link.a, link.b, link.links) == ("xGMI", "0000:29:00.0", "0000:2c:00.0", 4)


def test_partitions_of_one_gpu() -> None:
    """Several <gpu> elements in one function are partitions, not GPUs."""
    text = system(pci("0000:29:00.0", "".join(f'<gpu dev="{n}"/>' for n in range(8)), "0x120000"))
    (gpu,) = facts_of(text).gpus
    assert gpu.partitions == 8


def test_ports_have_no_rate() -> None:
    """A port's speed in the file is a maximum or a guess; the port number counts over the functions of a card."""
    nets = '<nic><net name="mlx5_0" port="1" speed="180000"/><net name="mlx5_1" port="2" speed="180000"/></nic>'
    facts = facts_of(system(pci("0000:0c:00.0", nets, "0x020000", 'vendor="0x15b3" device="0x1021"')))
    assert [(port.device, port.port, port.address) for port in facts.ports] == [
        ("mlx5_0", 1, "0000:0c:00.0"),
        ("mlx5_1", 1, "0000:0c:00.0"),
    ]
    assert all(isinstance(port.rate_gbps, Unknown) for port in facts.ports)


def test_virtual_interfaces_are_left_out(corpus: Path) -> None:
    """Interfaces without a PCI function (veth, tunl0, bonds) are no devices; real ones without RDMA are no ports."""
    facts = facts_of((corpus / "x05-4x4090-k8s-nets" / "topo.xml").read_text())
    assert [netdev.name for netdev in facts.netdevs] == ["enp34s0f0"]
    assert facts.ports == ()


def test_placeholder_ids_are_none() -> None:
    """Providers write 0xffff where they have no id."""
    (function,) = facts_of(system(pci("ffff:ff:01.0", "", "0x060400", 'vendor="0xffff" device="0xffff"'))).functions
    assert (function.address, function.vendor_id, function.device_id) == ("ffff:ff:01.0", None, None)


def test_several_hosts_in_one_file() -> None:
    """NCCL joins the nodes of an NVLink domain; only the first is taken, and the source says so."""
    text = (
        f'<system version="1"><cpu host_hash="0x1" numaid="0">{pci("0008:01:00.0")}</cpu>'
        f'<cpu host_hash="0x2" numaid="0">{pci("0008:01:00.0")}{pci("0009:01:00.0")}</cpu></system>'
    )
    facts = facts_of(text)
    assert len(facts.functions) == 1
    assert facts.source.status == PARTIAL
    assert "2 machines" in facts.source.detail


def test_c2c_is_told() -> None:
    """A <c2c> element means a coherent link to the processor."""
    (gpu,) = facts_of(system(pci("0009:01:00.0", '<gpu dev="0"><c2c bw="112500" count="1"/></gpu>'))).gpus
    assert gpu.c2c is True


@pytest.mark.parametrize(
    "text",
    [
        '<system version="1"><cpu numaid="0">',
        '<system version="1"><!DOCTYPE a [<!ENTITY b "c">]><cpu>&b;</cpu></system>',
        '<system version="1"><cpu>' + '<pci busid="0000:00:00.0">' * 3000 + "</cpu></system>",
        '<system version="1"><cpu a=b></cpu></system>',
    ],
)
def test_a_broken_document_fails_in_words(text: str) -> None:
    """Cut off, hostile or nested without end: one failed source, no exception."""
    assert facts_of(text).source.status == FAILED


def test_absurd_values_are_dropped() -> None:
    """Counts, classes and names without bounds neither raise nor grow."""
    text = system(
        pci(
            "0000:0f:00.0",
            '<gpu dev="999999999999"><nvlink target="x" count="99999999" tclass="zz"/></gpu>',
            "0x1ffffff",
        )
        + pci("nonsense")
        + pci("0000:0c:00.0", f'<nic><net name="{"a" * 500}" port="1"/><net port="1"/></nic>')
    )
    facts = facts_of(text)
    assert len(facts.functions) == 2
    assert facts.ports == ()
    links = known(facts.gpus[0].nvlinks)
    assert links is not None
    assert len(links) <= 64
    assert facts.source.status == PARTIAL


def test_control_characters_do_not_come_back() -> None:
    """A character reference cannot smuggle a terminal's control sequence into a name."""
    nets = '<nic><net name="mlx5_0&#x9b;31m" port="1"/></nic>'
    (port,) = facts_of(system(pci("0000:0c:00.0", nets, "0x020000"))).ports
    assert port.device.isprintable()


def test_another_system_is_not_ours() -> None:
    """An element of that name in some other format gives nothing."""
    assert read(["<system>", "<name>x</name>", "</system>"], "t.xml") == []
    assert not READER.begins("<systemd>")


def test_links_of_the_recordings_are_numbered_from_zero(corpus: Path) -> None:
    """Links to several switches have one run of numbers, without gaps or repetitions."""
    seen = 0
    for path in sorted(corpus.glob("x*/topo.xml")):
        for gpu in facts_of(path.read_text()).gpus:
            numbers = [link.number for link in known(gpu.nvlinks) or ()]
            assert numbers == list(range(len(numbers))), path
            seen += len(numbers)
    assert seen
