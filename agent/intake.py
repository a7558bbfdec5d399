"""From what the command line names to a report: this machine, a copied tree, or recordings of one machine."""

from __future__ import annotations

import os
import time

from gpu_topo.agent.errors import UserError, say
from gpu_topo.agent.inspect import NEEDED, audit, conclude
from gpu_topo.agent.options import path
from gpu_topo.agent.scan import scan
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, TIMEOUT, Facts
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Past, Policy
from gpu_topo.source import Live, Source, is_readable_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

DEFAULT_TIMEOUT = 10.0
_NO_MACHINE = "holds no facts of a machine: looked for sys/bus/pci, sys/class/infiniband and what the GPU driver said"
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "example", "node.capture.gz")


def arguments(parser: ArgumentParser) -> None:
    """The flags of every command that looks at a machine."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="recordings of one machine; - for standard input")
    parser.add_argument("--root", type=path, metavar="DIR", help="audit a copied file tree (DIR/sys, DIR/proc)")
    parser.add_argument("--example", action="store_true", help="audit the bundled example, a made-up eight-GPU node")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="for the whole audit (default 10); a recording that takes longer is left out",
    )
    parser.add_argument(
        "--samples", type=count, default=1, metavar="N", help="look N times, a second apart, to tell idle from slow"
    )


def seconds(text: str) -> float:
    """A number of seconds, for argparse."""
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError(text)
    return value


seconds.__name__ = "number of seconds"


def count(text: str) -> int:
    """A number of samples, for argparse."""
    value = int(text)
    if not 1 <= value <= 600:
        raise ValueError(text)
    return value


count.__name__ = "number from 1 to 600"


def source_of(args: Namespace) -> Source:
    """This machine, or the tree that --root names."""
    if args.root is None:
        return Live("/")
    if not is_readable_tree(args.root):
        raise UserError(no_tree(args.root))
    return Live(args.root)


def no_tree(root: str) -> str:
    """What is wrong with a --root that is none."""
    for folder in (f"{root}/sys", f"{root}/proc"):
        try:
            os.stat(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            return f"{root}: cannot be read: {why}"
    return f"{root}: no file tree of a machine: looked for {root}/sys and {root}/proc"


def report_of(args: Namespace, policy: Policy = Policy(), past: Past = Past(), counters: bool = True) -> Report:
    """The report on whatever the command line names; counters as in Context."""
    example = getattr(args, "example", False)
    if (args.root is not None) + bool(args.files) + example > 1:
        raise UserError("--root, --example and FILE cannot be combined", "give one of them")
    files = [EXAMPLE] if example else args.files
    if files:
        return conclude(facts_of_files(files, args.timeout, policy), policy, past)
    report = audit(source_of(args), policy, past, args.timeout, args.samples, counters)
    if not report.node.devices and all(
        s.status in (ABSENT, DENIED) or (s.name == NEEDED and s.status == FAILED)
        for s in report.node.sources
        if s.name != "platform"
    ):
        where = f"{args.root}/sys/bus/pci" if args.root else "/sys/bus/pci"
        raise UserError(f"nothing to inspect: no source could be read, {where} among them")
    return report


def facts_of_files(names: Sequence[str], timeout: float, policy: Policy) -> list[Facts]:
    """The facts of every recording that is understood; the others are named on standard error, one line each."""
    from gpu_topo.agent.one_machine import Told, contradiction
    from gpu_topo.collectors import nvml
    from gpu_topo.collectors.outputs import SeveralMachines
    from gpu_topo.collectors.plain_text import clean
    from gpu_topo.collectors.recording import read_inputs, too_late

    ends = time.monotonic() + timeout
    try:
        entries = read_inputs(names, timeout)
    except SeveralMachines as error:
        raise UserError(str(error)) from None
    facts: list[Facts] = []
    told: list[Told] = []
    for entry in entries:
        problem = entry.problem
        if entry.source is not None:
            left = max(0.0, ends - time.monotonic())
            own = [*scan(entry.source, left, policy.exclude), *nvml.replayed(entry.source)]
            if not any(map(_says_something, own)):
                shown = "standard input" if entry.name == "-" else clean(entry.name)
                if any(fact.source.status == TIMEOUT for fact in own):
                    problem = too_late(shown, timeout)
                else:
                    problem = f"{problem}; it {_NO_MACHINE}" if problem else f"{shown}: {_NO_MACHINE}"
            facts.extend(own)
            told.extend(Told(fact, clean(entry.name)) for fact in own)
        if problem:
            say(problem)
        facts.extend(entry.facts)
        hosts = entry.hosts or ("",) * len(entry.facts)
        told.extend(Told(fact, fact.source.name, host) for fact, host in zip(entry.facts, hosts, strict=True))
    if not any(map(_says_something, facts)):
        raise UserError("")  # what is wrong with each input has been said
    if two := contradiction(told):
        raise UserError(two)
    return facts


def _says_something(fact: Facts) -> bool:
    # Bare addresses are no machine: a tree of empty folders, say.
    functions = any(
        f.class_code is not None or f.vendor_id is not None or f.link or f.name or f.bridge for f in fact.functions
    )
    return bool(
        functions or fact.gpus or fact.ports or fact.peers or fact.accelerator_links or fact.driver or fact.blocks
    )
