"""inventory-short and baseline-drift."""

from __future__ import annotations

import json

from gpu_topo.classifier.inventory import judge_drift, judge_short
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, Node, Part
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
