"""The daemon as a process: what it tells systemd, what signals do, what it does not start with, and no leaks."""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpu_topo.agent.cli import main
from gpu_topo.agent.config import Config
from gpu_topo.agent.config_values import Listen
from gpu_topo.agent.daemon import Daemon
from gpu_topo.agent.notify import Notify, watchdog_seconds
from tests.daemons import WAIT, Start, fetch, serve, start, tree

__all__ = ["start", "tree"]  # fixtures


def test_systemd_is_told(start: Start, tree: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY after the first scan, WATCHDOG only after finished scans, STOPPING at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        agent = start(tree[0], scan_interval=3600.0)
        assert manager.recv(4096) == b"READY=1"
        assert manager.recv(4096).startswith(b"WATCHDOG=1\nSTATUS=")
        agent.daemon.reload()
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(4096) == b"READY=1"
        assert manager.recv(4096).startswith(b"WATCHDOG=1")
        agent.stop()
        heard = b""
        while heard != b"STOPPING=1":
            heard = manager.recv(4096)


def test_the_interval_keeps_the_watchdog_content(monkeypatch: pytest.MonkeyPatch, tree: tuple[Path, str]) -> None:
    """Scans are never further apart than half of what systemd's watchdog waits."""
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_seconds() == 20.0
    daemon = Daemon(lambda: Config(root=str(tree[0]), web_listen_address=(Listen("127.0.0.1", 0),), scan_interval=60.0))
    assert daemon.interval == 10.0
    daemon._close()
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() is None


def test_nobody_to_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service manager, or with one that is gone, nothing happens."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notify()("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "@gpu-topo-nobody")
    Notify()("READY=1")


def ready(port: int) -> None:
    deadline = time.monotonic() + WAIT
    while b"ready" not in fetch(port, "/readyz").split() and time.monotonic() < deadline:
        pass


def settled(port: int) -> None:
    """Wait for two more scans: the first opens again what a reload let go of."""

    def scans() -> float:
        found = re.search(rb"^gputopo_scans_total (\S+)", gzip.decompress(fetch(port, "/metrics")), re.MULTILINE)
        assert found is not None
        return float(found[1])

    wanted, deadline = scans() + 2, time.monotonic() + WAIT
    while scans() < wanted:
        assert time.monotonic() < deadline


def test_signals_reload_and_stop(tree: tuple[Path, str], tmp_path: Path) -> None:
    """SIGHUP reads the file again, SIGTERM ends with status 0 after the state was written."""
    file = tmp_path / "conf.toml"
    file.write_text("scan.interval = '1h'\n")
    process, port = serve(tree[0], "--config.file", str(file), "--state.directory", str(tmp_path))
    ready(port)
    file.write_text("scan.intervall = '1h'\n")
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or "not reloaded" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1]
    assert f"{file}:1: unknown key 'scan.intervall'; did you mean 'scan.interval'?" in lines[-1]
    process.send_signal(signal.SIGTERM)
    assert "stopped" in process.communicate(timeout=WAIT)[1]
    assert process.returncode == 0
    assert (tmp_path / "state.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scan.interval", "soon"], "gpu-topo: --scan.interval takes a duration"),
        (["--config.file", "/nonexistent.toml"], "/nonexistent.toml: no such file"),
        (["--web.config.file", "/nonexistent.yml"], "/nonexistent.yml: the web configuration cannot be read"),
        (["--web.listen-address", "203.0.113.77:1"], "cannot listen on 203.0.113.77:1"),
        (["--skip", "pcie-width-degarded"], "did you mean 'pcie-width-degraded'?"),
    ],
)
def test_it_does_not_start_half_configured(
    tree: tuple[Path, str], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """Anything wrong is one line on standard error and status 3."""
    assert main(["serve", "--root", str(tree[0]), *options]) == 3
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_ten_thousand_scrapes_and_a_thousand_rescans_leak_nothing(tree: tuple[Path, str], tmp_path: Path) -> None:
    """Memory, threads and descriptors stay where they were after the first thousand scrapes and rescans."""
    root, gpu = tree
    process, port = serve(root, "--scan.interval", "1s", "--scan.settle", "0s")
    assert process.stderr is not None
    drain = threading.Thread(target=process.stderr.read)  # a pipe that nobody reads would stop whoever writes
    drain.start()
    try:
        ready(port)
        link = root / "sys" / "bus" / "pci" / "devices" / gpu

        def usage() -> tuple[int, int, int]:
            with open(f"/proc/{process.pid}/status") as status:
                fields = dict(line.split(":", 1) for line in status)
            fds = len(os.listdir(f"/proc/{process.pid}/fd"))
            return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), fds

        def rounds(number: int) -> None:
            client = HTTPConnection("127.0.0.1", port, timeout=WAIT)
            for n in range(number):
                if n % 10 == 0:
                    os.rename(link, tmp_path / "away")
                    os.rename(tmp_path / "away", link)
                    process.send_signal(signal.SIGHUP)
                client.request("GET", ("/metrics", "/metrics", "/api/v1/report")[n % 3])
                assert client.getresponse().read()
            client.close()

        rounds(2000)
        settled(port)
        before = usage()
        rounds(10_000)
        settled(port)
        after = usage()
        # KiB; an allocator's noise is half of that, a leak of 300 bytes a scrape is more
        assert after[0] - before[0] <= 2048
        assert after[1] <= before[1] + 1
        assert after[2] <= before[2] + 4
    finally:
        process.kill()
        process.wait(WAIT)
        drain.join(WAIT)
        process.stderr.close()


def test_a_deadline_keeps_the_watchdog_content(monkeypatch: pytest.MonkeyPatch, tree: tuple[Path, str]) -> None:
    """A source that hangs ends with its scan before systemd takes the whole daemon for hung."""
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    config = Config(root=str(tree[0]), web_listen_address=(Listen("127.0.0.1", 0),), scan_timeout=60.0)
    daemon = Daemon(lambda: config)
    assert daemon.timeout == 10.0
    monkeypatch.delenv("WATCHDOG_USEC")
    assert daemon.timeout == 60.0
    daemon._close()
