"""gpu-topo rules: what is judged, and what one finding means."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent.output import columns, write
from gpu_topo.agent.policy import rule_named
from gpu_topo.classifier import RULES
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
