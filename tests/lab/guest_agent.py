"""Runs in the virtual machine: does what the test on the host asks for, a JSON object a line and one line back.

{"run": [ARGV], "timeout": S}  {"read": PATH}  {"write": PATH, "text": TEXT}  {"get": URL, "timeout": S}
{"now": true}  {"monotonic": true}
Answers {"ok": …} or {"error": TEXT}. As process 1 (a machine without systemd) it mounts what is missing first.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from typing import Any

PORT = "lab.ctl"


def port() -> str:
    """The device file of the virtio-serial port with our name."""
    for _ in range(300):
        for path in glob.glob("/sys/class/virtio-ports/*/name"):
            with open(path) as file:
                if file.read().strip() == PORT:
                    return f"/dev/{path.split('/')[-2]}"
        time.sleep(0.1)
    sys.exit(f"no virtio-serial port {PORT}")


def run(request: dict[str, Any]) -> dict[str, Any]:
    """A program to its end; status 124 where it took too long, as timeout(1) has it."""
    try:
        done = subprocess.run(
            request["run"], stdin=subprocess.DEVNULL, capture_output=True, timeout=request["timeout"], check=False
        )
    except subprocess.TimeoutExpired as error:
        out, err = error.stdout or b"", error.stderr or b""
        return {"status": 124, "out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}
    return {
        "status": done.returncode,
        "out": done.stdout.decode("utf-8", "replace"),
        "err": done.stderr.decode("utf-8", "replace"),
    }


def get(request: dict[str, Any]) -> dict[str, Any]:
    """An HTTP request: status, body, and how long it took."""
    import urllib.error
    import urllib.request

    begun = time.monotonic()
    try:
        with urllib.request.urlopen(request["get"], timeout=request["timeout"]) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    return {"status": status, "body": body.decode(), "seconds": time.monotonic() - begun}


def answer(request: dict[str, Any]) -> Any:
    """What one request asks for."""
    if "run" in request:
        return run(request)
    if "get" in request:
        return get(request)
    if "now" in request:
        return time.time()
    if "monotonic" in request:
        return time.monotonic()
    if "write" in request:
        # A rename, so that nobody reads half of it; what the kernel makes (sysfs, cgroups) cannot be renamed onto.
        path = request["write"]
        whole = path if path.startswith("/sys/") else f"{path}.new"
        with open(whole, "w") as file:
            file.write(request["text"])
        if whole != path:
            os.replace(whole, path)
        return None
    with open(request["read"], errors="replace") as file:
        return file.read()


def main() -> None:
    """Serve the host for ever."""
    os.environ.update(
        PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root", LC_ALL="C.UTF-8"
    )
    if os.getpid() == 1:
        for kind, where in (("tmpfs", "/run"), ("tmpfs", "/tmp"), ("cgroup2", "/sys/fs/cgroup")):
            subprocess.run(["mount", "-t", kind, kind, where], check=False)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    with open(port(), "r+b", buffering=0) as wire:
        reply: Any = {"ok": "ready"}
        while True:
            data = json.dumps(reply).encode() + b"\n"
            while data:
                data = data[wire.write(data) :]
            line = b""
            while not line.endswith(b"\n"):
                line += wire.read(65536) or b""
            try:
                reply = {"ok": answer(json.loads(line))}
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
