"""A container booted with systemd as its init, and commands in it: real units without a virtual machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.lab.processes import missing, until

# Runs in the container: a shell command a connection, its exit status and output back.
_CONTROL = """
import json, os, socket, subprocess
server = socket.socket(socket.AF_UNIX)
server.bind("/lab/control")
server.listen(8)
while True:
    client, _ = server.accept()
    with client, client.makefile("rw") as stream:
        done = subprocess.run(["/bin/sh", "-c", stream.readline()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, errors="replace")
        json.dump([done.returncode, done.stdout], stream)
"""
_UNIT = """[Unit]
Description=Commands from the test
[Service]
ExecStart=/usr/bin/python3 -c '%s'
[Install]
WantedBy=multi-user.target
"""


class Done(NamedTuple):
    """How a command ended."""

    status: int
    output: str


class Container:
    """A root tree under systemd-nspawn. `shared` is /lab in it; `binds` are more folders, read-only: host -> inside."""

    def __init__(self, root: Path, shared: Path, binds: Mapping[Path, str]) -> None:
        self.root = root
        self._shared = shared
        self._binds = binds
        self._running: subprocess.Popen[bytes] | None = None
        (root / "etc/lab-control.py").write_text(_CONTROL)
        unit = root / "etc/systemd/system/lab-control.service"
        unit.write_text(_UNIT.replace("-c '%s'", "/etc/lab-control.py"))
        wanted = unit.parent / "multi-user.target.wants" / unit.name
        wanted.parent.mkdir(exist_ok=True)
        wanted.symlink_to(f"../{unit.name}")

    def start(self) -> None:
        """Boot, and wait until commands are taken."""
        shared = [
            f"--bind={self._shared}:/lab",
            *(f"--bind-ro={host}:{inside}" for host, inside in self._binds.items()),
        ]
        boot = [
            "systemd-nspawn", "--quiet", "--directory", str(self.root), "--boot", "--register=no", "--keep-unit",
            "--private-network", f"--machine=gputopo{os.getpid()}", *shared, "--", "--show-status=no",
        ]  # fmt: skip
        # On a pipe instead of a terminal its init ends at once and says nothing: hence script.
        with (self._shared / "console").open("wb") as console:
            self._running = subprocess.Popen(
            ["script", "-qfec", " ".join(boot), "/dev/null"],
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        until(self._listens, 180, "systemd in the container is up", self.console)

    def _listens(self) -> bool:
        try:
            return self.run("true").status == 0
        except OSError:
            return False  # its socket is not there yet, or there and nobody listens

    def console(self) -> str:
        """What was said at boot."""
        return (self._shared / "console").read_text(errors="replace")[-3000:]

    def run(self, command: str, seconds: float = 300.0) -> Done:
        """A shell command as root in the container."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(seconds)
            client.connect(str(self._shared / "control"))
            with client.makefile("rw") as stream:
                stream.write(command.replace("\n", " ") + "\n")
                stream.flush()
                return Done(*json.loads(stream.read()))

    def check(self, command: str, seconds: float = 300.0) -> str:
        """The output of a command that has to succeed."""
        done = self.run(command, seconds)
        assert done.status == 0, f"{command}: exit status {done.status}\n{done.output}"
        return done.output

    def stop(self) -> None:
        """Power off; what does not end is killed."""
        if self._running is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self.run("systemctl --no-block poweroff", 5)
        try:
            self._running.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
        self._running = None


def why_not() -> str:
    """Why no container can be booted here; empty where one can."""
    return missing("systemd-nspawn", "script", "mmdebstrap", "unshare")


@contextlib.contextmanager
def layered(tree: Path, work: Path) -> Iterator[Path]:
    """The tree with a layer above it that takes what is written and is thrown away."""
    shutil.rmtree(work, ignore_errors=True)
    for name in ("upper", "work", "root"):
        (work / name).mkdir(parents=True)
    layers = f"lowerdir={tree},upperdir={work}/upper,workdir={work}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(work / "root")], check=True)
    try:
        yield work / "root"
    finally:
        subprocess.run(["umount", "-l", str(work / "root")], check=False)
        shutil.rmtree(work, ignore_errors=True)
