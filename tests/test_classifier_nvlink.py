"""nvlink-inactive, nvlink-partial, nvlink-absent and nvlink-errors."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import pytest

from gpu_topo.model.gpu import DriverState, NvLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import Unknown
from tests import trees
from tests.nvlinks import CUBE_MESH, GUEST, direct, drivers, gpus_of, machine_with, matrix, switched, unnamed
from tests.trees import Ids, conclusions, findings, unassessed

INACTIVE, PARTIAL, ABSENT, ERRORS = "nvlink-inactive", "nvlink-partial", "nvlink-absent", "nvlink-errors"
EVERY = (INACTIVE, PARTIAL, ABSENT, ERRORS)

Links = tuple[NvLink, ...]


def board(ids: Ids, links: list[Links], *, nvswitches: int = 0, guest: bool = False, **more: object) -> Node:
    """Same-model GPUs with these links, one entry a GPU."""
    machine = machine_with(len(links), ids, nvswitches=nvswitches, platform=GUEST if guest else None)
    return machine.node(drivers(gpus_of(machine), links, **more))


def cards(ids: Ids, count: int, pairs: dict[tuple[int, int], int], total: int, **more: object) -> Node:
    """PCIe cards of which these pairs are bridged."""
    machine = machine_with(count, ids)
    addresses = gpus_of(machine)
    return machine.node(drivers(addresses, direct(pairs, addresses, total=total, version=3), **more))


def said(node: Node, *codes: str) -> dict[str, str]:
    """Code -> severity of what these rules (default: all of NVLink) find; for one finding a code."""
    return {f.code: f.severity for code in codes or EVERY for f in findings(node, code)}


# --- nvlink-inactive: boards -----------------------------------------------------------------------------------


def test_healthy_boards() -> None:
    """Every board with the links that it is built with: nothing to say."""
    mesh = dict.fromkeys(combinations(range(4), 2), 4)
    addresses = gpus_of(machine_with(4, trees.A100_SXM))
    cube = gpus_of(machine_with(8, trees.V100_SXM2))
    for node in (
        board(trees.H100, [switched(18)] * 8, nvswitches=4),
        board(trees.B200, [switched(18, gbs=53.125, version=5)] * 8),
        board(trees.H800_SXM, [switched(8)] * 8, nvswitches=4),
        board(trees.A800_SXM, [switched(8, version=3)] * 8, nvswitches=6),
        board(trees.V100_SXM2, direct(CUBE_MESH, cube)),
        board(trees.A100_SXM, direct(mesh, addresses, version=3)),
    ):
        for code in EVERY:
            assert conclusions(node, code) == ([], []), code


@pytest.mark.parametrize("active", [0, 1, 17])
def test_one_gpu_below_its_peers(active: int) -> None:
    """Fewer links than the other GPUs of its model, on an NVSwitch machine: critical, with the lost GB/s."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, [*[switched(18)] * 5, switched(active, 18), *[switched(18)] * 2]))
    (found,) = findings(node, INACTIVE)
    assert (found.subject, found.severity, found.basis) == (addresses[5], "critical", "peers")
    assert (found.observed["links_active"], found.expected["links_active"]) == (active, 18)
    assert found.lost_gbs == pytest.approx(25.0 * (18 - active))
    assert found.observed["links_down"] == list(range(active, 18))


def test_all_gpus_below_the_catalogue() -> None:
    """On an SXM board the catalogue knows how many links there are, even where all GPUs agree on fewer."""
    found = findings(board(trees.H100, [switched(16, 18)] * 8, nvswitches=4), INACTIVE)
    assert [(f.severity, f.basis, f.expected["links_active"]) for f in found] == [("critical", "catalogue", 18)] * 8


def test_nvswitches_off_pci() -> None:
    """On B200 the severity is that of an NVSwitch machine although PCI shows none."""
    links = [switched(18, version=5)] * 7
    assert said(board(trees.B200, [switched(17, 18, version=5), *links]), INACTIVE) == {INACTIVE: "critical"}


@pytest.mark.parametrize(("ids", "nvswitches"), [(trees.A800_SXM, 6), (trees.H800_SXM, 4)])
def test_export_models(ids: Ids, nvswitches: int) -> None:
    """A800 and H800 have eight links; what NVML lists beyond them says nothing, and seven are one too few."""
    node = board(ids, [switched(8, 18)] * 8, nvswitches=nvswitches)
    assert conclusions(node, INACTIVE) == ([], [])
    node = board(ids, [switched(7, 8), *[switched(8)] * 7], nvswitches=nvswitches)
    assert said(node, INACTIVE) == {INACTIVE: "critical"}


