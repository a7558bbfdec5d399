"""port-rate-degraded and port-outruns-pcie: expectations in order, and arithmetic that fits."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.classifier.port_rate import judge_outruns, judge_rate
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import NIC, Node
from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT
from tests import trees
from tests.build import changed, device, eight_gpus, link, node
from tests.trees import BLUEFIELD_BRIDGE, GEN4, GEN5, Machine


def rates(machine: Node, past: Past = Past(), policy: Policy = Policy()) -> dict[str, Finding]:
    return {f.subject: f for f in judge_rate(machine, past, policy) if isinstance(f, Finding)}


def reasons(machine: Node) -> dict[str, str]:
    return {u.subject: u.cause for u in judge_rate(machine, Past(), Policy()) if isinstance(u, Unassessed)}


def pair(*ports: dict[str, Any], **shared: Any) -> Node:
    """Ports of one board, each on a card of its own unless it has an address."""
    base = {"link_layer": "InfiniBand", "transport": "infiniband", "state": "ACTIVE", "board_id": "X1"} | shared
    return node(
        ports=tuple(
            Port(f"mlx5_{n}", 1, **(base | {"address": f"0000:{n + 1:02x}:00.0"} | port))
            for n, port in enumerate(ports)
        )
    )


def test_equal_ports_are_silent() -> None:
    """All at their common rate."""
    assert rates(eight_gpus()) == {}


def test_fewer_lanes_than_its_twins_is_critical() -> None:
    """2X NDR among 4X NDR: half of the bandwidth of the whole job."""
    found = rates(changed(eight_gpus(), 5, rate_gbps=200.0, lanes=2))["mlx5_5/1"]
    assert (found.severity, found.basis, found.lost_gbs) == ("critical", "peers", 25)
    assert found.observed == {"rate_gbps": 200.0, "lanes": 2, "speed": "NDR"}
    assert found.expected["rate_gbps"] == 400.0
    assert "2 of 4 lanes" in found.summary


def test_a_slower_speed_than_its_twins_is_critical() -> None:
    """EDR among NDR."""
    assert rates(changed(eight_gpus(), 0, rate_gbps=100.0, speed="EDR"))["mlx5_0/1"].severity == "critical"


def test_of_two_cards_the_faster_is_right() -> None:
    """Two equal cards that differ: one of them is degraded."""
    assert list(rates(pair({"rate_gbps": 200.0}, {"rate_gbps": 100.0}))) == ["mlx5_1/1"]


@pytest.mark.parametrize(("odd", "found"), [(0xD145, {"bnxt_re2/1"}), (0x2200, set())])
def test_a_driver_without_board_ids(odd: int, found: set[str]) -> None:
    """Where the driver tells no board, the ids of the PCI function do: of another board a port may be slower."""
    cards, ports = [], []
    for n, board in enumerate((0xD145, 0xD145, odd)):
        card = device(f"0000:{n + 1:02x}:00.0", NIC, vendor_id=0x14E4, device_id=0x1760)
        ids = card.function._replace(subsystem_vendor_id=0x14E4, subsystem_device_id=board)
        cards.append(card._replace(function=ids))
        rate = 400.0 if n < 2 else 100.0
        ports.append(Port(f"bnxt_re{n}", 1, card.address, link_layer="Ethernet", state="ACTIVE", rate_gbps=rate))
    assert set(rates(node(cards, ports=tuple(ports)))) == found


def test_two_ports_of_one_card_may_serve_two_networks() -> None:
    """A two-port card with a fast and a slow network is a choice."""
    machine = pair({"rate_gbps": 200.0, "address": "0000:01:00.0"}, {"rate_gbps": 100.0, "address": "0000:01:00.1"})
    assert rates(machine) == {}


def test_two_halves_are_two_networks() -> None:
    """Four fast, four slow: nobody is the odd one."""
    machine = pair(*({"rate_gbps": 200.0 if n < 4 else 100.0} for n in range(8)))
    assert rates(machine) == {}


def test_other_subnets_and_roles_are_no_twins() -> None:
    """A slower storage subnet of equal cards is a choice."""
    machine = pair(
        *({"rate_gbps": 200.0, "subnet_prefix": "fe80:0:0:1"} for _ in range(3)),
        {"rate_gbps": 100.0, "subnet_prefix": "fe80:0:0:2"},
    )
    assert rates(machine) == {}
    declared = changed(eight_gpus(), 7, rate_gbps=100.0)
    assert [f.severity for f in rates(declared, policy=Policy(roles={"mlx5_7": "storage"})).values()] == ["info"]


@pytest.mark.parametrize(
    "past",
    [
        Past(best_rate_gbps={"mlx5_0/1": 400.0}),
        Past(baseline={"ports": [{"device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate_gbps": 400.0}]}),
    ],
)
def test_slower_than_before_is_critical(past: Past) -> None:
    """A lone port against its best since start, or against the baseline."""
    found = rates(pair({"rate_gbps": 200.0}), past)["mlx5_0/1"]
    assert (found.severity, found.basis) == ("critical", "baseline")


def test_below_its_grade_alone_is_information() -> None:
    """A split cable or a slower switch is a choice; the grade comes from the PSID, never from the chip."""
    machine = pair({"rate_gbps": 200.0}, {"rate_gbps": 200.0}, board_id="MT_0000000838")
    assert {(f.severity, f.basis) for f in rates(machine).values()} == {("info", "catalogue")}


def test_placeholders_are_not_judged() -> None:
    """A port that is down prints 10 Gb/s; a kernel that does not know the card's speed does so on an active port."""
    assert rates(changed(eight_gpus(), 0, state="DOWN", rate_gbps=10.0)) == {}
    assert rates(pair({"rate_gbps": 10.0, "speed": "SDR"}, board_id="MT_0000000838")) == {}


