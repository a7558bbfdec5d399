"""gpu-topo completion: shell completion, generated from the commands' own parsers."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace

from gpu_topo.agent.output import write

EPILOG = """examples:
  gpu-topo completion bash > /etc/bash_completion.d/gpu-topo
  gpu-topo completion zsh > "${fpath[1]}/_gpu-topo"
  gpu-topo completion fish > ~/.config/fish/completions/gpu-topo.fish"""


def arguments(parser: ArgumentParser) -> None:
    """What completion takes."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: Namespace) -> int:
    """Print the completion script of one shell."""
    write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]())
    return 0


def _words() -> dict[str, tuple[str, list[str], dict[str, list[str]]]]:
    """Command -> its help, its flags and positional choices, and the values that a flag takes."""
    from gpu_topo.agent.cli import COMMANDS, parser_of
    from gpu_topo.classifier import RULES

    codes = [rule.code for rule in RULES]
    found = {}
    for command in COMMANDS:
        flags: list[str] = []
        values: dict[str, list[str]] = {}
        for action in parser_of(command)._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += list(action.choices)
            choices = [str(choice) for choice in action.choices or ()]
            if action.metavar == "CODE":
                choices = codes
            for option in action.option_strings:
                if option.startswith("--"):
                    flags.append(option)
                    if choices:
                        values[option] = choices
            if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
                flags += choices
        found[command.name] = (command.help, flags, values)
    return found


def _bash() -> str:
    words = _words()
    cases = []
    for name, (_, flags, values) in words.items():
        for option, choices in values.items():
            cases.append(f'    {name}:{option}) COMPREPLY=($(compgen -W "{" ".join(choices)}" -- "$cur")); return ;;')
        cases.append(f'    {name}:*) COMPREPLY=($(compgen -W "{" ".join(flags)}" -f -- "$cur")); return ;;')
    body = "\n".join(cases)
    return f"""# bash completion for gpu-topo
_gpu_topo() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(words)} --help --version" -- "$cur"))
    return
  fi
  case "${{COMP_WORDS[1]}}:$prev" in
{body}
  esac
}}
complete -o default -F _gpu_topo gpu-topo
"""


def _zsh() -> str:
    words = _words()
    commands = "\n".join(f"    '{name}:{help_}'" for name, (help_, _, _) in words.items())
    cases = "\n".join(f"    {name}) compadd -- {' '.join(flags)}; _files ;;" for name, (_, flags, _) in words.items())
    return f"""#compdef gpu-topo
_gpu_topo() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case "$words[2]" in
{cases}
  esac
}}
_gpu_topo "$@"
"""


def _fish() -> str:
    lines = ["# fish completion for gpu-topo"]
    names = " ".join(_words())
    for name, (help_, flags, values) in _words().items():
        lines.append(f"complete -c gpu-topo -n 'not __fish_seen_subcommand_from {names}' -a {name} -d '{help_}'")
        seen = f"__fish_seen_subcommand_from {name}"
        for flag in flags:
            if flag.startswith("--"):
                takes = f" -x -a '{' '.join(values[flag])}'" if flag in values else ""
                lines.append(f"complete -c gpu-topo -n '{seen}' -l {flag[2:]}{takes}")
            else:
                lines.append(f"complete -c gpu-topo -n '{seen}' -a {flag}")
    return "\n".join(lines) + "\n"
