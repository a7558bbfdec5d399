"""The bundled example: it is what its script makes, it is nobody's, and it shows what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_topo.agent import intake
from gpu_topo.agent.cli import main
from gpu_topo.agent.inspect import conclude
from gpu_topo.exporters.json import render
from gpu_topo.model.finding import INFO, Report
from gpu_topo.model.history import Policy
from tests.fakenvml import compiler


@pytest.fixture(scope="module")
def report() -> Report:
    """The report of the example."""
    return conclude(intake.facts_of_files([intake.EXAMPLE], 30.0, Policy()))


def test_the_example_is_what_its_script_makes(report: Report, tmp_path: Path) -> None:
    """A capture made anew gives the same report as the bundled one."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake libnvidia-ml with")
    from tools.make_example import capture

    anew = tmp_path / "node.capture"
    anew.write_bytes(capture())
    again = conclude(intake.facts_of_files([str(anew)], 30.0, Policy()))
    assert timeless(report) == timeless(again), "python -m tools.make_example, and commit what it makes"


def timeless(report: Report) -> dict[str, Any]:
    """The report as plain values without what is different in each run."""
    values = json.loads(render(report))
    for source in values["sources"]:
        source.pop("seconds")
    return {**values, "generated_at": None}


def test_the_example_is_small() -> None:
    """It travels in every wheel."""
    assert Path(intake.EXAMPLE).stat().st_size < 32 << 10


def test_the_example_is_nobodys(report: Report) -> None:
    """It is a bare-metal machine whose names say that it was made up."""
    platform = report.node.platform
    assert platform.kind == "bare-metal"
    assert platform.hostname == "example-node"
    assert platform.product == "Example Eight-GPU Server"


def test_the_example_has_what_it_says(report: Report) -> None:
    """Eight GPUs, four NVSwitches, ten RDMA ports, fourteen drives, and every source of such a machine answered."""
    node = report.node
    kinds = [device.kind for device in node.devices.values()]
    assert (len(node.gpus), kinds.count("nvswitch"), len(node.ports), len(node.blocks)) == (8, 4, 10, 14)
    answered = {source.name for source in node.sources if source.status == "ok"}
    assert answered >= {"platform", "pcie", "nvml", "rdma", "net", "block"}


def test_the_example_shows_four_faults(report: Report) -> None:
    """A GPU on half its lanes, two NVLinks down, a port on half its lanes, a NIC that shares its uplink with drives."""
    faults = {(f.code, f.severity, f.subject) for f in report.findings if f.severity != INFO}
    assert faults == {
        ("pcie-width-degraded", "critical", "0000:65:00.0"),
        ("nvlink-inactive", "critical", "0000:ab:00.0"),
        ("port-rate-degraded", "critical", "mlx5_6/1"),
        ("nic-shares-switch-with-storage", "warning", "0000:c1:00.0"),
    }
    notes = {f.code for f in report.findings if f.severity == INFO}
    assert notes == {"nic-shares-switch-with-storage", "pcie-uplink-oversubscribed"}
    assert report.unassessed == ()


def test_a_flag_audits_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect --example` reports it, and its exit status is that of its worst finding."""
    assert main(["inspect", "--example", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["node"]["hostname"] == "example-node"


def test_the_example_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Together with a recording or a tree it is wrong usage, said in one line."""
    assert main(["inspect", "--example", "--root", "/"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_make_inspect_says_first_that_there_is_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an accelerator the first line says so, and the example follows."""
    from tools import make_inspect

    monkeypatch.setattr(make_inspect, "has_accelerator", lambda node: False)
    make_inspect.run()
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("This machine has no GPU")
    assert "example-node" in printed
