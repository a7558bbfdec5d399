"""gpu-topo as a user has it: built as a wheel and installed into an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PARTS = ("gpu_topo", "bin", "agent", "collectors", "exporters", "pyproject.toml", "README.md", "LICENSE")


def installed(project: Path, home: Path) -> Path:
    """Build `project` and install it into the environment `home`; returns the environment's folder of programs.

    The environment is kept between runs, so that the dependencies are fetched once; gpu-topo itself is always new.
    """
    programs = home / "bin"
    if not (programs / "python").exists():
        _run(sys.executable, "-m", "venv", "--without-pip", "--clear", str(home))
    pip = (sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check", "-q")
    with tempfile.TemporaryDirectory() as folder:
        source = _copy(project, Path(folder) / "source")
        _run(sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--wheel-dir", folder, str(source))
        wheel = next(Path(folder).glob("*.whl"))
        _run(*pip, "install", str(wheel))
        _run(*pip, "install", "--no-deps", "--force-reinstall", str(wheel))
    return programs


def _copy(project: Path, target: Path) -> Path:
    """The sources alone: a build leaves files behind, and what an earlier one left must not get into this wheel."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in _PARTS:
        path = project / part
        if path.is_dir():
            shutil.copytree(path, target / part, symlinks=True, ignore=ignore)
        elif path.exists():
            shutil.copy2(path, target / part)
    return target


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr.strip()}")
