"""Real Prometheus, real Alertmanager, real agents on two nodes that break and heal: all of it on loopback."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import fakenvml, trees
from tests.fakenvml import states
from tests.lab import picture
from tests.lab.hgx import Hgx
from tests.lab.processes import (
    DEPLOY,
    PATIENCE,
    Agent,
    Alertmanager,
    Prometheus,
    Webhook,
    missing,
    running,
    until,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WHY_NOT = missing("prometheus", "promtool", "prometheus-alertmanager", "unshare")
# The end of any wait. What is waited for is two scans, a scrape, an evaluation and a notification, of a second or two.
SOON = PATIENCE


class Node(NamedTuple):
    """One machine: its files, its fake NVML, its agent."""

    tree: Hgx
    nvml: fakenvml.Machine
    agent: Agent


class Lab(NamedTuple):
    """Everything that runs."""

    nodes: Mapping[str, Node]
    prometheus: Prometheus
    alertmanager: Alertmanager
    webhook: Webhook

    def told(self, alert: str, status: str, **labels: str) -> None:
        """Wait until the webhook was told so."""
        until(
            lambda: self.webhook.status(alert, **labels) == status,
            SOON,
            f"{alert} {labels} {status}",
            lambda: "\n".join(map(str, self.webhook.said)) + "\n" + json.dumps(self.prometheus.query("ALERTS")),
        )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    if fakenvml.compiler() is None:
        pytest.skip("no C compiler for the fake NVML")
    work = tmp_path_factory.mktemp("live")
    library = fakenvml.build(work / "nvml")
    nodes = {}
    for name in ("good", "bad"):
        folder = work / name
        folder.mkdir()
        tree = Hgx(folder / "root")
        nvml = fakenvml.Machine(library, folder, states.hgx_h100())
        nodes[name] = Node(tree, nvml, Agent(tree.root, nvml.environment, work, name))
    webhook = Webhook()
    alertmanager = Alertmanager(work, webhook.url)
    targets = {name: node.agent.target for name, node in nodes.items()}
    prometheus = Prometheus(work, targets, alertmanager.port)
    try:
        with running(*(node.agent for node in nodes.values()), alertmanager, prometheus):
            made = Lab(nodes, prometheus, alertmanager, webhook)
            until(lambda: len(prometheus.query("gputopo_build_info")) == 2, SOON, "both nodes scraped", prometheus.tail)
            yield made
    finally:
        webhook.stop()


def test_metrics_pass_promtool(lab: Lab) -> None:
    """`promtool check metrics` has nothing to say about a node's whole exposition."""
    told = subprocess.run(
        ["promtool", "check", "metrics"],
        input=until(lab.nodes["good"].agent.metrics, SOON, "metrics"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout + told.stderr) == (0, "")


def test_a_healthy_fleet_is_quiet_and_alike(lab: Lab) -> None:
    """No alert is pending or firing, and both nodes have one shape."""
    until(lambda: not lab.prometheus.query("ALERTS"), SOON, "no alert, once both were scraped")
    until(lambda: lab.prometheus.query("shape:gputopo_shape_info:count == 2"), SOON, "two nodes of one shape")


def test_an_eight_gpu_node_stays_under_a_thousand_series(lab: Lab) -> None:
    """Counted by the Prometheus that scraped it."""
    # 0 where a scrape took too long.
    (sample,) = until(lambda: lab.prometheus.query('scrape_samples_scraped{instance="good"} > 0'), SOON, "a scrape")
    assert 300 < int(sample["value"][1]) < 1000


def test_alerts_fire_and_clear(lab: Lab) -> None:
    """Each kind of finding becomes its alert at the webhook when the node breaks, and is resolved when it heals."""
    bad, good = lab.nodes["bad"], lab.nodes["good"]
    bad.tree.link(bad.tree.gpus[2], width=8)
    bad.tree.link(bad.tree.nics[1], speed=trees.GEN3)
    bad.agent.config.write_text("scan.intervall = 1\n")
    bad.agent.reload()
    good.nvml.put("gpu.3.lost=1")
    lab.told("GpuTopoCritical", "firing", instance="bad", code="pcie-width-degraded")
    lab.told("GpuTopoWarning", "firing", instance="bad", code="pcie-speed-degraded")
    lab.told("GpuTopoConfigReloadFailed", "firing", instance="bad")
    lab.told("GpuTopoDeviceLost", "firing", instance="good", code="gpu-lost")

    bad.tree.link(bad.tree.gpus[2])
    bad.tree.link(bad.tree.nics[1])
    bad.agent.settings()
    bad.agent.reload()
    good.nvml.put()
    lab.told("GpuTopoCritical", "resolved", instance="bad", code="pcie-width-degraded")
    lab.told("GpuTopoWarning", "resolved", instance="bad", code="pcie-speed-degraded")
    lab.told("GpuTopoConfigReloadFailed", "resolved", instance="bad")
    lab.told("GpuTopoDeviceLost", "resolved", instance="good", code="gpu-lost")


def test_a_port_that_was_up_is_critical_when_it_goes_down(lab: Lab) -> None:
    """The daemon knows the port's past; the alert comes and goes with the cable."""
    tree = lab.nodes["bad"].tree
    tree.port(4, up=False)
    lab.told("GpuTopoCritical", "firing", instance="bad", code="port-down")
    tree.port(4, up=True)
    lab.told("GpuTopoCritical", "resolved", instance="bad", code="port-down")


def test_the_agents_own_alerts_fire_and_clear(lab: Lab) -> None:
    """An agent that is gone, one whose scans stand still, a source that fails, and no agent at all."""
    bad, good = lab.nodes["bad"], lab.nodes["good"]
    bad.agent.stop(signal.SIGKILL)
    good.nvml.put("error.nvmlInitWithFlags=999")
    lab.told("GpuTopoAgentDown", "firing", instance="bad")
    lab.told("GpuTopoSourceDown", "firing", instance="good")
    bad.agent.start()
    good.nvml.put()
    lab.told("GpuTopoAgentDown", "resolved", instance="bad")
    lab.told("GpuTopoSourceDown", "resolved", instance="good")

    bad.agent.settings(**{"scan.interval": '"1h"'})
    bad.agent.reload()
    lab.prometheus.scrape({})
    lab.prometheus.reload()
    lab.told("GpuTopoNoAgents", "firing")
    lab.prometheus.scrape({name: node.agent.target for name, node in lab.nodes.items()})
    lab.prometheus.reload()
    lab.told("GpuTopoNoAgents", "resolved")
    lab.told("GpuTopoStale", "firing", instance="bad")
    bad.agent.settings()
    bad.agent.reload()
    lab.told("GpuTopoStale", "resolved", instance="bad")


def test_a_lost_gpu_silences_its_links(lab: Lab) -> None:
    """While a GPU is lost, what is said of its own links is inhibited; another GPU's is delivered."""
    node = lab.nodes["bad"]
    lab.webhook.said.clear()
    node.nvml.put("gpu.3.lost=1")
    lab.told("GpuTopoDeviceLost", "firing", instance="bad", code="gpu-lost")
    node.tree.link(node.tree.gpus[3], width=4)
    node.tree.link(node.tree.gpus[5], width=4)
    lab.told("GpuTopoCritical", "firing", instance="bad", code="pcie-width-degraded")
    lost, other = node.tree.gpus[3], node.tree.gpus[5]
    until(lambda: lab.prometheus.query(f'ALERTS{{alertstate="firing", code="pcie-width-degraded", subject="{lost}"}}'),
          SOON, "Prometheus raises it all the same")  # fmt: skip
    subjects = {subject for _, _, code, subject, _ in lab.webhook.said if code == "pcie-width-degraded"}
    assert subjects == {other}
    node.nvml.put()
    node.tree.link(lost)
    node.tree.link(other)
    lab.told("GpuTopoDeviceLost", "resolved", instance="bad", code="gpu-lost")
    lab.told("GpuTopoCritical", "resolved", instance="bad", code="pcie-width-degraded")


def queries(board: str) -> list[tuple[str, str, bool]]:
    """Panel, expression, and whether it is asked for a moment and not for a range; and those of the variables."""
    loaded: dict[str, Any] = json.loads((DEPLOY / f"grafana/dashboards/{board}.json").read_text())
    found = [
        (panel["title"], target["expr"], target["instant"])
        for panel in loaded["panels"]
        for target in panel.get("targets", ())
    ]
    for variable in loaded["templating"]["list"]:
        if variable["type"] == "query":
            label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert label, variable
            found.append((variable["name"], f"count by ({label[2]}) ({label[1]})", True))
    return found


def filled(expr: str, node: str) -> str:
    """An expression as Grafana sends it."""
    return expr.replace("$job", ".+").replace("$node", node).replace("$__rate_interval", "10s")


def rows(prometheus: Prometheus, expr: str, seconds: float = 0, of: str = "") -> list[dict[str, Any]]:
    """What an expression gives now, or over the last so many seconds. Where a scrape took too long it gives nothing
    for a while, and is asked again."""

    def ask() -> list[dict[str, Any]]:
        return prometheus.range(expr, seconds, 1) if seconds else prometheus.query(expr)

    found: list[dict[str, Any]] = until(ask, SOON, f"{of} {expr}")
    return found


@pytest.fixture(scope="module")
def degraded(lab: Lab) -> Iterator[Lab]:
    """One node healthy, the other with a narrow link, a port down and inactive NVLinks."""
    node = lab.nodes["bad"]
    node.tree.link(node.tree.gpus[2], width=8)
    node.tree.port(4, up=False)
    node.nvml.put("gpu.6.nvlink.0=0,2,-,6", "gpu.6.nvlink.1=0,2,-,6")
    for code in ("pcie-width-degraded", "port-down", "nvlink-inactive"):
        until(lambda c=code: lab.prometheus.query(f'gputopo_finding{{code="{c}"}}'), SOON, code, node.agent.metrics)  # type: ignore[misc]
    until(lambda: lab.prometheus.query("instance:gputopo_pcie_lost_bandwidth_bytes_per_second:sum > 0"), SOON, "lost")
    yield lab
    node.tree.link(node.tree.gpus[2])
    node.tree.port(4, up=True)
    node.nvml.put()


@pytest.mark.parametrize("node", ["good", "bad"])
@pytest.mark.parametrize("board", ["node", "fleet"])
def test_every_query_of_every_dashboard_returns_something(board: str, node: str, degraded: Lab) -> None:
    """On a healthy and on a degraded node: no panel is empty, no metric is misspelt, no label is missing."""
    for title, expr, instant in queries(board):
        rows(degraded.prometheus, filled(expr, node), 0 if instant else 10, title)


def test_the_fleet_finds_its_worst_and_its_odd_node(degraded: Lab) -> None:
    """The node that lost something is at the head of the list; what it lost is the half of one Gen5 x16 link."""
    heads = "topk(1, instance:gputopo_findings_weight:sum) and on () count(up == 1) == 2"
    (worst,) = rows(degraded.prometheus, heads)
    assert worst["metric"]["instance"] == "bad" and float(worst["value"][1]) >= 1000
    (lost,) = rows(degraded.prometheus, "instance:gputopo_pcie_lost_bandwidth_bytes_per_second:sum")
    assert lost["metric"]["instance"] == "bad" and 31e9 < float(lost["value"][1]) < 32e9


def test_tables_join(degraded: Lab) -> None:
    """The queries of one table share their labels, so that Grafana merges their rows into one a thing."""
    loaded = json.loads((DEPLOY / "grafana/dashboards/node.json").read_text())
    for panel in loaded["panels"]:
        if panel["type"] != "table" or len(panel["targets"]) == 1:
            continue
        answers = [rows(degraded.prometheus, filled(t["expr"], "bad")) for t in panel["targets"]]
        things = [{frozenset(row["metric"].items()) for row in answer} for answer in answers]
        joint = frozenset.intersection(*(frozenset(row["metric"]) for answer in answers for row in answer))
        assert joint, panel["title"]
        widest = [{tuple(dict(row)[label] for label in sorted(joint)) for row in those} for those in things]
        for those in widest:
            assert those <= widest[0], panel["title"]


@pytest.fixture(scope="module")
def bundle() -> Path:
    """Grafana's components, ready for a browser."""
    lacking = [program for program in ("npm", "node", "chromium") if shutil.which(program) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    return picture.components(Path(__file__).resolve().parents[1] / ".lab")


@pytest.mark.parametrize(("name", "node"), [("node", "bad"), ("fleet", "bad")])
def test_grafanas_components_draw_it(name: str, node: str, degraded: Lab, bundle: Path, tmp_path: Path) -> None:
    """Each panel is drawn with data in it, the findings by name, no error; the picture is kept in .lab/."""
    board = json.loads((DEPLOY / f"grafana/dashboards/{name}.json").read_text())
    ask = degraded.prometheus
    now = time.time()
    results: dict[int, Sequence[list[dict[str, Any]]]] = {}
    for panel in board["panels"]:
        results[panel["id"]] = [
            rows(ask, filled(t["expr"], node), 0 if t["instant"] else 60) for t in panel.get("targets", ())
        ]
    drawn = picture.draw(board, results, (now - 60, now), bundle, tmp_path)
    assert 'data-done="yes"' in drawn.dom and "data-error" not in drawn.dom, drawn.dom[-2000:]
    assert "data-empty" not in drawn.dom
    for panel in board["panels"]:
        assert f'data-panel="{panel["title"]}"' in drawn.dom
    assert "pcie-width-degraded" in drawn.dom
    assert drawn.picture.stat().st_size > 50_000
    shutil.copy(drawn.picture, bundle.parents[1] / f"dashboard-{name}.png")
