"""What users install: the wheel and the source archive, from outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow

if not (ROOT / "pyproject.toml").exists():
    pytest.skip("these tests build from a checkout", allow_module_level=True)


def call(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without this checkout on any path."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, env=clean | environment
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    done = call(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment that has the wheel and the test tools, and no checkout."""
    folder = tmp_path_factory.mktemp("venv")
    assert call(sys.executable, "-m", "venv", folder, cwd=folder).returncode == 0
    wheel = next(built.glob("*.whl"))
    done = call(folder / "bin" / "pip", "install", "-q", f"{wheel}[test]", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "bin"


def test_wheel_holds_data_and_types(built: Path) -> None:
    """Catalogue, schema, templates, the example and py.typed travel with the wheel; tests and recordings do not."""
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    for wanted in ("gpu_topo/py.typed", "gpu_topo/catalogue/gpus.csv", "gpu_topo/exporters/report.schema.json"):
        assert wanted in names
    assert any(name.startswith("gpu_topo/agent/example/") for name in names)
    assert any(name.endswith(".html") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "agent/", "collectors/", "exporters/"))]


def test_only_one_top_level_name(built: Path) -> None:
    """Users get the package gpu_topo, the program gpu-topo and nothing else."""
    names = [n for n in zipfile.ZipFile(next(built.glob("*.whl"))).namelist() if ".dist-info/" not in n]
    programs = [name for name in names if ".data/" in name]
    assert [name.partition(".data/")[2] for name in programs] == ["scripts/gpu-topo"]
    assert {name.split("/")[0] for name in names if name not in programs} == {"gpu_topo"}


def test_the_program_is_no_wrapper(installed: Path) -> None:
    """The installed program runs with the environment's Python and imports nothing but gpu_topo, and sys, which is
    part of the interpreter."""
    lines = (installed / "gpu-topo").read_text().splitlines()
    assert lines[0].startswith(f"#!{installed}/python")
    imports = [line.strip() for line in lines if "import " in line]
    assert imports == ["import sys", "from gpu_topo.agent.cli import entry"]


def test_commands_run_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    """The installed command audits, explains and prints its schema."""
    assert call(installed / "gpu-topo", "--version", cwd=tmp_path).stdout.startswith("gpu-topo ")
    done = call(installed / "gpu-topo", "inspect", "--example", "--json", cwd=tmp_path)
    assert done.returncode in (1, 2), done.stderr
    assert json.loads(done.stdout)["schema"] == "gpu-topo/report/1"
    assert json.loads(call(installed / "gpu-topo", "schema", cwd=tmp_path).stdout)["$schema"]
    assert call(installed / "gpu-topo", "rules", "pcie-width-degraded", cwd=tmp_path).returncode == 0
    assert call(installed / "python", "-m", "gpu_topo.agent", "--version", cwd=tmp_path).returncode == 0


def test_suite_passes_on_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The fast tests pass against the installed wheel, with no checkout in reach."""
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    done = call(
        installed / "python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not lab",
        "-W", "error", "tests", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
