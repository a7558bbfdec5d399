"""The command line: finds the command, loads only what it needs, and turns what a user got wrong into one line."""

from __future__ import annotations

import os
import sys

from gpu_topo import __version__
from gpu_topo.agent.errors import OK, UNUSABLE, UserError, meant, say, tell
from gpu_topo.agent.options import NotPlain, Quick
from gpu_topo.agent.output import columns, write
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any


class Command(NamedTuple):
    """A command, one line about it, and its module, imported when it is called."""

    name: str
    help: str

    @property
    def module(self) -> str:
        return f"gpu_topo.agent.commands.{self.name}"


COMMANDS = (
    Command("inspect", "audit this machine, a copied tree or recordings once"),
    Command("matrix", "GPUs, NICs and storage: path kind and GB/s between each two"),
    Command("capture", "record what an audit reads, for replay elsewhere"),
    Command("baseline", "remember this machine as right, show what changed, accept a finding"),
    Command("rules", "list the rules, or explain one"),
    Command("serve", "the daemon: Prometheus metrics, health, JSON, the picture page"),
    Command("textfile", "write the metrics once, for node_exporter's textfile collector"),
    Command("config", "check the configuration, or show it with its defaults"),
    Command("schema", "print the JSON Schema of the JSON report"),
    Command("completion", "print shell completion for bash, zsh or fish"),
)

EXAMPLES = """examples:
  gpu-topo inspect                              audit this machine
  gpu-topo inspect --json --fail-on critical    for scripts: 0 ok, 1 warning, 2 critical, 3 could not inspect
  sudo gpu-topo inspect                         also reads access control (ACS) and payload sizes
  gpu-topo inspect nvidia-bug-report.log.gz     audit what somebody sent you
  lspci -vvv | gpu-topo inspect -               or pasted
  gpu-topo matrix                               who reaches whom, and how fast
  gpu-topo rules pcie-width-degraded            what a finding means

gpu-topo never writes to the machine that it inspects and runs no other program."""


def parser_of(command: Command) -> argparse.ArgumentParser:
    """The argument parser of one command."""
    import argparse

    module = _module(command)
    parser = _Parser(
        prog=f"gpu-topo {command.name}",
        description=command.help[0].upper() + command.help[1:] + ".",
        epilog=getattr(module, "EPILOG", None),
        # With the width given, argparse does without shutil and the compression modules behind it.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=columns() - 2),
        allow_abbrev=False,
    )
    module.arguments(parser)
    return parser


def _parser_class() -> type[argparse.ArgumentParser]:
    import argparse

    class Parser(argparse.ArgumentParser):
        """Wrong usage is one line and exit status 3, as everything that keeps an audit from happening."""

        def error(self, message: str) -> None:  # type: ignore[override]
            raise UserError(f"{self.prog}: {message}", f"try '{self.prog} --help'")

        def print_help(self, file: object = None) -> None:
            write(self.format_help())  # argparse's own drops what it cannot write

    return Parser


def _Parser(**options: object) -> argparse.ArgumentParser:
    return _parser_class()(**options)  # type: ignore[arg-type]


def help_text() -> str:
    """What `gpu-topo --help` prints."""
    width = max(len(command.name) for command in COMMANDS)
    rows = "\n".join(f"  {command.name:<{width}}  {command.help}" for command in COMMANDS)
    return (
        "usage: gpu-topo COMMAND [OPTIONS]\n\n"
        "How this GPU node is really wired and running, what is degraded, what it costs and what to do.\n\n"
        f"commands:\n{rows}\n\n"
        "options:\n  -h, --help     this text; 'gpu-topo COMMAND --help' for a command's own\n"
        "  -V, --version  print the version\n\n"
        f"{EXAMPLES}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UserError as error:
        for line in error.lines:
            say(line)
        return UNUSABLE
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        tell(help_text())
        return UNUSABLE
    first = arguments[0]
    if first in ("-V", "--version"):
        write(f"gpu-topo {__version__}")
        return 0
    if first in ("-h", "--help", "help"):
        write(help_text())
        return 0
    command = next((c for c in COMMANDS if c.name == first), None)
    if command is None:
        hint = meant(first, [c.name for c in COMMANDS], "see 'gpu-topo --help'")
        raise UserError(f"there is no command '{first}'", hint)
    return run(command, arguments[1:])


def run(command: Command, words: Sequence[str]) -> int:
    """Run a command with its arguments; returns the exit status."""
    module = _module(command)
    return int(module.run(read(command, module, words)))


def _module(command: Command) -> Any:
    """The command's module, as importlib.import_module gives it: that one loads warnings."""
    __import__(command.module)
    return sys.modules[command.module]


def read(command: Command, module: Any, words: Sequence[str]) -> Any:
    """What the arguments of a command say: plain usage by itself, everything else by argparse."""
    quick = Quick()
    try:
        module.arguments(quick)
        return quick.parse(words)
    except (NotPlain, AttributeError):  # AttributeError: a declaration that only argparse has, such as sub-commands
        return parser_of(command).parse_args(words)


def _occupy() -> None:
    """Where the caller closed standard input, output or error (>&-): no file that is opened later may become it.

    What is read from such an input or written to such an output fails, as it does for any other program; messages
    without a reader are dropped.
    """
    for number, name, mode in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, mode)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            if number:
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def entry() -> None:
    """What the console script calls: runs, and leaves at once with the exit status.

    A read that hangs in the kernel holds its thread for ever; leaving without waiting is the only way out, and it
    spares every other run the interpreter's tear-down. Nothing waits to be flushed: `write` and `tell` see to that.
    """
    import gc

    _occupy()
    gc.disable()  # one short pass over immutable facts: there is no garbage worth looking for
    try:
        status = main()
    except SystemExit as leaving:  # argparse's --help
        status = leaving.code if isinstance(leaving.code, int) else OK if leaving.code is None else UNUSABLE
    except BaseException:
        import traceback

        tell(traceback.format_exc())
        status = UNUSABLE  # a bug says nothing of the machine: Python's own 1 would be a warning
    os._exit(status)


if __name__ == "__main__":
    entry()
