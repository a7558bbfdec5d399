"""The product as it is installed in the virtual machine: its wheel and all it needs, in a disk of their own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests import fakenvml
from tests.lab.image import HERE, INSTALLED, ext4

CHECKOUT = HERE.parents[1]
FAKE_NVML = "/opt/gpu-topo/fakenvml"
_PYTHON = "3.11"  # Debian 12's
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_SOURCES = ("gpu_topo", "bin", "agent", "collectors", "exporters")
_INSTALL = """set -e
mount --make-rprivate /
mount --bind "$1" "$2/opt/gpu-topo"
chroot "$2" /usr/bin/python3 -m venv /opt/gpu-topo/venv
chroot "$2" /opt/gpu-topo/venv/bin/pip install -q --no-cache-dir --no-index --find-links /opt/gpu-topo/wheels gpu-topo
"""


def wheel(folder: Path) -> Path:
    """The wheel, built from a copy of the checkout, so that nothing of an earlier build gets in."""
    copy = folder / "checkout"
    copy.mkdir(parents=True)
    for name in _SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    _pip("wheel", "--no-deps", "--wheel-dir", folder / "dist", copy)
    return next((folder / "dist").glob("*.whl"))


def dependencies(built: Path, cache: Path) -> Path:
    """A folder with the wheels that ours needs on the machine's Python, fetched once."""
    recipe = (CHECKOUT / "pyproject.toml").read_bytes() + repr((_PYTHON, _PLATFORMS)).encode()
    folder = cache / f"wheels-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if not folder.is_dir():
        fresh = folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
        python = ["--python-version", _PYTHON, "--implementation", "cp", "--only-binary=:all:"]
        _pip("download", "--dest", fresh, *python, *platforms, built)
        (fresh / built.name).unlink()
        fresh.rename(folder)
    return folder


def disk(tree: Path, cache: Path, folder: Path) -> Path:
    """The disk that the machine mounts at /opt/gpu-topo: a virtual environment with the wheel installed by the tree's
    own pip and without any index, the units as `make install` puts them, the fake NVML, and the lab's agent."""
    content = folder / INSTALLED
    (content / "lab").mkdir(parents=True)
    (content / "tmp").mkdir()
    shutil.copy(HERE / "guest_agent.py", content / "lab")
    for helper in HERE.glob("guest_*.py"):
        shutil.copy(helper, content / "lab")
    built = wheel(folder)
    shutil.copytree(dependencies(built, cache), content / "wheels")
    shutil.copy(built, content / "wheels")
    subprocess.run(
        ["make", "-s", "-C", CHECKOUT / "systemd", "install", f"DESTDIR={content}/root"], check=True, timeout=60
    )
    fakenvml.build(content / Path(FAKE_NVML).name)
    (tree / INSTALLED).mkdir(parents=True, exist_ok=True)
    command = ["unshare", "--mount", "sh", "-c", _INSTALL, "sh", str(content), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(content / "wheels")
    made = folder / "product.ext4"
    ext4(content, made, "gpu-topo")
    return made


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
