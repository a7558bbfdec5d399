"""What several tests share: where the recordings are, and how to skip where they are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


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
