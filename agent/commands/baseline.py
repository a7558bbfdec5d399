"""gpu-topo baseline: remember this machine as right, show what changed, accept a finding as designed."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace

from gpu_topo.agent import intake
from gpu_topo.agent.errors import OK, WARNING, UserError, meant, say
from gpu_topo.agent.options import add_config_file, path
from gpu_topo.agent.output import write
from gpu_topo.agent.policy import baseline_path, policy_of, rule_named
from gpu_topo.model.history import Past
from gpu_topo.model.node import Node
from gpu_topo.topology.ports import port_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_topo.agent.baseline import Saved

EPILOG = """exit status of diff: 0 nothing changed, 1 something did, 3 there is no baseline

examples:
  sudo gpu-topo baseline save                            after commissioning, or after wanted changes
  gpu-topo baseline diff
  sudo gpu-topo baseline accept pcie-slot-limited 0000:17:00.0 --reason "x8 riser" --until 2030-12-31"""


def arguments(parser: ArgumentParser) -> None:
    """What baseline takes."""
    parser.add_argument("action", choices=("save", "diff", "accept"))
    parser.add_argument("code", nargs="?", help="accept: the finding's code")
    parser.add_argument("subject", nargs="?", help="accept: its subject; * for all")
    parser.add_argument(
        "--file", "--baseline", type=path, metavar="FILE", help="the baseline (default: as configured, or the daemon's)"
    )
    parser.add_argument("--reason", help="accept: why it is as designed")
    parser.add_argument("--by", default=os.environ.get("SUDO_USER") or os.environ.get("USER") or "", help="accept: who")
    parser.add_argument("--until", metavar="YYYY-MM-DD", help="accept: its last day")
    parser.add_argument("--json", action="store_true", help="diff: as JSON")
    parser.add_argument("--root", type=path, metavar="DIR", help="a copied file tree instead of this machine")
    add_config_file(parser)
    parser.add_argument(
        "--timeout", type=intake.seconds, default=intake.DEFAULT_TIMEOUT, metavar="SECONDS", help="of the audit"
    )


def run(args: Namespace) -> int:
    """Do it; what is wrong with the file or the words is one line."""
    from gpu_topo.agent.baseline import BaselineError

    try:
        return {"save": _save, "diff": _diff, "accept": _accept}[args.action](args)
    except BaselineError as error:
        raise UserError(str(error)) from None


def _path(args: Namespace) -> str:
    from gpu_topo.agent import config
    from gpu_topo.agent.baseline import DEFAULT_FILE

    if args.file:
        return str(args.file)
    return baseline_path(config.load(getattr(args, "config.file"))) or DEFAULT_FILE


def _save(args: Namespace) -> int:
    from gpu_topo.agent import baseline
    from gpu_topo.exporters.words import plural
    from gpu_topo.topology.baseline import COUNTED, counts

    _no_words(args)
    node = _node(args)
    path = _path(args)
    baseline.save(path, node, baseline.load_saved(path))
    numbers = counts(node)
    held = ", ".join(plural(numbers[name], kind) for kind, name in COUNTED.items() if numbers[name])
    write(f"{path}: saved ({held or 'no devices'})")
    return OK


def _diff(args: Namespace) -> int:
    from gpu_topo.agent import baseline

    _no_words(args)
    exclude = policy_of(_without_files(args)).exclude
    found = baseline.diff(baseline.load_saved(_path(args), must=True), _node(args), exclude)
    if args.json:
        import json

        write(json.dumps([dict(difference._asdict()) for difference in found], indent=1))
    else:
        write("\n".join(f"{one.kind:<9} {one.subject:<14} {one.summary}" for one in found) or "nothing changed")
    return WARNING if found else OK


def _accept(args: Namespace) -> int:
    from gpu_topo.agent import baseline
    from gpu_topo.agent.config_values import accepted

    if not args.code or not args.subject:
        raise UserError("what is accepted? give the finding's code and subject, as `gpu-topo inspect` shows them")
    rule_named(args.code)
    if not args.reason:
        raise UserError("why is it as designed? give --reason WHY")
    row = {"code": args.code, "subject": args.subject, "reason": args.reason, "by": args.by, "until": args.until}
    try:
        entry = accepted({name: value for name, value in row.items() if value is not None})
    except ValueError as error:
        raise UserError(f"baseline accept {error}") from None
    if entry.until and entry.until < time.strftime("%Y-%m-%d", time.gmtime()):
        raise UserError(f"--until {entry.until} is over")
    path = _path(args)
    saved = baseline.load_saved(path)
    baseline.accept(path, saved, entry)
    until = f" until {entry.until}" if entry.until else ""
    write(f"{path}: {entry.code} on {entry.subject} is accepted{until}: {entry.reason}")
    _say_unknown_subject(args, entry.subject, saved)
    return OK


def _say_unknown_subject(args: Namespace, subject: str, saved: Saved) -> None:
    """One line where nothing on this machine is called so: most likely a slip. It may be meant for another machine, or
    for what is to come, so that it is accepted all the same."""
    if subject in ("*", "node"):
        return
    try:
        args = _without_files(args)
        report = intake.report_of(args, policy_of(args), Past(baseline=saved.document))
    except UserError:
        return  # there is no machine here to compare with
    known = {*report.node.devices, *(port_name(port) for port in report.node.ports)}
    known |= {finding.subject for finding in report.findings} | {item.subject for item in report.unassessed}
    if all(part in known for part in subject.split("~")) or subject in known:
        return
    hint = meant(subject, known)
    say(f"accepted, but this machine has no {subject}, as `gpu-topo inspect` names things{hint and f'; {hint}'}")


def _no_words(args: Namespace) -> None:
    if args.code:
        raise UserError(f"baseline {args.action} takes no {args.code!r}")


def _without_files(args: Namespace) -> Namespace:
    return Namespace(**{**vars(args), "files": [], "samples": 1, "example": False})


def _node(args: Namespace) -> Node:
    args = _without_files(args)
    return intake.report_of(args, policy_of(args)).node
