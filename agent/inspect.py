"""One audit, from what was read to a report; the daemon and the one-off command take the same steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from gpu_topo import __version__
from gpu_topo.agent.scan import scan
from gpu_topo.assemble import assemble
from gpu_topo.classifier import classify, verdict
from gpu_topo.collectors import LOAD
from gpu_topo.model.facts import Facts
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.source import Source

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
) -> Report:
    """Audit a machine or a copy of one, each look within `timeout` seconds.

    samples: how often the driver is asked for load and link speed, a second apart, to tell idle from slow.
    """
    facts = scan(source, timeout, policy.exclude)
    if source.live:
        for _ in range(samples - 1):
            time.sleep(SAMPLE_SECONDS)
            facts.extend(scan(source, timeout, policy.exclude, [LOAD]))
    return conclude(facts, policy, past, source.live)


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
        verdict=verdict(node, judgement.findings, judgement.unassessed),
        generated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=__version__,
        notes=tuple(notes),
        role_overrides=policy.roles,
    )


def has_accelerator(node: Node) -> bool:
    """Whether there is anything to audit for: a GPU or accelerator that is not integrated."""
    return any(d.kind in (GPU, ACCELERATOR) and not d.integrated for d in node.devices.values())
