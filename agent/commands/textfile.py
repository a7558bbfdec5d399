"""gpu-topo textfile: the metrics of one audit for node_exporter's textfile collector."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace

from gpu_topo.agent import intake, policy
from gpu_topo.agent.errors import UserError
from gpu_topo.agent.options import path
from gpu_topo.agent.output import own_descriptor, write

EPILOG = """examples:
  gpu-topo textfile --output /var/lib/node_exporter/textfile/gpu-topo.prom     from cron or a timer
  gpu-topo textfile --output /dev/stdout"""


def arguments(parser: ArgumentParser) -> None:
    """What textfile takes."""
    intake.arguments(parser)
    add = parser.add_argument
    add(
        "--output",
        type=path,
        metavar="FILE",
        required=True,
        help="written whole or not at all; its name has to end in .prom",
    )
    add("--metrics.nvlink-per-link", action="store_true", help="one series for each NVLink instead of sums")
    policy.arguments(parser, expect="a finding where the machine has fewer")


def run(args: Namespace) -> int:
    """Audit once and write; findings are in the metrics and not in the exit status."""
    from gpu_topo.exporters import prometheus

    _refuse_unread_name(args.output)
    decided = policy.decided(args)
    begun = time.monotonic()
    report = intake.report_of(args, decided.policy, decided.past)
    runtime = prometheus.Runtime(last_scan=time.time(), scan_seconds=time.monotonic() - begun)
    write(prometheus.render(report, False, runtime, getattr(args, "metrics.nvlink_per_link")), args.output)
    return 0


def _refuse_unread_name(path: str) -> None:
    """node_exporter reads *.prom and passes over everything else, without a word."""
    stream = path == "-" or own_descriptor(path) is not None or (os.path.exists(path) and not os.path.isfile(path))
    if not stream and not path.endswith(".prom"):
        raise UserError(f"{path}: node_exporter reads only files whose name ends in .prom", f"give {path}.prom")
