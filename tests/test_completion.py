"""Shell completion: what bash offers, asked of bash itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gpu_topo.agent import cli

_BASH = shutil.which("bash")
_ASK = """
source /dev/stdin
COMP_WORDS=("$@")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_gpu_topo
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    if _BASH is None:
        pytest.skip("no bash on this machine")
    command = [_BASH, "--norc", "-c", _ASK, "bash", "gpu-topo", *words]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    """The script that `gpu-topo completion bash` prints."""
    assert cli.main(["completion", "bash"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["insp"], ["inspect"]),
        (["inspect", "--fo"], ["--format"]),
        (["inspect", "--format", "j"], ["json"]),
        (["inspect", "--format", "=", "j"], ["json"]),  # --format=j, as bash splits it
        (["inspect", "--only", "pcie-w"], ["pcie-width-degraded"]),
        (["rules", "nvlink-p"], ["nvlink-partial"]),
        (["baseline", ""], ["save", "diff", "accept"]),
        (["matrix", "--format", ""], ["text", "json", "csv", "markdown"]),
    ],
)
def test_bash(script: str, words: list[str], expected: list[str]) -> None:
    """Commands, flags, what flags take and rule codes."""
    assert offered(script, *words) == expected


@pytest.mark.parametrize("words", [["inspect", ""], ["inspect", "--output", ""], ["baseline", "--file", ""]])
def test_bash_leaves_files_alone(script: str, words: list[str]) -> None:
    """Where a file belongs nothing is offered, so that bash completes names, with blanks and folders."""
    assert offered(script, *words) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts for other shells name each command with its help."""
    assert cli.main(["completion", shell]) == 0
    said = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.name in said
        assert command.help in said
