"""The house itself: linters, types, import contracts, shipped packages, and tables that must match the registries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_topo.classifier import RULES
from gpu_topo.collectors import COLLECTORS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gpu_topo", "agent", "collectors", "exporters", "tests", "tools", "bench", "deploy")
PRODUCT = ("gpu_topo/model", "gpu_topo/source", "gpu_topo/topology", "gpu_topo/assemble", "gpu_topo/classifier")

if not (ROOT / "pyproject.toml").exists():
    pytest.skip("these tests look at a checkout", allow_module_level=True)


def run(*command: str) -> str:
    """What a tool prints; an assertion error with it where it fails."""
    found = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{command[0]} is not installed: pip install -e '.[test]'"
    done = subprocess.run([found, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_ruff() -> None:
    """The linter finds nothing."""
    run("ruff", "check", ".")


def test_format() -> None:
    """Every file is formatted."""
    run("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_types() -> None:
    """mypy, strict, tests included, finds nothing."""
    run("mypy")


@pytest.mark.slow
def test_imports_flow_one_way() -> None:
    """The import contracts hold: source, collectors, assemble, classifier, exporters, agent."""
    run("lint-imports", "--no-cache")


@pytest.mark.slow
def test_oldest_python() -> None:
    """Nothing in the product needs a newer Python than 3.10 (tomllib is imported behind its version)."""
    folders = ("gpu_topo", "agent", "collectors", "exporters")
    files = [str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    run("vermin", "-t=3.10-", "--no-tips", "--violations", "--exclude", "tomllib", *files)


def packages() -> list[str]:
    """The packages that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^packages = \[(.*?)^\]", text, re.S | re.M)
    assert block
    return re.findall(r'"([^"]+)"', block[1])


def test_every_package_is_shipped() -> None:
    """Every folder with an __init__.py is in the list of packages that a wheel gets."""
    found = set()
    for folder, _, files in os.walk(ROOT / "gpu_topo", followlinks=True):
        if "__init__.py" in files and "__pycache__" not in folder:
            found.add(str(Path(folder).relative_to(ROOT)).replace(os.sep, "."))
    assert found == set(packages())


def test_links_lead_to_the_folders() -> None:
    """The three committed links make one package of the checkout."""
    for name in ("agent", "collectors", "exporters"):
        assert (ROOT / "gpu_topo" / name).is_symlink()
        assert (ROOT / "gpu_topo" / name).resolve() == ROOT / name


def test_readme_lists_every_rule() -> None:
    """The README's table of rules and the registry agree, in names and severities."""
    rows = re.findall(
        r"^\| <a id=\"[a-z0-9-]+\"></a>`([a-z0-9-]+)` \| ([a-z, ]+) \|", (ROOT / "README.md").read_text(), re.M
    )
    assert rows == [(rule.code, ", ".join(rule.severities)) for rule in RULES]


def test_readme_lists_every_collector() -> None:
    """The README's table of sources and the registry agree."""
    table = (ROOT / "README.md").read_text().split("## What it reads", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([a-z]+)` \|", table, re.M)
    assert rows == [collector.name for collector in COLLECTORS]


def test_every_rule_explains_itself() -> None:
    """Each rule has words for a person, and no two rules share a code."""
    assert len({rule.code for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.title
        assert rule.looks_at
        assert rule.quiet_when
        assert rule.remedy
        assert rule.sources, rule.code
        assert rule.severities


def test_readme_shows_real_output() -> None:
    """What the README shows is what the commands print today (tools/readme.py rewrites it)."""
    run(sys.executable, "-m", "tools.readme", "--check")


def test_changelog_has_this_version() -> None:
    """The changelog speaks of the version that the package has."""
    from gpu_topo import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_facts_do_not_read_the_clock_or_the_machine() -> None:
    """Model, topology and classifier import nothing that could touch a machine."""
    for folder in ("gpu_topo/model", "gpu_topo/topology", "gpu_topo/classifier"):
        for path in (ROOT / folder).glob("*.py"):
            names = re.findall(r"^(?:import|from) (os|socket|subprocess|time|pathlib)\b", path.read_text(), re.M)
            assert not names, f"{path.name} imports {names}"
