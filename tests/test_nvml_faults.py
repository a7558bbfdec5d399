"""NVML at its worst: errors, hangs and crashes in any function, a hung call of an earlier run, a thousand rounds.

Whatever happens, the facts come within the time given plus a second, with everything that the fault does not touch.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from gpu_topo.collectors import nvml_driver
from gpu_topo.model.facts import DENIED, FAILED, OK, PARTIAL, TIMEOUT, Facts
from gpu_topo.model.gpu import ACTIVE, DriverGpu, DriverState
from gpu_topo.model.reading import Unknown, known
from tests.fakenvml import Machine, states
from tests.fakenvml.fixtures import Boot, Host, boot, collect, library, workers

__all__ = ["boot", "library"]  # fixtures

# The symbols of the library, and the facts of a GPU that each may cost. The names of the others cost nothing there.
TOUCHES: dict[str, set[str]] = {
    "nvmlSystemGetDriverVersion": set(),
    "nvmlDeviceGetCount_v2": set(),
    "nvmlDeviceGetPciInfo_v3": {"address", "vendor_id", "device_id"},
    "nvmlDeviceGetUUID": {"uuid"},
    "nvmlDeviceGetName": {"model"},
    "nvmlDeviceGetMinorNumber": {"minor"},
    "nvmlDeviceGetArchitecture": {"architecture"},
    "nvmlDeviceGetPerformanceState": {"pstate"},
    "nvmlDeviceGetUtilizationRates": {"utilization"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"link"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"link"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"link"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"link"},
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": {"gpu_max_speed_gts"},
    "nvmlDeviceGetPcieReplayCounter": {"replays"},
    "nvmlDeviceGetVirtualizationMode": {"virtualization"},
    "nvmlDeviceGetNumaNodeId": {"numa_node"},
    "nvmlDeviceGetC2cModeInfoV": {"c2c"},
    "nvmlDeviceGetMigMode": {"mig", "partitions"},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric"},
    "nvmlDeviceGetNvLinkState": {"nvlinks"},
    "nvmlDeviceGetNvLinkVersion": {"nvlinks"},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {"nvlinks"},
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": {"nvlinks"},
    "nvmlDeviceGetFieldValues": {"nvlinks"},
    "nvmlDeviceGetTopologyCommonAncestor": set(),
    "nvmlDeviceGetP2PStatus": set(),
    "nvmlShutdown": set(),
}
# Those without which NVML has nothing to say of a GPU.
GATES = ("nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2")
# Those that an HGX H100 does not need.
ELSEWHERE = {
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetNvLinkErrorCounter",
}
SHORT = 3.0  # seconds for a batch of which something hangs


def driver(facts: Facts) -> DriverState:
    assert facts.driver is not None
    return facts.driver


def changed(healthy: DriverGpu, gpu: DriverGpu) -> set[str]:
    """The fields in which two readings of a GPU differ; what it refused is told apart from what is known of it."""
    fields = zip(DriverGpu._fields, healthy, gpu, strict=True)
    return {name for name, before, after in fields if before != after} - {"unknowns"}


def unlike(healthy: Facts, facts: Facts) -> set[int]:
    """The indexes of the GPUs of which something else is known than in good health."""
    return {at for at, pair in enumerate(zip(healthy.gpus, facts.gpus, strict=True)) if changed(*pair)}


def structure(gpu: DriverGpu) -> list[tuple[int, str]]:
    return [(link.number, link.state) for link in known(gpu.nvlinks) or ()]


@pytest.fixture(scope="module")
def healthy(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The HGX H100 in good health."""
    machine = Machine(library, tmp_path_factory.mktemp("healthy"), states.hgx_h100())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machine.environment.items():
            patch.setenv(name, value)
        return collect(Host())


def test_every_function_is_tried(boot: Boot, tmp_path: Path) -> None:
    """The tables above name every function that the collector asks on any of the machines."""
    asked: set[str] = set()
    for state in states.ALL:
        machine = boot(state)
        machine.put(f"log={tmp_path / 'calls'}")
        collect(Host())
        asked |= {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()}
    assert asked | {"nvmlDeviceGetGpuFabricInfo"} == {*TOUCHES, *GATES} | ELSEWHERE


