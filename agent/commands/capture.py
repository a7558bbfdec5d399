"""gpu-topo capture: record what an audit reads, so that it can be replayed elsewhere."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo import __version__
from gpu_topo.agent import intake
from gpu_topo.agent.errors import say
from gpu_topo.agent.options import path
from gpu_topo.agent.output import write
from gpu_topo.agent.scan import scan
from gpu_topo.collectors import redact
from gpu_topo.source import Recording

EPILOG = """The capture holds what was read, and what was refused, as sorted text; compressed where OUT ends in .gz.
Serial numbers, UUIDs, GUIDs, MAC and IP addresses and host names are replaced, equal ones by equal ones.

examples:
  gpu-topo capture node.capture.gz
  gpu-topo inspect node.capture.gz              the same report, anywhere
  sudo gpu-topo capture --keep-identity node.capture"""


def arguments(parser: ArgumentParser) -> None:
    """What capture takes."""
    parser.add_argument("out", metavar="OUT", help="the capture to write; - for standard output")
    parser.add_argument("--root", type=path, metavar="DIR", help="record a copied file tree instead of this machine")
    parser.add_argument("--keep-identity", action="store_true", help="keep serials, GUIDs, addresses and host names")
    parser.add_argument(
        "--timeout", type=intake.seconds, default=intake.DEFAULT_TIMEOUT, metavar="SECONDS", help="default 10"
    )


def run(args: Namespace) -> int:
    """Scan through a recording source, and write what it remembers."""
    recording = Recording(intake.source_of(args))
    facts = scan(recording, args.timeout)
    packed = args.out.endswith(".gz")
    data = redact.capture(recording, keep_identity=args.keep_identity, version=__version__, packed=packed)
    write(data, args.out)
    late = [fact.source.name for fact in facts if fact.source.status == "timeout"]
    if late:
        say(f"the capture is incomplete: {', '.join(late)} did not answer in time")
    return 0
