"""Bridges that the catalogue does not list: ends of tunnels and bridges of a card, by their place."""

from __future__ import annotations

import pytest

from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT
from tests import trees
from tests.trees import GEN1, GEN3, GEN4, Ids, Machine, findings, unassessed

PATH, UPLINK, WIDTH = "pcie-path-bottleneck", "pcie-uplink-oversubscribed", "pcie-width-degraded"
UNLISTED_USB4: Ids = (0x1B21, 0xEEEE)
UNLISTED_AMD: Ids = (0x1022, 0xEEEE)
BARLOW_RIDGE: Ids = (0x8086, 0x5786)
USB4_HOST = 0x0C0340


@pytest.mark.parametrize("ids", [BARLOW_RIDGE, UNLISTED_USB4, (0x8086, 0xEEEE)])
@pytest.mark.parametrize("config", [False, True], ids=["without root", "as root"])
def test_a_hub_claims_less_than_what_hangs_below_it(ids: Ids, config: bool) -> None:
    """No chip that can do 2.5 GT/s has faster ports below: it is the end of a tunnel, listed or not."""
    machine = Machine(config=config)
    up = machine.bridge(machine.root_port(machine.host(), (GEN1, 16)), ids, UPSTREAM_PORT, (GEN1, 4))
    machine.gpu(machine.bridge(up, ids, DOWNSTREAM_PORT, (GEN4, 4)), link=(GEN4, 4), most=(GEN4, 16))
    node = machine.node()
    assert node.switches == {}
    assert findings(node, PATH) + findings(node, UPLINK) + findings(node, WIDTH) == []


def test_a_chip_with_a_usb4_host_interface_is_no_switch() -> None:
    """A discrete host controller: one of its ports leads to the host interface, the others into tunnels."""
    machine = Machine()
    up = machine.bridge(machine.root_port(machine.host()), UNLISTED_USB4, UPSTREAM_PORT, (GEN4, 4))
    host = machine.bridge(up, UNLISTED_USB4, DOWNSTREAM_PORT, (GEN4, 4))
    machine.function(host, UNLISTED_USB4, USB4_HOST)
    tunnel = machine.bridge(up, UNLISTED_USB4, DOWNSTREAM_PORT, (GEN1, 4))
    machine.gpu(tunnel, link=(GEN1, 4), most=(GEN4, 16))
    node = machine.node()
    assert node.switches == {}
    assert findings(node, UPLINK) == []


def test_a_usb4_card_below_a_switch_makes_no_tunnel_of_it() -> None:
    """The host interface of another maker is a card in a slot."""
    machine = Machine()
    up = machine.switch(machine.root_port(machine.host()))
    machine.function(machine.down(up), UNLISTED_USB4, USB4_HOST, link=(GEN4, 4))
    assert list(machine.node().switches) == [up]


def test_an_unlisted_switch_stays_one() -> None:
    """An uplink of the first generation above ports of the first generation is an old switch."""
    machine = Machine()
    up = machine.bridge(machine.root_port(machine.host(), (GEN1, 16)), (0x1B21, 0xEEEE), UPSTREAM_PORT, (GEN1, 16))
    machine.gpu(machine.bridge(up, (0x1B21, 0xEEEE), DOWNSTREAM_PORT, (GEN1, 16)), link=(GEN1, 16), most=(GEN3, 16))
    assert list(machine.node().switches) == [up]


def test_bridges_of_an_unlisted_card_show_the_slot() -> None:
    """AMD's two bridges above a single GPU are the card's: their upper link is the slot's, and is judged."""
    machine = Machine()
    root = machine.root_port(machine.host(), (GEN4, 16))
    up = machine.bridge(root, UNLISTED_AMD, UPSTREAM_PORT, (GEN4, 16), link=(GEN4, 4))
    gpu = machine.gpu(machine.bridge(up, UNLISTED_AMD, DOWNSTREAM_PORT, (GEN4, 16)), trees.RX_7900, most=(GEN4, 16))
    node = machine.node()
    assert node.switches == {}
    (found,) = findings(node, WIDTH)
    assert (found.subject, found.severity) == (up, "critical")
    assert gpu not in {u.subject for u in unassessed(node, WIDTH)}


def test_an_unlisted_chipset_is_no_card_and_no_switch() -> None:
    """AMD builds no switches; a chipset has more ports than a card."""
    machine = Machine()
    up = machine.bridge(
        machine.root_port(machine.host(), (GEN4, 16)), UNLISTED_AMD, UPSTREAM_PORT, (GEN4, 16), link=(GEN4, 4)
    )
    machine.gpu(machine.bridge(up, UNLISTED_AMD, DOWNSTREAM_PORT, (GEN4, 4)), trees.RX_7900, (GEN4, 4), (GEN4, 16))
    machine.nvme(machine.bridge(up, UNLISTED_AMD, DOWNSTREAM_PORT, (GEN4, 4)))
    node = machine.node()
    assert node.switches == {}
    assert findings(node, WIDTH) + findings(node, UPLINK) == []
