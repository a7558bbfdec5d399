"""Grafana's dashboards and alerts: what is committed is what the code makes, and what Grafana's types take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

GRAFANA = Path(__file__).resolve().parents[1] / "deploy/grafana"
RULE_FILE = GRAFANA.parent / "prometheus/gpu-topo.rules.yml"
FILES = ("dashboards/node.json", "dashboards/fleet.json", "provisioning/alerting/gpu-topo.yml")
BOARDS = FILES[:2]


def board(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GRAFANA / name).read_text())
    return loaded


def queries(name: str) -> Iterator[tuple[str, str]]:
    """Panel title and expression of each query of a dashboard."""
    for panel in board(name)["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk (Python 3.11) is not installed")
    folder = tmp_path_factory.mktemp("grafana")
    subprocess.run([sys.executable, str(GRAFANA / "generate.py"), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_what_is_committed_is_what_the_code_makes(name: str, generated: Path) -> None:
    """Nobody edited a generated file, and nobody forgot to generate: python deploy/grafana/generate.py."""
    assert (GRAFANA / name).read_text() == (generated / name).read_text()


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_types_take_it(name: str) -> None:
    """The dashboard as Grafana's generated models read it is the dashboard: no field is unknown to them or lost."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    read = models.Dashboard.from_json(board(name))
    again = json.loads(json.dumps(read, cls=encoder.JSONEncoder))
    assert again == board(name)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    """Each cell of the grid belongs to at most one panel, and none is wider than Grafana's 24 columns."""
    taken: dict[tuple[int, int], str] = {}
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"], panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_shows(name: str) -> None:
    """A title and a description, and ids that are unique."""
    panels = board(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"], panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_heeds_the_choices(name: str) -> None:
    """Each metric of each query is narrowed to the job, and to the node where one is chosen."""
    chosen = 'job=~"$job", instance="$node"' if "node" in name else 'job=~"$job"'
    for title, expr in queries(name):
        selectors = re.findall(r"[a-z_:]*(?:gputopo|\bup\b)[a-z_:]*(\{[^}]*\})?", expr)
        assert selectors, title
        for selector in selectors:
            assert chosen in selector, f"{title}: {expr}"


def test_metrics_of_dashboards_and_rules_are_the_exporters() -> None:
    """Every gputopo_ metric that is asked for is one that the exporter's source names."""
    source = (GRAFANA.parents[1] / "exporters/prometheus.py").read_text()
    made = set(re.findall(r'make\.\w+\(\s*f?"(\w+)"', source))
    asked = {expr for name in BOARDS for _, expr in queries(name)} | {RULE_FILE.read_text()}
    names = {name for text in asked for name in re.findall(r"(?<![:\w])gputopo_(\w+)(?![:\w])", text)}
    assert len(names) > 25
    for name in names:
        assert name in made or re.sub(r"_(info|total)$", "", name) in made, name


def test_grafanas_alerts_are_prometheus_alerts() -> None:
    """The same alerts, in the same groups, with the same expression, duration, labels and words."""
    groups = yaml.safe_load((GRAFANA / FILES[2]).read_text())["groups"]
    here = {rule["title"]: rule for group in groups for rule in group["rules"]}
    there = {
        rule["alert"]: rule
        for group in yaml.safe_load(RULE_FILE.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert here.keys() == there.keys()
    for name, rule in there.items():
        query, condition = here[name]["data"]
        assert query["model"]["expr"].split() == rule["expr"].split()
        assert condition["model"] == {"refId": "B", "type": "math", "expression": "is_number($A)"}
        assert here[name]["condition"] == "B" and here[name]["noDataState"] == "OK"
        assert here[name]["for"] == rule["for"] and here[name]["labels"] == rule.get("labels", {})
        assert here[name]["annotations"].keys() == rule["annotations"].keys()
        assert "$value " not in json.dumps(here[name])
    uids = [rule["uid"] for rule in here.values()]
    assert len(set(uids)) == len(uids) and all(re.fullmatch(r"[a-z0-9-]{1,40}", uid) for uid in uids)
