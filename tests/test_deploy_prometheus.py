"""The shipped rules and examples, held against Prometheus's and Alertmanager's own tools and the agent's own names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_topo.classifier import RULES
from gpu_topo.model.finding import CRITICAL

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULE_FILE = DEPLOY / "prometheus/gpu-topo.rules.yml"


def told(*command: str) -> str:
    """What a tool says; the test is skipped where it is not installed, and fails where it is not content."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULE_FILE.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


@pytest.mark.lab
def test_promtool_accepts_the_rules() -> None:
    """`promtool check rules` finds nothing to say."""
    assert "14 rules found" in told("promtool", "check", "rules", "gpu-topo.rules.yml")


@pytest.mark.lab
def test_promtool_runs_the_rules_tests() -> None:
    """`promtool test rules`: every alert fires when it should, and not before."""
    assert "SUCCESS" in told("promtool", "test", "rules", "gpu-topo.rules.test.yml")


@pytest.mark.lab
def test_promtool_accepts_the_scrape_configuration() -> None:
    """`promtool check config` accepts the example, rules included."""
    assert "valid prometheus config" in told("promtool", "check", "config", "prometheus.yml")


@pytest.mark.lab
def test_amtool_accepts_the_routes() -> None:
    """`amtool check-config` accepts the example."""
    assert "4 inhibit rules" in told("amtool", "check-config", str(DEPLOY / "alertmanager/alertmanager.yml"))


@pytest.mark.lab
@pytest.mark.parametrize(("severity", "receiver"), [("critical", "on-call"), ("warning", "tickets")])
def test_who_is_told(severity: str, receiver: str) -> None:
    """Critical alerts wake somebody, warnings make a ticket."""
    told(
        "amtool", "config", "routes", "test", f"--config.file={DEPLOY / 'alertmanager/alertmanager.yml'}",
        f"--verify.receivers={receiver}", f"severity={severity}", "alertname=GpuTopoCritical", "instance=a",
    )  # fmt: skip


def test_every_alert_is_tested() -> None:
    """Each alert of the rule file has a test that expects it to fire."""
    tests = yaml.safe_load((DEPLOY / "prometheus/gpu-topo.rules.test.yml").read_text())["tests"]
    expected = {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if "exp_alerts" in case}
    assert expected == {rule["alert"] for rule in alerts()}


def test_every_alert_waits_and_says_what_to_do() -> None:
    """Each has a duration, a summary, a description and a runbook."""
    for rule in alerts():
        assert rule["for"] and set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]


def test_runbooks_of_the_agents_alerts_exist() -> None:
    """The page that they link to has a heading for each."""
    headings = {h.strip().lower() for h in re.findall(r"^#+ (.+)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)}
    for rule in alerts():
        _, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == "{{ $labels.code }}" or anchor in headings, anchor


def codes_in(text: str) -> set[str]:
    """The rule codes that the matchers of an expression name."""
    found = re.findall(r'code[!=]?=?~?"([^"]+)"', text) + re.findall(r'code=~"([^"]+)"', text)
    return {code for pattern in found for code in pattern.split("|")}


def test_the_codes_exist() -> None:
    """Every code that an alert or an inhibition names is a rule's, and can be critical where that is asked for."""
    critical = {rule.code for rule in RULES if CRITICAL in rule.severities}
    for rule in alerts():
        assert codes_in(rule["expr"]) <= critical, rule["alert"]
    known = {rule.code for rule in RULES}
    routes = (DEPLOY / "alertmanager/alertmanager.yml").read_text()
    for pattern in codes_in(routes):
        assert any(re.fullmatch(pattern, code) for code in known), pattern


def test_the_inhibitions_name_alerts_that_exist() -> None:
    """No inhibition waits for an alert that nobody raises."""
    names = {rule["alert"] for rule in alerts()}
    text = (DEPLOY / "alertmanager/alertmanager.yml").read_text()
    for matcher in re.findall(r'alertname=~?"([^"]+)"', text):
        assert set(matcher.split("|")) <= names
