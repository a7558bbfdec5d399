"""One audit, from what was read to a report; the daemon and the one-off command take the same steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from gpu_topo import __version__
from gpu_topo.agent.scan import scan
from gpu_topo.assemble import assemble
from gpu_topo.classifier import classify, verdict
from gpu_topo.model.facts import Facts
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, Node
from gpu_topo.source import Source


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
    """Audit a machine or a copy of one. samples: how often the driver is asked, a second apart, to see load."""
    begun = time.monotonic()
    facts = scan(source, timeout, policy.exclude)
    if samples > 1 and source.live:
        facts = [*facts, *_more_samples(source, policy, samples - 1, begun + timeout)]
    return conclude(facts, policy, past, source.live)


def _more_samples(source: Source, policy: Policy, count: int, ends: float) -> list[Facts]:
    from gpu_topo.collectors import COLLECTORS

    load = [c for c in COLLECTORS if c.name == "nvml"]
    found: list[Facts] = []
    for _ in range(count):
        if time.monotonic() + 1.0 >= ends:
            break
        time.sleep(1.0)
        found.extend(scan(source, ends - time.monotonic(), policy.exclude, load))
    return found


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
