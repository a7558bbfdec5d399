"""The shape of a node's GPU interconnect, its islands, and what a bond carries."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.exporters.view import nvlink_totals
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.gpu import ACTIVE, AcceleratorLink, DriverGpu, NvLink, Peer
from gpu_topo.model.host import BARE_METAL, Platform
from gpu_topo.model.reading import DENIED, Unknown, known
from gpu_topo.topology.bonds import bonds
from gpu_topo.topology.interconnect import interconnect
from gpu_topo.topology.paths import path
from tests import trees
from tests.nvlinks import CUBE_MESH, READY, direct, drivers, gpus_of, machine_with, matrix, switched, unnamed


def test_nvswitch_board() -> None:
    """Eight H100 with 18 links each to four NVSwitches: one island, NV18 and 450 GB/s between any two."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, [switched(18)] * 8))
    found = interconnect(node)
    assert (found.shape, found.max_tensor_parallel, found.islands) == ("nvswitch", 8, (tuple(addresses),))
    for a, b in combinations(addresses, 2):
        way = path(node, a, b)
        # NVML prints the line rate, 26.562; what a link carries is 25.
        assert (way.kind, way.gbs) == ("NV18", 450.0)


def test_nvswitches_that_are_not_on_pci() -> None:
    """On HGX B200 and later the driver alone knows of NVSwitches."""
    machine = machine_with(8, trees.B200)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, [switched(18, gbs=53.125, version=5)] * 8))
    assert interconnect(node).shape == "nvswitch"
    assert bonds(node)[addresses[0], addresses[7]].gbs == 900.0


GB200 = (0x10DE, 0x2941)


@pytest.mark.parametrize(
    ("ids", "count", "links", "nvswitches", "registered", "shape"),
    [
        (trees.V100_SXM2, 8, 6, 0, False, "unknown"),  # a cube mesh as a rule; its part is on other boards too
        ((0x10DE, 0x1DB5), 8, 6, 0, False, "unknown"),
        ((0x10DE, 0x15F9), 8, 4, 0, False, "unknown"),
        (trees.V100_SXM2, 8, 6, 6, False, "nvswitch"),
        ((0x10DE, 0x1DB8), 8, 6, 0, False, "nvswitch"),
        (trees.A100_SXM, 8, 12, 0, False, "nvswitch"),
        (trees.A100_SXM, 4, 12, 0, False, "unknown"),
        (trees.B200, 4, 18, 0, False, "nvswitch"),
        (trees.A800_SXM, 4, 8, 0, False, "unknown"),  # one source alone says that it is never joined directly
        (GB200, 4, 18, 0, False, "unknown"),  # a tray of a rack, or a board of four
        (GB200, 4, 18, 0, True, "nvswitch"),
        (trees.GH200, 4, 18, 0, True, "unknown"),
    ],
)
def test_links_whose_other_end_is_not_told(
    ids: trees.Ids, count: int, links: int, nvswitches: int, registered: bool, shape: str
) -> None:
    """Such links are switched only where nothing else is possible; else where they lead is not known."""
    machine = machine_with(count, ids, nvswitches=nvswitches)
    fabric = READY if registered else None
    node = machine.node(drivers(gpus_of(machine), [unnamed(links)] * count, fabric=fabric))
    assert interconnect(node).shape == shape
    assert bool(bonds(node)) == (shape == "nvswitch")


def test_a_display_card_makes_no_larger_board() -> None:
    """Four A100 are joined directly, whatever else is plugged beside them."""
    machine = machine_with(4, trees.A100_SXM)
    for _ in range(2):
        machine.gpu(machine.root_port("pci0000:10"), trees.RTX_4090)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, [*[unnamed(12, version=3)] * 4, None, None]))
    assert interconnect(node).shape == "unknown"


def test_bridged_cards_beside_nvswitches() -> None:
    """No bridge leads to an NVSwitch."""
    machine = machine_with(2, trees.RTX_A6000, nvswitches=4)
    assert bonds(machine.node(drivers(gpus_of(machine), [unnamed(4, version=3)] * 2))) == {}


