"""A dashboard drawn by Grafana's own components in headless Chromium, from what a real Prometheus answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("grafana")
CELL, ROW = 60, 38  # as in draw.tsx: pixels of a grid cell
_PAGE = """<!doctype html><html><head><meta charset="utf-8"><link rel="stylesheet" href="%s">
<style>* { box-sizing: border-box } body { margin: 0 }</style></head>
<body><div id="root"></div><script>const DRAW = %s;</script><script src="%s"></script></body></html>
"""


class Drawn(NamedTuple):
    """What the browser made of it."""

    dom: str
    picture: Path


def components(cache: Path) -> Path:
    """The bundle of Grafana's components and draw.tsx; installed by npm once (a minute), into the cache.

    Raises subprocess.CalledProcessError where npm cannot.
    """
    text = (SOURCE / "package.json").read_text()
    folder = cache / f"grafana-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(text)
        npm = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--legacy-peer-deps",
            "--no-package-lock",
        ]
        subprocess.run(npm, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
        (folder / "installed").touch()
    shutil.copy(SOURCE / "draw.tsx", folder / "draw.tsx")
    bundle = folder / "bundle.js"
    subprocess.run(
        [str(folder / "node_modules/.bin/esbuild"), "draw.tsx", "--bundle", "--format=iife", f"--outfile={bundle}",
         '--define:process.env.NODE_ENV="production"', "--define:global=window", "--log-level=error"],
        cwd=folder, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return bundle


def draw(
    board: dict[str, Any],
    results: dict[int, Sequence[list[dict[str, Any]]]],
    moments: tuple[float, float],
    bundle: Path,
    folder: Path,
) -> Drawn:
    """Draw a dashboard. results: panel id -> for each of its targets what Prometheus gave; moments: its time range."""
    data = json.dumps({"dashboard": board, "results": results, "range": moments}).replace("<", "\\u003c")
    page, picture = folder / "dashboard.html", folder / "dashboard.png"
    page.write_text(_PAGE % (bundle.with_suffix(".css").as_uri(), data, bundle.as_uri()))
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) * ROW
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    options += [
        f"--window-size={24 * CELL},{height}",
        "--virtual-time-budget=8000",
        f"--user-data-dir={folder}/chromium",
    ]
    environment = {**os.environ, "HOME": str(folder)}

    def chromium(what: str) -> str:
        done = subprocess.run(
            ["chromium", *options, what, page.as_uri()],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        return done.stdout

    dom = chromium("--dump-dom")
    chromium(f"--screenshot={picture}")
    return Drawn(dom, picture)