# --- hangs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", sorted({*TOUCHES, *GATES}))
def test_hang_in_one_function(boot: Boot, healthy: Facts, symbol: str) -> None:
    """With a hang in any one function, on every GPU: in time, marked, the rest present, one worker, then none."""
    machine = boot(states.hgx_h100)
    machine.put(f"hang.{symbol}=60")
    facts = collect(Host(), SHORT)
    assert facts.source.status == TIMEOUT
    assert driver(facts).status == "timeout"
    assert symbol.split("_")[0].replace("WithFlags", "") in facts.source.detail
    if symbol not in GATES:
        assert len(facts.gpus) == 8
        for before, after in zip(healthy.gpus, facts.gpus, strict=True):
            assert changed(before, after) <= TOUCHES[symbol]
            if symbol != "nvmlDeviceGetNvLinkState":
                assert structure(after) == structure(before)
        if symbol not in ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"):
            assert all(set(peer.p2p) == {"read", "nvlink"} for peer in facts.peers)
    assert len(workers()) == 1


def test_hang_of_one_gpu(boot: Boot, healthy: Facts) -> None:
    """A GPU that hangs whatever is asked of it costs its own facts only, and only two waits."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.3.hang.*=60")
    facts = collect(Host(), 4.0)
    assert unlike(healthy, facts) == {3}
    hung = next(gpu for gpu in facts.gpus if gpu.ordinal == 3)
    assert hung.model == Unknown("timeout", "nvmlDeviceGetHandleByIndex")


def test_hang_of_one_gpu_later(boot: Boot, healthy: Facts) -> None:
    """A GPU whose links hang keeps what was asked before, and the other GPUs keep their links."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.3.hang.nvmlDeviceGetNvLinkState=60", "gpu.3.hang.nvmlDeviceGetFieldValues=60")
    facts = collect(Host(), 4.0)
    assert unlike(healthy, facts) == {3}
    assert changed(healthy.gpus[3], facts.gpus[3]) == {"nvlinks"}
    assert facts.gpus[3].nvlinks == Unknown("timeout", "nvmlDeviceGetNvLinkState")
    kinds = {kind for a, b, kind, _ in facts.peers if facts.gpus[3].address not in (a, b)}
    assert kinds == {"NV18"}


def test_everything_hangs(boot: Boot) -> None:
    """Once everything hangs, as under one lock of the driver, asking ends after a few waits."""
    machine = boot(states.hgx_h100)
    for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3"):
        machine.state += f"\nhang.{function}=60"
    machine.put("hang.nvmlDeviceGetPerformanceState=60")
    facts = collect(Host(), 5.0)
    assert facts.source.status == TIMEOUT
    assert len(facts.gpus) == 8
    machine.state = states.hgx_h100()


def test_slow_start(boot: Boot) -> None:
    """A slow start, as without persistence daemon, is no hang while time is left."""
    machine = boot(states.l40s)
    machine.put("hang.nvmlInitWithFlags=1", "gpu.0.hang.nvmlDeviceGetHandleByIndex_v2=1")
    facts = collect(Host(), 6.0)
    assert facts.source.status == OK


def test_no_time(boot: Boot) -> None:
    """With the deadline passed already the source is marked, and nobody is waited for."""
    boot(states.l40s)
    facts = collect(Host(), 0.0)
    assert (facts.source.status, driver(facts).status) == (TIMEOUT, "unasked")
    assert facts.gpus == ()


