"""What the operator decided, from flags and the configuration file; what the rules need of it.

The configuration and the baseline are loaded only where there are any.
"""

from __future__ import annotations

import os
import time

from gpu_topo.agent.errors import UserError, meant
from gpu_topo.agent.options import CONFIG_FILE, add_config_file, path
from gpu_topo.classifier import RULES
from gpu_topo.model.finding import Acceptance
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from gpu_topo.agent.config import Config
    from gpu_topo.agent.config_values import Accepted
    from gpu_topo.classifier.rule import Rule


class Decided(NamedTuple):
    """What a one-off audit judges by, and what its reader has to know of that."""

    policy: Policy
    past: Past
    notes: tuple[str, ...] = ()


def arguments(parser: ArgumentParser, expect: str) -> None:
    """The flags that decided reads. expect: what a machine with fewer parts than expected gives."""
    add = parser.add_argument
    add("--only", action="append", metavar="CODE", help="judge by this rule only (may be repeated)")
    add("--skip", action="append", metavar="CODE", help="leave this rule out (may be repeated)")
    add("--expect", action="append", metavar="gpus=8,nics=8", help=expect)
    add_config_file(parser)
    add("--baseline", type=path, metavar="FILE", help="judge against this saved baseline too")


def decided(args: Namespace) -> Decided:
    """The policy of a one-off audit, and the past that a baseline gives it. Raises UserError.

    A baseline that --baseline names has to be there. One that is only configured may not be saved yet, as for the
    daemon: then nothing is compared with it, and a note says so.
    """
    policy, configured = _read(args)
    named = getattr(args, "baseline", None)
    file = named or configured
    if not file:
        return Decided(policy, Past())
    from gpu_topo.agent.baseline import BaselineError, load_saved

    try:
        saved = load_saved(file, must=named is not None)
    except BaselineError as error:
        raise UserError(str(error)) from None
    notes = () if saved.document else (f"No baseline to compare with: {file} is not saved yet.",)
    return Decided(accept_also(policy, saved.accepted), Past(baseline=saved.document), notes)


def policy_of(args: Namespace) -> Policy:
    """The policy of a command that judges nothing by the past. Raises UserError."""
    return _read(args)[0]


def _read(args: Namespace) -> tuple[Policy, str]:
    """The policy, and the configured baseline ("": none)."""
    flags = {
        name: given if isinstance(given, list) else [given]
        for name in ("only", "skip", "expect")
        if (given := getattr(args, name, None)) is not None
    }
    file = getattr(args, "config.file", None)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    # A configuration describes the machine that it lies on: recordings and trees of others are judged without it.
    local = not any(getattr(args, name, None) for name in ("files", "root", "example"))
    if file is None and not flags and not (local and os.path.exists(CONFIG_FILE)):
        return Policy(now=today), ""
    from gpu_topo.agent import config

    codes = [rule.code for rule in RULES]
    loaded = config.load(file if file is not None or local else os.devnull, flags, codes)
    return rules_policy(loaded, today), loaded.baseline_file if local else ""


def rule_named(code: str) -> Rule:
    """The rule of that code; a UserError with the nearest one where there is none."""
    for rule in RULES:
        if rule.code == code:
            return rule
    raise UserError(f"there is no rule '{code}'", meant(code, [rule.code for rule in RULES], "see 'gpu-topo rules'"))


def baseline_path(config: Config) -> str:
    """Where the baseline is, "" where none is kept."""
    if config.baseline_file or not config.state_directory:
        return config.baseline_file
    return os.path.join(config.state_directory, "baseline.json")


def accept_also(policy: Policy, rows: Sequence[Accepted]) -> Policy:
    """The policy with what a baseline accepts; what the configuration accepts itself counts more."""
    return policy._replace(accepted={**_acceptances(rows, policy.now), **policy.accepted})


def _acceptances(rows: Sequence[Accepted], today: str) -> dict[tuple[str, str], Acceptance]:
    return {
        (row.code, row.subject): Acceptance(row.by, row.reason, row.until)
        for row in rows
        if row.until is None or today <= row.until
    }


def rules_policy(config: Config, today: str, baseline: Sequence[Accepted] = ()) -> Policy:
    """What the rules need to know. today: YYYY-MM-DD; acceptances (the baseline's too) end after their last day."""
    return Policy(
        expect=config.expect,
        roles=config.roles,
        exclude=frozenset(config.exclude),
        accepted=_acceptances((*baseline, *config.accept), today),
        only=frozenset(config.only),
        skip=frozenset(config.skip),
        correctable_per_hour=config.thresholds_correctable_errors_per_hour,
        replays_per_hour=config.thresholds_replays_per_hour,
        port_errors_per_hour=config.thresholds_port_errors_per_hour,
        flaps_per_hour=config.thresholds_flaps_per_hour,
        nvlink_errors_per_hour=config.thresholds_nvlink_errors_per_hour,
        boot_grace_seconds=config.scan_boot_grace,
        now=today,
    )
