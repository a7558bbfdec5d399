"""`gpu-topo baseline`: save, diff and accept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_topo.agent.baseline import load_saved
from gpu_topo.agent.cli import main
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
    assert "2 gpus" in capsys.readouterr().out
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
