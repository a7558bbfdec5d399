"""The pages of the daemon: each in every form, rendered once a scan; and the same families in a text file."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.agent.site import quality, wants_openmetrics
from gpu_topo.exporters import html
from tests.daemons import Start, start, tree

__all__ = ["start", "tree"]  # fixtures


def test_pages(start: Start, tree: tuple[Path, str]) -> None:
    """Every page is there, in every form, with its type; what is none is told so."""
    agent = start(tree[0])
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    status, headers, text = agent.get("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"gputopo_build_info" in text
    status, headers, packed = agent.get("/metrics", Accept_Encoding="gzip", Accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert zlib.decompress(packed, 31).endswith(b"# EOF\n")
    assert agent.get("/metrics", "HEAD")[2] == b""
    status, headers, text = agent.get("/api/v1/report")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text)["schema"] == "gpu-topo/report/1"
    status, headers, text = agent.get("/picture")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"/api/v1/report" in agent.get("/")[2]
    assert agent.get("/healthz")[::2] == (200, b"ok\n")
    assert agent.get("/none")[0] == 404
    assert agent.get("/metrics", "DELETE")[0] == 405


def test_a_page_is_rendered_once_a_scan(start: Start, tree: tuple[Path, str]) -> None:
    """Scrapes between two scans get the very same bytes; after the next scan they get new ones."""
    agent = start(tree[0], scan_interval=3600.0)
    agent.until(lambda: agent.get("/readyz")[0] == 200 and agent.daemon.scans == 1)
    first = agent.get("/metrics")[2]
    assert agent.get("/metrics")[2] == first
    agent.daemon.reload()
    agent.until(lambda: agent.daemon.scans > 1 and agent.get("/metrics")[2] != first)


def test_a_page_that_cannot_be_rendered_costs_nothing_else(
    start: Start, tree: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in one page: it answers 500 and is told once, scans go on, the other pages are fresh, and it may heal."""
    rendered = html.render

    def broken(*_: object) -> str:
        raise ZeroDivisionError("a bug")

    agent = start(tree[0])
    agent.until(lambda: agent.get("/picture")[0] == 200)
    monkeypatch.setattr(html, "render", broken)
    agent.until(lambda: agent.get("/picture")[0] == 500)
    for _ in range(3):  # each time it is asked for before the scan, and again for what that brought
        scans = agent.value("gputopo_scans_total") or 0.0
        agent.until(lambda: agent.get("/picture")[0] == agent.get("/picture", Accept_Encoding="gzip")[0] == 500)
        agent.until(lambda before=scans: (agent.value("gputopo_scans_total") or 0.0) > before)  # type: ignore[misc]
    assert agent.get("/healthz")[0] == 200
    assert len(agent.logged("ZeroDivisionError")) == 1 and not agent.logged("a scan failed")
    monkeypatch.setattr(html, "render", rendered)
    agent.until(lambda: agent.get("/picture")[0] == 200)
    monkeypatch.setattr(html, "render", broken)
    agent.until(lambda: agent.get("/picture")[0] == 500 and len(agent.logged("ZeroDivisionError")) == 2)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("text/plain;q=0.5, application/openmetrics-text;q=0.4", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
    ],
)
def test_openmetrics_for_who_asks_for_it(accept: str, wanted: bool) -> None:
    """The client's weights decide; plain text for everybody else."""
    assert wants_openmetrics(accept) is wanted


def test_gzip_for_who_takes_it() -> None:
    """gzip is used where the client takes it, and not where it says no."""
    weights = [quality(header, "gzip") for header in ("", "gzip", "gzip;q=0", "*", "br, gzip;q=0.5", "identity")]
    assert weights == [0, 1, 0, 1, 0.5, 0]


def test_textfile_writes_the_same_families(tree: tuple[Path, str], tmp_path: Path, start: Start) -> None:
    """`gpu-topo textfile` writes the daemon's families, atomically."""
    path = tmp_path / "gpu-topo.prom"
    assert main(["textfile", "--root", str(tree[0]), "--output", str(path)]) == 0

    def families(text: str) -> set[str]:
        return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    agent = start(tree[0])
    agent.until(lambda: agent.get("/readyz")[0] == 200)
    agent.scans(2)
    missing = families(agent.metrics()) - families(path.read_text())
    assert all(name.startswith(("gputopo_source_age", "gputopo_scans", "gputopo_config", "gputopo_finding_since"))
               for name in missing), missing  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["gpu-topo.prom", "root"]
