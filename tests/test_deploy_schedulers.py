"""Kubernetes and Slurm: manifests that fit the agent, and wrappers that translate its exit status."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_topo.agent import config

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CRITICAL = {"code": "gpu-lost", "severity": "critical", "subject": "0000:17:00.0", "accepted": None}
ACCEPTED = {**CRITICAL, "accepted": {"by": "me", "reason": "known"}}
WARNING = {**CRITICAL, "severity": "warning"}


def manifests(name: str) -> list[dict[str, Any]]:
    return [part for part in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()) if part]


def test_the_pods_options_are_the_agents() -> None:
    """Every argument of the DaemonSet is a key of the configuration with a value that it takes."""
    (pod,) = (part["spec"]["template"]["spec"] for part in manifests("gpu-topo.yml") if part["kind"] == "DaemonSet")
    (container,) = pod["containers"]
    keys = {key.flag: key for key in config.KEYS}
    for argument in container["args"]:
        flag, _, value = argument.partition("=")
        keys[flag].kind.read(keys[flag].kind.text(value))
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/sys"]["readOnly"] and "/var/lib/gpu-topo" in mounts
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}


def test_the_pods_have_no_privilege() -> None:
    """Not root, no capability, no escalation, a read-only root, no token of the cluster."""
    (pod,) = (part["spec"]["template"]["spec"] for part in manifests("gpu-topo.yml") if part["kind"] == "DaemonSet")
    context = pod["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]} and context["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False
    assert not {"privileged", "hostPID", "hostNetwork"} & {*pod, *context}


def test_the_monitor_finds_the_pods_and_names_the_job() -> None:
    """It selects the DaemonSet's pods by a label that becomes the job that the rules expect, and scrapes their port."""
    daemon = next(part for part in manifests("gpu-topo.yml") if part["kind"] == "DaemonSet")
    (monitor,) = manifests("pod-monitor.yml")
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "gpu-topo"
    ports = {port["name"] for port in daemon["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports


def program(folder: Path, name: str, text: str) -> None:
    """A program of that name in the folder."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shipped wrapper, with the folder's programs in place of the real ones."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURMD_NODENAME": "node7"}
    command = [sys.executable, str(DEPLOY / script)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def inspect(folder: Path, status: int, findings: list[dict[str, Any]], **more: Any) -> None:
    """A gpu-topo that reports these findings, with more that differs from a report of all sources, and ends so."""
    sources = [{"name": "pcie", "status": "ok", "detail": ""}]
    report = json.dumps({"verdict": "ok", "sources": sources, "unassessed": [], "findings": findings, **more})
    text = f"import sys; print({report!r}); print('words', file=sys.stderr); sys.exit({status})"
    program(folder, "gpu-topo", text)


@pytest.mark.parametrize(
    ("status", "findings", "expected", "message"),
    [
        (0, [WARNING], 0, "as they should be"),
        (0, [ACCEPTED], 0, "as they should be"),
        (2, [CRITICAL], 1, "gpu-lost 0000:17:00.0\n"),
        (2, [CRITICAL, CRITICAL], 1, "and 1 more"),
        (3, [], 2, "words"),
    ],
)
def test_node_problem_detector(
    status: int, findings: list[dict[str, Any]], expected: int, message: str, tmp_path: Path
) -> None:
    """0 well, 1 problem, 2 unknown, with a line that says what."""
    inspect(tmp_path, status, findings)
    done = run("kubernetes/gpu-topo-npd", tmp_path)
    assert done.returncode == expected and message in done.stdout


SILENT = [{"name": "nvml", "status": "timeout", "detail": "another gpu-topo was asking NVML all the time"}]


@pytest.mark.parametrize(
    ("more", "findings", "expected", "message"),
    [
        ({"verdict": "unknown"}, [], 2, "no accelerator could be assessed"),
        ({"sources": SILENT}, [WARNING], 2, "nvml did not answer (timeout): another gpu-topo"),
        ({"sources": SILENT}, [CRITICAL], 1, "gpu-lost"),
        ({"sources": [{**SILENT[0], "status": "absent"}]}, [], 0, "as they should be"),
    ],
)
def test_node_problem_detector_does_not_take_unknown_for_well(
    more: dict[str, Any], findings: list[dict[str, Any]], expected: int, message: str, tmp_path: Path
) -> None:
    """No accelerator assessed, or a source that does not answer: unknown, unless something critical is known."""
    inspect(tmp_path, 2 if findings == [CRITICAL] else 0, findings, **more)
    done = run("kubernetes/gpu-topo-npd", tmp_path)
    assert done.returncode == expected and message in done.stdout


def test_node_problem_detector_without_gpu_topo(tmp_path: Path) -> None:
    """A missing program is unknown, not a problem of the node."""
    program(tmp_path, "gpu-topo", "import sys; sys.exit(127)")
    assert run("kubernetes/gpu-topo-npd", tmp_path).returncode == 2


def test_the_plugins_configuration_runs_the_wrapper() -> None:
    """It names the wrapper, gives it time, and has a condition for its rule."""
    loaded = json.loads((DEPLOY / "kubernetes/node-problem-detector.json").read_text())
    (rule,) = loaded["rules"]
    assert rule["path"].endswith("/gpu-topo-npd") and (DEPLOY / "kubernetes/gpu-topo-npd").stat().st_mode & 0o111
    assert rule["condition"] in {condition["type"] for condition in loaded["conditions"]}


SHOWN = """NodeName=node7 Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUEfctv=112 CPUTot=112 CPULoad=0.02
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Reason={reason}
"""


def scontrol(folder: Path, state: str, reason: str) -> Path:
    """An scontrol that shows the node so; the file in which it keeps what else it was asked to do."""
    log = folder / "asked"
    shown = SHOWN.format(state=state, reason=reason)
    keep = f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]))"
    program(folder, "scontrol", f"import sys\nif sys.argv[1] == 'show':\n    print({shown!r})\nelse:\n    {keep}")
    return log


@pytest.mark.parametrize(
    ("state", "reason", "findings", "asked"),
    [
        ("IDLE", "", [WARNING], ""),
        ("IDLE", "", [CRITICAL], "State=DRAIN Reason=gpu-topo: gpu-lost 0000:17:00.0"),
        ("IDLE", "", [ACCEPTED], ""),
        ("IDLE+DRAIN", "gpu-topo: gpu-lost 0000:17:00.0 [root@2026]", [CRITICAL], ""),
        ("IDLE+DRAIN", "gpu-topo: gpu-lost 0000:17:00.0 [root@2026]", [], "State=RESUME"),
        ("IDLE+DRAIN", "disk swap [root@2026]", [], ""),
        ("MIXED", "", [CRITICAL], "State=DRAIN"),
    ],
)
def test_slurm(state: str, reason: str, findings: list[dict[str, Any]], asked: str, tmp_path: Path) -> None:
    """A critical finding drains; well again resumes what was drained from here, and nothing else."""
    inspect(tmp_path, 0, findings)
    log = scontrol(tmp_path, state, reason)
    done = run("slurm/gpu-topo-health", tmp_path)
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stderr
    assert asked in said and bool(asked) == bool(said)
    assert not said or said.startswith("update NodeName=node7 ")


def unassessed(code: str, subject: str, cause: str = "driver") -> dict[str, Any]:
    return {"code": code, "subject": subject, "reason": "nvml did not answer", "cause": cause}


@pytest.mark.parametrize(
    ("reason", "more", "resumed"),
    [
        ("gpu-lost 0000:17:00.0", {"verdict": "unknown"}, False),
        ("gpu-lost 0000:17:00.0 [root@2026]", {"unassessed": [unassessed("gpu-lost", "node")]}, False),
        ("gpu-lost 0000:17:00.0", {"unassessed": [unassessed("gpu-lost", "0000:17:00.0")]}, False),
        ("port-down mlx5_0/1, gpu-lost 0000:17:00.0", {"unassessed": [unassessed("gpu-lost", "0000:17:00.0")]}, False),
        ("gpu-lost 0000:17:00.0", {"unassessed": [unassessed("gpu-lost", "0000:99:00.0")]}, True),
        ("gpu-lost 0000:17:00.0", {"unassessed": [unassessed("numa-unknown", "node")]}, True),
        ("a b and 1 more: gpu-lost", {"unassessed": [unassessed("gpu-lost", "0000:99:00.0")]}, False),
        ("a b and 1 more: gpu-lost", {"unassessed": [unassessed("gpu-lost", "0000:99:00.0", "asleep")]}, True),
        ("gpu-lost 0000:17:00.0", {"unassessed": [unassessed("gpu-lost", "0000:17:00.0", "asleep")]}, False),
    ],
)
def test_slurm_resumes_only_what_is_known_to_be_well(
    reason: str, more: dict[str, Any], resumed: bool, tmp_path: Path
) -> None:
    """What the node was drained for is not over because it cannot be assessed at the moment; the log says so."""
    inspect(tmp_path, 0, [WARNING], **more)
    log = scontrol(tmp_path, "IDLE+DRAIN", f"gpu-topo: {reason}")
    done = run("slurm/gpu-topo-health", tmp_path)
    assert done.returncode == 0, done.stderr
    assert log.exists() is resumed and ("stays drained" in done.stderr) is not resumed


def test_slurms_reason_names_what_the_node_was_drained_for(tmp_path: Path) -> None:
    """A few findings by code and subject, the rest by code: what is to be assessed before the node is resumed."""
    found = [{**CRITICAL, "subject": f"0000:{n}7:00.0"} for n in range(6)]
    inspect(tmp_path, 0, [*found, {**CRITICAL, "code": "inventory-short", "subject": "node"}])
    log = scontrol(tmp_path, "IDLE", "")
    run("slurm/gpu-topo-health", tmp_path)
    four = ", ".join(f"gpu-lost 0000:{n}7:00.0" for n in range(4))
    assert log.read_text().endswith(f"Reason=gpu-topo: {four} and 3 more: gpu-lost, inventory-short")


def test_slurms_time_is_kept() -> None:
    """All that is waited for at the worst is less than the 60 seconds after which slurmd ends a health check."""
    given = runpy.run_path(str(DEPLOY / "slurm/gpu-topo-health"))
    waited: list[int] = []
    outputs = [json.dumps({"verdict": "critical", "findings": [CRITICAL], "unassessed": []}), "State=IDLE", ""]

    def said(*command: str, seconds: int = signature(given["said"]).parameters["seconds"].default) -> str:
        waited.append(seconds)
        return outputs[len(waited) - 1]

    given["main"].__globals__["said"] = said
    assert given["main"]() == 0
    assert len(waited) == 3 and sum(waited) < 60


def test_slurm_leaves_the_node_alone_when_it_cannot_tell(tmp_path: Path) -> None:
    """An audit that fails drains nothing and says why."""
    inspect(tmp_path, 3, [])
    program(tmp_path, "scontrol", "raise SystemExit('not to be called')")
    done = run("slurm/gpu-topo-health", tmp_path)
    assert done.returncode == 1 and "gpu-topo-health:" in done.stderr
