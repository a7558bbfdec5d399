"""Sources that do not answer: what was not read is not gone, and what was found before is not over."""

from __future__ import annotations

from gpu_topo.model.facts import FAILED, TIMEOUT
from gpu_topo.model.finding import CAUSE_TIMEOUT, Unassessed
from gpu_topo.model.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_topo.classifier.rule import Rule


def silent(node: Node) -> Mapping[str, str]:
    """The sources that did not answer, or not to the end, with what is known of why."""
    return {source.name: source.detail for source in node.sources if source.status in (TIMEOUT, FAILED)}


def misled(rule: Rule, missing: Mapping[str, str]) -> bool:
    """Whether a rule may not judge at all while these sources are missing."""
    return any(name in missing for name in rule.misled_without)


def left_open(rule: Rule, missing: Mapping[str, str]) -> Unassessed | None:
    """What a rule cannot tell while these sources are missing; None where it reads none of them."""
    for name, detail in missing.items():
        if name in rule.reads:
            return Unassessed(rule.code, "node", f"{name} did not answer: {detail or 'it failed'}", CAUSE_TIMEOUT)
    return None
