"""gpu-topo completion: shell completion, generated from the commands' own parsers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent.output import write
from gpu_topo.model.record import NamedTuple

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


class _Usage(NamedTuple):
    """What may follow a command."""

    help: str
    flags: list[str]
    words: list[str]  # what its arguments may be; empty where they are files
    values: dict[str, list[str]]  # flag -> what it takes; empty where that is a file or a number


def _usages() -> dict[str, _Usage]:
    """Every command with what may follow it."""
    from gpu_topo.agent.cli import COMMANDS, parser_of
    from gpu_topo.classifier import RULES

    codes = [rule.code for rule in RULES]
    found = {}
    for command in COMMANDS:
        usage = _Usage(command.help, [], [], {})
        for action in parser_of(command)._actions:
            choices = codes if action.metavar == "CODE" else [str(choice) for choice in action.choices or ()]
            if not action.option_strings:
                usage.words.extend(choices)
            for option in action.option_strings:
                if option.startswith("--"):
                    usage.flags.append(option)
                    if action.nargs != 0:
                        usage.values[option] = choices
        found[command.name] = usage
    return found


def _bash() -> str:
    usages = _usages()
    cases = []
    for name, usage in usages.items():
        for option, choices in usage.values.items():
            cases.append(f'    {name}:{option}) words="{" ".join(choices)}" ;;')
        cases.append(f'    {name}:*) words="{" ".join(usage.words)}"; flags="{" ".join(usage.flags)}" ;;')
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
    COMPREPLY=($(compgen -W "{" ".join(usages)} --help --version" -- "$cur"))
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
    commands = "\n".join(f"    '{name}:{usage.help}'" for name, usage in usages.items())
    cases = "\n".join(
        f"    {name}) compadd -- {' '.join([*usage.words, *usage.flags])}; _files ;;" for name, usage in usages.items()
    )
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
    usages = _usages()
    names = " ".join(usages)
    for name, usage in usages.items():
        lines.append(f"complete -c gpu-topo -n 'not __fish_seen_subcommand_from {names}' -a {name} -d '{usage.help}'")
        seen = f"__fish_seen_subcommand_from {name}"
        for flag in usage.flags:
            takes = "" if flag not in usage.values else " -r"
            if usage.values.get(flag):
                takes = f" -x -a '{' '.join(usage.values[flag])}'"
            lines.append(f"complete -c gpu-topo -n '{seen}' -l {flag[2:]}{takes}")
        lines += [f"complete -c gpu-topo -n '{seen}' -a {word}" for word in usage.words]
    return "\n".join(lines) + "\n"
