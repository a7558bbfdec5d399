"""port-down and port-not-active: who is judged, how loudly, and on what evidence."""

from __future__ import annotations

import pytest

from gpu_topo.classifier.port_rate import judge_outruns, judge_rate
from gpu_topo.classifier.port_state import judge_down, judge_not_active
from gpu_topo.classifier.ports import phys_state_unknown, state_unknown
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import Node
from gpu_topo.model.reading import DENIED, MALFORMED, NO_DATA, Unknown
from tests.build import changed, eight_gpus, node


def down(machine: Node, past: Past = Past(), policy: Policy = Policy()) -> dict[str, Finding]:
    return {f.subject: f for f in judge_down(machine, past, policy) if isinstance(f, Finding)}


def test_all_up_is_silent() -> None:
    """A healthy node has nothing to say."""
    assert list(judge_down(eight_gpus(), Past(), Policy())) == []


@pytest.mark.parametrize("state", ["INIT", "ARMED"])
def test_a_twin_that_waits_for_its_subnet_manager_has_a_link(state: str) -> None:
    """Six twins are up and one is on its way: all of them have a cable that works, the one that is down has none."""
    machine = changed(changed(eight_gpus(), 3, state="DOWN", phys_state="Polling"), 4, state=state)
    found = down(machine)["mlx5_3/1"]
    assert found.severity == "warning"
    assert "mlx5_4/1" in found.related


def test_one_down_while_every_twin_is_up_is_a_warning() -> None:
    """Nothing is known of its past, but seven equal ports work."""
    found = down(changed(eight_gpus(), 3, state="DOWN", phys_state="Polling"))
    assert list(found) == ["mlx5_3/1"]
    finding = found["mlx5_3/1"]
    assert (finding.severity, finding.basis, finding.lost_gbs) == ("warning", "peers", 50)
    assert len(finding.related) == 7
    assert finding.observed == {"state": "DOWN", "phys_state": "Polling"}


@pytest.mark.parametrize(
    "past",
    [
        Past(was_up=frozenset({"mlx5_3/1"})),
        Past(baseline={"ports": [{"device": "mlx5_3", "port": 1, "state": "ACTIVE"}]}),
    ],
)
def test_one_that_was_up_is_critical(past: Past) -> None:
    """The daemon saw it up, or the baseline has it so."""
    assert down(changed(eight_gpus(), 3, state="DOWN"), past)["mlx5_3/1"].severity == "critical"


def test_a_disabled_port_is_information_whatever_its_past() -> None:
    """Somebody switched it off."""
    machine = changed(eight_gpus(), 3, state="DOWN", phys_state="Disabled")
    assert down(machine, Past(was_up=frozenset({"mlx5_3/1"})))["mlx5_3/1"].severity == "info"


@pytest.mark.parametrize(("switched_on", "severity"), [(True, "warning"), (False, "info"), (None, "info")])
def test_roce_says_disabled_for_every_missing_link(switched_on: bool | None, severity: str) -> None:
    """There the interface's own switch tells a missing cable from the operator's will."""
    machine = eight_gpus()
    ports = tuple(p._replace(link_layer="Ethernet", transport="roce") for p in machine.ports)
    netdevs = (NetDevice(str(ports[3].netdev), admin_up=switched_on),)
    machine = changed(machine._replace(ports=ports, netdevs=netdevs), 3, state="DOWN", phys_state="Disabled")
    assert down(machine)["mlx5_3/1"].severity == severity


def test_disabled_is_said_once() -> None:
    """Why a port is down is not told twice."""
    machine = changed(eight_gpus(), 3, state="DOWN", phys_state="Disabled")
    assert down(machine)["mlx5_3/1"].summary == "port mlx5_3/1 is down: it is disabled"
    machine = changed(eight_gpus(), 3, state="DOWN", phys_state="Polling")
    assert "(Polling)" in down(machine)["mlx5_3/1"].summary


