"""Every assertion on every recording of real machines, through the command line, in this process."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gpu_topo.agent import cli
from tests.conftest import SHARED

EXPECT = SHARED / "corpus" / "expect"
RECORDINGS = sorted(path.stem for path in EXPECT.glob("*.json"))

Judge = Callable[[dict[str, Any], Any, int], Iterable[tuple[bool, str]]]


@pytest.fixture(scope="module")
def judge(corpus: Path) -> Judge:
    """What holds a report against a case: the corpus' own words, not ours."""
    spec = importlib.util.spec_from_file_location("corpus_check", corpus / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Judge = module.judge
    return found


def arguments(case: dict[str, Any], folder: Path, tree: Path) -> list[str]:
    """What the case gives to `inspect`; its archive is unpacked first."""
    if "tree" not in case:
        return [*(str(folder / name) for name in case["inputs"]), *case.get("args", [])]
    with tarfile.open(folder / case["tree"]) as tar:
        tar.extractall(tree, filter="tar")
    return [argument.replace("{tree}", str(tree)) for argument in case.get("args", ["--root", "{tree}"])]


@pytest.mark.slow
@pytest.mark.parametrize("recording", RECORDINGS)
def test_recording(
    recording: str, corpus: Path, judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was derived from the raw recording by other tools is what the report says."""
    wrong = []
    for number, case in enumerate(json.loads((EXPECT / f"{recording}.json").read_text())):
        given = arguments(case, corpus / recording, tmp_path / str(number))
        capsys.readouterr()
        status = cli.main(["inspect", "--json", *given])
        said = capsys.readouterr()
        report = json.loads(said.out) if said.out else None
        wrong += [f"#{number} {what}" for right, what in judge(case, report, status) if not right]
        if report is None and case.get("exit") != [3]:
            wrong.append(f"#{number} no report: {said.err[-300:]}")
    assert "\n".join(wrong) == ""


@pytest.mark.slow
def test_every_recording_has_an_expectation(corpus: Path) -> None:
    """No recording is left out."""
    listed = {item["id"] for item in json.loads((corpus / "index.json").read_text())["items"]}
    assert listed <= set(RECORDINGS)
