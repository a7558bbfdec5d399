"""gpu-topo inspect: the one-off audit."""

from __future__ import annotations

import os
import sys

from gpu_topo.agent import intake, policy
from gpu_topo.agent.errors import CRITICAL, OK, UNUSABLE, WARNING
from gpu_topo.agent.inspect import names
from gpu_topo.agent.options import path
from gpu_topo.agent.output import columns, write
from gpu_topo.assemble import named
from gpu_topo.model.finding import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

FORMATS = ("text", "json", "markdown", "html", "svg", "prometheus")

EPILOG = """exit status: 0 nothing at or above --fail-on, 1 the worst is a warning, 2 critical, 3 could not inspect

recordings are told apart by content: captures, tar archives of /sys, nvidia-bug-report.log.gz, lspci -vvv, -xxxx,
-tv and -nn, nvidia-smi (alone, -L, -q, -q -x, --query-gpu, topo -m, topo -p2p, nvlink -s and -R), rocm-smi (alone,
--showtopo, --showbus), amd-smi (list, static, metric, topology, xgmi), npu-smi info, npu-smi info -t topo, ibstat,
ibstatus, ibv_devinfo -v, NCCL and hwloc XML; gzipped or not, several in one file, with prompts and prose between

examples:
  gpu-topo inspect
  gpu-topo inspect --expect gpus=8,nics=8 --fail-on critical
  gpu-topo inspect --format markdown > ticket.md
  gpu-topo inspect lspci.txt nvidia-smi-q.txt ibstat.txt"""


def arguments(parser: ArgumentParser) -> None:
    """What inspect takes."""
    intake.arguments(parser)
    add = parser.add_argument
    add("--format", choices=FORMATS, default="text", help="default text")
    add("--json", action="store_const", const="json", dest="format", help="short for --format json")
    add("--output", type=path, metavar="FILE", help="write the report there instead of to standard output")
    add("--fail-on", choices=("warning", "critical", "never"), default="warning", help="default warning")
    add("--all", action="store_true", help="every PCI function in JSON; in text, all that was not judged and why")
    add("--paths", choices=("near", "all"), default="near", help="all: every pair, however many endpoints")
    add("--color", choices=("auto", "always", "never"), default="auto", help="default auto; NO_COLOR is honoured")
    add("--require-assessed", action="store_true", help="exit 3 where no rule could judge an accelerator")
    policy.arguments(parser, expect="fail where the machine has fewer")


def run(args: Namespace) -> int:
    """Audit, write the report, and say with the exit status how it is."""
    decided = policy.decided(args)
    report = intake.report_of(args, decided.policy, decided.past, counters=args.format == "prometheus")
    notes = (*report.notes, *decided.notes)
    report = report._replace(all_functions=args.all, all_paths=args.paths == "all", notes=notes)
    if args.all:
        report = report._replace(node=named(report.node, names))
    write(rendered(report, args), args.output)
    return status_of(report, args.fail_on, args.require_assessed)


def rendered(report: Report, args: Namespace) -> str | Iterator[str]:
    """The report in the format that was asked for; only that format's module is loaded."""
    form = args.format
    if form == "json":
        from gpu_topo.exporters import json

        return json.pieces(report)
    if form == "markdown":
        from gpu_topo.exporters import markdown

        return markdown.render(report)
    if form == "html":
        from gpu_topo.exporters import html

        return html.render(report)
    if form == "svg":
        from gpu_topo.exporters import svg

        return svg.render(report)
    if form == "prometheus":
        from gpu_topo.exporters import prometheus

        return prometheus.render(report).decode()
    from gpu_topo.exporters import text

    return text.render(report, width=columns(), color=colored(args), ascii_only=not _unicode())


def colored(args: Namespace) -> bool:
    """Whether to use colour: --color, else NO_COLOR (no-color.org), else whether a terminal reads it."""
    if args.color != "auto":
        return bool(args.color == "always")
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or args.output:
        return False
    return sys.stdout.isatty()


def _unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def status_of(report: Report, fail_on: str = "warning", require_assessed: bool = False) -> int:
    """The exit status of a report, as the monitoring plug-ins have it."""
    if report.verdict == "critical":
        return OK if fail_on == "never" else CRITICAL
    if report.verdict == "warning":
        return WARNING if fail_on == "warning" else OK
    return UNUSABLE if report.verdict == "unknown" and require_assessed else OK
