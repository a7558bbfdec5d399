"""What `gpu-topo rules` prints: the list of rules, and one rule explained."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Protocol


class RuleText(Protocol):
    """The words of a rule; a classifier's Rule has them. (Exporters do not import the classifier.)"""

    @property
    def code(self) -> str:
        """The rule's id."""

    @property
    def severities(self) -> tuple[str, ...]:
        """The severities that it can give, worst first."""

    @property
    def title(self) -> str:
        """One line for the list."""

    @property
    def looks_at(self) -> str:
        """Which facts it compares."""

    @property
    def quiet_when(self) -> str:
        """When it stays silent, and why that is right."""

    @property
    def remedy(self) -> tuple[str, ...]:
        """Least intrusive step first."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the rule and its figures come from."""


FORMATS = ("text", "markdown")


def render_list(rules: Iterable[RuleText], format: str = "text", width: int = 80) -> str:
    """All rules with the severities that they can give, one a line (or a row)."""
    items = list(rules)
    if format == "markdown":
        from gpu_topo.exporters.markdown import table_lines

        rows = [[rule.code, ", ".join(rule.severities), rule.title] for rule in items]
        return "\n".join(table_lines(["rule", "severity", "what it finds"], rows)) + "\n"
    left = max((len(rule.code) for rule in items), default=0)
    middle = max((len(", ".join(rule.severities)) for rule in items), default=0)
    lines: list[str] = []
    for rule in items:
        head = f"{rule.code:<{left}}  {', '.join(rule.severities):<{middle}}  "
        if width - len(head) >= 24:
            lines += textwrap.wrap(rule.title, width, initial_indent=head, subsequent_indent=" " * len(head))
        else:
            lines += [rule.code, *_paragraph(", ".join(rule.severities), width), *_paragraph(rule.title, width)]
    return "\n".join(lines) + "\n"


def render_one(rule: RuleText, format: str = "text", width: int = 80) -> str:
    """One rule: what it looks at, when it stays quiet, what to do, where that comes from."""
    if format == "markdown":
        return _markdown(rule)
    lines = [rule.code, *_paragraph(rule.title, width), *_paragraph(f"({', '.join(rule.severities)})", width)]
    lines += ["", "Looks at", *_paragraph(rule.looks_at, width)]
    lines += ["", "Stays quiet when", *_paragraph(rule.quiet_when, width)]
    if rule.remedy:
        lines += ["", "What to do", *_numbered(rule.remedy, width)]
    if rule.sources:
        lines += ["", "Sources", *[line for source in rule.sources for line in _item("- ", source, width)]]
    return "\n".join(lines) + "\n"


def _paragraph(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _item(mark: str, text: str, width: int) -> list[str]:
    indent = " " * (2 + len(mark))
    return textwrap.wrap(text, width, initial_indent=f"  {mark}", subsequent_indent=indent, break_on_hyphens=False)


def _numbered(steps: Sequence[str], width: int) -> list[str]:
    return [line for number, step in enumerate(steps, 1) for line in _item(f"{number}. ", step, width)]


def _markdown(rule: RuleText) -> str:
    lines = [f"## {rule.code}", "", f"*{', '.join(rule.severities)}*: {rule.title}", ""]
    lines += [f"**Looks at** {rule.looks_at}", "", f"**Stays quiet when** {rule.quiet_when}"]
    if rule.remedy:
        lines += ["", "**What to do**", "", *[f"{number}. {step}" for number, step in enumerate(rule.remedy, 1)]]
    if rule.sources:
        lines += ["", "**Sources**", "", *[f"- {source}" for source in rule.sources]]
    return "\n".join(lines) + "\n"
