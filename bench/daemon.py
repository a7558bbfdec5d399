"""What the daemon costs beside Debian's node_exporter on the same tree: memory, a scan and a scrape, a scrape alone."""

from __future__ import annotations

import http.client
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.line import Line
from bench.measure import interleaved, number, ratio

HERE = Path(__file__).resolve().parent
SCRAPES = 200
SHORT, LONG = 3, 13  # seconds that a daemon lives which scans every second: the difference is what ten scans cost
EXPORTERS = ("node_exporter", "prometheus-node-exporter")
# What Prometheus itself sends.
_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


class Served(NamedTuple):
    """What serving cost."""

    scrape: float  # CPU seconds of one scrape
    memory: float  # MiB resident after all of them


def lines(programs: Path, tree: Path, rounds: int, exporter: str | None = None) -> Iterator[Line]:
    """The lines of the daemon, on one tree. exporter: the node_exporter to compare with, else the one on PATH."""
    inside = [str(programs / "python"), "-I", str(HERE / "inside.py")]
    jobs = {what: partial(number, [*inside, what, str(tree)]) for what in ("warm", "cold")}
    found = interleaved(jobs, rounds)
    note = f"{median(found['warm']):.2f} ms over {median(found['cold']):.1f} ms"
    yield Line("warm scan over cold scan, 200 functions", ratio(found["warm"], found["cold"]), 0.2, note=note)

    ours = served([str(programs / "gpu-topo"), "serve", "--root", str(tree), "--scan.interval", "1h"])
    scan = scanning(programs, tree)
    exporter = exporter or next((path for name in EXPORTERS if (path := shutil.which(name))), None)
    memory, scrape, both = (
        "memory of the daemon over node_exporter's",
        "a scrape over its scrape",
        "a scan and a scrape",
    )
    if exporter is None:
        for what, goal in ((memory, 2.0), (scrape, 0.1), (f"{both} over its scrape", 0.3)):
            yield Line(what, None, goal, note="no node_exporter")
        return
    collectors = ["--collector.infiniband"]
    theirs = served(_exporter(exporter, tree, collectors))
    note = f"{ours.memory:.1f} MiB over {theirs.memory:.1f} MiB"
    yield Line(f"{memory}, infiniband", ours.memory / theirs.memory, 2.0, note=note)
    known = subprocess.run([exporter, "--help"], capture_output=True, text=True, check=False)
    if "--collector.pcidevice" in known.stdout + known.stderr:
        theirs = served(_exporter(exporter, tree, [*collectors, "--collector.pcidevice"]))
        note = f"over {theirs.scrape * 1000:.2f} ms"
        yield Line(f"{scrape}, infiniband and pcidevice", ours.scrape / theirs.scrape, 0.1, note=note)
        yield Line(f"{both} over that", (scan + ours.scrape) / theirs.scrape, 0.3, note=note)
        return
    note = f"no pcidevice collector; infiniband alone takes {theirs.scrape * 1000:.2f} ms"
    yield Line(scrape, None, 0.1, note=f"{note}, ours {ours.scrape * 1000:.2f} ms")
    yield Line(f"{both} over that", None, 0.3, note=f"{note}, ours {(scan + ours.scrape) * 1000:.2f} ms")


def _exporter(program: str, tree: Path, collectors: Sequence[str]) -> list[str]:
    return [program, "--collector.disable-defaults", *collectors, f"--path.sysfs={tree}/sys"]


def served(command: Sequence[str]) -> Served:
    """Run a server and scrape it."""
    with running(command) as (process, port):
        for _ in range(10):
            scrape(port)
        begun = _cpu(process.pid)
        for _ in range(SCRAPES):
            scrape(port)
        return Served((_cpu(process.pid) - begun) / SCRAPES, _resident(process.pid))


def scanning(programs: Path, tree: Path) -> float:
    """CPU seconds of one scan of the daemon with all that follows from it, as its whole life shows them."""
    command = [str(programs / "gpu-topo"), "serve", "--root", str(tree), "--scan.interval", "1s"]
    lives = []
    for seconds in (SHORT, LONG):
        before = _of_children()
        with running(command):
            time.sleep(seconds)
        lives.append(_of_children() - before)
    return (lives[1] - lives[0]) / (LONG - SHORT)


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that answers, and its port; it is asked to stop at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    words = [*command, f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 20
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{command[0]} does not serve")
            time.sleep(0.05)
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def scrape(port: int) -> int:
    """Fetch the metrics once, as Prometheus does; how many bytes came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers=_HEADERS)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"/metrics answers {answer.status}")
        return len(answer.read())
    finally:
        connection.close()


def _answers(port: int) -> bool:
    try:
        return scrape(port) > 0
    except (OSError, RuntimeError, http.client.HTTPException):
        return False


def _cpu(pid: int) -> float:
    """CPU seconds of a living process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
