"""xgmi-degraded and hccs-degraded: an accelerator against its twins, never against a figure alone."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpu_topo.classifier.xgmi import RULES
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, AcceleratorLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import GPU, Node
from tests.build import device, node

Pair = tuple[int, int]


def address(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def mesh(
    count: int, without: tuple[Pair, ...] = (), links: dict[Pair, int] | None = None, kind: str = "xGMI", hives: int = 1
) -> Node:
    """`count` accelerators in full meshes, minus some pairs."""
    size = count // hives
    bonds = [
        AcceleratorLink(kind, address(a), address(b), (links or {}).get((a, b), 1), ACTIVE, 50.0)
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


def test_an_accelerator_that_lost_all() -> None:
    """Seven reach each other, one nobody."""
    machine = mesh(8, without=tuple((0, n) for n in range(1, 8)))
    assert address(0) in subjects(machine)
    assert len(subjects(machine)) == 1


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
