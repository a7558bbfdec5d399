"""One audit, from what was read to a report; the daemon and the one-off command take the same steps."""

from __future__ import annotations

import time

from gpu_topo import __version__
from gpu_topo.agent.scan import scan
from gpu_topo.assemble import assemble
from gpu_topo.classifier import RULES, classify, verdict
from gpu_topo.collectors import LOAD
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, TIMEOUT, Facts
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gpu_topo.model.finding import Finding, Unassessed

NEEDED = "pcie"  # without this source there is no telling what the machine has
SAMPLE_SECONDS = 1.0  # long enough for a P-state to change, short enough to wait for


def names(ids: Iterable[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
    """Part names from this machine's list of PCI ids; the module is only needed where a name is missing."""
    from gpu_topo.collectors.pci_names import lookup

    return lookup(ids)


def audit(
    source: Source,
    policy: Policy = Policy(),
    past: Past = Past(),
    timeout: float = 10.0,
    samples: int = 1,
    counters: bool = True,
) -> Report:
    """Audit a machine or a copy of one; all looks together wait at most `timeout` seconds for answers.

    samples: how often the driver is asked for load and link speed, a second apart, to tell idle from slow. A driver
    that hangs is not asked again. counters as in Context.
    """
    ends = time.monotonic() + timeout
    facts = scan(source, timeout, policy.exclude, counters=counters)
    for _ in range(samples - 1 if source.live else 0):
        if any(fact.source.name == LOAD.name and fact.source.status == TIMEOUT for fact in facts):
            break
        time.sleep(SAMPLE_SECONDS)
        ends += SAMPLE_SECONDS
        facts.extend(scan(source, ends - time.monotonic(), policy.exclude, [LOAD]))
    if past.baseline.get("devices"):
        facts = [down_where_known(fact, (NEEDED,)) for fact in facts]
    return conclude(facts, policy, past, source.live)


def down_where_known(facts: Facts, known: Collection[str]) -> Facts:
    """The facts of a source that is known to have told something of this machine: where it is not there any more, or
    lists nothing at all, it has failed. What it told of is not gone for that."""
    status = facts.source
    if status.name not in known or tells(facts) or status.status not in (ABSENT, DENIED, OK, PARTIAL):
        return facts
    if status.status in (OK, PARTIAL) and status.name != NEEDED:
        return facts  # a driver was unloaded; but no bus is empty
    why = "lists nothing" if status.status in (OK, PARTIAL) else f"not there: {status.detail}"
    return facts._replace(source=status._replace(status=FAILED, detail=why))


def tells(facts: Facts) -> bool:
    """Whether a source told of anything that the machine has."""
    return bool(
        facts.functions or facts.gpus or facts.ports or facts.netdevs or facts.blocks or facts.accelerator_links
    )


def read_nothing(facts: Iterable[Facts]) -> bool:
    """Whether no source but the platform was there to be read."""
    rest = [fact for fact in facts if fact.source.name != "platform"]
    return all(
        fact.source.status in (ABSENT, DENIED, FAILED)
        and not tells(fact)
        and (fact.driver is None or fact.driver.status == ABSENT)
        for fact in rest
    )


def unread(node: Node) -> str:
    """What keeps a report from saying what the machine has, "" where nothing does."""
    for source in node.sources:
        if source.name == NEEDED and source.status in (TIMEOUT, FAILED, DENIED):
            return f"{source.name} {source.status}: {source.detail}"
    return ""


def verdict_on(
    node: Node, findings: Sequence[Finding], unassessed: Sequence[Unassessed], policy: Policy = Policy()
) -> str:
    """The classifier's verdict, but that a machine which could not be read is not known to have no accelerator."""
    said = verdict(node, findings, unassessed, policy)
    return "unknown" if said == "ok" and unread(node) and not has_accelerator(node) else said


def conclude(
    facts: Sequence[Facts],
    policy: Policy = Policy(),
    past: Past = Past(),
    live: bool = False,
    notes: Sequence[str] = (),
) -> Report:
    """Assemble, judge, and put a report together."""
    return report_on(assemble(facts, names, live), policy, past, notes)


def report_on(node: Node, policy: Policy = Policy(), past: Past = Past(), notes: Sequence[str] = ()) -> Report:
    """Judge a node that is already put together."""
    judgement = classify(node, past, policy)
    return Report(
        node=node,
        findings=judgement.findings,
        unassessed=judgement.unassessed,
        verdict=verdict_on(node, judgement.findings, judgement.unassessed, policy),
        generated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=__version__,
        notes=(*notes, *_left_out(policy)),
        role_overrides=policy.roles,
    )


def _left_out(policy: Policy) -> tuple[str, ...]:
    """What the reader of a report has to know where only some rules judged."""
    asked = [rule.code for rule in RULES if policy.asks(rule.code)]
    left = [rule.code for rule in RULES if not policy.asks(rule.code)]
    if not left:
        return ()
    if len(asked) <= len(left):
        return (f"Only {len(asked)} of {len(RULES)} rules judged: {', '.join(asked) or 'none'}.",)
    return (f"{len(asked)} of {len(RULES)} rules judged; left out: {', '.join(left)}.",)


def has_accelerator(node: Node) -> bool:
    """Whether there is anything to audit for: a GPU or accelerator that is not integrated."""
    return any(d.kind in (GPU, ACCELERATOR) and not d.integrated for d in node.devices.values())
