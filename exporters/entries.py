"""The entries of a report for people: findings that one person fixes in one go, and reasons why nothing was judged.

Text, markdown, HTML and the drawing number, title and order them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_topo.exporters.view import names, open_findings, subject_name
from gpu_topo.exporters.words import compact, evidence, told
from gpu_topo.model.address import sort_key
from gpu_topo.model.finding import INFO, Finding, Report
from gpu_topo.model.node import Node
from gpu_topo.model.record import NamedTuple


class Entry(NamedTuple):
    """Findings of one rule, with the same remedy: one entry for a person, however many devices."""

    number: int
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The worst of them."""
        return self.findings[0]

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.findings) > 1

    @property
    def lost_gbs(self) -> float:
        """What all of them together cost, GB/s per direction."""
        return sum(finding.lost_gbs or 0.0 for finding in self.findings)

    @property
    def impacts(self) -> list[str]:
        """What they do to a job, each sentence once."""
        return list(dict.fromkeys(finding.impact for finding in self.findings if finding.impact))

    def subject(self, short: Mapping[str, str]) -> str:
        """What it is about: `GPU3 (0000:34:00.0)`, `GPU0-3`."""
        if self.several:
            return compact(short_subject(finding.subject, short) for finding in self.findings)
        return subject_name(self.first.subject, short)

    def title(self, node: Node, short: Mapping[str, str]) -> str:
        """The subject, and for a single device what it is."""
        device = None if self.several else node.devices.get(self.first.subject)
        return self.subject(short) + (f", {device.name}" if device and device.name else "")

    def rows(self, short: Mapping[str, str]) -> list[tuple[str, str]]:
        """What each finding says, and its evidence."""
        return [(told(f, short) if self.several else f.summary, evidence(f)) for f in self.findings]


def entries(report: Report) -> list[Entry]:
    """The findings that count, worst first, numbered from 1."""
    found: dict[tuple[str, str, tuple[str, ...]], list[Finding]] = {}
    for finding in open_findings(report):
        # A remedy may name the device: without it the steps are the same.
        steps = tuple(step.replace(finding.subject, "") for step in finding.remedy)
        found.setdefault((finding.severity, finding.code, steps), []).append(finding)
    return [Entry(number, tuple(items)) for number, items in enumerate(found.values(), 1)]


def split(report: Report) -> tuple[list[Entry], list[Entry]]:
    """The entries to act on, and those that are only worth knowing."""
    found = entries(report)
    serious = [entry for entry in found if entry.first.severity != INFO]
    return serious, found[len(serious) :]


def short_subject(subject: str, short: Mapping[str, str]) -> str:
    """A subject by its short names alone: GPU3, mlx5_0/1, GPU0~GPU1."""
    return "~".join(short.get(part, part) for part in subject.split("~"))


class UnassessedGroup(NamedTuple):
    """What could not be concluded for one and the same reason: sixteen GPUs are one line."""

    reason: str
    cause: str
    codes: tuple[str, ...]
    subjects: tuple[str, ...]


def unassessed_groups(report: Report) -> list[UnassessedGroup]:
    """The unassessed, grouped by reason, in order of first appearance."""
    short = names(report.node)
    groups: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for item in report.unassessed:
        # A reason that names its subject would never group: what differs is shown as the subject.
        reason = item.reason
        if item.subject != "node" and item.subject in reason:
            reason = reason.replace(item.subject, "it")
        codes, subjects = groups.setdefault((reason, item.cause), ({}, {}))
        codes[item.code] = None
        subjects[short.get(item.subject, item.subject)] = None
    return [
        UnassessedGroup(reason, cause, tuple(codes), tuple(sorted(subjects, key=sort_key)))
        for (reason, cause), (codes, subjects) in groups.items()
    ]
