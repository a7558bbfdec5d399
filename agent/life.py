"""The life of findings: raised when they have held, cleared when they have gone, and since when.

Pure functions on tuples. The rules judge each scan by itself; what flickers is sorted out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_topo.classifier import LATE
from gpu_topo.model.finding import SEVERITIES, Finding, Unassessed
from gpu_topo.model.record import NamedTuple

RAISED = "raised"
CLEARED = "cleared"
CHANGED = "changed"  # in severity
ACCEPTED = "accepted"  # as designed
REOPENED = "no longer accepted"

Key = tuple[str, str]  # (code, subject)


class Life(NamedTuple):
    """One finding over time."""

    since: float  # seconds since the epoch, when it was first seen
    held: int = 0  # scans in a row that saw it with this severity
    gone: int = 0  # scans in a row that did not see it
    raised: str | None = None  # the severity that it was raised with, None while it is not
    severity: str = ""  # the severity that the last scan gave it
    finding: Finding | None = None  # as last seen; None after a restart


class Change(NamedTuple):
    """What is to be logged."""

    kind: str  # RAISED | CLEARED | CHANGED | ACCEPTED | REOPENED
    code: str
    subject: str
    severity: str
    since: float
    finding: Finding | None


class Settled(NamedTuple):
    """The lives after a scan, what is to be shown of them, and what changed."""

    lives: Mapping[Key, Life]
    findings: tuple[Finding, ...]  # worst first
    changes: tuple[Change, ...]


def settle(
    lives: Mapping[Key, Life],
    findings: Sequence[Finding],
    unassessed: Iterable[Unassessed],
    now: float,
    raise_after: int = 2,
    clear_after: int = 2,
    in_grace: bool = False,
) -> Settled:
    """One more scan. now: seconds since the epoch. A finding that cannot be judged at the moment keeps its state: a
    source that hangs must not clear what it had shown."""
    open_questions = {(item.code, item.subject) for item in unassessed}
    seen = {(finding.code, finding.subject): finding for finding in findings}
    result: dict[Key, Life] = {}
    changes: list[Change] = []
    for key, finding in seen.items():
        before = lives.get(key, Life(now))
        life = _seen(before, finding)
        if life.held >= raise_after and life.raised != finding.severity and not (in_grace and key[0] in LATE):
            changes.append(Change(CHANGED if life.raised else RAISED, *key, finding.severity, life.since, finding))
            life = life._replace(raised=finding.severity)
        elif life.raised and before.finding and bool(before.finding.accepted) != bool(finding.accepted):
            kind = ACCEPTED if finding.accepted else REOPENED
            changes.append(Change(kind, *key, life.raised, life.since, finding))
        result[key] = life
    for key, life in lives.items():
        if key in seen:
            continue
        if life.raised is None:
            continue  # it flickered
        if key in open_questions or (key[0], "node") in open_questions:
            result[key] = life._replace(held=0)
        elif life.gone + 1 < clear_after:
            result[key] = life._replace(gone=life.gone + 1, held=0)
        else:
            changes.append(Change(CLEARED, *key, life.raised, life.since, life.finding))
    shown = [_shown(life, life.finding) for life in result.values() if life.raised and life.finding]
    shown.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -(finding.lost_gbs or 0.0)))
    return Settled(result, tuple(shown), tuple(changes))


def _seen(life: Life, finding: Finding) -> Life:
    same = life.severity == finding.severity and life.gone == 0
    # A finding that is raised keeps showing its raised severity until the new one has held as well.
    return life._replace(held=life.held + 1 if same else 1, gone=0, severity=finding.severity, finding=finding)


def _shown(life: Life, finding: Finding) -> Finding:
    return finding._replace(severity=life.raised or finding.severity, since=life.since)


def shifted(lives: Mapping[Key, Life], seconds: float) -> Mapping[Key, Life]:
    """The lives after the wall clock was set: what began an hour ago still began an hour ago."""
    return {key: life._replace(since=life.since + seconds) for key, life in lives.items()}