def test_no_process(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no process to ask the library in, the library is not to blame."""

    def refuse(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    boot(states.l40s)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    facts = collect(Host())
    assert (facts.source.status, driver(facts).status) == (FAILED, "unasked")
    assert facts.source.detail == "the worker process could not be started: Resource temporarily unavailable"


# --- one worker at a time -----------------------------------------------------------------------------------------

_RUN = """
import sys, time
from gpu_topo.collectors import nvml
from gpu_topo.collectors.context import Context
from gpu_topo.source import Live
facts = nvml.collect(Live(), Context(time.monotonic() + 1.0))
print(facts.source.status, facts.source.detail, flush=True)
"""


def test_a_later_run_starts_no_other(boot: Boot) -> None:
    """While a worker of a run that has ended still hangs, a later run asks nothing and says whose call it is."""
    machine = boot(states.l40s)
    machine.put("hang.nvmlDeviceGetName=60")
    first = subprocess.run([sys.executable, "-c", _RUN], capture_output=True, text=True, check=True, timeout=30)
    assert first.stdout.startswith("timeout no answer in time: nvmlDeviceGetName")
    assert first.stderr == ""
    facts = collect(Host(), 5.0)
    assert facts.source.seconds < 1.0
    assert facts.source.status == TIMEOUT
    assert driver(facts).status == "timeout"
    assert "an earlier call of nvmlDeviceGetName still hangs in process " in facts.source.detail
    assert psutil.Process().children() == []
    left = psutil.Process(int(facts.source.detail.split("process ")[1].split(";")[0]))
    assert any("nvml_worker" in word for word in left.cmdline())
    machine.put()
    left.wait(timeout=10)
    assert collect(Host()).source.status == OK


def test_a_killed_run_leaves_nothing(boot: Boot) -> None:
    """When gpu-topo is killed, its worker ends as soon as its call returns."""
    machine = boot(states.l40s)
    machine.put("hang.nvmlInitWithFlags=60")
    tell = "import os\nstart = os.posix_spawn\n"
    tell += "def spawn(*given, **more):\n    pid = start(*given, **more)\n    print(pid, flush=True)\n    return pid\n"
    code = tell + "os.posix_spawn = spawn\n" + _RUN.replace("+ 1.0", "+ 60.0")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = psutil.Process(int(run.stdout.readline()))
        run.kill()
    assert worker.is_running()
    machine.put()
    worker.wait(timeout=10)


def test_a_healthy_run_is_waited_for(boot: Boot) -> None:
    """Two runs at one time: the second waits for the first instead of failing."""
    machine = boot(states.l40s)
    machine.put("hang.nvmlInitWithFlags=1")
    code = _RUN.replace("+ 1.0", "+ 20.0").replace("facts =", "print('asking', flush=True)\nfacts =", 1)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert collect(Host()).source.status == OK
        assert other.stdout.read().split()[0] == OK


def test_a_busy_lock(boot: Boot, library: Path) -> None:
    """A holder that neither ends nor says what hangs is waited for half the time, then the source is marked."""
    boot(states.l40s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        file = os.stat(library / nvml_driver.LIBRARY)
        holder.bind(b"\0gpu-topo/nvml/%d/%d-%d" % (os.geteuid(), file.st_dev, file.st_ino))
        holder.listen()
        facts = collect(Host(), 0.6)
    assert facts.source.status == TIMEOUT
    assert "another gpu-topo" in facts.source.detail
    assert driver(facts).status == "unasked"


def test_the_daemon_adds_no_worker(boot: Boot) -> None:
    """Scan after scan in one process while a call hangs: there is one worker, and afterwards it is reaped."""
    machine = boot(states.l40s)
    machine.put("hang.nvmlDeviceGetName=60")
    collect(Host(), 1.0)
    descriptors = psutil.Process().num_fds()
    for _ in range(5):
        assert collect(Host(), 1.0).source.status == TIMEOUT
        assert len(psutil.Process().children()) == 1
    assert psutil.Process().num_fds() == descriptors
    left = psutil.Process().children()
    machine.put()
    psutil.wait_procs(left, timeout=10)
    assert collect(Host()).source.status == OK
    assert psutil.Process().children() == []


# --- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", sorted(TOUCHES))
def test_crash_in_one_function(boot: Boot, healthy: Facts, symbol: str) -> None:
    """With a crash in any one function, on every GPU, the rest is present and the crash is named."""
    machine = boot(states.hgx_h100)
    machine.put(f"crash.{symbol}={int(signal.SIGSEGV)}")
    facts = collect(Host())
    assert driver(facts).status == "crashed"
    assert f"the library crashed in {symbol.split('_')[0]}" in facts.source.detail
    assert "SIGSEGV" in facts.source.detail
    assert len(facts.gpus) == 8
    for before, after in zip(healthy.gpus, facts.gpus, strict=True):
        assert changed(before, after) <= TOUCHES[symbol]
    assert workers() == []


def test_crash_of_one_gpu(boot: Boot, healthy: Facts) -> None:
    """A crash at one GPU costs the others nothing."""
    machine = boot(states.hgx_h100)
    machine.put(f"gpu.5.crash.nvmlDeviceGetNvLinkState={int(signal.SIGABRT)}")
    facts = collect(Host())
    assert facts.source.status == PARTIAL
    assert facts.source.detail == ("the library crashed in nvmlDeviceGetNvLinkState of GPU 5 (0000:ab:00.0) (SIGABRT)")
    assert facts.gpus[5].nvlinks == Unknown("failed", "nvmlDeviceGetNvLinkState")
    assert unlike(healthy, facts) == {5}


@pytest.mark.parametrize("symbol", GATES)
def test_crash_at_the_gates(boot: Boot, symbol: str) -> None:
    """A library that crashes at its start or at every GPU is asked a few times at most."""
    machine = boot(states.hgx_h100)
    machine.put(f"crash.{symbol}={int(signal.SIGSEGV)}")
    facts = collect(Host())
    assert driver(facts).status == "crashed"
    assert all(gpu.model == Unknown("failed", "nvmlDeviceGetHandleByIndex") for gpu in facts.gpus)


def test_library_that_exits(boot: Boot) -> None:
    """A library that ends its process is told by the exit status."""
    machine = boot(states.l40s)
    machine.put("exit.nvmlDeviceGetName=3")
    facts = collect(Host())
    assert driver(facts).status == "crashed"
    assert "exit status 3" in facts.source.detail
    assert facts.gpus[0].uuid is not None


def test_crash_after_a_hang(boot: Boot) -> None:
    """A hang and a crash in one batch: both are told."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.1.hang.nvmlDeviceGetName=60", f"gpu.2.crash.nvmlDeviceGetMigMode={int(signal.SIGSEGV)}")
    facts = collect(Host(), 4.0)
    assert facts.source.status == TIMEOUT
    assert "nvmlDeviceGetName of GPU 1" in facts.source.detail
    assert len(facts.gpus) == 8


