"""nic-gpu-ratio-low, gpu-without-near-nic, cross-numa-nic."""

from __future__ import annotations

from typing import Any

from gpu_topo.classifier.nics import judge_cross, judge_near, judge_ratio
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import GPU, NIC, Node
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.topology.placement import placement
from tests.build import eight_gpus, only


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
