"""xgmi-degraded and hccs-degraded: an accelerator against its twins, never against a figure alone."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpu_topo.classifier.xgmi import RULES
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE, AcceleratorLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import GPU, Gpu, Node
from tests.build import device, node

Pair = tuple[int, int]


def address(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def mesh(
    count: int,
    without: tuple[Pair, ...] = (),
    links: dict[Pair, int] | None = None,
    kind: str = "xGMI",
    hives: int = 1,
    gbs: float | None = 50.0,
) -> Node:
    """`count` accelerators in full meshes, minus some pairs."""
    size = count // hives
    bonds = [
        AcceleratorLink(kind, address(a), address(b), (links or {}).get((a, b), 1), ACTIVE, gbs)
        for a, b in combinations(range(count), 2)
        if a // size == b // size and (a, b) not in without
    ]
    gpus = [device(address(n), GPU, "MI300X", vendor_id=0x1002, device_id=0x74A1) for n in range(count)]
    return node(gpus, accelerator_links=tuple(bonds))


def asked(machine: Node, rule: int = 0) -> list[Finding | Unassessed]:
    return list(RULES[rule].judge(machine, Past(), Policy()))


def subjects(machine: Node) -> list[str]:
    return [found.subject for found in asked(machine) if isinstance(found, Finding)]


def test_designs_are_named_not_blamed() -> None:
    """A full mesh, two hives, and a mesh in which everybody lacks one other."""
    uniform = mesh(8, without=((0, 7), (1, 6), (2, 5), (3, 4)))
    for machine in (mesh(8), mesh(8, hives=2), uniform, mesh(2), node()):
        assert asked(machine) == []


@pytest.mark.parametrize("count", [4, 8])
def test_a_broken_connection_shows_at_both_ends(count: int) -> None:
    """The two accelerators that lack each other have fewer peers than the rest."""
    machine = mesh(count, without=((0, 1),))
    assert subjects(machine) == [address(0), address(1)]
    found = asked(machine)[0]
    assert isinstance(found, Finding)
    assert (found.severity, found.basis, found.related) == ("warning", "peers", (address(1),))
    assert found.observed["peers"] == count - 2
    assert found.expected["peers"] == count - 1


def lost(machine: Node) -> list[float | None]:
    return [found.lost_gbs for found in asked(machine) if isinstance(found, Finding)]


def test_what_is_lost() -> None:
    """As many GB/s as the missing links carry, where that is told and one like the other."""
    assert lost(mesh(8, without=((0, 1),))) == [50.0, 50.0]
    assert lost(mesh(4, without=((0, 1),))) == [50.0, 50.0]  # without a majority: by the hole in the mesh
    assert lost(mesh(8, without=tuple((0, n) for n in range(1, 8)))) == [300.0]  # the others have six
    assert lost(mesh(8, without=((0, 1),), gbs=None)) == [None, None]
    uneven = mesh(8, without=((0, 1),))
    some = tuple(link._replace(gbs=80.0) if link.a == address(5) else link for link in uneven.accelerator_links)
    assert lost(uneven._replace(accelerator_links=some)) == [None, None]


def test_what_inactive_connections_cost() -> None:
    """The driver names them: no twin need tell."""
    machine = mesh(3)
    first, *others = machine.accelerator_links
    assert lost(machine._replace(accelerator_links=(first._replace(state=INACTIVE), *others))) == [50.0, 50.0]


def test_an_accelerator_that_lost_all() -> None:
    """Seven reach each other, one nobody."""
    machine = mesh(8, without=tuple((0, n) for n in range(1, 8)))
    assert address(0) in subjects(machine)
    assert len(subjects(machine)) == 1


def test_an_accelerator_that_its_hive_lost() -> None:
    """Two hives of four leave no number that nearly all have, but one has none at all; pairs and single cards that
    half of a machine is made of are a choice."""
    assert subjects(mesh(8, without=((1, 2), (0, 2), (2, 3)), hives=2)) == [address(2)]
    assert subjects(mesh(8, without=tuple(combinations(range(4), 2)), hives=2)) == []


def test_what_is_not_known_is_no_ground_for_blame() -> None:
    """Bonded pairs of a matrix that was cut off: all but the first may have links to everybody."""
    machine = mesh(8, hives=4)
    cut = [
        AcceleratorLink("xGMI", address(a), address(b), None, UNKNOWN_STATE)
        for a, b in combinations(range(1, 8), 2)
        if a // 2 != b // 2
    ]
    answers = asked(machine._replace(accelerator_links=(*machine.accelerator_links, *cut)))
    assert [type(answer) for answer in answers] == [Unassessed]


def test_links_of_gpus_that_are_not_told_apart() -> None:
    """A matrix numbers GPUs, the bus has their addresses, and nothing joins the two."""
    machine = mesh(4)
    numbered = tuple(AcceleratorLink("xGMI", f"GPU{a}", f"GPU{b}", None, ACTIVE) for a, b in combinations(range(4), 2))
    (answer,) = asked(machine._replace(accelerator_links=numbered))
    assert isinstance(answer, Unassessed)
    assert "rocm-smi --showbus" in answer.reason


def test_fewer_bonded_links_than_the_twins() -> None:
    """Bonds of two of which one has one link."""
    links = dict.fromkeys(combinations(range(8), 2), 2)
    assert subjects(mesh(8, links=links | {(2, 3): 1})) == [address(2), address(3)]


def test_uneven_designs_have_no_majority() -> None:
    """Packages of two dies: six or seven links each, four inside the package."""
    links = {pair: 1 + pair[0] % 3 for pair in combinations(range(8), 2)}
    assert asked(mesh(8, links=links)) == []


def test_an_inactive_connection_is_told_without_twins() -> None:
    """The driver itself says that it is down."""
    machine = mesh(2)
    down = tuple(link._replace(state=INACTIVE) for link in machine.accelerator_links)
    assert subjects(machine._replace(accelerator_links=down)) == [address(0), address(1)]


def test_an_unknown_state_is_unassessed() -> None:
    """Neither up nor down."""
    machine = mesh(4)
    unknown = tuple(link._replace(state="unknown") for link in machine.accelerator_links)
    told = asked(machine._replace(accelerator_links=unknown))
    assert [type(t) for t in told] == [Unassessed]


def test_hccs_is_judged_likewise_and_apart() -> None:
    """Each kind by its own rule."""
    machine = mesh(8, without=((0, 1),), kind="HCCS")
    assert asked(machine, 0) == []
    assert [f.code for f in asked(machine, 1)] == ["hccs-degraded"] * 2


@pytest.mark.parametrize("kind", ["xGMI", "HCCS"])
@pytest.mark.parametrize("shown", [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5), (0, 1, 2, 6)])
def test_who_is_shown_a_part_of_the_board_is_told_nothing_of_the_others(shown: tuple[int, ...], kind: str) -> None:
    """A container that sees some of two groups: who has no partner here may have three that are hidden."""
    whole = mesh(8, hives=2, kind=kind)
    addresses = [address(number) for number in shown]
    links = tuple(link for link in whole.accelerator_links if link.a in addresses and link.b in addresses)
    gpus = tuple(Gpu(at, ordinal=number) for at, number in zip(addresses, shown, strict=True))
    part = node([whole.devices[at] for at in addresses], accelerator_links=links, gpus=gpus)
    assert asked(part, kind == "HCCS") == []


def test_a_connection_inside_a_package_counts_as_hccs() -> None:
    """SIO in the place of HCCS: every die reaches every other."""
    machine = mesh(8, kind="HCCS")
    links = [
        link._replace(kind="SIO") if {link.a, link.b} == {address(2), address(3)} else link
        for link in machine.accelerator_links
    ]
    assert asked(machine._replace(accelerator_links=tuple(links)), 1) == []


def test_links_of_nobody_knows_whom() -> None:
    """A matrix by names beside devices by addresses."""
    machine = mesh(8, kind="HCCS")
    links = tuple(link._replace(a=f"NPU{link.a}", b=f"NPU{link.b}") for link in machine.accelerator_links)
    assert [type(told) for told in asked(machine._replace(accelerator_links=links), 1)] == [Unassessed]
