"""gpu-topo matrix: the device-by-device table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_topo.agent import intake
from gpu_topo.agent.options import path
from gpu_topo.agent.output import columns, write
from gpu_topo.exporters import matrix

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

EPILOG = """path kinds, nearest first:
  NV<n> XG<n> HC<n>  n bonded NVLinks, xGMI or HCCS links; XG, HC: their number is not known
  PIX                both hang from ports of one switch
  PXB                several bridges between them, no host bridge
  PHB                through one host bridge
  NODE               the same NUMA node, different host bridges
  SYS                across NUMA nodes
  UNKNOWN            hidden: a virtual machine, or no NUMA data

examples:
  gpu-topo matrix
  gpu-topo matrix --format csv topo.xml"""


def arguments(parser: ArgumentParser) -> None:
    """What matrix takes."""
    intake.arguments(parser)
    parser.add_argument("--format", choices=("text", "json", "csv", "markdown"), default="text", help="default text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for --format json")
    parser.add_argument("--output", type=path, metavar="FILE", help="write there instead of to standard output")


def run(args: Namespace) -> int:
    """Print the table."""
    report = intake.report_of(args)
    write(matrix.render(report.node, args.format, columns()), args.output)
    return 0
