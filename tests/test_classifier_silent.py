"""A source that does not answer: nothing is called gone for it, and what it had shown stays open."""

from __future__ import annotations

import pytest

from gpu_topo.classifier import RULES, classify
from gpu_topo.classifier.silent import left_open, misled
from gpu_topo.collectors import COLLECTORS
from gpu_topo.model.facts import FAILED, OK, TIMEOUT, SourceStatus
from gpu_topo.model.finding import CAUSE_TIMEOUT
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.topology.baseline import document
from tests.build import eight_gpus

PAST = Past(
    watching=True,
    was_up=frozenset(f"mlx5_{n}/1" for n in range(8)),
    seen_devices={gpu.address: "gpu" for gpu in eight_gpus().gpus},
    baseline=document(eight_gpus()),
)
EXPECT = Policy(expect={"gpus": 8, "nics": 8, "nvswitches": 4})


def without(source: str, status: str = TIMEOUT) -> Node:
    """A node of which one source told nothing."""
    node = eight_gpus()._replace(sources=(SourceStatus(source, status, "a read hangs in the kernel"),))
    if source == "pcie":
        return node._replace(devices={}, switches={})
    return node._replace(ports=())


@pytest.mark.parametrize("source", ["pcie", "rdma"])
@pytest.mark.parametrize("status", [TIMEOUT, FAILED])
def test_what_was_not_read_is_not_gone(source: str, status: str) -> None:
    """Neither against an earlier scan, nor the baseline, nor the configuration, nor what such a node should have."""
    worse = {f.code for f in classify(without(source, status), PAST, EXPECT).findings if f.severity != "info"}
    assert worse == set()


def test_what_was_read_and_is_missing_is_gone() -> None:
    """The same node, where the bus was read to its end."""
    gone = without("pcie", OK)
    assert "pcie-device-lost" in {f.code for f in classify(gone, PAST, EXPECT).findings}


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("pcie", ("pcie-width-degraded", "pcie-device-lost", "inventory-short", "port-down")),
        ("rdma", ("port-down", "port-errors", "gpu-without-near-nic", "baseline-drift")),
    ],
)
def test_the_rules_that_read_it_stay_open(source: str, codes: tuple[str, ...]) -> None:
    """So that a daemon does not clear what it had raised."""
    told = {(u.code, u.subject): u for u in classify(without(source), PAST).unassessed}
    for code in codes:
        assert told[code, "node"].cause == CAUSE_TIMEOUT
        assert "hangs" in told[code, "node"].reason


def test_every_rule_says_what_it_reads() -> None:
    """Sources by their names; and a driver that hangs is told whatever else is silent."""
    names = [collector.name for collector in COLLECTORS]
    for rule in RULES:
        assert set(rule.misled_without) <= set(rule.reads) <= set(names), rule.code
    open_ = {rule.code for rule in RULES if left_open(rule, dict.fromkeys(names, ""))}
    assert {rule.code for rule in RULES} - open_ == {"gpu-driver-unresponsive", "hccs-degraded"}
    (unresponsive,) = [rule for rule in RULES if rule.code == "gpu-driver-unresponsive"]
    assert not misled(unresponsive, dict.fromkeys(names, ""))
