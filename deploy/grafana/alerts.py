"""The Prometheus alerts again, as alerts that Grafana itself evaluates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.models.alerting import RelativeTimeRange

RULES = Path(__file__).resolve().parents[1] / "prometheus/gpu-topo.rules.yml"
DATASOURCE_UID = "prometheus"
EXPRESSION_UID = "__expr__"  # Grafana's name for what it computes itself
INTERVAL = "30s"


def build() -> dict[str, Any]:
    """A provisioning file: one group for each of Prometheus's that has alerts."""
    source = yaml.safe_load(RULES.read_text())
    groups = []
    for group in source["groups"]:
        rules = [_rule(rule) for rule in group["rules"] if "alert" in rule]
        if rules:
            groups.append(
                {"orgId": 1, "name": group["name"], "folder": "gpu-topo", "interval": INTERVAL, "rules": rules}
            )
    return {"apiVersion": 1, "groups": groups}


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    """An alert of Prometheus fires for each series that its expression returns, whatever its value: is_number."""
    query = prometheus.Dataquery().ref_id("A").expr(" ".join(rule["expr"].split())).instant()
    condition = expr.TypeMath().ref_id("B").expression("is_number($A)")
    data = [
        alerting.Query("A").datasource_uid(DATASOURCE_UID).model(query).relative_time_range(RelativeTimeRange(600, 0)),
        alerting.Query("B").datasource_uid(EXPRESSION_UID).model(condition),
    ]
    return {
        "uid": re.sub(r"(?<=[a-z])(?=[A-Z])", "-", rule["alert"]).lower(),
        "title": rule["alert"],
        "condition": "B",
        "data": [part.build() for part in data],
        "for": rule["for"],
        # Nothing to return is what a healthy fleet looks like; a data source that fails is not.
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": rule.get("labels", {}),
        "annotations": {name: _template(text) for name, text in rule["annotations"].items()},
    }


def _template(text: str) -> str:
    """Grafana's $value is a text about all queries; the number of one query is in $values."""
    return text.replace("$value ", "$values.A.Value ")