def test_the_interface_overrules_a_fallback() -> None:
    """mlx5 prints 40 Gb/s for Ethernet speeds that it does not know."""
    machine = pair(
        *({"rate_gbps": 400.0, "netdev": f"e{n}"} for n in range(3)),
        {"rate_gbps": 40.0, "netdev": "e3"},
        link_layer="Ethernet",
        transport="roce",
    )
    speeds = tuple(NetDevice(f"e{n}", speed_mbps=400_000) for n in range(4))
    assert rates(machine._replace(netdevs=speeds)) == {}
    assert list(rates(machine)) == ["mlx5_3/1"]


def test_a_bond_is_not_held_against_its_grade() -> None:
    """A bond's figure is one member's or a share of it."""
    assert rates(pair({"rate_gbps": 100.0, "bond": "bond0"}, board_id="MT_0000000884")) == {}


def test_without_any_reference_it_is_unassessed() -> None:
    """A lone port of an unlisted board, and ports without a board id."""
    assert reasons(pair({"rate_gbps": 100.0})) == {"mlx5_0/1": "no-reference"}
    assert set(reasons(pair({"rate_gbps": 100.0}, {"rate_gbps": 56.0}, board_id=None)).values()) == {"no-reference"}
    assert reasons(pair({"rate_gbps": None})) == {"mlx5_0/1": "not-recorded"}


# --- against PCIe


def behind(rate: float, speed: str | None, gts: float | None, lanes: int | None, **fields: Any) -> Node:
    """One port on a card with that PCIe link."""
    layer = fields.pop("link_layer", "InfiniBand")
    hidden = fields.pop("hidden", {})
    card = device("0000:05:00.0", NIC, link=link(gts, lanes, max_speed_gts=gts, max_width=lanes), **fields)
    port = Port("mlx5_0", 1, card.address, None, layer, "infiniband", "ACTIVE", rate_gbps=rate, speed=speed)
    return node([card], ports=(port,), hidden_links=hidden)


def outruns(machine: Node) -> list[Finding | Unassessed]:
    return list(judge_outruns(machine, Past(), Policy()))


@pytest.mark.parametrize(
    ("rate", "speed", "gts", "lanes"),
    [
        (400.0, "NDR", 32.0, 16),
        (200.0, "HDR", 16.0, 16),
        (100.0, "EDR", 8.0, 16),
        (56.0, "FDR", 8.0, 8),
        (40.0, "QDR", 5.0, 8),
        (10.0, "SDR", 2.5, 8),
    ],
)
def test_what_vendors_built_together_fits(rate: float, speed: str, gts: float, lanes: int) -> None:
    """Each generation's card carries its port, line coding included."""
    assert outruns(behind(rate, speed, gts, lanes)) == []


@pytest.mark.parametrize(
    ("rate", "speed", "gts", "lanes", "lost"),
    [(400.0, "NDR", 16.0, 16, 18.49), (400.0, "NDR", 32.0, 8, 18.49), (100.0, "EDR", 8.0, 8, 4.62)],
)
def test_a_link_too_narrow_is_a_warning(rate: float, speed: str, gts: float, lanes: int, lost: float) -> None:
    """The difference is what the port never reaches."""
    (found,) = outruns(behind(rate, speed, gts, lanes))
    assert isinstance(found, Finding)
    assert found.severity == "warning"
    assert found.lost_gbs == pytest.approx(lost, abs=0.01)
    assert found.related == ("0000:05:00.0",)


