"""pcie-slot-limited."""

from __future__ import annotations

import pytest

from gpu_topo.model.history import Policy
from tests import trees
from tests.nvlinks import GUEST
from tests.trees import (
    CONNECTX7,
    GEN1,
    GEN3,
    GEN4,
    GEN5,
    I350,
    Link,
    Machine,
    findings,
)

WIDTH, SLOT = "pcie-width-degraded", "pcie-slot-limited"


def below_root(most: Link = (GEN5, 16), **more: object) -> tuple[Machine, str]:
    machine = Machine(**more)  # type: ignore[arg-type]
    return machine, machine.root_port(machine.host(0x10), most)


@pytest.mark.parametrize(
    ("class_code", "ids", "slot", "severity"),
    [
        (trees.GPU_CLASS, trees.L40S, (GEN4, 8), "warning"),  # a data-centre GPU with fewer lanes
        (trees.GPU_CLASS, trees.L40S, (GEN3, 16), "info"),  # with its lanes, of an older generation
        (trees.VGA_CLASS, trees.RTX_4090, (GEN4, 8), "info"),  # a consumer card at x8 is usual
        (trees.VGA_CLASS, trees.RTX_4090, (GEN4, 4), "warning"),  # at x4 it hurts
        (trees.VGA_CLASS, trees.RTX_4090, (GEN3, 1), "warning"),
        (trees.ACCELERATOR_CLASS, (0x1DA3, 0x1060), (GEN4, 8), "warning"),
    ],
)
def test_slot_severity(class_code: int, ids: trees.Ids, slot: Link, severity: str) -> None:
    """Warning where it hurts: fewer lanes for data-centre GPUs and accelerators, x4 and less for any GPU."""
    machine, port = below_root(slot)
    device = machine.function(port, ids, class_code, link=slot, most=(GEN4, 16))
    (found,) = findings(machine.node(), SLOT)
    assert (found.subject, found.severity) == (device, severity)
    assert findings(machine.node(), WIDTH) == []


@pytest.mark.parametrize(("ids", "moves"), [(trees.V100_SXM2, False), (trees.MI300X, False), (trees.L40S, True)])
def test_nobody_moves_a_module(ids: trees.Ids, moves: bool) -> None:
    """What is wired on a board has no other slot to go to."""
    machine, port = below_root((GEN3, 8))
    machine.gpu(port, ids, (GEN3, 8), (GEN3, 16))
    (found,) = findings(machine.node(), SLOT)
    assert any("move the card" in step for step in found.remedy) == moves


def test_slot_is_named() -> None:
    """The platform's label of the slot is in the sentence."""
    machine, port = below_root((GEN4, 8))
    machine.slot("PCIE7", machine.gpu(port, link=(GEN4, 8), most=(GEN4, 16)))
    assert "PCIE7" in findings(machine.node(), SLOT)[0].summary


@pytest.mark.parametrize(
    ("slot", "gbps", "severity"),
    [((GEN4, 16), 400.0, "warning"), ((GEN4, 16), 200.0, "info"), ((GEN3, 16), 200.0, "warning")],
)
def test_nic_whose_rate_no_longer_fits(slot: Link, gbps: float, severity: str) -> None:
    """A NIC that the slot slows is a warning where its line rate does not fit any more."""
    machine, port = below_root(slot)
    nic = machine.nic(port, CONNECTX7, slot, gbps=gbps)
    (found,) = findings(machine.node(), SLOT)
    assert (found.subject, found.severity) == (nic, severity)


def test_slot_fits() -> None:
    """A slot that can do as much as the device, or more, is nothing to mention; nor is one of a guest."""
    machine, port = below_root((GEN5, 16))
    machine.gpu(port, link=(GEN4, 16), most=(GEN4, 16))
    assert findings(machine.node(), SLOT) == []
    guest, port = below_root((GEN1, 1), platform=GUEST)
    guest.gpu(port, link=(GEN1, 1))
    assert findings(guest.node(), SLOT) == []


MI210 = (0x1002, 0x740F)


@pytest.mark.parametrize(
    ("ids", "class_code", "slot", "severity"),
    [
        (trees.RX_7900, trees.VGA_CLASS, (GEN3, 16), "info"),
        (trees.RX_7900, trees.VGA_CLASS, (GEN4, 8), "info"),
        (trees.RX_7900, trees.VGA_CLASS, (GEN4, 4), "warning"),
        (MI210, 0x038000, (GEN3, 16), "info"),
        (MI210, 0x038000, (GEN4, 8), "warning"),
        (MI210, 0x120000, (GEN4, 8), "warning"),
        (MI210, trees.VGA_CLASS, (GEN4, 8), "info"),  # with a monitor: sold as a workstation's too
    ],
)
def test_slot_of_a_card_with_inner_bridges(ids: trees.Ids, class_code: int, slot: Link, severity: str) -> None:
    """AMD's cards in older and narrower slots are judged as NVIDIA's are: once, on the link in the slot."""
    machine, port = below_root(slot)
    gpu = trees.navi(machine, port, slot, ids, class_code=class_code)
    (found,) = findings(machine.node(), SLOT)
    upper = machine.parts[gpu].above.above  # type: ignore[union-attr]
    assert upper is not None
    assert (found.subject, found.severity) == (upper.address, severity)
    assert gpu in found.summary


