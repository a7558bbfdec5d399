"""A daemon to test, in a thread or in a process of its own, and the made-up node that it watches."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpu_topo.agent.config import Config
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.daemon import Daemon
from gpu_topo.agent.log import Log
from gpu_topo.agent.watch import Guarded
from tests.trees import GEN5, Machine

WAIT = 30.0  # at most; nothing below waits longer than it has to


def machine(root: Path) -> tuple[Path, str]:
    """A node with two GPUs behind root ports; the tree and the address of the first GPU."""
    built = Machine()
    host = built.host(0x16)
    gpus = [built.gpu(built.root_port(host), link=(GEN5, 16)) for _ in range(2)]
    built.write(root)
    boot_id = root / "proc" / "sys" / "kernel" / "random" / "boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("a-boot\n")
    return root, gpus[0]


class Agent:
    """A daemon in a thread of its own."""

    def __init__(self, config: Config, collectors: tuple[Guarded, ...] | None = None) -> None:
        self.log = io.StringIO()
        self.config: Config | Exception = config
        self.daemon = Daemon(self._load, Log("info", self.log, journal=True))
        if collectors is not None:
            self.daemon._collectors = collectors
        self.port = self.daemon.addresses[0].port
        self.thread = threading.Thread(target=self.daemon.run)
        self.thread.start()

    def _load(self) -> Config:
        if isinstance(self.config, Exception):
            raise self.config
        return self.config

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        client = HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def metrics(self) -> str:
        return self.get("/metrics")[2].decode()

    def value(self, series: str) -> float | None:
        """The value of one series, written as in the exposition."""
        for line in self.metrics().splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return None

    def until(self, happened: Callable[[], object]) -> None:
        """Wait for what is to happen, by asking the daemon."""
        deadline = time.monotonic() + WAIT
        while not happened():
            assert time.monotonic() < deadline, self.log.getvalue()
            assert self.thread.is_alive(), self.log.getvalue()

    def scans(self, more: int) -> None:
        """Wait for so many further scans."""
        wanted = self.daemon.scans + more
        self.until(lambda: self.daemon.scans >= wanted and self.get("/healthz"))

    def logged(self, word: str) -> list[str]:
        return [line for line in self.log.getvalue().splitlines() if word in line]

    def stop(self) -> None:
        self.daemon.stop()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


Start = Callable[..., Agent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons in threads; they are stopped when the test is over."""
    agents: list[Agent] = []
    standard = Config(web_listen_address=(Listen("127.0.0.1", 0),), scan_interval=0.02, scan_boot_grace=0.0)

    def begin(root: Path, collectors: tuple[Guarded, ...] | None = None, **changes: object) -> Agent:
        agents.append(Agent(standard._replace(root=str(root), **changes), collectors))  # type: ignore[arg-type]
        return agents[-1]

    yield begin
    for agent in agents:
        if agent.thread.is_alive():
            agent.stop()


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, str]:
    """A node on disk and the address of its first GPU."""
    return machine(tmp_path / "root")


def attribute(root: Path, address: str, name: str) -> Path:
    """A sysfs attribute of a PCI function."""
    return root / "sys" / "bus" / "pci" / "devices" / address / name


def parent(root: Path, address: str) -> str:
    """The address of the bridge above a function."""
    return os.readlink(root / "sys" / "bus" / "pci" / "devices" / address).split("/")[-2]


def serve(root: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """`gpu-topo serve` in a process of its own, and its port."""
    command = [
        sys.executable,
        "-m",
        "gpu_topo.agent",
        "serve",
        "--root",
        str(root),
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    if "serving address=127.0.0.1:" not in line:
        process.kill()
        raise AssertionError(line + process.stderr.read())
    return process, int(line.split("address=127.0.0.1:")[1].split()[0])


def fetch(port: int, path: str) -> bytes:
    """A page as it is sent to a client that takes gzip."""
    client = HTTPConnection("127.0.0.1", port, timeout=WAIT)
    try:
        client.request("GET", path, headers={"Accept-Encoding": "gzip"})
        return client.getresponse().read()
    finally:
        client.close()