def bonded(*speeds: int | str) -> Node:
    """One RDMA device over a bond whose members have these speeds in Mb/s, or a reason why there is none."""
    members = tuple(
        NetDevice(f"eth{n}", f"0000:05:00.{n}", s if isinstance(s, int) else Unknown(s, "speed"), master="bond0")
        for n, s in enumerate(speeds)
    )
    one = Port("mlx5_bond_0", 1, "0000:05:00.0", "eth0", "Ethernet", "roce", "ACTIVE", "LinkUp", bond="bond0")
    return node(ports=(one,), netdevs=members)


def test_a_bond_with_a_member_down_is_a_warning() -> None:
    """The RDMA device stays ACTIVE on half of its members, which its own state does not show."""
    (found,) = down(bonded(100_000, NO_DATA)).values()
    assert (found.subject, found.severity, found.basis) == ("mlx5_bond_0/1", "warning", "peers")
    assert "eth1 has no link" in found.summary
    assert found.related == ("0000:05:00.1",)
    assert found.lost_gbs == 12.5


def test_bonds_that_are_no_alarm() -> None:
    """All members up; none up (the port itself tells); one that may not be read, or is switched off or unused."""
    assert down(bonded(100_000, 100_000)) == {}
    assert down(bonded(NO_DATA, NO_DATA)) == {}
    assert down(bonded(100_000, DENIED)) == {}
    machine = bonded(100_000, NO_DATA)
    switched_off = (machine.netdevs[0], machine.netdevs[1]._replace(admin_up=False))
    assert down(machine._replace(netdevs=switched_off)) == {}
    assert down(machine, policy=Policy(roles={"mlx5_bond_0": "unused"})) == {}
    assert [f.severity for f in down(bonded(100_000, NO_DATA, NO_DATA)).values()] == ["info"]


def test_a_member_with_an_rdma_port_is_judged_by_it() -> None:
    """Two RDMA devices over one bond: the one that is down is told once, as a port."""
    machine = bonded(100_000, NO_DATA)
    other = Port("mlx5_1", 1, "0000:05:00.1", "eth1", "Ethernet", "roce", "DOWN", "Polling", bond="bond0")
    assert list(down(machine._replace(ports=(*machine.ports, other)))) == ["mlx5_1/1"]


def test_the_uncabled_port_of_a_two_port_card_is_information() -> None:
    """Its neighbour on the card is no twin; the second ports of the other cards are, and they are down too."""
    ports = [
        Port(f"mlx5_{n}", 1, f"0000:{0x15 + n // 2:02x}:00.{n % 2}", None, "InfiniBand", "infiniband",
             "DOWN" if n % 2 else "ACTIVE", board_id="MT_1", rate_gbps=200.0)
        for n in range(4)
    ]  # fmt: skip
    found = down(node(ports=tuple(ports)))
    assert {name: f.severity for name, f in found.items()} == {"mlx5_1/1": "info", "mlx5_3/1": "info"}


def test_several_down_are_no_reason_to_alarm() -> None:
    """Half of the ports down and no past: somebody may not have cabled them."""
    machine = changed(changed(eight_gpus(), 3, state="DOWN"), 4, state="DOWN")
    assert {f.severity for f in down(machine).values()} == {"info"}


def test_ports_of_unknown_boards_have_no_twins() -> None:
    """ibstat without a board id: one type of chip is sold as many cards."""
    machine = eight_gpus()
    machine = machine._replace(ports=tuple(p._replace(board_id=None, hca_type="MT4129") for p in machine.ports))
    assert down(changed(machine, 0, state="DOWN"))["mlx5_0/1"].severity == "info"


def test_a_port_declared_unused_stays_information() -> None:
    """The configuration says so."""
    machine, policy = changed(eight_gpus(), 3, state="DOWN"), Policy(roles={"mlx5_3": "unused"})
    assert down(machine, Past(was_up=frozenset({"mlx5_3/1"})), policy)["mlx5_3/1"].severity == "info"