def test_mesh_board() -> None:
    """A board without NVSwitches: warning, on both ends of the link that is down."""
    pairs = dict.fromkeys(combinations(range(4), 2), 4)
    pairs[0, 1] = 3
    machine = machine_with(4, trees.A100_SXM)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, direct(pairs, addresses, total=12, version=3)))
    found = findings(node, INACTIVE)
    assert {f.subject for f in found} == set(addresses[:2])
    assert {f.severity for f in found} == {"warning"}


def test_superchips() -> None:
    """The links of GB200 and GB300 are wired in the rack: one GPU without any has no missing bridge."""
    links = [switched(0, 18), *[switched(18, version=5)] * 3]
    assert said(board((0x10DE, 0x2941), links)) == {INACTIVE: "critical"}
    assert said(board((0x10DE, 0x2941), [switched(18, version=5)] * 4)) == {}
    assert said(board(trees.GH200, [switched(0, 18)])) == {}


GB200: Ids = (0x10DE, 0x2941)


@pytest.mark.parametrize(
    ("ids", "short", "basis"),
    [(GB200, range(4), "catalogue"), (GB200, (1,), "peers"), ((0x10DE, 0x31C2), range(4), "catalogue")],
    ids=["GB200, a switch tray is lost", "GB200, one GPU", "GB300, a switch tray is lost"],
)
def test_superchips_in_a_rack(ids: Ids, short: Collection[int], basis: str) -> None:
    """What is wired to the switches of a rack has all its links up, also where all GPUs agree on fewer."""
    links = [unnamed(16 if number in short else 18, 18, version=5) for number in range(4)]
    found = findings(board(ids, links), INACTIVE)
    assert [(f.severity, f.basis) for f in found] == [("critical", basis)] * len(short)


@pytest.mark.parametrize(
    ("ids", "count", "active", "total"),
    [
        (trees.GH200, 1, 0, 18),  # a superchip alone
        (trees.GH200, 2, 0, 18),
        (trees.GH200, 4, 12, 18),  # boards of four with fewer links than the part has
        (GB200, 4, 18, 18),
        ((0x10DE, 0x31C3), 4, 16, 18),  # a figure that no source tells is no ground
        ((0x10DE, 0x307F), 4, 18, 18),  # nor is one that the driver contradicts
    ],
)
def test_superchips_as_built(ids: Ids, count: int, active: int, total: int) -> None:
    """Superchips that stand alone, in pairs or on boards of their own have the links that their peers have."""
    assert said(board(ids, [unnamed(active, total)] * count)) == {}


def test_direct_superchips() -> None:
    """Superchips that are told to be joined directly are on no NVSwitches: warning."""
    pairs = dict.fromkeys(combinations(range(4), 2), 6)
    pairs[0, 1] = 5
    machine = machine_with(4, GB200)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, direct(pairs, addresses, total=18, version=5)))
    assert [(f.subject, f.severity) for f in findings(node, INACTIVE)] == [(a, "warning") for a in addresses[:2]]


@pytest.mark.parametrize(
    ("ids", "count", "links", "severity"),
    [
        (trees.V100_SXM2, 8, 6, "warning"),  # a cube mesh, though boards with NVSwitches may carry the part too
        ((0x10DE, 0x1DB5), 8, 6, "warning"),
        ((0x10DE, 0x1DF5), 8, 6, "warning"),
        ((0x10DE, 0x15F9), 8, 4, "warning"),
        ((0x10DE, 0x1DB8), 8, 6, "critical"),  # NVSwitches always
        (trees.A100_SXM, 4, 12, "warning"),
        (trees.A100_SXM, 8, 12, "critical"),
        (trees.B200, 8, 18, "critical"),
    ],
)
def test_severity_where_no_other_end_is_told(ids: Ids, count: int, links: int, severity: str) -> None:
    """Critical only where boards with so many of these GPUs have NVSwitches, all of them."""
    node = board(ids, [unnamed(links - 1, links), *[unnamed(links)] * (count - 1)])
    assert said(node, INACTIVE) == {INACTIVE: severity}


