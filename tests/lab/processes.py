"""Prometheus, Alertmanager, the agent and a webhook as real processes on loopback, started and ended by a test."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Seconds, the end of any wait: others use this computer's processors, too.
PATIENCE = 180.0


def until(met: Callable[[], Any], seconds: float, what: str, diagnose: Callable[[], str] = lambda: "") -> Any:
    """The first truthy answer; AssertionError when there was none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = met()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}\n{diagnose()}")


def free_port() -> int:
    """A TCP port of loopback on which nobody listens. It is taken a moment later: so none of those from 32768 on, which
    the kernel may give to whoever connects to something in between."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get(url: str, seconds: float = 60.0) -> str | None:
    """The body of a page; None where there is none (yet)."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            body: bytes = answer.read()
            return body.decode()
    except (OSError, urllib.error.URLError):
        return None


class Process:
    """A program that serves on a port of loopback; its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, ready: str, environment: Mapping[str, str] | None = None):
        self.command = list(command)
        self.log = log
        self.ready = ready
        self.environment = {**os.environ, **(environment or {})}
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = PATIENCE) -> None:
        """Start it and wait until it is ready. An AssertionError where it ends instead."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        until(self._answers, seconds, f"{self.command[0]} ready", self.tail)

    def _answers(self) -> bool:
        assert self._running is not None and self._running.poll() is None, self.tail()
        return get(self.ready) is not None

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self._running is not None:
            self._running.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait for its end."""
        if self._running is not None:
            self._running.send_signal(signal.SIGCONT)
            self._running.send_signal(number)
            try:
                self._running.wait(60)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
            self._running = None

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Agent(Process):
    """`gpu-topo serve` on a node that is a folder: its sys/ lies over /sys in a mount namespace of the agent's own.

    So it is the whole agent, with NVML (the fake one) and netlink, and not a reader of recordings.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], work: Path, name: str) -> None:
        self.port = free_port()
        self.config = work / f"{name}.toml"
        self.settings()
        over = [f"mount --bind {root}/sys /sys", f"mount --bind {root}/proc/cpuinfo /proc/cpuinfo"]
        script = " && ".join([*over, 'exec "$@"'])
        serve = [sys.executable, "-m", "gpu_topo.agent", "serve", f"--config.file={self.config}"]
        serve.append(f"--web.listen-address=127.0.0.1:{self.port}")
        super().__init__(
            ["unshare", "--mount", "sh", "-c", script, "sh", *serve],
            work / f"{name}.log",
            f"http://127.0.0.1:{self.port}/readyz",
            environment,
        )

    def settings(self, **more: str) -> None:
        """Write its configuration: scans every second, no grace after boot, and what a test wants besides."""
        lines = {"scan.interval": '"1s"', "scan.boot-grace": '"0s"', **more}
        self.config.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))

    def reload(self) -> None:
        """Have it read its configuration again."""
        self.send(signal.SIGHUP)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def metrics(self) -> str:
        return get(f"http://{self.target}/metrics") or ""


class Webhook:
    """Keeps what Alertmanager says, by alert: (alertname, instance, code, subject) -> firing or resolved."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str, str, str]] = []  # name, instance, code, subject, status; in order
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    of = alert["labels"].get
                    told.said.append(
                        (of("alertname"), of("instance", ""), of("code", ""), of("subject", ""), alert["status"])
                    )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def status(self, name: str, instance: str = "", code: str = "") -> str | None:
        """The last that was said of an alert."""
        for alert, node, why, _, status in reversed(self.said):
            if alert == name and instance in ("", node) and code in ("", why):
                return status
        return None

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Alertmanager(Process):
    """Alertmanager with the shipped routes and inhibitions, in seconds where they say minutes."""

    def __init__(self, work: Path, webhook: str) -> None:
        self.port = free_port()
        text = (DEPLOY / "alertmanager/alertmanager.yml").read_text()
        text = re.sub(r"url: \S+", f"url: {webhook}", text)
        text = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
        (work / "alertmanager.yml").write_text(text)
        super().__init__(
            ["prometheus-alertmanager", f"--config.file={work / 'alertmanager.yml'}",
             f"--storage.path={work / 'alertmanager'}", "--cluster.listen-address=",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            work / "alertmanager.log",
            f"http://127.0.0.1:{self.port}/-/ready",
        )  # fmt: skip


class Prometheus(Process):
    """Prometheus with the shipped rules, scraping every other second; `for:` and thresholds become seconds."""

    def __init__(self, work: Path, targets: Mapping[str, str], alertmanager: int | None = None) -> None:
        self.port = free_port()
        self._work = work
        self._alertmanager = alertmanager
        rules = (DEPLOY / "prometheus/gpu-topo.rules.yml").read_text()
        rules = re.sub(r"for: \w+", "for: 1s", rules).replace("> 300", "> 8")
        (work / "gpu-topo.rules.yml").write_text(rules)
        self.scrape(targets)
        super().__init__(
            ["prometheus", f"--config.file={work / 'prometheus.yml'}", f"--storage.tsdb.path={work / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{self.port}", "--web.enable-lifecycle"],
            work / "prometheus.log",
            f"http://127.0.0.1:{self.port}/-/ready",
        )  # fmt: skip

    def scrape(self, targets: Mapping[str, str]) -> None:
        """Write the configuration: name of a node -> where its agent listens."""
        config: dict[str, Any] = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": ["gpu-topo.rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "gpu-topo",
                    "static_configs": [{"targets": [at], "labels": {"instance": name}} for name, at in targets.items()],
                }
            ],
        }
        if self._alertmanager:
            at = {"static_configs": [{"targets": [f"127.0.0.1:{self._alertmanager}"]}]}
            config["alerting"] = {"alertmanagers": [at]}
        (self._work / "prometheus.yml").write_text(yaml.safe_dump(config))

    def reload(self) -> None:
        """Have it read its configuration again."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/-/reload", method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """The samples that an expression gives now, or at a moment."""
        asked = urllib.parse.urlencode({"query": expr, "time": at or time.time()})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{asked}", timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from None

    def range(self, expr: str, seconds: float, step: float) -> list[dict[str, Any]]:
        """The series of the last so many seconds."""
        now = time.time()
        asked = urllib.parse.urlencode({"query": expr, "start": now - seconds, "end": now, "step": step})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query_range?{asked}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found


def missing(*programs: str) -> str:
    """Why a test with these programs cannot run here; empty where it can."""
    lacking = [program for program in programs if shutil.which(program) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return "" if os.geteuid() == 0 else "needs root, for a mount namespace with another machine's /sys"


@contextlib.contextmanager
def running(*processes: Process) -> Iterator[None]:
    """Start them in order, end them all."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in reversed(processes):
            process.stop()
