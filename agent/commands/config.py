"""gpu-topo config: check the configuration file, or show what is in force and where it comes from."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent import config
from gpu_topo.agent.output import write
from gpu_topo.classifier import RULES

EPILOG = """examples:
  gpu-topo config check
  gpu-topo config check --config.file new.toml && sudo systemctl reload gpu-topo
  gpu-topo config show                          every key with its value, as a file to start from"""


def arguments(parser: ArgumentParser) -> None:
    """What config takes: what to do, and every key as a flag."""
    parser.add_argument("action", choices=("check", "show"))
    config.add_flags(parser)


def run(args: Namespace) -> int:
    """Check or show; a configuration that is wrong is one line for each problem, and status 3."""
    loaded = config.load(getattr(args, "config.file"), config.flags_of(args), [rule.code for rule in RULES])
    if args.action == "show":
        write(config.show(loaded))
    else:
        but = config.remark(loaded)
        write(f"{loaded.source or 'no configuration file'}: in order{but and f', but {but}'}")
    return 0