def test_unlisted_model() -> None:
    """A model that the catalogue does not know is judged by its peers alone."""
    links = [switched(20, 24), *[switched(24)] * 7]
    assert said(board(trees.UNLISTED_GPU, links), INACTIVE) == {INACTIVE: "critical"}
    assert said(board(trees.UNLISTED_GPU, [switched(20, 24)] * 8), INACTIVE) == {}


def test_different_models_are_no_peers() -> None:
    """A card of another model has its own number of links."""
    machine = machine_with(2, trees.RTX_A6000)
    port = machine.root_port("pci0000:10")
    machine.gpu(port, trees.H100_NVL)
    addresses = gpus_of(machine)
    links = [*direct({(0, 1): 4}, addresses[:2], version=3), switched(0, 18)]
    assert said(machine.node(drivers(addresses, links)), INACTIVE, PARTIAL) == {}


# --- nvlink-inactive: unassessed -------------------------------------------------------------------------------


def test_mig() -> None:
    """MIG hides NVLink: an open question for each GPU, and nothing is concluded."""
    node = board(trees.A100_SXM, [switched(0, 12)] * 8, nvswitches=6, mig=True)
    assert {u.cause for u in unassessed(node, INACTIVE)} == {"mig"}
    assert said(node) == {}


def test_lone_gpu_in_a_guest() -> None:
    """One GPU of a larger board in a guest: its links may lead to GPUs of others."""
    for links in (switched(0, 18), switched(18)):
        node = board(trees.H100, [links], guest=True)
        assert said(node) == {}
        assert [u.cause for u in unassessed(node, INACTIVE)] == ["passthrough"]


def test_part_of_a_board_in_a_guest() -> None:
    """Several GPUs of a larger board in a guest: links that lead out of it may be closed, by design."""
    quad = {pair: count for pair, count in CUBE_MESH.items() if max(pair) < 4}
    machine = machine_with(4, trees.V100_SXM2, platform=GUEST)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, direct(quad, addresses, total=6)))
    assert said(node, INACTIVE) == {}
    assert {u.cause for u in unassessed(node, INACTIVE)} == {"passthrough"}
    # Links to switches stay whole, however many GPUs the guest has.
    node = board(trees.H100, [switched(17, 18), *[switched(18)] * 3], guest=True)
    assert said(node, INACTIVE) == {INACTIVE: "critical"}


def test_whole_board_in_a_guest() -> None:
    """A whole board in a guest is judged like one on bare metal."""
    node = board(trees.A100_SXM, [switched(11, 12, version=3), *[switched(12, version=3)] * 7], guest=True)
    assert said(node, INACTIVE) == {INACTIVE: "critical"}
    node = board(trees.A100_SXM, [switched(0, 12, version=3)] * 8, guest=True)
    assert said(node, INACTIVE) == {INACTIVE: "critical"}


def test_passed_through() -> None:
    """A GPU that is passed to a guest is an open question."""
    machine = machine_with(2)
    for address in gpus_of(machine):
        machine.parts[address].driver = "vfio-pci"
    assert {u.cause for u in unassessed(machine.node(), INACTIVE)} == {"passthrough"}


def test_not_readable() -> None:
    """What the driver refuses is an open question, for that GPU."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    gpus = drivers(addresses, [switched(18)] * 8)
    gpus[3] = gpus[3]._replace(nvlinks=Unknown("timeout", "nvmlDeviceGetNvLinkState"))
    found, questions = conclusions(machine.node(gpus), INACTIVE)
    assert found == []
    assert [(u.subject, u.cause) for u in questions] == [(addresses[3], "driver")]


def test_nobody_asked() -> None:
    """GPUs with NVLink of which nothing is said are open questions; cards without NVLink are none."""
    assert {u.cause for u in unassessed(machine_with(8).node(), INACTIVE)} == {"not-recorded"}
    for ids in (trees.L40S, trees.RTX_4090, (0x10DE, 0x26B1)):
        assert conclusions(machine_with(2, ids).node(), INACTIVE) == ([], [])


def test_other_vendors() -> None:
    """AMD's GPUs have no NVLink to ask for."""
    for code in EVERY:
        assert conclusions(machine_with(8, trees.MI300X).node(), code) == ([], [])


