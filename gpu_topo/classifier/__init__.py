"""Judging: every rule looks at one Node and says what is wrong with it, or why it cannot tell."""

from __future__ import annotations

from gpu_topo.classifier import (
    acs,
    driver,
    fabric,
    host,
    inventory,
    nics,
    nvlink,
    nvlink_partial,
    pcie_errors,
    pcie_lost,
    pcie_path,
    pcie_speed,
    pcie_width,
    port_counters,
    port_rate,
    port_settings,
    port_state,
    sharing,
    xgmi,
)
from gpu_topo.classifier.rule import BONDS, LINKS, Rule
from gpu_topo.classifier.silent import left_open, misled, silent
from gpu_topo.classifier.undetermined import undetermined
from gpu_topo.model.finding import CRITICAL, SEVERITIES, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LATE", "RULES", "Judgement", "classify", "verdict"]

# In the order in which they are listed: PCIe, NVLink and its kin, the driver, ports, the node.
RULES: tuple[Rule, ...] = (
    *pcie_width.RULES,
    *pcie_speed.RULES,
    *pcie_path.RULES,
    *pcie_errors.RULES,
    *pcie_lost.RULES,
    *acs.RULES,
    *sharing.RULES,
    *host.RULES,
    *nvlink.RULES,
    *nvlink_partial.RULES,
    *fabric.RULES,
    *driver.RULES,
    *xgmi.RULES,
    *port_state.RULES,
    *port_rate.RULES,
    *port_counters.RULES,
    *port_settings.RULES,
    *nics.RULES,
    *inventory.RULES,
)

LATE = frozenset(rule.code for rule in RULES if rule.late)
_CONSEQUENCES = frozenset(rule.code for rule in RULES if rule.consequence)


class Judgement(NamedTuple):
    """What all rules together concluded: findings worst first, then what could not be judged."""

    findings: tuple[Finding, ...]
    unassessed: tuple[Unassessed, ...]


def classify(node: Node, past: Past = Past(), policy: Policy = Policy()) -> Judgement:
    """Run every rule that the policy asks for. Accepted findings stay in the list and are marked."""
    findings: list[Finding] = []
    unassessed: dict[tuple[str, str, str], Unassessed] = {}
    missing = silent(node)
    for rule in RULES:
        if not policy.asks(rule.code):
            continue
        if missing and (told := left_open(rule, missing)) is not None:
            unassessed[told.code, told.subject, told.reason] = told
        for conclusion in () if misled(rule, missing) else rule.judge(node, past, policy):
            if isinstance(conclusion, Finding):
                findings.append(_accepted(conclusion, policy))
            else:
                unassessed.setdefault((conclusion.code, conclusion.subject, conclusion.reason), conclusion)
    findings.sort(key=_rank)
    return Judgement(tuple(findings), tuple(unassessed.values()))


def _accepted(finding: Finding, policy: Policy) -> Finding:
    for subject in (finding.subject, "*"):
        acceptance = policy.accepted.get((finding.code, subject))
        if acceptance is not None and not (acceptance.until and policy.now and acceptance.until[:10] < policy.now[:10]):
            return finding._replace(accepted=acceptance)
    return finding


def _rank(finding: Finding) -> tuple[int, bool, float, str, str]:
    severity = SEVERITIES.index(finding.severity)
    return (severity, finding.code in _CONSEQUENCES, -(finding.lost_gbs or 0.0), finding.code, finding.subject)


def verdict(
    node: Node, findings: Sequence[Finding], unassessed: Sequence[Unassessed], policy: Policy = Policy()
) -> str:
    """critical | warning | unknown | ok. Accepted findings do not count.

    unknown: nothing is wrong as far as is known, but no rule could judge an accelerator, or was asked to.
    """
    severities = {f.severity for f in findings if f.accepted is None}
    for severity in (CRITICAL, WARNING):
        if severity in severities:
            return severity
    accelerators = [d for d in lookup(node).of(GPU, ACCELERATOR) if not d.integrated]
    if not accelerators:
        return "unknown" if undetermined(node) else "ok"
    open_questions = {(u.code, u.subject) for u in unassessed}
    about_links = [rule.code for rule in RULES if rule.about == LINKS and policy.asks(rule.code)]
    about_bonds = [rule.code for rule in RULES if rule.about == BONDS and policy.asks(rule.code)]
    for device in accelerators:
        if device.link is not None and any((code, device.address) not in open_questions for code in about_links):
            return "ok"
    bonded = {name for pair, kind in node.stated_paths.items() if kind.startswith("NV") for name in pair}
    for gpu in node.gpus:
        told = known(gpu.nvlinks) is not None or gpu.address in bonded or bool(node.accelerator_links)
        asked = told and bool(about_bonds)
        if asked and not any((code, s) in open_questions for code in about_bonds for s in (gpu.address, "node")):
            return "ok"
    return "unknown"