def test_one_switched_gpu_with_fewer_links() -> None:
    """A pair has as many links as the GPU with fewer; the board's shape stays."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, [switched(17, 18), *[switched(18)] * 7]))
    assert interconnect(node).shape == "nvswitch"
    found = bonds(node)
    assert found[addresses[0], addresses[1]].kind == "NV17"
    assert found[addresses[1], addresses[2]].kind == "NV18"


def test_one_gpu_off_the_switches() -> None:
    """Seven GPUs on NVSwitches and one that has no link up are no whole board."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    found = interconnect(machine.node(drivers(addresses, [switched(0, 18), *[switched(18)] * 7])))
    assert (found.shape, found.max_tensor_parallel) == ("partial", 7)
    assert found.islands == (tuple(addresses[1:]), (addresses[0],))


def test_hybrid_cube_mesh() -> None:
    """Eight V100 SXM2 with six links each, four neighbours each."""
    machine = machine_with(8, trees.V100_SXM2)
    addresses = gpus_of(machine)
    links = direct(CUBE_MESH, addresses)
    node = machine.node(drivers(addresses, links))
    found = interconnect(node)
    assert {len(of_one) for of_one in links} == {6}
    assert found.shape == "hybrid-cube-mesh"
    assert len(found.islands) == 1
    assert path(node, addresses[0], addresses[3]).kind == "NV2"
    assert path(node, addresses[0], addresses[3]).gbs == 50.0
    assert not path(node, addresses[0], addresses[7]).kind.startswith("NV")


def test_full_mesh() -> None:
    """Four A100 SXM4 joined directly, four links a pair."""
    machine = machine_with(4, trees.A100_SXM)
    addresses = gpus_of(machine)
    pairs = dict.fromkeys(combinations(range(4), 2), 4)
    node = machine.node(drivers(addresses, direct(pairs, addresses, version=3)))
    found = interconnect(node)
    assert (found.shape, found.max_tensor_parallel) == ("full-mesh", 4)
    assert path(node, addresses[0], addresses[1]).kind == "NV4"
    assert path(node, addresses[0], addresses[1]).gbs == 100.0


def test_pairs() -> None:
    """Four bridged pairs of eight PCIe cards."""
    machine = machine_with(8, trees.A100_PCIE)
    addresses = gpus_of(machine)
    pairs = {(n, n + 1): 12 for n in range(0, 8, 2)}
    found = interconnect(machine.node(drivers(addresses, direct(pairs, addresses, total=12, version=3))))
    assert (found.shape, found.max_tensor_parallel) == ("pairs", 2)
    assert {len(island) for island in found.islands} == {2}


def test_one_pair_of_two() -> None:
    """Two cards with a bridge are a pair."""
    machine = machine_with(2, trees.RTX_A6000)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, direct({(0, 1): 4}, addresses, gbs=14.062, version=3)))
    assert interconnect(node).shape == "pairs"
    assert bonds(node)[addresses[0], addresses[1]].gbs == pytest.approx(56.25)


def test_partial() -> None:
    """One bridge among four cards."""
    machine = machine_with(4, trees.A100_PCIE)
    addresses = gpus_of(machine)
    found = interconnect(machine.node(drivers(addresses, direct({(0, 1): 12}, addresses, total=12))))
    assert (found.shape, found.max_tensor_parallel) == ("partial", 2)
    assert found.islands == ((addresses[0], addresses[1]), (addresses[2],), (addresses[3],))


def test_no_bridge() -> None:
    """Cards that could be bridged and are not, and cards without NVLink: none, and each its own island."""
    for ids, links in ((trees.A100_PCIE, switched(0, 12)), (trees.L40S, None), (trees.RTX_4090, None)):
        machine = machine_with(2, ids)
        addresses = gpus_of(machine)
        found = interconnect(machine.node(drivers(addresses, [links, links])))
        assert (found.shape, found.max_tensor_parallel) == ("none", 1), ids
        assert found.islands == tuple((address,) for address in addresses)


def test_nobody_asked() -> None:
    """Without a word of NVLink the shape of cards that have it is unknown, with the reason; never none."""
    found = interconnect(machine_with(8).node())
    assert (found.shape, found.max_tensor_parallel) == ("unknown", None)
    assert found.reason


def test_not_readable() -> None:
    """What the driver refuses is unknown."""
    machine = machine_with(2)
    denied = Unknown("denied", "nvmlDeviceGetNvLinkState")
    gpus = [gpu._replace(nvlinks=denied) for gpu in drivers(gpus_of(machine))]
    assert interconnect(machine.node(gpus)).shape == "unknown"