def test_lost_gpu() -> None:
    """Of a lost GPU nothing is said twice: its links are an open question."""
    machine = machine_with(8, nvswitches=4)
    addresses = gpus_of(machine)
    gpus = drivers(addresses, [switched(18)] * 8)
    gpus[3] = gpus[3]._replace(lost=True, nvlinks=None)
    found, questions = conclusions(machine.node(gpus), INACTIVE)
    assert found == []
    assert [u.subject for u in questions] == [addresses[3]]


# --- nvlink-partial --------------------------------------------------------------------------------------------


def test_one_bridge_for_four_cards() -> None:
    """Of four cards two are bridged and two are not: warning, and no card is called broken."""
    node = cards(trees.A100_PCIE, 4, {(0, 1): 12}, 12)
    assert said(node) == {PARTIAL: "warning"}


def test_one_card_left_over() -> None:
    """Three cards, one bridge: the third is named."""
    node = cards(trees.RTX_3090, 3, {(0, 1): 4}, 4)
    (found,) = findings(node, PARTIAL)
    assert (found.severity, found.subject) == ("warning", node.gpus[2].address)


def test_half_seated_bridge() -> None:
    """A pair with fewer links than the other pairs of its model: warning, on that pair."""
    node = cards(trees.A100_PCIE, 4, {(0, 1): 12, (2, 3): 8}, 12)
    warned = {f.subject for code in (INACTIVE, PARTIAL) for f in findings(node, code) if f.severity == "warning"}
    assert warned == {node.gpus[2].address, node.gpus[3].address} or warned == {"node"}


def test_one_sided_bridge() -> None:
    """Two ends of one bridge that disagree: the end with fewer links has one down."""
    machine = machine_with(2, trees.RTX_A6000)
    addresses = gpus_of(machine)
    whole, half = direct({(0, 1): 4}, addresses, version=3)
    half = (*half[:3], half[3]._replace(state="inactive", remote=None, remote_kind="unknown", gbs=None))
    found = findings(machine.node(drivers(addresses, [whole, half])), INACTIVE)
    assert [(f.subject, f.severity) for f in found] == [(addresses[1], "warning")]


@pytest.mark.parametrize("ids", [trees.RTX_3090, trees.RTX_A6000, (0x10DE, 0x1E07)])
def test_half_seated_bridge_of_two(ids: Ids) -> None:
    """One bridge closes all links of a card: both ends without one of them is a fault, and needs no other pair."""
    total = 2 if ids == (0x10DE, 0x1E07) else 4
    found = findings(board(ids, [unnamed(total - 1, total, version=3)] * 2), INACTIVE)
    assert [(f.severity, f.basis) for f in found] == [("warning", "catalogue")] * 2
    assert any("reseat the bridge" in step for step in found[0].remedy)
    assert said(board(ids, [unnamed(total, version=3)] * 2), INACTIVE) == {}


@pytest.mark.parametrize(
    ("ids", "links", "total"),
    [(trees.H100_NVL, 12, 18), (trees.H100_NVL, 12, 12), (trees.A100_PCIE, 12, 12), (trees.RTX_A6000, 4, 4)],
)
def test_bridged_pair(ids: Ids, links: int, total: int) -> None:
    """A bridged pair has what its bridges carry, not NVML's maximum: an H100 NVL pair 12 of 18."""
    assert said(cards(ids, 2, {(0, 1): links}, total)) == {}


@pytest.mark.parametrize("links", [4, 6])
def test_four_gpu_bridge(links: int) -> None:
    """A four-way bridge joins each two by four or six links."""
    pairs = dict.fromkeys(combinations(range(4), 2), links)
    assert said(cards(trees.H200_NVL, 4, pairs, 18)) == {}


def test_equal_islands() -> None:
    """Four bridged pairs of eight: information, with the largest tensor-parallel group."""
    node = cards(trees.A100_PCIE, 8, {(n, n + 1): 12 for n in range(0, 8, 2)}, 12)
    (found,) = findings(node, PARTIAL)
    assert (found.severity, found.subject) == ("info", "node")
    assert "2" in found.summary
    assert said(node) == {PARTIAL: "info"}


def test_cube_mesh_is_not_blamed() -> None:
    """Four of eight GPUs out of a GPU's reach is how a hybrid cube mesh is built."""
    machine = machine_with(8, trees.V100_SXM2)
    addresses = gpus_of(machine)
    assert findings(machine.node(drivers(addresses, direct(CUBE_MESH, addresses))), PARTIAL) == []