def test_ethernet_names_promise_their_whole_rate() -> None:
    """40 Gb/s Ethernet prints QDR and carries 40, InfiniBand's QDR carries 32."""
    assert len(outruns(behind(40.0, "QDR", 5.0, 8, link_layer="Ethernet"))) == 1


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"hidden": {"0000:05:00.0": "emulated"}}, "virtual-machine"),
        ({"virtual_function": True}, "virtual-machine"),
    ],
)
def test_hidden_links_are_unassessed(fields: dict[str, Any], cause: str) -> None:
    """In guests and on virtual functions the link says nothing."""
    (told,) = outruns(behind(400.0, "NDR", 2.5, 1, **fields))
    assert isinstance(told, Unassessed)
    assert told.cause == cause
    assert " " in told.reason, "a sentence"


def test_unknown_links_and_functions_are_unassessed() -> None:
    """ibstat alone names no function; a tree without link files has no link."""
    alone = node(ports=(Port("mlx5_0", 1, state="ACTIVE", rate_gbps=100.0),))
    (told,) = outruns(alone)
    assert isinstance(told, Unassessed)
    assert told.cause == "not-recorded"
    (told,) = outruns(behind(100.0, "EDR", None, None))
    assert isinstance(told, Unassessed)


def test_a_port_that_is_down_outruns_nothing() -> None:
    """Its rate is a placeholder."""
    machine = behind(400.0, "NDR", 2.5, 1)
    assert outruns(changed(machine, 0, state="DOWN")) == []


@pytest.mark.parametrize(("slot", "most"), [((GEN5, 8), (GEN5, 8)), ((GEN5, 8), (GEN5, 16)), ((GEN4, 16), (GEN4, 16))])
def test_a_dpu_gets_what_its_slot_gives(slot: trees.Link, most: trees.Link) -> None:
    """The inner x16 of a BlueField at 400 Gb/s is not its link to the machine: a narrow slot and a lost half count."""
    machine = Machine()
    card = trees.dpu(machine, machine.root_port(machine.host(0x10), most), slot)
    (found,) = outruns(machine.node())
    assert isinstance(found, Finding)
    assert found.observed["pcie_gbs"] == pytest.approx(31.508)
    upper = machine.parts[card].above.above  # type: ignore[union-attr]
    assert upper is not None
    assert found.related == (card, upper.address)
    assert upper.address in found.verify


def test_a_dpu_in_a_slot_that_carries_it() -> None:
    """A full slot, or a slower port, is enough; a switch above is shared, and another rule's."""
    machine = Machine()
    trees.dpu(machine, machine.root_port(machine.host(0x10)))
    switch = machine.switch(machine.root_port(machine.host(0x20)), link=(GEN5, 8))
    trees.dpu(machine, machine.down(switch))
    trees.dpu(machine, machine.root_port(machine.host(0x40), (GEN5, 8)), (GEN5, 8), gbps=200.0)
    assert outruns(machine.node()) == []


def test_a_dpu_whose_slot_is_not_known() -> None:
    """The inner link fits and the slot's cannot be read: an open question that names the bridge."""
    machine = Machine()
    card = trees.dpu(machine, machine.root_port(machine.host(0x10)))
    upper = machine.parts[card].above.above  # type: ignore[union-attr]
    assert upper is not None
    machine.files(upper.address, current_link_width=b"0\n")
    (told,) = outruns(machine.node())
    assert isinstance(told, Unassessed)
    assert upper.address in told.reason


def test_gpus_below_the_same_bridges_are_reached_inside() -> None:
    """800 Gb/s of a ConnectX-8 go to the GPUs that hang from it: the link to the processor need not carry them."""
    for with_gpu in (True, False):
        machine = Machine()
        up = machine.bridge(machine.root_port(machine.host(0x10)), BLUEFIELD_BRIDGE, UPSTREAM_PORT, (GEN5, 16))
        below = [machine.bridge(up, BLUEFIELD_BRIDGE, DOWNSTREAM_PORT, (64.0, 16)) for _ in range(2)]
        machine.nic(below[0], most=(64.0, 16), gbps=800.0)
        if with_gpu:
            machine.gpu(below[1], most=(64.0, 16))
        assert len(outruns(machine.node())) == (not with_gpu)
