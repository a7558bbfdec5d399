"""`gpu-topo baseline`: save, diff and accept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_topo.agent.baseline import load_saved
from gpu_topo.agent.cli import main
from gpu_topo.source import Live
from tests.daemons import tree

__all__ = ["tree"]  # fixtures


def test_baseline_save_diff_accept(tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Save, see no difference, lose a GPU, see it, accept a finding; an audit against the baseline knows both."""
    root, gpu = tree
    path = str(tmp_path / "base.json")
    common = ["--root", str(root), "--file", path]
    assert main(["baseline", "diff", *common]) == 3
    assert "`gpu-topo baseline save` makes one" in capsys.readouterr().err
    assert main(["baseline", "save", *common]) == 0
    assert "saved (2 GPUs)" in capsys.readouterr().out
    assert main(["baseline", "diff", *common]) == 0
    os.unlink(root / "sys" / "bus" / "pci" / "devices" / gpu)
    capsys.readouterr()
    assert main(["baseline", "diff", *common]) == 1
    assert f"missing   {gpu}" in capsys.readouterr().out
    assert main(["baseline", "diff", "--json", *common]) == 1
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "missing"
    assert main(["baseline", "accept", "inventory-short", "node", "--file", path]) == 3
    assert "give --reason" in capsys.readouterr().err
    assert main(["baseline", "accept", "inventry-short", "node", "--reason", "x", "--file", path]) == 3
    assert "did you mean 'inventory-short'?" in capsys.readouterr().err
    late = ["inventory-short", "node", "--reason", "x", "--until", "tomorrow"]
    assert main(["baseline", "accept", *late, "--baseline", path]) == 3
    assert "2030-12-31" in capsys.readouterr().err
    assert main(["baseline", "accept", "inventory-short", "node", "--reason", "one is away", "--file", path]) == 0
    capsys.readouterr()
    main(["inspect", "--json", "--root", str(root), "--baseline", path])
    found = {f["code"]: f["accepted"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["inventory-short"]["reason"] == "one is away"
    assert "baseline-drift" in found
    assert main(["baseline", "save", *common]) == 0
    assert [row.code for row in load_saved(path).accepted] == ["inventory-short"]


def test_accepting_what_the_machine_has_not(
    tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A subject that nothing is called by is accepted, with one line that says so and names the nearest; a device, a
    pair, a device that the baseline knows and everything at once are accepted without a word."""
    root, gpu = tree
    path = str(tmp_path / "base.json")
    common = ["--root", str(root), "--file", path]
    assert main(["baseline", "save", *common]) == 0
    other = next(device for device in os.listdir(root / "sys/bus/pci/devices") if device != gpu)
    os.unlink(root / "sys/bus/pci/devices" / gpu)
    accept = ["baseline", "accept", "pcie-slot-limited"]
    for subject in (other, gpu, f"{gpu}~{other}", "node", "*"):
        capsys.readouterr()
        assert main([*accept, subject, "--reason", "x", *common]) == 0
        assert capsys.readouterr().err == ""
    for subject in (other[5:], "0000:99:00.0", "mlx5_0/1", f"{other}~0000:99:00.0"):
        assert main([*accept, subject, "--reason", "x", *common]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert f"this machine has no {subject}" in line
        assert subject != other[5:] or f"did you mean '{other}'?" in line
    assert {row.subject for row in load_saved(path).accepted} >= {other, "0000:99:00.0"}
    assert main([*accept, other, "--reason", "x", "--root", str(tmp_path / "none"), "--file", path]) == 0


def test_a_configured_baseline_that_is_not_saved_yet(
    tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration names the baseline before there is one: save makes it, an audit goes without it and says so,
    diff says what makes it. One that the command line names has to be there."""
    monkeypatch.setattr("gpu_topo.agent.intake.Live", lambda root: Live(str(tree[0])))
    path, file = tmp_path / "base.json", tmp_path / "gpu-topo.toml"
    file.write_text(f'baseline.file = "{path}"\n')
    configured = ["--config.file", str(file)]
    assert main(["inspect", "--json", *configured]) in (0, 1)
    said = capsys.readouterr()
    note = f"No baseline to compare with: {path} is not saved yet."
    assert note in json.loads(said.out)["notes"]
    assert said.err == ""
    assert main(["textfile", "--output", str(tmp_path / "x.prom"), *configured]) == 0
    assert main(["baseline", "diff", *configured]) == 3
    assert "`gpu-topo baseline save` makes one" in capsys.readouterr().err
    assert main(["baseline", "accept", "inventory-short", "node", "--reason", "x", *configured]) == 0
    path.unlink()
    assert main(["inspect", "--baseline", str(path), *configured]) == 3
    assert "no such file" in capsys.readouterr().err
    assert main(["baseline", "save", *configured]) == 0
    assert f"{path}: saved (2 GPUs)" in capsys.readouterr().out
    assert main(["baseline", "diff", *configured]) == 0
    capsys.readouterr()
    main(["inspect", "--json", *configured])
    assert note not in json.loads(capsys.readouterr().out)["notes"]


def test_a_configured_baseline_that_is_broken(
    tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there and cannot be read is told in one line, whoever named it."""
    monkeypatch.setattr("gpu_topo.agent.intake.Live", lambda root: Live(str(tree[0])))
    path, file = tmp_path / "base.json", tmp_path / "gpu-topo.toml"
    file.write_text(f'baseline.file = "{path}"\n')
    path.write_text("{")
    for words in (["inspect"], ["baseline", "diff"], ["baseline", "save"]):
        assert main([*words, "--config.file", str(file)]) == 3
        assert capsys.readouterr().err.startswith(f"gpu-topo: {path}: no baseline;")


def test_one_device_is_no_plural(tree: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was saved is counted as people write it."""
    root, gpu = tree
    os.unlink(root / "sys/bus/pci/devices" / gpu)
    assert main(["baseline", "save", "--root", str(root), "--file", str(tmp_path / "base.json")]) == 0
    assert "saved (1 GPU)" in capsys.readouterr().out
