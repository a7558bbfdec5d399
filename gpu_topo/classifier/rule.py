"""What a rule is: its words for a person, and a pure function of facts."""

from __future__ import annotations

from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Judge = Callable[[Node, Past, Policy], Iterable["Conclusion"]]

Conclusion = Finding | Unassessed

LINKS, BONDS = "links", "bonds"  # of an accelerator: over PCIe; NVLink and its kin


class Rule(NamedTuple):
    """One rule. judge yields Findings and Unassessed whose code is `code`; the rest is what `rules CODE` prints."""

    code: str
    severities: tuple[str, ...]  # the severities that it can give, worst first
    title: str  # one line for the list
    looks_at: str  # which facts it compares
    quiet_when: str  # when it stays silent, and why that is right
    remedy: tuple[str, ...]  # least intrusive step first
    sources: tuple[str, ...]  # where the rule and its figures come from
    judge: Judge
    reads: tuple[str, ...] = ()  # sources by name: while one is silent, what the rule had shown stays open
    misled_without: tuple[str, ...] = ()  # those of them without which it takes what was not read for missing
    late: bool = False  # it needs drivers, links or a fabric, which may come up after the daemon does
    consequence: bool = False  # what it finds follows from another finding, and is told after it
    about: str = ""  # LINKS or BONDS where it tells that an accelerator was judged at all
