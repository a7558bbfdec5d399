"""gpu-topo schema: the JSON Schema of the JSON report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent.output import write

EPILOG = """examples:
  gpu-topo schema > report.schema.json
  gpu-topo schema | jq '."$defs".link'              what a link has"""


def arguments(parser: ArgumentParser) -> None:
    """What schema takes: nothing."""


def run(args: Namespace) -> int:
    """Print the schema that ships with the package."""
    from importlib.resources import files

    write(files("gpu_topo.exporters").joinpath("report.schema.json").read_text("utf-8"))
    return 0
