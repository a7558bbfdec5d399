"""Fixtures around the fake libnvidia-ml: a test module imports the ones it uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gpu_topo.collectors import nvml
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.source import Live, Names
from tests.fakenvml import SINCE_418, Machine, build, compiler, states

BOUND = "/sys/bus/pci/drivers/nvidia"


class Host(Live):
    """This machine, with the nvidia driver bound to the addresses that a test names; it keeps the transcript."""

    def __init__(self, bound: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.bound = bound
        self.lines: list[str] = []

    def list(self, path: str) -> Names:
        return ("bind", *self.bound) if path == BOUND else super().list(path)

    def heard(self, name: str, line: str) -> None:
        assert name == "nvml"
        self.lines.append(line)


class Replayed(Host):
    """A recording: nothing but the transcript and what the driver was bound to."""

    live = False

    def __init__(self, lines: list[str], bound: tuple[str, ...] = ()) -> None:
        super().__init__(bound)
        self.live = False
        self.recorded = lines

    def ask(self, name: str) -> Iterator[str] | None:
        return iter(self.recorded)


def collect(host: Host, timeout: float = 20.0, load_only: bool = False) -> Facts:
    """Ask, and take the time to look whether it was kept."""
    began = time.monotonic()
    facts = nvml.collect(host, Context(began + timeout), load_only)
    assert time.monotonic() - began < timeout + 1.0
    return facts


def workers() -> list[psutil.Process]:
    """The NVML workers that this process started and that still live."""
    found = []
    for child in psutil.Process().children():
        try:
            if any("nvml_worker" in word for word in child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake library of today."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake libnvidia-ml with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake library of the 418 series."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake libnvidia-ml with")
    return build(tmp_path_factory.mktemp("nvml418"), SINCE_418)


Boot = Callable[..., Machine]


@pytest.fixture
def boot(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boot]:
    """Make this process meet a fake machine; whatever hangs in it is let go at the end, and must be gone."""
    machines: list[Machine] = []

    def start(state: Callable[[], str] = states.hgx_h100, lib: Path = library) -> Machine:
        machine = Machine(lib, tmp_path, state())
        for name, value in machine.environment.items():
            monkeypatch.setenv(name, value)
        machines.append(machine)
        return machine

    yield start
    left = workers()
    for machine in machines:
        machine.put()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive, "a worker outlived the return of its call"
