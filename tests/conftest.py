"""What several tests share: where the recordings are, and how to skip where they are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes single examples slow; that is no fault of theirs.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

# What looks at the checkout itself has no place in the run against an installed wheel.
collect_ignore_glob = (
    []
    if (ROOT / "pyproject.toml").exists()
    else [
        "test_bench.py",
        "test_catalogue.py",
        "test_deploy_*.py",
        "test_example.py",
        "test_house.py",
        "test_lab_*.py",
        "test_systemd_*.py",
        "test_wheel.py",
    ]
)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of recordings of real machines; the test is skipped where it is not there."""
    folder = SHARED / "corpus"
    if not folder.is_dir():
        pytest.skip("the recordings (shared/corpus) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with recordings, tables and prototypes; the test is skipped where it is not there."""
    if not SHARED.is_dir():
        pytest.skip("the shared folder is not on this machine")
    return SHARED


def pytest_configure(config: pytest.Config) -> None:
    """The marks, here and not in pyproject.toml, so that they go where the tests go."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds; `make test` runs it all the same")
    config.addinivalue_line("markers", "lab: needs QEMU, systemd-nspawn, Prometheus or Chromium")


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag that rewrites every expected output, to be looked at in the diff."""
    parser.addoption("--update-expected", action="store_true", help="rewrite the expected outputs in tests/expected")


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name in tests/expected, or rewrites it with --update-expected."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests" / "expected" / name
        if request.config.getoption("--update-expected"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8"), f"{name} differs: look, then run pytest --update-expected"

    return compare