def test_inner_links_are_no_slots() -> None:
    """An inner port that can do less than its GPU is how the card was made."""
    machine, port = below_root()
    up = machine.bridge(port, trees.NAVI_UP, "upstream-port", (GEN4, 16))
    down = machine.bridge(up, trees.NAVI_DOWN, "downstream-port", (GEN3, 16))
    machine.gpu(down, trees.RX_7900, link=(GEN3, 16), most=(GEN4, 16), class_code=trees.VGA_CLASS)
    machine.files(down, max_link_speed=b"8.0 GT/s PCIe\n", current_link_speed=b"8.0 GT/s PCIe\n")
    assert findings(machine.node(), SLOT) == []


@pytest.mark.parametrize(("inner", "limited"), [((GEN3, 16), False), ((GEN4, 8), False), ((GEN4, 16), True)])
def test_a_slot_as_good_as_the_card_inside(inner: Link, limited: bool) -> None:
    """A Gen3 x16 slot does not limit a card whose inner link carries no more, whatever its bridge could do."""
    machine, port = below_root((GEN3, 16))
    up = machine.bridge(port, trees.NAVI_UP, "upstream-port", (GEN4, 16), link=(GEN3, 16))
    down = machine.bridge(up, trees.NAVI_DOWN, "downstream-port", (GEN4, 16))
    machine.gpu(down, trees.RX_7900, most=inner, class_code=trees.VGA_CLASS)
    assert (findings(machine.node(), SLOT) != []) == limited


@pytest.mark.parametrize("gbps", [1.0, 10.0])
def test_adapter_whose_rate_fits_its_narrow_slot(gbps: float) -> None:
    """A management NIC on one lane loses nothing: neither a job's impact nor a card to move."""
    machine, port = below_root((GEN3, 2))
    machine.nic(port, I350, (GEN3, 2), (GEN3, 4), gbps=gbps, infiniband=False)
    (found,) = findings(machine.node(), SLOT)
    assert found.severity == "info"
    assert found.impact.startswith("none")
    assert not any("move" in step for step in found.remedy)


def test_impact_by_what_an_adapter_is_for() -> None:
    """Missing lanes of the fabric's adapter hold up a job, those of storage hold up its data, of management nobody."""
    said = {}
    for role in ("fabric", "storage", "management"):
        machine, port = below_root()
        machine.nic(port, link=(GEN5, 4))
        (found,) = findings(machine.node(), WIDTH, policy=Policy(roles={"mlx5_0": role}))
        said[role] = found.impact
    assert "collectives" in said["fabric"]
    assert "checkpoints" in said["storage"] and "collectives" not in said["storage"]
    assert "collectives" not in said["management"]


def test_two_functions_share_the_slot_of_their_card() -> None:
    """2 x 100 Gb/s do not fit Gen4 x8, whether the card shows two ports or two functions."""
    machine, port = below_root((GEN4, 8))
    first = machine.nic(port, CONNECTX7, (GEN4, 8), gbps=100.0)
    machine.nic(port, CONNECTX7, (GEN4, 8), gbps=100.0, same_device=first)
    (found,) = findings(machine.node(), SLOT)
    assert (found.subject, found.severity) == (first, "warning")
    assert "25.0 GB/s does not fit" in found.summary
    assert found.lost_gbs == pytest.approx(25.0 - 15.754, abs=0.01)


def test_a_line_rate_that_is_not_known_is_no_alarm() -> None:
    """What a chip can do at most is no line rate; a board's grade says more, also while its port is down."""
    machine, port = below_root((GEN5, 8))
    machine.nic(port, CONNECTX7, (GEN5, 8), gbps=None)
    (found,) = findings(machine.node(), SLOT)
    assert (found.severity, "not known" in found.impact, found.lost_gbs) == ("info", True, None)
    machine, port = below_root((GEN5, 8))
    machine.nic(port, CONNECTX7, (GEN5, 8), gbps=200.0)
    machine.ports[0] = machine.ports[0]._replace(state="DOWN", board_id="MT_0000000844")  # 200 Gb/s
    (found,) = findings(machine.node(), SLOT)
    assert (found.severity, found.impact, found.lost_gbs) == ("info", "none: its ports do 25.0 GB/s at most", None)
