"""What the operator decided, from flags and the configuration file; loaded only where there is any of it."""

from __future__ import annotations

import os
import time

from gpu_topo.agent.options import path
from gpu_topo.classifier import RULES
from gpu_topo.model.history import Past, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

DEFAULT_FILE = "/etc/gpu-topo/gpu-topo.toml"


def arguments(parser: ArgumentParser, expect: str) -> None:
    """The flags that policy_of reads. expect: what a machine with fewer parts than expected gives."""
    add = parser.add_argument
    add("--only", action="append", metavar="CODE", help="judge by this rule only (may be repeated)")
    add("--skip", action="append", metavar="CODE", help="leave this rule out (may be repeated)")
    add("--expect", action="append", metavar="gpus=8,nics=8", help=expect)
    add("--config.file", type=path, metavar="FILE", help=f"configuration (default {DEFAULT_FILE}, where it exists)")
    add("--baseline", type=path, metavar="FILE", help="judge against this saved baseline too")


def policy_of(args: Namespace) -> tuple[Policy, Past]:
    """The policy of a one-off command, and the past that a baseline gives it."""
    flags = {
        name: given if isinstance(given, list) else [given]
        for name in ("only", "skip", "expect")
        if (given := getattr(args, name, None)) is not None
    }
    file = getattr(args, "config.file", None)
    baseline = getattr(args, "baseline", None)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    policy = Policy(now=today)
    # A configuration describes the machine that it lies on: recordings and trees of others are judged without it.
    local = not any(getattr(args, name, None) for name in ("files", "root", "example"))
    if file is not None or flags or (local and os.path.exists(DEFAULT_FILE)):
        from gpu_topo.agent import config

        codes = [rule.code for rule in RULES]
        loaded = config.load(file if file is not None or local else os.devnull, flags, codes)
        policy = config.policy(loaded, today)
        baseline = baseline or (loaded.baseline_file or None if local else None)
    if baseline is None:
        return policy, Past()
    from gpu_topo.agent.baseline import past_of

    return past_of(baseline, policy)
