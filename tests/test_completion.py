"""Shell completion: what bash, zsh and fish offer, asked of the shells themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_topo.agent import cli

_BASH = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_gpu_topo
printf '%s\n' "${COMPREPLY[@]}"
"""
# zsh completes in its line editor alone, so that an interactive one is asked on a terminal of its own. It names what it
# would add between < and >. The script lies where zsh looks for the completion of gpu-topo, as its help says.
_ZSH = r"""
zmodload zsh/zpty
zpty asked zsh --no-rcs -i
zpty -w asked "PROMPT= RPROMPT= PS2=; stty -echo; fpath=(${(q)1} \$fpath); autoload -Uz compinit && compinit -D -u
compadd() {
  local -a hits
  if [[ \${@[1,(i)(-|--)]} != *-(O|A|D)\ * ]]; then
    builtin compadd -A hits \"\$@\"
    print -rl -- '<'\${^hits}'>'
  fi
  builtin compadd \"\$@\"
}
leave() { print '[end]'; exit }
zle -N leave
bindkey '^I' complete-word '^G' leave
print '[ready]'"
zpty -r asked seen '*\[ready\]*'
zpty -w -n asked "$2"$'\t\a'
zpty -r asked seen '*\[end\]*'
print -r -- $seen
"""
_FISH = """
source $argv[1]
complete -C $argv[2]
"""


def by_bash(script: Path, *words: str) -> list[str]:
    return asked("bash", "--norc", "-c", _BASH, "bash", str(script), "gpu-topo", *words).split()


def by_zsh(script: Path, *words: str) -> list[str]:
    shutil.copy(script, script.parent / "_gpu-topo")
    line = " ".join(("gpu-topo", *words))
    return re.findall(r"<([^<>\n\r]+)>", asked("zsh", "--no-rcs", "-c", _ZSH, "zsh", str(script.parent), line))


def by_fish(script: Path, *words: str) -> list[str]:
    line = " ".join(("gpu-topo", *words))
    return [row.split("\t")[0] for row in asked("fish", "--no-config", "-c", _FISH, str(script), line).splitlines()]


def asked(shell: str, *arguments: str) -> str:
    """What a shell says."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} on this machine")
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == ""
    return ran.stdout


Ask = Callable[..., list[str]]
SHELLS = {"bash": by_bash, "zsh": by_zsh, "fish": by_fish}


@pytest.fixture(params=SHELLS)
def offered(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Asks a shell what it offers for the last of some words after gpu-topo."""
    assert cli.main(["completion", request.param]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    return lambda *words: SHELLS[request.param](script, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["insp"], ["inspect"]),
        (["textf"], ["textfile"]),
        (["--vers"], ["--version"]),
        (["inspect", "--fo"], ["--format"]),
        (["inspect", "--format", "j"], ["json"]),
        (["inspect", "--only", "pcie-w"], ["pcie-width-degraded"]),
        (["inspect", "--only", "pcie-errors", "--on"], ["--only"]),
        (["serve", "--web.l"], ["--web.listen-address"]),
        (["rules", "nvlink-p"], ["nvlink-partial"]),
        (["baseline", ""], ["accept", "diff", "save"]),
        (["matrix", "--format", ""], ["csv", "json", "markdown", "text"]),
    ],
)
def test_offered(offered: Ask, words: list[str], expected: list[str]) -> None:
    """Commands, flags, what flags take and rule codes."""
    assert sorted(offered(*words)) == expected


def test_a_flag_and_its_value_in_one_word(offered: Ask, request: pytest.FixtureRequest) -> None:
    """--format=j, which bash splits at the sign, zsh completes behind it, and fish as one word."""
    shell = request.node.callspec.params["offered"]
    words = ("--format", "=", "j") if shell == "bash" else ("--format=j",)
    assert offered("inspect", *words) == (["--format=json"] if shell == "fish" else ["json"])


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--output"], ["baseline", "--file"]])
def test_files(offered: Ask, request: pytest.FixtureRequest, tmp_path: Path, words: list[str]) -> None:
    """Where a file belongs the shell completes names. To bash nothing is offered, so that it does."""
    (tmp_path / "recording.txt").touch()
    found = offered(*words, f"{tmp_path}/rec")
    if request.node.callspec.params["offered"] == "bash":
        assert found == []
    else:
        assert [name.rpartition("/")[2] for name in found] == ["recording.txt"]


def test_every_command_is_told_with_its_help(offered: Ask) -> None:
    """Also those whose help holds a quotation mark or a colon."""
    assert set(offered("")) >= {command.name for command in cli.COMMANDS}
