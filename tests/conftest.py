"""What several tests share: where the recordings are, and how to skip where they are missing."""

from __future__ import annotations

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
