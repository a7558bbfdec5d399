"""nic-gpu-ratio-low, gpu-without-near-nic, cross-numa-nic."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.classifier.nics import judge_cross, judge_near, judge_ratio
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE, NetDevice, NumaNode
from gpu_topo.model.node import GPU, NIC, OTHER, Device, Node, Part
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.topology.placement import placement
from tests import trees
from tests.build import device, eight_gpus, only


def plain_cards(machine: Node) -> Node:
    """The machine with PCIe cards instead of modules on a board."""
    devices = {a: d._replace(part=None) if d.kind == GPU else d for a, d in machine.devices.items()}
    return machine._replace(devices=devices)


def asked(judge: Any, machine: Node, policy: Policy = Policy()) -> list[Finding | Unassessed]:
    return list(judge(machine, Past(), policy))


def test_one_adapter_for_each_gpu_is_silent() -> None:
    """The reference design."""
    for judge in (judge_ratio, judge_near, judge_cross):
        assert asked(judge, eight_gpus()) == []


def test_half_as_many_are_information_fewer_a_warning_on_boards() -> None:
    """1:2 is usual; below that a board of eight modules starves, and PCIe cards are cheaper nodes."""
    for count, severity in ((7, "info"), (4, "info"), (3, "warning")):
        (found,) = asked(judge_ratio, only(eight_gpus(), *range(count)))
        assert isinstance(found, Finding)
        assert (found.severity, found.subject) == (severity, "node")
        assert found.observed["adapters"] == count
    (found,) = asked(judge_ratio, plain_cards(only(eight_gpus(), 0)))
    assert isinstance(found, Finding)
    assert found.severity == "info"


def test_a_node_without_a_fabric_has_no_ratio() -> None:
    """It trains alone: no adapter, or none that serves the fabric."""
    assert asked(judge_ratio, only(eight_gpus())) == []
    storage = {f"mlx5_{n}": "storage" for n in range(8)}
    assert asked(judge_ratio, eight_gpus(), Policy(roles=storage)) == []


FAST = Part("ConnectX-6 Dx", port_max_gbps=200.0)


def inventory(*adapters: Device) -> Node:
    """Eight modules on a board and these functions, as lspci lists them: no ports, no rates."""
    bare = only(eight_gpus())
    devices = {a: d for a, d in bare.devices.items() if d.kind != NIC} | {d.address: d for d in adapters}
    return bare._replace(devices=devices, sources=bare.sources[:1])


def listed(number: int, kind: str = NIC, **fields: Any) -> Device:
    return device(f"0000:0{number}:00.0", kind, above=(f"0000:00:0{number}.0",), **fields)


def test_an_inventory_does_not_tell_what_ethernet_adapters_are_for() -> None:
    """One fast Ethernet function serves storage as well as GPUs; an interface that runs at its rate or the
    configuration says more."""
    machine = inventory(listed(1, class_code=0x020000, part=FAST))
    (told,) = asked(judge_ratio, machine)
    assert isinstance(told, Unassessed)
    assert (told.subject, told.cause) == ("node", "not-recorded")
    (found,) = asked(judge_ratio, machine, Policy(roles={"0000:01:00.0": "fabric"}))
    assert isinstance(found, Finding)
    interface = NetDevice("ens1", "0000:01:00.0", speed_mbps=200_000)
    (found,) = asked(judge_ratio, machine._replace(netdevs=(interface,)))
    assert isinstance(found, Finding)


def test_devices_that_may_be_adapters_leave_the_ratio_open() -> None:
    """Seven functions of unknown class or unlisted parts beside one InfiniBand adapter may make it whole. Two more
    leave it below a half, and slow ports, and functions that have a class, are none."""
    hca = listed(8, class_code=0x020700, part=FAST)
    nameless = [listed(n, OTHER, class_code=None) for n in range(1, 8)]
    unlisted = [listed(n, class_code=0x020000) for n in range(1, 8)]
    slow = [listed(n, class_code=0x020000, part=Part("I350", port_max_gbps=1.0)) for n in range(1, 8)]
    others = [listed(n, OTHER, class_code=0x088000) for n in range(1, 8)]
    for more in (nameless, unlisted):
        (told,) = asked(judge_ratio, inventory(hca, *more))
        assert isinstance(told, Unassessed)
        assert "7 more devices" in told.reason
    for more in (nameless[:2], unlisted[:2], slow, others):
        (found,) = asked(judge_ratio, inventory(hca, *more))
        assert isinstance(found, Finding)
        assert (found.severity, found.observed["adapters"]) == ("warning", 1)


def test_an_inventory_does_not_tell_who_lacks_an_adapter() -> None:
    """A fast Ethernet function below one GPU's switch is no evidence that the others should have one. Beside InfiniBand
    adapters it is a question of the GPU on whose switch an unlisted function hangs."""
    below = eight_gpus().switches["0000:11:00.0"].id
    lone = inventory(device("0000:19:00.0", NIC, above=("0000:10:01.0", below), class_code=0x020000, part=FAST))
    hca = device("0000:19:00.0", NIC, above=("0000:10:01.0", below), class_code=0x020700, part=FAST)
    stray = device("0000:39:00.0", NIC, above=("0000:30:01.0", "0000:31:00.0"), class_code=0x020000)
    gpus = [gpu.address for gpu in lone.gpus]
    assert subjects(asked(judge_near, lone)) == ([], gpus[2:])
    assert subjects(asked(judge_cross, lone)) == ([], gpus[4:])
    found, unassessed = subjects(asked(judge_near, inventory(hca, stray)))
    assert (len(found), unassessed) == (4, ["0000:33:00.0", "0000:34:00.0"])


def test_adapters_beside_most_gpus_are_theirs() -> None:
    """Their place tells what their class does not: six Ethernet functions on the GPUs' own switches are the fabric,
    and the GPUs of the switch whose two are gone have none."""
    whole = eight_gpus()._replace(ports=())
    whole = whole._replace(sources=whole.sources[:1])
    assert [c for judge in (judge_ratio, judge_near, judge_cross) for c in asked(judge, whole)] == []
    nics = [a for a, d in whole.devices.items() if d.kind == NIC]
    fewer = whole._replace(devices={a: d for a, d in whole.devices.items() if a not in nics[6:]})
    assert subjects(asked(judge_near, fewer)) == (["0000:73:00.0", "0000:74:00.0"], [])
    assert subjects(asked(judge_ratio, fewer)) == (["node"], [])


def test_efa_is_for_rdma_alone() -> None:
    """Amazon's adapters have the class of Ethernet: four of them for eight GPUs are a fact."""
    efa = Part("Amazon EFA efa0", port_max_gbps=100.0)
    adapters = [listed(n, class_code=0x020000, part=efa, vendor_id=0x1D0F, device_id=0xEFA0) for n in range(1, 5)]
    (found,) = asked(judge_ratio, inventory(*adapters))
    assert isinstance(found, Finding)


