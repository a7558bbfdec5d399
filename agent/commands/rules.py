"""gpu-topo rules: what is judged, and what one finding means."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent.commands.inspect import columns
from gpu_topo.agent.errors import UserError
from gpu_topo.agent.output import write
from gpu_topo.classifier import RULES
from gpu_topo.classifier.rule import Rule
from gpu_topo.exporters import rules

EPILOG = """examples:
  gpu-topo rules
  gpu-topo rules nvlink-partial
  gpu-topo rules --format markdown"""


def arguments(parser: ArgumentParser) -> None:
    """What rules takes."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="explain this rule")
    parser.add_argument("--format", choices=("text", "markdown"), default="text", help="default text")


def run(args: Namespace) -> int:
    """List the rules, or explain one."""
    if args.code is None:
        write(rules.render_list(RULES, args.format, columns()))
        return 0
    write(rules.render_one(rule_named(args.code), args.format, columns()))
    return 0


def rule_named(code: str) -> Rule:
    """The rule of that code; a UserError with the nearest one where there is none."""
    for rule in RULES:
        if rule.code == code:
            return rule
    import difflib

    close = difflib.get_close_matches(code, [rule.code for rule in RULES], n=1)
    raise UserError(f"there is no rule '{code}'", f"did you mean '{close[0]}'?" if close else "see 'gpu-topo rules'")
