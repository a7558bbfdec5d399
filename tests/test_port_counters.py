"""port-errors and port-flapping: growth counts, totals do not."""

from __future__ import annotations

import pytest

from gpu_topo.classifier.port_counters import judge_errors, judge_flapping
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import FAILED, Unknown
from tests.build import changed, eight_gpus


def counting(**counters: int) -> Node:
    return changed(eight_gpus(), 0, counters=counters)


def test_totals_in_one_look_are_no_rate() -> None:
    """A snapshot says what was counted and that a second look would tell; silence where nothing was counted."""
    (told,) = judge_errors(counting(symbol_error=7, port_rcv_errors=0), Past(), Policy())
    assert isinstance(told, Unassessed)
    assert "a total is no rate" in told.reason
    (told,) = judge_flapping(counting(link_downed=255), Past(), Policy())
    assert isinstance(told, Unassessed)
    assert list(judge_errors(counting(symbol_error=0), Past(), Policy())) == []


def test_growth_above_the_threshold_is_a_warning() -> None:
    """Errors per hour, by counter."""
    past = Past(watching=True, counters={("mlx5_0/1", "symbol_error"): 20})
    (found,) = judge_errors(counting(symbol_error=40), past, Policy(port_errors_per_hour=10))
    assert isinstance(found, Finding)
    assert (found.severity, found.basis, found.observed) == ("warning", "counters", {"symbol_error": 20})
    assert list(judge_errors(counting(symbol_error=40), past, Policy(port_errors_per_hour=20))) == []


def test_congestion_and_loss_counters_are_not_link_errors() -> None:
    """They grow on healthy networks."""
    past = Past(watching=True, counters={("mlx5_0/1", "port_xmit_discards"): 10**6})
    assert list(judge_errors(counting(port_xmit_discards=10**6), past, Policy())) == []


def test_a_counter_at_its_ceiling_carries_no_rate() -> None:
    """65535 symbol errors and no growth: it is stuck until cleared."""
    past = Past(watching=True, counters={("mlx5_0/1", "symbol_error"): 0})
    (told,) = judge_errors(counting(symbol_error=0xFFFF), past, Policy())
    assert isinstance(told, Unassessed)
    assert "ceiling" in told.reason
    (told,) = judge_flapping(counting(link_downed=255), Past(watching=True), Policy())
    assert isinstance(told, Unassessed)


@pytest.mark.parametrize(
    "past",
    [
        Past(watching=True, flaps={"mlx5_0/1": 3}),
        Past(watching=True, counters={("mlx5_0/1", "link_downed"): 3}),
    ],
)
def test_flaps_seen_or_counted(past: Past) -> None:
    """What the daemon saw between scans and what the card counted are both evidence."""
    (found,) = judge_flapping(counting(link_downed=3), past, Policy(flaps_per_hour=2))
    assert isinstance(found, Finding)
    assert found.observed["flaps"] == 3
    assert list(judge_flapping(counting(link_downed=3), past, Policy(flaps_per_hour=3))) == []


def test_unknown_counters_are_not_zero_and_not_errors() -> None:
    """N/A (no PMA) is no count."""
    machine = changed(eight_gpus(), 0, counters={"symbol_error": Unknown(FAILED, "symbol_error")})
    assert list(judge_errors(machine, Past(), Policy())) == []
    assert list(judge_errors(machine, Past(watching=True), Policy())) == []