def test_mig() -> None:
    """With MIG on the driver shows no NVLink, which says nothing."""
    machine = machine_with(8, trees.A100_SXM, nvswitches=6)
    found = interconnect(machine.node(drivers(gpus_of(machine), mig=True)))
    assert (found.shape, found.max_tensor_parallel) == ("unknown", None)


def test_mig_hides_links() -> None:
    """What the driver calls inactive with MIG on is of unknown state: neither down nor 0 GB/s."""
    machine = machine_with(2, trees.A100_SXM)
    node = machine.node(drivers(gpus_of(machine), [switched(0, 12)] * 2, mig=True))
    assert {link.state for gpu in node.gpus for link in known(gpu.nvlinks) or ()} == {"unknown"}
    totals = nvlink_totals(node.gpus[0])
    assert (totals.total, totals.active, totals.gbs) == (12, None, None)


def test_no_gpu() -> None:
    """A machine without GPUs has no interconnect, and integrated graphics are none."""
    machine = trees.Machine()
    trees.integrated_graphics(machine, machine.host())
    found = interconnect(machine.node())
    assert (found.shape, found.islands) == ("none", ())


@pytest.mark.parametrize(
    ("count", "cell", "shape", "largest"),
    [(8, "NV18", "nvswitch", 8), (8, "NV12", "nvswitch", 8), (4, "NV4", "full-mesh", 4), (2, "NV4", "pairs", 2)],
)
def test_matrix_alone(count: int, cell: str, shape: str, largest: int) -> None:
    """From the cells of topo -m alone: more links than a mesh could have are switches."""
    gpus = tuple(DriverGpu(None, n) for n in range(count))
    peers = tuple(Peer(f"GPU{a}", f"GPU{b}", cell) for a, b in combinations(range(count), 2))
    node = assemble([Facts(SourceStatus("nvidia-smi topo -m", OK), gpus=gpus, peers=peers)])
    found = interconnect(node)
    assert (found.shape, found.max_tensor_parallel) == (shape, largest)
    assert path(node, "GPU0", "GPU1").kind == cell


def test_matrix_without_bonds() -> None:
    """A matrix whose cells are all PCIe says that there is no NVLink."""
    machine = machine_with(2, trees.UNLISTED_GPU)
    a, b = gpus_of(machine)
    node = machine.node(drivers([a, b]), peers=[Peer("GPU0", "GPU1", "PHB")])
    assert interconnect(node).shape == "none"


def hive(addresses: list[str], state: str = ACTIVE) -> list[AcceleratorLink]:
    return [AcceleratorLink("xGMI", a, b, 1, state, 64.0) for a, b in combinations(addresses, 2)]


def test_xgmi_hives() -> None:
    """Eight MI300X are one full mesh of xGMI; two hives of four are two islands."""
    machine = machine_with(8, trees.MI300X)
    addresses = gpus_of(machine)
    links = Facts(SourceStatus("kfd", OK), accelerator_links=tuple(hive(addresses)))
    node = machine.node(more=[links])
    found = interconnect(node)
    assert (found.shape, found.max_tensor_parallel) == ("full-mesh", 8)
    assert path(node, addresses[0], addresses[5]).kind == "XG1"
    assert path(node, addresses[0], addresses[5]).gbs == 64.0
    halves = (*hive(addresses[:4]), *hive(addresses[4:]))
    found = interconnect(machine.node(more=[links._replace(accelerator_links=halves)]))
    assert found.max_tensor_parallel == 4
    assert found.islands == (tuple(addresses[:4]), tuple(addresses[4:]))


def test_remote_end_that_is_no_gpu_here() -> None:
    """Active links whose other end is not of this machine (a guest's) do not invent an interconnect."""
    machine = machine_with(2, platform=Platform(kind=BARE_METAL, numa_count=1))
    links = tuple(NvLink(n, ACTIVE, 4, "gpu", "0000:ff:00.0", 26.562) for n in range(18))
    found = interconnect(machine.node(drivers(gpus_of(machine), [links, links])))
    assert found.shape == "unknown"


def test_chain_is_no_island_of_three() -> None:
    """A joined to B and B to C, but not A to C: no ring runs through all three, so the island is a pair."""
    machine = machine_with(3, trees.RTX_A6000)
    addresses = gpus_of(machine)
    found = interconnect(machine.node(drivers(addresses, direct({(0, 1): 4, (1, 2): 4}, addresses))))
    assert (found.shape, found.max_tensor_parallel) == ("partial", 2)


