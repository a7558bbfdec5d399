"""What rules conclude, and what they could not conclude."""

from __future__ import annotations

from gpu_topo.model.node import Node
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CRITICAL = "critical"
WARNING = "warning"
INFO = "info"
SEVERITIES = (CRITICAL, WARNING, INFO)  # worst first

# Where an expectation came from.
LINK_PARTNERS = "link-partners"
PEERS = "peers"
CATALOGUE = "catalogue"
BASELINE = "baseline"
CONFIG = "config"
COUNTERS = "counters"

# Why a rule could not judge: a fixed list, since it becomes a metric label.
CAUSE_LOAD = "load-unknown"
CAUSE_VM = "virtual-machine"
CAUSE_NOT_RECORDED = "not-recorded"
CAUSE_DENIED = "denied"
CAUSE_UNREADABLE = "unreadable"
CAUSE_NO_REFERENCE = "no-reference"
CAUSE_DRIVER = "driver"
CAUSE_TIMEOUT = "timeout"
CAUSE_ASLEEP = "asleep"
CAUSE_MIG = "mig"
CAUSE_PASSTHROUGH = "passthrough"
CAUSE_BY_DESIGN = "not-applicable"
CAUSES = (
    CAUSE_LOAD,
    CAUSE_VM,
    CAUSE_NOT_RECORDED,
    CAUSE_DENIED,
    CAUSE_UNREADABLE,
    CAUSE_NO_REFERENCE,
    CAUSE_DRIVER,
    CAUSE_TIMEOUT,
    CAUSE_ASLEEP,
    CAUSE_MIG,
    CAUSE_PASSTHROUGH,
    CAUSE_BY_DESIGN,
)


class Acceptance(NamedTuple):
    """Who accepted a finding as designed, why, and until when (RFC 3339 date or None)."""

    by: str
    reason: str
    until: str | None = None


class Finding(NamedTuple):
    """A conclusion with its evidence. lost_gbs is per direction, GB/s; None where it has no meaning."""

    code: str
    severity: str
    subject: str  # address, mlx5_0/1, a~b, switch id or "node"
    summary: str
    basis: str
    impact: str
    remedy: tuple[str, ...]  # least intrusive step first
    verify: str  # a command that shows the same
    related: tuple[str, ...] = ()
    observed: Mapping[str, Any] = EMPTY
    expected: Mapping[str, Any] = EMPTY
    lost_gbs: float | None = None
    accepted: Acceptance | None = None
    since: float | None = None  # seconds since the epoch; only the daemon knows
    witness: str = ""  # what it goes by, where it compares nothing: "what the driver says"


class Unassessed(NamedTuple):
    """What a rule could not conclude. cause is one of CAUSES, reason a sentence for a person."""

    code: str
    subject: str
    reason: str
    cause: str


class Report(NamedTuple):
    """One audit: the node, what was concluded, and when. Exporters render it."""

    node: Node
    findings: tuple[Finding, ...]  # worst first
    unassessed: tuple[Unassessed, ...]
    verdict: str  # ok | warning | critical | unknown
    generated_at: str  # RFC 3339
    version: str
    notes: tuple[str, ...] = ()  # for a person: "no accelerator here", "this is the bundled example"
    role_overrides: Mapping[str, str] = EMPTY  # port name or netdev -> role, from the configuration
    all_functions: bool = False  # --all
    all_paths: bool = False  # --paths all