MESH = dict.fromkeys(combinations(range(4), 2), 4)
SWITCHED = dict.fromkeys(combinations(range(8), 2), 18)


def without(pairs: dict[tuple[int, int], int], pair: tuple[int, int], links: int = 0) -> dict[tuple[int, int], int]:
    """The same pairs, one of them with fewer links or none."""
    return {p: links if p == pair else n for p, n in pairs.items() if links or p != pair}


@pytest.mark.parametrize(
    ("count", "pairs", "worse"),
    [
        (3, {(0, 1): 4, (1, 2): 4}, (0, 2)),
        (4, {(0, 1): 4, (1, 2): 4, (2, 3): 4}, (0, 3)),
        (4, {(0, 1): 2, (1, 2): 2, (2, 3): 2}, (0, 3)),
        (4, {(0, 1): 4, (0, 2): 4, (0, 3): 4}, (1, 2, 3)),
        (4, without(MESH, (1, 3)), (1, 3)),
        (4, without(MESH, (0, 1), 3), (0, 1)),
        (4, {(0, 1): 4, (1, 2): 2, (2, 3): 4, (0, 3): 4}, (1, 2)),
        (8, without(SWITCHED, (0, 1)), (0, 1)),
        (8, without(CUBE_MESH, (0, 4)), (0, 4)),
        (8, without(CUBE_MESH, (0, 4), 1), (0, 4)),
    ],
    ids=[
        "chain of three",
        "chain",
        "chain of NV2",
        "star",
        "mesh less a pair",
        "mesh, a pair with a link less",
        "ring, a pair with fewer links",
        "NVSwitch less a pair",
        "cube mesh less a pair",
        "cube mesh, a pair with a link less",
    ],
)
def test_unequal_bonds(count: int, pairs: dict[tuple[int, int], int], worse: tuple[int, ...]) -> None:
    """GPUs in one group that reach fewer others than their equals, or by fewer links: warning, and they are named."""
    (found,) = findings(matrix(count, pairs), PARTIAL)
    assert (found.severity, found.subject) == ("warning", "node")
    assert found.related == tuple(f"GPU{number}" for number in worse)


@pytest.mark.parametrize(
    ("count", "pairs"),
    [
        (4, {(0, 1): 4, (1, 2): 4, (2, 3): 4, (0, 3): 4}),
        (4, MESH),
        (8, SWITCHED),
        (8, CUBE_MESH),
        (8, dict.fromkeys(CUBE_MESH, 1)),
        *[(n, {p: c for p, c in CUBE_MESH.items() if max(p) < n}) for n in range(3, 8)],
        (5, {p: 1 for p in CUBE_MESH if max(p) < 5}),
        (6, dict.fromkeys([*combinations(range(3), 2), *combinations(range(3, 6), 2)], 2)),
    ],
    ids=[
        "ring",
        "mesh",
        "NVSwitch",
        "DGX-1 V100",
        "DGX-1 P100",
        *[f"{n} of a DGX-1" for n in range(3, 8)],
        "5 of a DGX-1 P100",
        "POWER9",
    ],
)
def test_equal_bonds(count: int, pairs: dict[tuple[int, int], int]) -> None:
    """Rings and meshes are built so; a guest or container sees part of a cube mesh, whose links differ by design."""
    assert [f for f in findings(matrix(count, pairs), PARTIAL) if f.severity != "info"] == []


def test_a_chain_is_no_equal_islands() -> None:
    """Two pairs with links between them are not told as two islands by design."""
    assert said(matrix(4, {(0, 1): 4, (1, 2): 4, (2, 3): 4}), PARTIAL) == {PARTIAL: "warning"}
    assert said(matrix(4, {(0, 1): 4, (2, 3): 4}), PARTIAL) == {PARTIAL: "info"}


