"""Runs in the virtual machine with the product's Python: audits without a pause while PCI devices come and go.

guest_vanish.py ROUNDS ADDRESS...: prints what happened as one JSON object.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter

from gpu_topo.agent.inspect import audit
from gpu_topo.source import Live
from gpu_topo.source.kept import Kept

PCI = "/sys/bus/pci"
WARM_UP = 10  # rounds before the first measurement


def put(path: str) -> None:
    """Write what starts a removal or a search for devices."""
    with open(path, "w") as file:
        file.write("1")


def footprint() -> tuple[int, int]:
    """Resident memory in bytes, open files."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


class Scanner(threading.Thread):
    """Audits again and again; counts how many devices each audit saw."""

    def __init__(self, source: Live) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.seen: Counter[int] = Counter()
        self.bad: Counter[str] = Counter()
        self.errors: list[str] = []
        self.end = False

    def run(self) -> None:
        while not self.end:
            try:
                if isinstance(self.source, Kept):
                    self.source.begin()
                report = audit(self.source, timeout=60.0)
                self.seen[len(report.node.devices)] += 1
                for source in report.node.sources:
                    if source.status not in ("ok", "absent"):
                        self.bad[f"{source.name} {source.status}: {source.detail}"] += 1
            except Exception:
                self.errors.append(traceback.format_exc())


def main(rounds: int, addresses: list[str]) -> None:
    """Remove each device in turn, look for devices again, and so on."""
    before = sorted(os.listdir(f"{PCI}/devices"))
    scanners = [Scanner(Live()), Scanner(Kept())]
    for scanner in scanners:
        scanner.start()
    first, begun, lost = footprint(), time.monotonic(), 0
    for number in range(rounds):
        if number == WARM_UP:
            first = footprint()
        address = addresses[number % len(addresses)]
        put(f"{PCI}/devices/{address}/remove")
        lost += not os.path.exists(f"{PCI}/devices/{address}")
        put(f"{PCI}/rescan")
    last = footprint()
    for scanner in scanners:
        scanner.end = True
    for scanner in scanners:
        scanner.join(120)
    print(
        json.dumps(
            {
                "rounds": rounds,
                "removed": lost,
                "seconds": time.monotonic() - begun,
                "same_devices": sorted(os.listdir(f"{PCI}/devices")) == before,
                "alive": sum(scanner.is_alive() for scanner in scanners),
                "errors": [error for scanner in scanners for error in scanner.errors][:3],
                "bad_sources": [dict(scanner.bad) for scanner in scanners],
                "seen": [dict(scanner.seen) for scanner in scanners],
                "grown_bytes": last[0] - first[0],
                "grown_files": last[1] - first[1],
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
