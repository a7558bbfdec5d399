"""inventory-short and baseline-drift."""

from __future__ import annotations

import json

from gpu_topo.assemble import assemble
from gpu_topo.classifier import verdict
from gpu_topo.classifier.inventory import judge_drift, judge_short
from gpu_topo.collectors.readers import lspci_tree
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import Port
from gpu_topo.model.node import ACCELERATOR, NIC, Node, Part
from gpu_topo.topology.baseline import document
from tests.build import device, eight_gpus, node


def short(machine: Node, expect: dict[str, int], past: Past = Past()) -> list[Finding | Unassessed]:
    return list(judge_short(machine, past, Policy(expect=expect)))


def saved(machine: Node) -> Past:
    return Past(baseline=json.loads(json.dumps(document(machine))))


def test_a_missing_gpu_is_critical() -> None:
    """Seven instead of eight, as declared or as the baseline has it."""
    machine = eight_gpus(without_gpu=3)
    for found in (short(machine, {"gpus": 8, "nics": 8}), short(machine, {}, saved(eight_gpus()))):
        (one,) = found
        assert isinstance(one, Finding)
        assert (one.severity, one.subject, one.observed, one.expected) == ("critical", "node", {"gpus": 7}, {"gpus": 8})
    assert isinstance(found[0], Finding)
    assert found[0].basis == "baseline"


def test_enough_or_more_is_silent() -> None:
    """And so is a machine of which nobody expects anything."""
    assert short(eight_gpus(), {"gpus": 8, "nics": 8, "nvswitches": 4, "storage": 4}) == []
    assert short(eight_gpus(), {"gpus": 4}) == []
    assert short(eight_gpus(), {}) == []


def with_managers(machine: Node) -> Node:
    """The machine with four ConnectX-7 that manage its NVSwitches."""
    managers = [device(f"0000:0{n}:00.0", NIC, "ConnectX-7") for n in range(1, 5)]
    ports = [
        Port(f"mlx5_{n}", 1, d.address, link_layer="InfiniBand", transport="infiniband", state="DOWN", management=True)
        for n, d in enumerate(managers, 20)
    ]
    devices = {**{d.address: d for d in managers}, **machine.devices}
    return machine._replace(devices=devices, ports=(*machine.ports, *ports))


def test_nics_that_manage_nvswitches_do_not_make_up_for_a_missing_one() -> None:
    """They are not what somebody declares. A baseline holds what is on the bus, so that it does not matter whether
    they were recognised when it was saved."""
    whole = with_managers(eight_gpus())
    lost = str(whole.ports[0].address)
    short_of_one = whole._replace(devices={a: d for a, d in whole.devices.items() if a != lost}, ports=whole.ports[1:])
    assert short(whole, {"nics": 8}) == []
    (found,) = short(short_of_one, {"nics": 8})
    assert isinstance(found, Finding)
    assert (found.severity, found.observed, found.summary) == ("critical", {"nics": 7}, "7 NICs instead of 8")
    unknown = whole._replace(ports=tuple(port._replace(management=False) for port in whole.ports))
    assert short(whole, {}, saved(unknown)) == short(unknown, {}, saved(whole)) == []
    (found,) = short(short_of_one, {}, saved(unknown))
    assert isinstance(found, Finding)
    assert found.observed == {"nics": 11}


def test_several_kinds_are_one_finding() -> None:
    """One node, one subject."""
    (found,) = short(eight_gpus(), {"gpus": 16, "nics": 9})
    assert isinstance(found, Finding)
    assert found.expected == {"gpus": 16, "nics": 9}


def test_one_and_many_have_their_words() -> None:
    """1 GPU, 2 GPUs, and storage in words."""
    machine = eight_gpus()
    others = {gpu.address for gpu in machine.gpus[1:]}
    one = machine._replace(devices={a: d for a, d in machine.devices.items() if a not in others})
    (found,) = short(one, {"gpus": 8, "storage": 9})
    assert isinstance(found, Finding)
    assert found.summary == "1 GPU instead of 8, 4 storage devices instead of 9"