def test_virtual_functions_do_not_count_beside_their_own() -> None:
    """A thousand virtual functions do not raise the ratio."""
    machine = only(eight_gpus(), 0)
    nic = machine.devices[str(machine.ports[0].address)]
    spare = nic._replace(
        address="0000:15:00.1",
        function=nic.function._replace(address="0000:15:00.1", virtual_function=True, physical_function=nic.address),
    )
    machine = machine._replace(devices={**machine.devices, spare.address: spare})
    (found,) = asked(judge_ratio, machine)
    assert isinstance(found, Finding)
    assert found.observed["adapters"] == 1


def test_the_gpus_of_one_switch_have_no_adapter() -> None:
    """Their equals have one: each of the two is named, with its nearest and how far it is."""
    found = asked(judge_near, only(eight_gpus(), 0, 1, 2, 3, 4, 5))
    subjects = [f.subject for f in found if isinstance(f, Finding)]
    assert subjects == ["0000:73:00.0", "0000:74:00.0"]
    assert isinstance(found[0], Finding)
    assert (found[0].severity, found[0].observed["kind"]) == ("warning", "NODE")


def test_when_no_equal_gpu_has_one_nobody_is_odd() -> None:
    """Adapters on root ports of their own serve all alike; another model is no peer."""
    machine = eight_gpus()
    moved = {
        a: d._replace(path=(f"0000:e{n}:01.0", a)) if d.kind == NIC else d
        for n, (a, d) in enumerate(machine.devices.items())
    }
    assert asked(judge_near, machine._replace(devices=moved)) == []
    mixed = only(eight_gpus(), 0, 1)
    devices = {
        a: d._replace(name=f"model of switch {d.switch}", function=d.function._replace(device_id=None))
        if d.kind == GPU
        else d
        for a, d in mixed.devices.items()
    }
    assert asked(judge_near, mixed._replace(devices=devices)) == []


def test_an_adapter_on_the_other_socket() -> None:
    """Four GPUs of socket 1 reach their only adapter across sockets; the other four do not."""
    found = asked(judge_cross, only(eight_gpus(), 0))
    subjects = [f.subject for f in found if isinstance(f, Finding)]
    assert subjects == ["0000:53:00.0", "0000:54:00.0", "0000:73:00.0", "0000:74:00.0"]
    assert {f.severity for f in found if isinstance(f, Finding)} == {"info"}


@pytest.mark.parametrize(("packages", "count"), [((0, 1), 4), ((0, 0), 0), ((0, None), 4), ((None, None), 4)])
def test_another_numa_node_of_the_same_socket(packages: tuple[int | None, int | None], count: int) -> None:
    """With NPS4 or sub-NUMA clustering a socket has several nodes: nothing crosses to another socket between them."""
    machine = only(eight_gpus(), 0)
    numa = tuple(NumaNode(n, f"{n}", package) for n, package in enumerate(packages))
    machine = machine._replace(platform=machine.platform._replace(numa=numa))
    assert len(asked(judge_cross, machine)) == count


