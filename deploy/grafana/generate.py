"""Writes Grafana's dashboards and alerts into a folder (default: this one). A test fails when they drift.

pip install grafana-foundation-sdk pyyaml
python deploy/grafana/generate.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import alerts
import fleet_dashboard
import node_dashboard
import yaml
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

HEADER = "# Generated from deploy/prometheus/gpu-topo.rules.yml by deploy/grafana/generate.py.\n"


def dashboard_text(made: Dashboard) -> str:
    """A dashboard as Grafana imports it, its panels numbered in order."""
    board = made.build()
    for number, panel in enumerate(board.panels or [], 1):
        panel.id_val = number
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def alerts_text() -> str:
    """The alerts as a provisioning file."""
    plain = json.loads(json.dumps(alerts.build(), cls=JSONEncoder))
    return HEADER + yaml.safe_dump(plain, sort_keys=False, width=120)


def main(folder: Path) -> None:
    """Write all files."""
    files = {
        "dashboards/node.json": dashboard_text(node_dashboard.build()),
        "dashboards/fleet.json": dashboard_text(fleet_dashboard.build()),
        "provisioning/alerting/gpu-topo.yml": alerts_text(),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
