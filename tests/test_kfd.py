"""AMD compute topology: addresses, partitions and xGMI links."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

from gpu_topo.collectors import kfd
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.source import Entry, Live, Recording, Refusal, Replay, Tree

ROOT = "/sys/class/kfd/kfd/topology/nodes"


def now() -> Context:
    return Context(time.monotonic() + 10)


def lines(values: dict[str, int]) -> bytes:
    return "".join(f"{name} {value}\n" for name, value in values.items()).encode()


def cpu(number: int) -> dict[str, Entry]:
    return {f"{ROOT}/{number}/properties": lines({"cpu_cores_count": 64, "simd_count": 0, "vendor_id": 0})}


def gpu(number: int, location: int, domain: int = 0) -> dict[str, Entry]:
    values = {"cpu_cores_count": 0, "simd_count": 304, "vendor_id": 0x1002, "device_id": 0x74A1}
    return {f"{ROOT}/{number}/properties": lines(values | {"location_id": location, "domain": domain})}


def link(a: int, index: int, b: int, **values: int) -> dict[str, Entry]:
    base = {"type": 11, "node_from": a, "node_to": b, "weight": 15, "min_bandwidth": 50000, "max_bandwidth": 50000}
    return {f"{ROOT}/{a}/io_links/{index}/properties": lines(base | values)}


def collect(files: dict[str, Entry]) -> Facts:
    return kfd.collect(Tree(files), now())


def test_location_is_an_address() -> None:
    """Domain, bus and device come from location_id; processors are no functions."""
    facts = collect(cpu(0) | gpu(1, 0xC500, domain=1))
    (function,) = facts.functions
    assert (function.address, function.vendor_id, function.device_id) == ("0001:c5:00.0", 0x1002, 0x74A1)
    assert facts.structure_only


def test_partitions_are_one_device() -> None:
    """In CPX mode the function bits number the partitions of one PCI function."""
    files: dict[str, Entry] = {}
    for number in range(8):
        files |= gpu(number + 1, 0x0500 + number)
    facts = collect(files)
    assert [f.address for f in facts.functions] == ["0000:05:00.0"]
    assert facts.gpus[0].partitions == 8


def test_bonded_links_are_counted() -> None:
    """amdgpu gives one link's MB/s as minimum and all links' as maximum."""
    (found,) = collect(gpu(1, 0x100) | gpu(2, 0x200) | link(1, 0, 2, max_bandwidth=200000)).accelerator_links
    assert (found.kind, found.a, found.b, found.links, found.gbs) == ("xGMI", "0000:01:00.0", "0000:02:00.0", 4, 200)
    assert found.state == "active"


def test_ways_through_others_are_no_links() -> None:
    """Two hops, PCIe ways and links to processors or to the device itself are not xGMI links of a pair."""
    files = cpu(0) | gpu(1, 0x100) | gpu(2, 0x200) | gpu(3, 0x101)
    files |= link(1, 0, 0) | link(1, 1, 2, weight=30) | link(1, 2, 2, type=2) | link(1, 3, 3)
    assert collect(files).accelerator_links == ()


def test_unknown_bandwidth_is_not_zero() -> None:
    """Drivers in guests list a link with 0 MB/s: it is there, its speed and count are not known."""
    files = gpu(1, 0x100) | gpu(2, 0x200) | link(1, 0, 2, weight=41, min_bandwidth=0, max_bandwidth=0)
    (found,) = collect(files).accelerator_links
    assert (found.links, found.gbs) == (None, None)


def test_a_hidden_node_costs_only_itself() -> None:
    """A container may see some GPUs only: the others' properties are refused."""
    files = gpu(1, 0x100) | {f"{ROOT}/2/properties": Refusal("denied", "EPERM")}
    facts = collect(files)
    assert facts.source.status == "partial"
    assert len(facts.functions) == 1


def test_no_amd_driver_is_absent() -> None:
    """Without /sys/class/kfd there is nothing to say."""
    assert collect({}).source.status == "absent"


def test_exclusions_and_nonsense() -> None:
    """An excluded function is left out; words where numbers belong are skipped."""
    files = gpu(1, 0x100) | {f"{ROOT}/x/properties": b"?", f"{ROOT}/2/properties": b"vendor_id many\nlocation_id\n"}
    facts = kfd.collect(Tree(files), Context(time.monotonic() + 10, frozenset({"0000:01:00.0"})))
    assert facts.functions == ()


def test_a_replay_gives_the_same_facts() -> None:
    """What was recorded replays to the same links."""
    recording = Recording(Tree(gpu(1, 0x100) | gpu(2, 0x200) | link(1, 0, 2)))
    first = kfd.collect(recording, now())
    assert kfd.collect(Replay(recording.answers, {}), now()).accelerator_links == first.accelerator_links


def unpacked(corpus: Path, name: str, folder: Path) -> Facts:
    with tarfile.open(corpus / name / "tree.tar.gz") as archive:
        archive.extractall(folder, filter="tar")
    return kfd.collect(Live(str(folder)), now())


def test_two_hives_of_four(corpus: Path, tmp_path: Path) -> None:
    """Eight MI210 in two full meshes of four: six links each."""
    facts = unpacked(corpus, "k01-8xmi210-2-hives", tmp_path)
    assert len(facts.functions) == 8
    assert len(facts.accelerator_links) == 12
    assert {(link.links, link.gbs) for link in facts.accelerator_links} == {(1, 50.0)}


def test_eight_partitioned_gpus(corpus: Path, tmp_path: Path) -> None:
    """Eight MI308X in four partitions each, in two domains, all linked to all."""
    facts = unpacked(corpus, "k03-mi308x-partitioned", tmp_path)
    assert {f.address for f in facts.functions} >= {"0000:0a:00.0", "0001:0b:00.0"}
    assert {gpu.partitions for gpu in facts.gpus} == {4}
    assert len(facts.accelerator_links) == 28