def test_one_numa_node_has_no_other_side() -> None:
    """Nothing to cross."""
    machine = only(eight_gpus(), 0)
    assert asked(judge_cross, machine._replace(platform=machine.platform._replace(numa=None, numa_count=1))) == []


def test_a_hypervisor_hides_places() -> None:
    """Unassessed, once for the node, with that reason."""
    machine = only(eight_gpus(), 0, 1)
    machine = machine._replace(platform=machine.platform._replace(kind=VIRTUAL_MACHINE), switches={})
    devices = {a: d._replace(path=(a,)) for a, d in machine.devices.items() if d.kind in (GPU, NIC)}
    for judge in (judge_near, judge_cross):
        (told,) = asked(judge, machine._replace(devices=devices))
        assert isinstance(told, Unassessed)
        assert (told.subject, told.cause) == ("node", "virtual-machine")


def forgotten(machine: Node, *addresses: str) -> Node:
    """The machine as a recording that lacks the bridges above these devices shows it."""
    devices = dict(machine.devices)
    for address in addresses:
        known = devices[address]
        cut = known.function._replace(parent=Unknown(NOT_RECORDED, "the bridge above"), host_bridge=None)
        devices[address] = known._replace(path=(address,), function=cut)
    return machine._replace(devices=devices)


def subjects(conclusions: list[Finding | Unassessed]) -> tuple[list[str], list[str]]:
    """Of what something was found, and of what it could not be told."""
    return (
        [c.subject for c in conclusions if isinstance(c, Finding)],
        [c.subject for c in conclusions if isinstance(c, Unassessed)],
    )


def test_a_near_adapter_whose_place_is_not_recorded_does_not_make_a_far_one_the_nearest() -> None:
    """Without bridges only the pairs on different sockets are known, and they are not the nearest."""
    machine = eight_gpus()
    ends = [a for a, d in machine.devices.items() if d.kind in (GPU, NIC)]
    gpus = [a for a in ends if machine.devices[a].kind == GPU]
    machine = forgotten(machine, *ends)
    for judge in (judge_near, judge_cross):
        told = asked(judge, machine)
        assert subjects(told) == ([], gpus)
        assert isinstance(told[0], Unassessed)
        assert (told[0].cause, "SYS" in told[0].reason) == ("not-recorded", True)
    assert {row.nics for row in placement(machine).gpus} == {None}


def test_one_gpu_whose_bridges_are_not_recorded() -> None:
    """It is the only one that cannot be told; the others have their adapters."""
    gpu = eight_gpus().gpus[2].address
    assert subjects(asked(judge_near, forgotten(eight_gpus(), gpu))) == ([], [gpu])
    assert subjects(asked(judge_cross, forgotten(eight_gpus(), gpu))) == ([], [gpu])


def test_one_adapter_whose_bridges_are_not_recorded() -> None:
    """It may hang below the switch that has none; GPUs with an adapter on their own switch are as near as can be."""
    machine = only(eight_gpus(), 0, 1, 2, 3, 4, 5)
    lone = ["0000:73:00.0", "0000:74:00.0"]
    assert subjects(asked(judge_near, machine)) == (lone, [])
    assert subjects(asked(judge_near, forgotten(machine, str(machine.ports[5].address)))) == ([], lone)
    # On the GPU's own socket there is one all the same.
    assert asked(judge_cross, forgotten(machine, str(machine.ports[5].address))) == []


def test_an_adapter_of_unknown_numa_node_may_be_on_this_side() -> None:
    """Whole trees leave open whether it is near only where the known ones are across sockets."""
    machine = only(eight_gpus(), 0, 4)
    stray = machine.devices[str(machine.ports[1].address)]
    devices = {
        a: d._replace(function=d.function._replace(numa_node=None)) if a in stray.path else d
        for a, d in machine.devices.items()
    }
    assert asked(judge_cross, machine) == []
    told = asked(judge_cross, machine._replace(devices=devices))
    assert subjects(told) == ([], ["0000:73:00.0", "0000:74:00.0"])


def test_a_gpu_of_unknown_numa_node_has_no_other_side() -> None:
    """Of a GPU whose NUMA node is not known nobody can say that its adapters hang from another."""
    machine = trees.Machine(numa=2)
    near, far = machine.host(0x10, numa=0), machine.host(0x40, numa=1)
    for host in (near, far):
        machine.nic(machine.root_port(host))
        machine.gpu(machine.root_port(host))
    gpu = machine.gpu(machine.root_port(machine.host(0x80, numa=None)))
    found, questions = trees.conclusions(machine.node(), "cross-numa-nic")
    assert found == []
    assert [u.subject for u in questions] == [gpu]