def test_a_port_declared_unused_is_nobodys_example() -> None:
    """Its twins are still compared with the others, which are all up."""
    machine = changed(changed(eight_gpus(), 3, state="DOWN"), 5, state="DOWN")
    assert down(machine)["mlx5_5/1"].severity == "info"
    assert down(machine, policy=Policy(roles={"mlx5_3": "unused"}))["mlx5_5/1"].severity == "warning"


def test_what_is_no_fabric_port_is_not_judged() -> None:
    """Software devices, NVSwitch managers, virtual functions beside their own."""
    machine = eight_gpus()
    others = (
        Port("rxe0", 1, state="DOWN", software=True),
        Port("mlx5_10", 1, state="DOWN", management=True),
        Port("mlx5_11", 1, state="DOWN", virtual_function=True, physical_function=str(machine.ports[0].address)),
    )
    assert down(machine._replace(ports=machine.ports + others)) == {}


def test_an_unread_state_is_unassessed() -> None:
    """Denied is a reason, not a port that is down."""
    (told,) = judge_down(changed(eight_gpus(), 0, state=Unknown(DENIED, "state")), Past(), Policy())
    assert isinstance(told, Unassessed)
    assert told.cause == "denied"


@pytest.mark.parametrize(("state", "words"), [("INIT", "no subnet manager"), ("ARMED", "has not finished")])
def test_a_link_without_a_subnet_manager(state: str, words: str) -> None:
    """INIT and ARMED with a physical link are warnings that name what is missing."""
    (found,) = judge_not_active(changed(eight_gpus(), 0, state=state), Past(), Policy())
    assert isinstance(found, Finding)
    assert (found.severity, found.subject) == ("warning", "mlx5_0/1")
    assert words in found.summary


def test_training_links_and_ethernet_are_not_waiting_for_a_subnet_manager() -> None:
    """INIT while the link still trains, or on RoCE, is not this rule's business."""
    training = changed(eight_gpus(), 0, state="INIT", phys_state="PortConfigurationTraining")
    ethernet = changed(eight_gpus(), 0, state="INIT", link_layer="Ethernet")
    assert (
        list(judge_not_active(training, Past(), Policy())) == list(judge_not_active(ethernet, Past(), Policy())) == []
    )


@pytest.mark.parametrize("state", ["FOO", "7", Unknown(DENIED, "state"), None])
def test_a_state_that_is_no_known_one_is_unassessed(state: str | Unknown | None) -> None:
    """Such a port is neither up nor down: no rule that asks for its state may pass over it in silence."""
    machine = changed(eight_gpus(), 3, state=state, rate_gbps=Unknown(MALFORMED, "rate"))
    for judge in (judge_down, judge_not_active, judge_rate, judge_outruns):
        (told,) = judge(machine, Past(), Policy())
        assert isinstance(told, Unassessed)
        assert told.subject == "mlx5_3/1"
        if isinstance(state, str):
            assert (told.cause, state in told.reason) == ("unreadable", True)


def test_every_state_of_the_kernel_is_known() -> None:
    """drivers/infiniband/core/sysfs.c: none of these words is an open question."""
    for state in ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"):
        assert state_unknown(eight_gpus().ports[0]._replace(state=state)) is None
    for word in (
        "Sleep",
        "Polling",
        "Disabled",
        "PortConfigurationTraining",
        "LinkUp",
        "LinkErrorRecovery",
        "Phy Test",
    ):
        assert phys_state_unknown(eight_gpus().ports[0]._replace(phys_state=word)) is None


def test_a_physical_state_that_is_no_known_one() -> None:
    """Whether the port waits for its subnet manager or for its link cannot be told."""
    (told,) = judge_not_active(changed(eight_gpus(), 3, state="INIT", phys_state="BAR"), Past(), Policy())
    assert isinstance(told, Unassessed)
    assert (told.subject, "BAR" in told.reason) == ("mlx5_3/1", True)
    # A port that is up carries data, whatever else it says.
    assert list(judge_not_active(changed(eight_gpus(), 3, phys_state="BAR"), Past(), Policy())) == []