# --- errors -------------------------------------------------------------------------------------------------------


def test_gpu_lost(boot: Boot, healthy: Facts) -> None:
    """A lost GPU is lost, its unknowns say so, the others are as they were."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.6.lost=1")
    facts = collect(Host(tuple(bus[4:].lower() for bus in states.HGX_BUSES)))
    assert [gpu.lost for gpu in facts.gpus] == [False] * 6 + [True, False]
    assert facts.gpus[6].address == "0000:ba:00.0"
    assert isinstance(facts.gpus[6].nvlinks, Unknown)
    assert facts.gpus[6].nvlinks.why == "lost"
    assert unlike(healthy, facts) == {6}
    assert (facts.source.status, driver(facts).status) == (PARTIAL, "ok")
    assert facts.source.detail == "lost: GPU 6 (0000:ba:00.0)"


def test_gpu_lost_under_way(boot: Boot) -> None:
    """A GPU that is lost between two questions keeps what it told before."""
    machine = boot(states.hgx_h100)
    machine.put("gpu.6.error.nvmlDeviceGetNvLinkState=15")
    gpu = collect(Host()).gpus[6]
    assert gpu.lost
    assert gpu.model == "NVIDIA H100 80GB HBM3"
    assert gpu.nvlinks == Unknown("lost", "nvmlDeviceGetNvLinkState")


@pytest.mark.parametrize(
    ("code", "name", "why"),
    [
        (1, "UNINITIALIZED", "failed"),
        (4, "NO_PERMISSION", "denied"),
        (10, "TIMEOUT", "timeout"),
        (15, "GPU_IS_LOST", "lost"),
        (999, "UNKNOWN", "failed"),
        (4711, "4711", "failed"),
    ],
)
def test_errors_are_told_apart(boot: Boot, code: int, name: str, why: str) -> None:
    """Each error is its own answer, in the transcript and in the reading."""
    machine = boot(states.l40s)
    machine.put(f"gpu.0.error.nvmlDeviceGetPcieReplayCounter={code}")
    host = Host()
    facts = collect(host)
    gpu = facts.gpus[0]
    assert gpu.replays == Unknown(why, "nvmlDeviceGetPcieReplayCounter")
    assert gpu.unknowns["nvmlDeviceGetPcieReplayCounter"] == name
    assert facts.gpus[1].replays == 0
    said = [json.loads(line) for line in host.lines]
    assert [line["e"] for line in said if line["q"] == "nvmlDeviceGetPcieReplayCounter" and "e" in line] == [name]
    assert facts.source.status == (PARTIAL if why != "timeout" else OK)


@pytest.mark.parametrize(
    ("code", "status"),
    [(4, DENIED), (9, FAILED), (18, FAILED), (999, FAILED)],
)
def test_initialisation_fails(boot: Boot, code: int, status: str) -> None:
    """A library that does not start has failed as a whole: permission, no driver, version mismatch, unknown."""
    machine = boot(states.hgx_h100)
    machine.put(f"error.nvmlInitWithFlags={code}")
    facts = collect(Host(("0000:17:00.0",)))
    assert (facts.source.status, driver(facts).status) == (status, "failed")
    assert facts.gpus == ()


def test_no_driver_behind_the_library(boot: Boot) -> None:
    """A library that finds no driver, where none is bound either, is no failure."""
    machine = boot(states.l40s)
    machine.put("error.nvmlInitWithFlags=9")
    facts = collect(Host())
    assert (facts.source.status, driver(facts).status) == ("absent", "absent")


def test_no_permission(boot: Boot) -> None:
    """Questions that this user may not ask make the source partial, and are named."""
    machine = boot(states.hgx_h100)
    machine.put(*(f"error.{name}=4" for name in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigMode")))
    facts = collect(Host())
    assert facts.source.status == PARTIAL
    assert facts.source.detail == "no permission: nvmlDeviceGetMigMode, nvmlDeviceGetNvLinkState"
    assert facts.gpus[0].nvlinks == Unknown("denied", "nvmlDeviceGetNvLinkState")


# --- over time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_rounds(boot: Boot, rounds: int) -> None:
    """Round after round: memory, descriptors and processes do not grow, also with a link that fails now and then."""
    machine = boot(states.l40s)
    process = psutil.Process()
    outcomes: Counter[str] = Counter()

    def round_of(number: int) -> None:
        if number % 20 == 0:
            machine.put("gpu.1.lost=1" if number % 40 else f"crash.nvmlDeviceGetName={int(signal.SIGSEGV)}")
        elif number % 20 == 1:
            machine.put()
        outcomes[collect(Host()).source.status] += 1

    for number in range(30):
        round_of(number)
    gc.collect()
    memory, descriptors = process.memory_info().rss, process.num_fds()
    for number in range(rounds):
        round_of(number)
    gc.collect()
    assert process.num_fds() == descriptors
    assert process.children() == []
    assert process.memory_info().rss - memory < 2 << 20
    assert outcomes[OK] > rounds * 0.9
    assert active_links_unchanged(machine)


def active_links_unchanged(machine: Machine) -> bool:
    """The machine without faults is still read in full."""
    machine.put()
    return all(not structure(gpu) or (0, ACTIVE) in structure(gpu) for gpu in collect(Host()).gpus)
