"""exporters/rules.py: the rules in words."""

from __future__ import annotations

import pytest

from gpu_topo.classifier.rule import Rule
from gpu_topo.exporters.rules import render_list, render_one

RULE = Rule(
    "pcie-width-degraded",
    ("critical", "warning", "info"),
    "A link has fewer lanes than both of its ends can do",
    "the negotiated width, and what both ends can do: " + "many words " * 20,
    "the slot or the device has no more lanes, or the machine is virtual",
    ("Reseat the card.", "Try another slot. " * 10),
    ("PCI Express Base Specification 7.5.3.8",),
    lambda node, past, policy: (),
)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_never_wider(width: int) -> None:
    """No line is longer than the width."""
    for shown in (render_list([RULE], width=width), render_one(RULE, width=width)):
        assert max(map(len, shown.splitlines())) <= width


def test_one_rule_is_explained() -> None:
    """A rule says what it looks at, when it stays quiet, what to do, and where that comes from."""
    shown = render_one(RULE, width=200)
    for piece in ("critical, warning, info", "Looks at", "Stays quiet when", "1. Reseat the card.", "7.5.3.8"):
        assert piece in shown


def test_markdown() -> None:
    """The list is a table, one rule a section."""
    assert "| pcie-width-degraded | critical, warning, info |" in render_list([RULE], "markdown")
    assert render_one(RULE, "markdown").startswith("## pcie-width-degraded\n")
