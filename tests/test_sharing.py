"""nic-shares-switch-with-storage: GPUs below the same switch, or none and too little uplink."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.classifier.sharing import judge
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE, BlockDevice, Platform, Port
from gpu_topo.model.node import NIC, STORAGE, Device, Link, Node, Switch
from tests import trees
from tests.build import device, eight_gpus, link, node
from tests.trees import GEN4, Machine

TOP = "0000:11:00.0"


def shared(
    rate: float = 200.0, drives: int = 4, uplink: Link | None = None, drive: Link | None = None, **fields: Any
) -> Node:
    """A switch with one adapter and some drives, and no GPU."""
    above = ("0000:10:01.0", TOP)
    nvme = drive or link(16.0, 4, max_speed_gts=16.0, max_width=4)
    devices: list[Device] = [device("0000:12:00.0", NIC, above=above, link=link(16.0, 16), switch=TOP)]
    devices += [device(f"0000:{0x20 + n:02x}:00.0", STORAGE, above=above, link=nvme, switch=TOP) for n in range(drives)]
    below = tuple(d.address for d in devices)
    switch = Switch(TOP, "PEX88096", (TOP,), uplink or link(16.0, 16), below)
    ports = (Port("mlx5_0", 1, "0000:12:00.0", None, "InfiniBand", "infiniband", "ACTIVE", rate_gbps=rate),)
    blocks = tuple(BlockDevice(f"nvme{n}", d.address, mounts=(f"/data{n}",)) for n, d in enumerate(devices[1:]))
    return node(devices, switches={TOP: switch}, ports=ports, blocks=blocks, **fields)


def asked(machine: Node) -> list[Finding | Unassessed]:
    return list(judge(machine, Past(), Policy()))


def test_gpus_below_the_same_switch_keep_rdma_inside() -> None:
    """DGX-class nodes are built that way: information, with the numbers."""
    found = asked(eight_gpus())
    assert len(found) == 4
    assert isinstance(found[0], Finding)
    assert (found[0].severity, found[0].subject, found[0].lost_gbs) == ("info", "0000:11:00.0", None)
    assert found[0].observed == {"nic_gbs": 100.0, "storage_gbs": 7.877, "uplink_gbs": 63.015, "gpus": 2}
    assert "/scratch0" in found[0].summary


def test_without_gpus_adapter_and_storage_fight_for_the_uplink() -> None:
    """25 + 4 x 7.9 GB/s do not fit 31.5: a warning that does the sum and names the mount points."""
    (found,) = asked(shared())
    assert isinstance(found, Finding)
    assert (found.severity, found.subject) == ("warning", TOP)
    assert found.lost_gbs == pytest.approx(25 + 4 * 7.877 - 31.508, abs=0.01)
    assert "25.0 + 31.5 = 56.5 GB/s" in found.summary
    assert "/data0" in found.summary
    assert set(found.related) >= {"0000:12:00.0", "0000:20:00.0"}


def test_an_uplink_that_carries_both_is_information() -> None:
    """25 + 7.9 GB/s in 63."""
    (found,) = asked(shared(drives=1, uplink=link(32.0, 16)))
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_gbs) == ("info", None)


def test_a_slow_adapter_is_no_alarm() -> None:
    """A Gigabit port beside drives costs nobody anything."""
    (found,) = asked(shared(rate=1.0, drives=8))
    assert isinstance(found, Finding)
    assert found.severity == "info"
    assert "carries both" not in found.impact


def test_a_degraded_uplink_counts_as_it_runs() -> None:
    """What the uplink carries now decides, not what it could."""
    (found,) = asked(shared(drives=1, uplink=link(16.0, 4, max_speed_gts=16.0)))
    assert isinstance(found, Finding)
    assert found.severity == "warning"


@pytest.mark.parametrize("fields", [{"uplink": link(None, None)}, {"drive": link(None, None, max_width=None)}])
def test_unknown_links_are_unassessed(fields: dict[str, Any]) -> None:
    """A sum with an unknown is unknown."""
    machine = shared(**fields)
    switch = machine.switches[TOP]
    if "uplink" in fields and switch.uplink:
        blind = switch.uplink._replace(expected_gbs=None)
        machine = machine._replace(switches={TOP: switch._replace(uplink=blind)})
    (told,) = asked(machine)
    assert isinstance(told, Unassessed)
    assert (told.subject, told.cause) == (TOP, "not-recorded")


def test_a_switch_of_a_guest_is_emulated() -> None:
    """Virtual machines hide what is shared."""
    (told,) = asked(shared(platform=Platform(kind=VIRTUAL_MACHINE)))
    assert isinstance(told, Unassessed)
    assert told.cause == "virtual-machine"


def test_an_adapter_without_storage_shares_nothing() -> None:
    """No drives below, no finding."""
    assert asked(shared(drives=0)) == []


def test_which_figure_of_the_uplink_is_meant() -> None:
    """Beside what a degraded uplink carries stands what it could; a healthy one has one figure."""
    half = link(16.0, 8, max_speed_gts=16.0)
    (found,) = asked(shared(drives=4, uplink=half))
    assert isinstance(found, Finding)
    assert "as it runs, 31.5 GB/s at best" in found.summary
    (found,) = asked(shared(drives=4, uplink=link(16.0, 16, max_speed_gts=16.0)))
    assert isinstance(found, Finding)
    assert "at best" not in found.summary


def test_a_dpu_asks_for_no_more_than_its_slot_gives() -> None:
    """Below a switch, what a card with inner bridges can bring is bounded by its slot."""
    machine = Machine()
    switch = machine.switch(machine.root_port(machine.host(0x10)))
    trees.dpu(machine, machine.down(switch), (GEN4, 4))
    machine.nvme(machine.down(switch))
    node = machine.node()
    (found,) = asked(node)
    assert isinstance(found, Finding)
    assert found.observed["nic_gbs"] == pytest.approx(7.877)
    assert node.switches[switch].downstream_gbs == pytest.approx(63.015 + 7.877)  # at best: the slot could do x16