@pytest.mark.parametrize("count", [4, 8])
def test_mesh_with_one_pair_apart(count: int) -> None:
    """A mesh of which one pair lost its links: the two no longer reach each other at full speed, though a ring still
    runs through all."""
    machine = machine_with(count)
    addresses = gpus_of(machine)
    pairs = {pair: 2 for pair in combinations(range(count), 2) if pair != (0, 1)}
    found = interconnect(machine.node(drivers(addresses, direct(pairs, addresses))))
    assert (found.shape, found.max_tensor_parallel) == ("partial", count - 1)
    assert found.islands[1] in ((addresses[0],), (addresses[1],))


@pytest.mark.parametrize(
    ("pairs", "shape"),
    [
        (CUBE_MESH, "hybrid-cube-mesh"),
        (dict.fromkeys(CUBE_MESH, 1), "hybrid-cube-mesh"),
        (CUBE_MESH | {(0, 3): 1}, "hybrid-cube-mesh"),  # a link is down; the pair is not
        ({pair: links for pair, links in CUBE_MESH.items() if pair != (0, 3)}, "partial"),
        (
            dict.fromkeys([(a, b) for a in range(4) for b in range(4, 8)], 1),
            "partial",
        ),  # four neighbours each, no quads
    ],
    ids=["V100", "P100", "a link down", "a pair apart", "bipartite"],
)
def test_what_a_cube_mesh_is(pairs: dict[tuple[int, int], int], shape: str) -> None:
    """Two quads and a link to the opposite corner, and not any eight GPUs with four neighbours each."""
    assert interconnect(matrix(8, pairs)).shape == shape


@pytest.mark.parametrize(
    ("pairs", "shape", "largest"),
    [
        ([(0, 1), (1, 2), (2, 3)], "partial", 2),
        ([(0, 1), (1, 2), (2, 3), (0, 3)], "partial", 4),
        ([(0, 1), (2, 3)], "pairs", 2),
        ([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], "partial", 2),
        ([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (3, 5)], "partial", 3),
    ],
    ids=["chain", "ring", "pairs", "chain of six", "two triples and a link"],
)
def test_islands_of_what_is_no_clique(pairs: list[tuple[int, int]], shape: str, largest: int) -> None:
    """A ring is an island; a chain falls apart, and what is left of it is no pairs."""
    count = max(map(max, pairs)) + 1
    found = interconnect(matrix(count, dict.fromkeys(pairs, 4)))
    assert (found.shape, found.max_tensor_parallel) == (shape, largest)


def test_a_ring_runs_inside_its_island() -> None:
    """GPUs of an island that is already taken are no way round: 3, 4 and 5 hang together by 0 alone."""
    star = [(0, 1), (0, 2), (1, 2), (0, 3), (0, 4), (3, 5), (4, 5)]
    found = interconnect(matrix(6, dict.fromkeys(star, 4)))
    assert ("GPU3", "GPU4", "GPU5") not in found.islands
    assert found.max_tensor_parallel == 3


def test_a_matrix_that_was_cut_short() -> None:
    """Rows that are missing hold pairs that may be bonded: the shape is not known, and the pair is named."""
    whole = dict.fromkeys(combinations(range(8), 2), 18)
    found = interconnect(matrix(8, whole, rows=4))
    assert (found.shape, found.max_tensor_parallel, found.islands) == ("unknown", None, ())
    assert "GPU4 and GPU5" in found.reason
    assert interconnect(matrix(8, whole, rows=7)).shape == "nvswitch"


def test_gpus_whose_links_are_not_seen_are_no_islands() -> None:
    """Where the driver does not tell the links of a GPU, or hides it, nobody knows what it reaches."""
    machine = machine_with(8, nvswitches=4)
    gpus = gpus_of(machine)
    unread = [switched(18)] * 7
    told = drivers(gpus[:7], unread)
    blind = drivers(gpus[7:], [None])[0]._replace(nvlinks=Unknown(DENIED, "nvml"))
    shape = interconnect(machine.node([*told, blind]))
    assert (shape.shape, [len(island) for island in shape.islands]) == ("nvswitch", [7])
    assert shape.reason == "the links of 1 of 8 GPUs cannot be seen here"
