"""gpu-topo completion: shell completion, generated from the commands' own parsers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent.output import write
from gpu_topo.model.record import NamedTuple

EPILOG = """examples:
  gpu-topo completion bash > /etc/bash_completion.d/gpu-topo
  gpu-topo completion zsh > "${fpath[1]}/_gpu-topo"
  gpu-topo completion fish > ~/.config/fish/completions/gpu-topo.fish"""

_OWN = ("--help", "--version")  # what stands in the place of a command


def arguments(parser: ArgumentParser) -> None:
    """What completion takes."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: Namespace) -> int:
    """Print the completion script of one shell."""
    write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]())
    return 0


class _Flag(NamedTuple):
    """One flag of a command, with its two dashes."""

    name: str
    help: str
    takes: str  # what its value is called, "" where it has none
    values: list[str]  # what its value may be; empty where that is a file or a number


class _Usage(NamedTuple):
    """What may follow a command."""

    help: str
    flags: list[_Flag]
    words: list[str]  # what its arguments may be; empty where they are files, or where it has none
    files: bool


def _usages() -> dict[str, _Usage]:
    """Every command with what may follow it."""
    from gpu_topo.agent.cli import COMMANDS, parser_of
    from gpu_topo.classifier import RULES

    codes = [rule.code for rule in RULES]
    found = {}
    for command in COMMANDS:
        flags, words, files = [], [], False
        for action in parser_of(command)._actions:
            choices = codes if action.metavar == "CODE" else [str(choice) for choice in action.choices or ()]
            if not action.option_strings:
                words += choices
                files = files or not choices
            takes = "" if action.nargs == 0 else str(action.metavar or action.dest)
            for name in action.option_strings:
                if name.startswith("--"):
                    flags.append(_Flag(name, action.help or "", takes, choices))
        found[command.name] = _Usage(command.help, flags, words, files)
    return found


def _bash() -> str:
    usages = _usages()
    cases = []
    for name, usage in usages.items():
        for flag in usage.flags:
            if flag.takes:
                cases.append(f'    {name}:{flag.name}) words="{" ".join(flag.values)}" ;;')
        flags = " ".join(flag.name for flag in usage.flags)
        cases.append(f'    {name}:*) words="{" ".join(usage.words)}"; flags="{flags}" ;;')
    body = "\n".join(cases)
    return f"""# bash completion for gpu-topo; where it offers nothing, bash completes file names
_gpu_topo() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" words="" flags=""
  # --format=json comes as three words
  if [ "$cur" = "=" ]; then
    cur=""
  elif [ "$prev" = "=" ]; then
    prev="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join((*usages, *_OWN))}" -- "$cur"))
    return
  fi
  case "${{COMP_WORDS[1]}}:$prev" in
{body}
  esac
  case "$cur" in
    -*) words="$flags" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _gpu_topo gpu-topo
"""


def _zsh() -> str:
    usages = _usages()
    commands = "\n".join(f"    {_quoted(f'{name}:{usage.help}')}" for name, usage in usages.items())
    cases = []
    for name, usage in usages.items():
        cases.append(f"    {name})\n      specs=(")
        cases += [f"        {_quoted(_zsh_flag(flag))}" for flag in usage.flags]
        if usage.words or usage.files:
            cases.append(f"        {_quoted(f'*: :{_zsh_values(usage.words)}')}")
        cases.append("      ) ;;")
    body = "\n".join(cases)
    return f"""#compdef gpu-topo
_gpu-topo() {{
  local -a commands specs
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    compadd -- {" ".join(_OWN)}
    return
  fi
  case "$words[2]" in
{body}
  esac
  shift words
  (( CURRENT -= 1 ))
  _arguments -s : $specs
}}
if [ "$funcstack[1]" = _gpu-topo ]; then
  _gpu-topo "$@"
else
  compdef _gpu-topo gpu-topo
fi
"""


def _zsh_flag(flag: _Flag) -> str:
    """A flag as _arguments describes it. Any may be repeated: most of gpu-topo's may, and none is hidden for it."""
    told = flag.help
    for mark in "\\[]:":
        told = told.replace(mark, f"\\{mark}")
    if not flag.takes:
        return f"*{flag.name}[{told}]"
    return f"*{flag.name}=[{told}]:{flag.takes.replace(':', ' ')}:{_zsh_values(flag.values)}"


def _zsh_values(values: list[str]) -> str:
    return f"({' '.join(values)})" if values else "_files"


def _fish() -> str:
    lines = ["# fish completion for gpu-topo"]
    begins = "complete -c gpu-topo -n __fish_use_subcommand"
    usages = _usages()
    for name, usage in usages.items():
        lines.append(f"{begins} -f -a {name} -d {_quoted_for_fish(usage.help)}")
        seen = f"complete -c gpu-topo -n '__fish_seen_subcommand_from {name}'"
        for flag in usage.flags:
            takes = f" -x -a '{' '.join(flag.values)}'" if flag.values else " -r" if flag.takes else ""
            lines.append(f"{seen} -l {flag.name[2:]}{takes} -d {_quoted_for_fish(flag.help)}")
        if usage.words:
            lines.append(f"{seen} -f -a '{' '.join(usage.words)}'")
        elif not usage.files:
            lines.append(f"{seen} -f")
    lines += [f"{begins} -l {name[2:]}" for name in _OWN]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """One word of a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_for_fish(text: str) -> str:
    """One word of fish, whose quotation marks are escaped inside of them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
