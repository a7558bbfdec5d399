"""Judging as a whole: the registry, the order of findings, what is accepted, and the verdict."""

from __future__ import annotations

import pytest

from gpu_topo.classifier import RULES, classify, verdict
from gpu_topo.model.finding import CAUSES, SEVERITIES, Acceptance
from gpu_topo.model.history import Policy
from gpu_topo.model.node import Node
from tests import trees
from tests.nvlinks import GUEST, drivers, gpus_of, machine_with, switched
from tests.trees import GEN1, GEN4, GEN5, Machine


def test_registry() -> None:
    """Every rule has a code of its own and all the words that `rules CODE` prints."""
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))
    for rule in RULES:
        assert rule.title and rule.looks_at and rule.quiet_when and rule.remedy and rule.sources, rule.code
        assert list(rule.severities) == sorted(rule.severities, key=SEVERITIES.index), rule.code


def degraded(*, width: int = 8, nic: float = GEN4) -> Node:
    machine = Machine()
    host = machine.host(0x10)
    machine.gpu(machine.root_port(host), trees.L40S, link=(GEN4, width), most=(GEN4, 16))
    machine.gpu(machine.root_port(host), trees.L40S, link=(GEN4, 4), most=(GEN4, 16))
    machine.nic(machine.root_port(host), link=(nic, 16), gbps=100.0)
    return machine.node()


def judged(node: Node, policy: Policy = Policy()) -> str:
    found = classify(node, policy=policy)
    return verdict(node, found.findings, found.unassessed, policy)


def test_worst_first() -> None:
    """Findings are in the order of their severity, then of what they cost."""
    found = classify(degraded()).findings
    ranks = [(SEVERITIES.index(f.severity), -(f.lost_gbs or 0.0)) for f in found]
    assert ranks == sorted(ranks)
    assert found[0].observed["width"] == 4


def test_nothing_is_kept_from_another_scan() -> None:
    """What rules share of one node, by turns with the next scan's, never shows in the conclusions about another."""
    before, after = degraded(width=16), degraded(width=4, nic=GEN1)
    roles = Policy(roles={"mlx5_0": "storage"})
    alone = [classify(node, policy=policy) for node in (before, after) for policy in (Policy(), roles)]
    again = [classify(node._replace(), policy=policy) for node in (after, before) for policy in (roles, Policy())]
    assert again == alone[::-1]
    assert alone[0] != alone[2]


@pytest.mark.parametrize(
    ("until", "now", "accepted"),
    [(None, "2026-08-01", True), ("2026-08-01", "2026-08-01", True), ("2026-07-31", "2026-08-01", False)],
)
def test_acceptance(until: str | None, now: str, accepted: bool) -> None:
    """An accepted finding stays in the list, marked, until its day has passed; the others are as they were."""
    node = degraded()
    subject = classify(node).findings[0].subject
    acceptance = Acceptance("admin", "a riser with eight lanes", until)
    policy = Policy(accepted={("pcie-width-degraded", subject): acceptance}, now=now)
    found = classify(node, policy=policy).findings
    assert {f.subject for f in found if f.accepted is not None} == ({subject} if accepted else set())
    assert judged(node, policy) == "critical"  # there is another one


def test_accepted_findings_do_not_count() -> None:
    """The verdict is that of what is not accepted."""
    node = degraded()
    every = Acceptance("admin", "as bought")
    assert judged(node, Policy(accepted={("pcie-width-degraded", "*"): every})) == "warning"
    both = {("pcie-width-degraded", "*"): every, ("pcie-speed-degraded", "*"): every}
    assert judged(node, Policy(accepted=both)) == "ok"


def test_only_and_skip() -> None:
    """What is not asked for is neither found nor unassessed."""
    found = classify(degraded(), policy=Policy(only=frozenset({"pcie-speed-degraded"})))
    assert {f.code for f in found.findings} | {u.code for u in found.unassessed} == {"pcie-speed-degraded"}
    found = classify(degraded(), policy=Policy(skip=frozenset({"pcie-speed-degraded"})))
    assert "pcie-speed-degraded" not in {f.code for f in found.findings} | {u.code for u in found.unassessed}


# --- the verdict -----------------------------------------------------------------------------------------------


def test_without_accelerators() -> None:
    """A machine without any accelerator is ok, integrated graphics or not."""
    machine = Machine()
    host = machine.host()
    trees.integrated_graphics(machine, host)
    machine.nvme(machine.root_port(host))
    assert judged(machine.node()) == "ok"
    assert judged(Node()) == "ok"


def test_nothing_could_be_judged() -> None:
    """Where no rule could judge an accelerator the verdict is unknown: never ok."""
    machine = machine_with(1, trees.L40S, platform=GUEST)
    assert judged(machine.node()) == "unknown"


def test_links_alone_are_enough() -> None:
    """One rule that could judge an accelerator makes it ok: the width of an idle GPU whose speed is open."""
    machine = Machine()
    machine.gpu(machine.root_port(machine.host(0x10)), trees.UNLISTED_GPU, link=(GEN1, 16), most=(GEN5, 16))
    assert judged(machine.node()) == "ok"


def test_rules_left_out_judge_nothing() -> None:
    """A healthy machine of whose links no rule was asked is unknown; one rule that was asked makes it ok."""
    machine = Machine()
    machine.gpu(machine.root_port(machine.host(0x10)), trees.L40S, link=(GEN4, 16), most=(GEN4, 16))
    node = machine.node()
    assert judged(node, Policy(only=frozenset({"numa-unknown"}))) == "unknown"
    assert judged(node, Policy(only=frozenset({"pcie-width-degraded"}))) == "ok"
    assert judged(node, Policy(skip=frozenset({"pcie-width-degraded", "pcie-speed-degraded"}))) == "unknown"
    bonded = machine_with(8, platform=GUEST)
    switched_board = bonded.node(drivers(gpus_of(bonded), [switched(18)] * 8))
    assert judged(switched_board, Policy(skip=frozenset({"nvlink-inactive", "xgmi-degraded"}))) == "ok"
    assert judged(switched_board, Policy(only=frozenset({"nvlink-partial"}))) == "unknown"


def test_nvlinks_alone_are_enough() -> None:
    """In a guest the NVLinks of a whole board can be judged although the PCIe registers are emulated."""
    machine = machine_with(8, platform=GUEST)
    node = machine.node(drivers(gpus_of(machine), [switched(18)] * 8))
    assert judged(node) == "ok"


def test_causes_come_from_the_list() -> None:
    """Why something is unassessed becomes a metric label, so that it comes from a fixed list."""
    nodes = [
        degraded(),
        machine_with(8).node(),
        machine_with(8, platform=GUEST).node(),
        machine_with(2, trees.GH200).node(),
    ]
    for node in nodes:
        for item in classify(node).unassessed:
            assert item.cause in CAUSES
            assert item.reason and item.subject