def test_a_gpu_without_links_may_be_of_another_kind() -> None:
    """The matrix alone names no models: a display card beside four GPUs that are bridged is no twin of theirs. Where
    the driver names it so it is one, and on a board of NVSwitches no other card stands."""
    bridged = dict.fromkeys(combinations((0, 1, 2, 4), 2), 4)
    assert conclusions(matrix(5, bridged), PARTIAL) == ([], unassessed(matrix(5, bridged), PARTIAL))
    assert [(u.subject, u.cause) for u in unassessed(matrix(5, bridged), PARTIAL)] == [("GPU3", "not-recorded")]
    assert said(cards(trees.RTX_A6000, 3, {(0, 1): 4}, 4), PARTIAL) == {PARTIAL: "warning"}
    seven = dict.fromkeys(combinations(range(7), 2), 18)
    assert said(matrix(8, seven)) == {INACTIVE: "critical"}


def test_a_link_that_is_down_is_told_once() -> None:
    """nvlink-inactive says which link; that its GPUs then have fewer than their peers follows from it."""
    pairs = without(MESH, (0, 1))
    machine = machine_with(4, trees.A100_SXM)
    addresses = gpus_of(machine)
    node = machine.node(drivers(addresses, direct(pairs, addresses, total=12, version=3)))
    assert said(node) == {INACTIVE: "warning"}


def test_a_matrix_that_was_cut_short() -> None:
    """Pairs that no row holds are an open question, and no missing links."""
    assert findings(matrix(8, SWITCHED, rows=4), PARTIAL) == []
    assert [(u.subject, u.cause) for u in unassessed(matrix(8, SWITCHED, rows=4), PARTIAL)] == [
        ("node", "not-recorded")
    ]
    # The last row holds nothing that the others do not.
    assert conclusions(matrix(8, SWITCHED, rows=7), PARTIAL) == ([], [])


# --- nvlink-absent ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [trees.A100_PCIE, trees.H100_NVL, trees.RTX_A6000, trees.RTX_3090])
def test_no_bridges(ids: Ids) -> None:
    """Cards that a bridge could join and none does: information, never a fault."""
    assert said(board(ids, [switched(0, 4)] * 2)) == {ABSENT: "info"}


def test_alone() -> None:
    """One card alone has nobody to be joined with."""
    assert said(board(trees.A100_PCIE, [switched(0, 12)])) == {}


@pytest.mark.parametrize("ids", [trees.L40S, trees.RTX_4090, (0x10DE, 0x26B1)], ids=["L40S", "RTX 4090", "6000 Ada"])
@pytest.mark.parametrize("asked", [False, True])
def test_models_without_nvlink(ids: Ids, asked: bool) -> None:
    """RTX 4090, L40S and RTX 6000 Ada have no NVLink: nothing is missing, whatever NVML lists."""
    node = board(ids, [switched(0, 18 if asked else 0)] * 4)
    for code in EVERY:
        assert conclusions(node, code) == ([], [])


def test_driver_that_has_none_to_tell() -> None:
    """A live machine whose driver answered and knows no NVLink of a card leaves no question."""
    machine = machine_with(2, trees.RTX_A6000)
    state = DriverState("nvml", "ok")
    node = machine.node(drivers(gpus_of(machine)), driver=state, live=True)
    assert unassessed(node, INACTIVE) == []


# --- nvlink-errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grown", "fires"), [(0, False), (10, False), (11, True)])
def test_errors(grown: int, fires: bool) -> None:
    """Errors that grow faster than the threshold are a warning, with the counter that grew."""
    node = board(trees.H100, [switched(18)] * 8, nvswitches=4)
    gpu = node.gpus[2].address
    past = Past(watching=True, counters={(gpu, "nvlink_replay"): grown})
    found = findings(node, ERRORS, past)
    assert [(f.subject, f.severity, f.basis) for f in found] == ([(gpu, "warning", "counters")] if fires else [])
    assert findings(node, ERRORS, past, Policy(nvlink_errors_per_hour=1000)) == []


def test_totals_are_no_rate() -> None:
    """What was counted since the driver was loaded says nothing in a one-off audit."""
    links = tuple(link._replace(errors={"replay": 100_000}) for link in switched(18))
    assert said(board(trees.H100, [links] * 8, nvswitches=4), ERRORS) == {}


def test_links_that_no_bridge_joins_are_not_named() -> None:
    """Of an H100 NVL twelve links of eighteen are bridged: which of seven that are down should be up nobody says."""
    found = findings(cards(trees.H100_NVL, 4, {(0, 1): 12, (2, 3): 11}, 18), INACTIVE)
    assert len(found) == 2
    assert all(f.summary.endswith("has 11 of 12 NVLinks up") for f in found)