def test_what_is_missing_is_named() -> None:
    """Where the baseline tells which device is gone, it is related: pcie-device-lost says more of it."""
    gone = eight_gpus().gpus[3].address
    (found,) = short(eight_gpus(without_gpu=3), {}, saved(eight_gpus()))
    assert isinstance(found, Finding)
    assert found.related == (gone,)
    (found,) = short(eight_gpus(without_gpu=3), {"gpus": 8})
    assert isinstance(found, Finding)
    assert found.related == ()


def test_accelerators_answer_for_gpus_where_there_are_none() -> None:
    """Eight Gaudi with --expect gpus=8; compression engines of the same class do not count."""
    part = Part("Gaudi3")
    machine = node([device(f"0000:0{n}:00.0", ACCELERATOR, part=part) for n in range(8)])
    assert short(machine, {"gpus": 8}) == []
    engines = node([device(f"0000:0{n}:00.0", ACCELERATOR) for n in range(8)])
    assert len(short(engines, {"gpus": 8})) == 1


def test_a_recording_without_inventory_is_unassessed() -> None:
    """ibstat alone does not say that there are no GPUs."""
    (told,) = short(node(), {"gpus": 8})
    assert isinstance(told, Unassessed)


NOT_TOLD = "NVIDIA Corporation Device 31c4"


def drawing(*endpoints: str) -> Node:
    """What lspci -tv shows of endpoints below root ports, by their names."""
    lines = "".join(f"           +-{n:02x}.0-[{n + 16:02x}]----00.0  {name}\n" for n, name in enumerate(endpoints, 1))
    return assemble(lspci_tree.read(f"-[0000:00]-+-00.0  Intel Corporation Device 09a2\n{lines}".split("\n"), "test"))


def test_what_may_be_a_gpu_is_an_open_question() -> None:
    """A drawing with a number that no list has: nobody can say that the machine has no GPU."""
    machine = drawing(NOT_TOLD, NOT_TOLD, "Mellanox Technologies MT2910 Family [ConnectX-7]")
    (told,) = short(machine, {})
    assert isinstance(told, Unassessed)
    assert "may be GPUs" in told.reason
    assert verdict(machine, (), (told,)) == "unknown"
    assert short(machine, {"gpus": 2}) == [told]  # they may be the two
    assert [type(one) for one in short(machine, {"gpus": 3})] == [Unassessed, Finding]


def test_a_drawing_without_names_tells_nothing() -> None:
    """lspci -t has places and nothing else."""
    machine = assemble(lspci_tree.read(["-[0000:00]-+-00.0", "           \\-01.0-[01]----00.0"], "test"))
    assert verdict(machine, (), ()) == "unknown"
    assert len(short(machine, {})) == 1


def test_an_unlisted_number_is_open_only_where_no_gpu_is_told() -> None:
    """Of vendors that build other things too, only a machine without any GPU leaves the question."""
    stranger = "Intel Corporation Device 0fff"
    assert verdict(drawing(stranger), (), ()) == "unknown"
    assert short(drawing(stranger, "NVIDIA Corporation GB100 [B200]"), {}) == []
    assert len(short(drawing(NOT_TOLD, "NVIDIA Corporation GB100 [B200]"), {})) == 1


def test_a_drawing_whose_names_all_tell_leaves_no_question() -> None:
    """A server without GPUs: "no GPU" is an answer there."""
    machine = drawing(
        "Intel Corporation Ethernet Controller X710 for 10GbE SFP+", "Matrox Electronics Systems Ltd. G200"
    )
    assert short(machine, {}) == []
    assert verdict(machine, (), ()) == "ok"


def test_any_change_of_shape_is_drift() -> None:
    """A GPU that went is a warning at its old address; the same shape is silent."""
    past = saved(eight_gpus())
    assert list(judge_drift(eight_gpus(serial="9"), past, Policy())) == []
    found = list(judge_drift(eight_gpus(without_gpu=0), past, Policy()))
    assert "0000:13:00.0" in {f.subject for f in found if isinstance(f, Finding)}
    assert {f.severity for f in found if isinstance(f, Finding)} == {"warning"}
    assert len({f.subject for f in found if isinstance(f, Finding)}) == len(found)


def test_without_a_baseline_there_is_no_drift() -> None:
    """Nothing was remembered."""
    assert list(judge_drift(eight_gpus(), Past(), Policy())) == []
