"""Running commands in tests, and three small servers to run them on: healthy, warned and degraded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_topo.agent import cli
from tests import trees
from tests.trees import GEN4, GEN5, Machine


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


def audit(pasted: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON report of a pasted text; empty where nothing was understood."""
    file = folder / "paste.txt"
    file.write_text(pasted, "utf-8")
    if cli.main(["inspect", "--json", str(file)]) == 3:
        return {}
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.fixture
def gpu_topo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; standard output is no terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("GPU_TOPO_CONFIG", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        said = capsys.readouterr()
        return Ran(status, said.out, said.err)

    return run


def process(*arguments: object, stdin: bytes | None = None, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a command as a process of its own."""
    command = [sys.executable, "-m", "gpu_topo.agent", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    environment.pop("NO_COLOR", None)
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=environment, check=False)


def one_line(ran: Ran) -> bool:
    """Whether a command ended with exit status 3, one line on standard error and nothing on standard output."""
    assert ran.status == 3, ran
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("gpu-topo")
    return True


def server(width: int = 16, nic_speed: float = GEN5) -> Machine:
    """A server of which a GPU's lanes and a NIC's speed may be degraded."""
    machine = Machine()
    host = machine.host(0x10)
    machine.gpu(machine.root_port(host), trees.L40S, link=(GEN4, width), most=(GEN4, 16))
    machine.nic(machine.root_port(host), link=(nic_speed, 16))
    return machine


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """A tree with nothing to find."""
    return server().write(tmp_path / "healthy")


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    """A tree whose NIC runs at half its speed."""
    return server(nic_speed=GEN4).write(tmp_path / "warned")


@pytest.fixture
def degraded(tmp_path: Path) -> Path:
    """A tree whose GPU runs on half its lanes."""
    return server(width=8).write(tmp_path / "degraded")
