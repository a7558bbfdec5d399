"""The whole audit against a fake NVIDIA driver: what it says is in the report, and when it hangs the report comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from tests.fakenvml import Machine, states
from tests.fakenvml.fixtures import Boot, boot, library

__all__ = ["boot", "library"]

TIMEOUT = 5.0
FUNCTIONS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetP2PStatus",
    "nvmlShutdown",
)


class Audit:
    """What one run of the command gave."""

    def __init__(self, machine: Machine, *arguments: str) -> None:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "gpu_topo.agent", "inspect", "--json", "--timeout", str(TIMEOUT), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | machine.environment,
        )
        self.seconds = time.monotonic() - began
        self.status = done.returncode
        self.stderr = done.stderr
        self.report: dict[str, Any] = json.loads(done.stdout)

    def codes(self) -> set[tuple[str, str]]:
        """Code and severity of every finding."""
        return {(f["code"], f["severity"]) for f in self.report["findings"]}

    def nvml(self) -> str:
        """The status of the NVML source."""
        return next(str(s["status"]) for s in self.report["sources"] if s["name"] == "nvml")


def test_healthy_node(boot: Boot) -> None:
    """Eight GPUs with 18 links each become one island of eight; nominal rate, not the line rate that NVML prints."""
    audit = Audit(boot())
    assert audit.nvml() == "ok"
    assert len(audit.report["gpus"]) == 8
    assert audit.report["gpus"][0]["nvlink"]["links_active"] == 18
    assert audit.report["gpus"][0]["nvlink"]["gbs"] == 450
    assert audit.report["interconnect"]["shape"] == "nvswitch"
    assert audit.report["interconnect"]["max_tensor_parallel"] == 8
    assert not {severity for _, severity in audit.codes()} & {"warning", "critical"}


def test_link_down(boot: Boot) -> None:
    """One link down on an NVSwitch board is critical, with what it costs."""
    machine = boot()
    line = next(line for line in machine.state.splitlines() if line.startswith("gpu.2.nvlink.5="))
    machine.put("gpu.2.nvlink.5=0" + line.split("=", 1)[1][1:])
    audit = Audit(machine)
    finding = next(f for f in audit.report["findings"] if f["code"] == "nvlink-inactive")
    assert audit.status == 2
    assert finding["severity"] == "critical"
    assert finding["observed"]["links_active"] == 17
    assert finding["expected"]["links_active"] == 18
    assert finding["lost_gbs"] == 25


def test_lost_gpu(boot: Boot) -> None:
    """A GPU that the driver calls lost is critical, and the others are still there."""
    machine = boot()
    machine.put("gpu.3.lost=1")
    audit = Audit(machine)
    assert ("gpu-lost", "critical") in audit.codes()
    assert audit.report["gpus"][0]["nvlink"]["links_active"] == 18


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_hang(boot: Boot, function: str) -> None:
    """A hang in any one function: the report within the timeout and a second, and the command itself gone."""
    machine = boot()
    machine.put(f"hang.{function}=60")
    audit = Audit(machine)
    assert audit.seconds < TIMEOUT + 1.0
    assert any(s["name"] == "pcie" and s["status"] in ("ok", "partial", "absent") for s in audit.report["sources"])
    if function != "nvmlShutdown":
        assert audit.nvml() == "timeout"
        assert ("gpu-driver-unresponsive", "critical") in audit.codes()
    if function in ("nvmlDeviceGetPerformanceState", "nvmlDeviceGetP2PStatus"):
        assert audit.report["gpus"][0]["nvlink"]["links_active"] == 18


@pytest.mark.slow
def test_samples_of_a_driver_that_hangs(boot: Boot) -> None:
    """More samples of a driver that hangs take no more time, and the report names the call that hangs."""
    machine = boot()
    machine.put("hang.nvmlDeviceGetUtilizationRates=60")
    audit = Audit(machine, "--samples", "4")
    assert audit.seconds < TIMEOUT + 1.0
    summary = next(f["summary"] for f in audit.report["findings"] if f["code"] == "gpu-driver-unresponsive")
    assert "no answer in time: nvmlDeviceGetUtilizationRates" in summary
    assert len(audit.report["gpus"]) == 8


@pytest.mark.slow
def test_no_second_worker_while_one_hangs(boot: Boot) -> None:
    """While a worker hangs, a later run starts no other one and says which call it is."""
    machine = boot()
    machine.put("hang.nvmlDeviceGetCount_v2=60")
    Audit(machine)
    before = len(_workers(machine))
    second = Audit(machine)
    assert before == 1
    assert len(_workers(machine)) == 1
    assert "nvmlDeviceGetCount" in json.dumps(second.report["sources"])
    assert ("gpu-driver-unresponsive", "critical") in second.codes()


def test_crash(boot: Boot) -> None:
    """A crash of the library is told apart from a hang, and what was answered before it stays."""
    machine = boot()
    machine.put("crash.nvmlDeviceGetUtilizationRates=11")
    audit = Audit(machine)
    assert len(audit.report["gpus"]) == 8
    assert audit.report["gpus"][0]["nvlink"]["links_active"] == 18
    assert audit.report["gpus"][0]["busy"] is None


def test_mig(boot: Boot) -> None:
    """With MIG on, NVLink is unassessed with that reason, neither inactive nor absent."""
    audit = Audit(boot(states.mig_h100))
    reasons = [u["reason"] for u in audit.report["unassessed"] if u["code"] == "nvlink-inactive"]
    assert reasons
    assert "MIG" in reasons[0]
    assert not {code for code, _ in audit.codes()} & {"nvlink-inactive", "nvlink-absent", "nvlink-partial"}


def test_bridged_pair_and_two_bare_cards(boot: Boot) -> None:
    """Four PCIe cards of which two are bridged: partial, a warning, and an island of two."""
    audit = Audit(boot(states.a100_pcie))
    assert ("nvlink-partial", "warning") in audit.codes()
    assert audit.report["interconnect"]["max_tensor_parallel"] == 2


def test_samples(boot: Boot) -> None:
    """Several samples end in one report with one NVML source."""
    audit = Audit(boot(states.l40s), "--samples", "2")
    assert [s["name"] for s in audit.report["sources"]].count("nvml") == 1
    assert len(audit.report["gpus"]) == 2


def _workers(machine: Machine) -> list[psutil.Process]:
    """The workers that met this fake machine, and no other test's."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if any("nvml_worker" in word for word in process.info["cmdline"] or []):
            try:
                if process.environ().get("FAKE_NVML") == str(machine.file):
                    found.append(process)
            except psutil.Error:
                pass
    return found
