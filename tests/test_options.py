"""Plain usage is read as argparse reads it, and everything else is argparse's."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.agent.cli import COMMANDS, Command, parser_of
from gpu_topo.agent.errors import UserError
from gpu_topo.agent.options import NotPlain, Quick

INSPECT = next(command for command in COMMANDS if command.name == "inspect")

WORDS = st.sampled_from(
    """
    --json --format json text html --format=markdown --format=nonsense --output --output=x --fail-on never --only a-code
    --skip --skip=b-code --all --all=1 --paths all --color always --require-assessed --config.file --baseline --timeout
    5 0 --timeout=2.5 --timeout=-1 --samples 3 --samples=x --root /tmp --example --jso --help -h -- - -x -1 file.txt
    --expect gpus=8,nics=8 --root= --nonsense two_words -two_words _
    """.split()  # noqa: SIM905
).map(lambda word: word.replace("_", " ").strip())


def quick(command: Command, words: list[str]) -> dict[str, object]:
    reader = Quick()
    import_module(command.module).arguments(reader)
    return vars(reader.parse(words))


@given(st.lists(WORDS, max_size=6))
def test_what_is_read_plainly_is_what_argparse_reads(words: list[str]) -> None:
    """Wherever plain reading succeeds, argparse agrees to the last value."""
    try:
        plain = quick(INSPECT, words)
    except NotPlain:
        return
    assert plain == vars(parser_of(INSPECT).parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--json"],
        ["--json", "--root", "/tmp"],
        ["--format=markdown", "--fail-on", "critical", "--only", "x", "--only=y"],
        ["a.txt", "-", "--timeout", "3", "--samples=2"],
        ["--expect", "gpus=8", "--all", "a.txt"],
    ],
)
def test_usual_usage_is_plain(words: list[str]) -> None:
    """What people and scripts write needs no argparse."""
    assert quick(INSPECT, words) == vars(parser_of(INSPECT).parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--nonsense"],
        ["--format", "nonsense"],
        ["--timeout", "soon"],
        ["--output"],
        ["--output", "--json"],
        ["--json=yes"],
        ["a.txt", "--json", "b.txt"],
        ["--", "a.txt"],
    ],
)
def test_the_rest_is_left_to_argparse(words: list[str]) -> None:
    """Help, mistakes and rarities are not guessed at."""
    with pytest.raises(NotPlain):
        quick(INSPECT, words)


def test_a_mistake_is_one_line() -> None:
    """Wrong usage ends in argparse's words, as one error of ours."""
    with pytest.raises(UserError, match="invalid choice"):
        parser_of(INSPECT).parse_args(["--format", "nonsense"])
