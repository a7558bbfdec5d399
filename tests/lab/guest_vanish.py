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


def resident() -> int:
    """Memory in use, in bytes."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Scanner(threading.Thread):
    """Audits again and again, with kept descriptors and without by turns; counts how many devices each audit saw."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kept = Kept()
        self.seen: Counter[int] = Counter()
        self.bad: Counter[str] = Counter()
        self.errors: list[str] = []
        self.end = False

    def run(self) -> None:
        while not self.end:
            for source in (self.kept, Live()):
                try:
                    self.kept.begin()
                    self.look(source)
                except Exception:
                    self.errors.append(traceback.format_exc())

    def look(self, source: Live) -> None:
        """One audit."""
        report = audit(source, timeout=60.0)
        self.seen[len(report.node.devices)] += 1
        for status in report.node.sources:
            if status.status not in ("ok", "absent"):
                self.bad[f"{status.name} {status.status}: {status.detail}"] += 1


def main(rounds: int, addresses: list[str]) -> None:
    """Remove each device in turn, look for devices again, and so on."""
    before = sorted(os.listdir(f"{PCI}/devices"))
    files = len(os.listdir("/proc/self/fd"))
    scanner = Scanner()
    scanner.start()
    first, begun, lost = resident(), time.monotonic(), 0
    for number in range(rounds):
        if number == WARM_UP:
            first = resident()
        address = addresses[number % len(addresses)]
        put(f"{PCI}/devices/{address}/remove")
        lost += not os.path.exists(f"{PCI}/devices/{address}")
        put(f"{PCI}/rescan")
    last = resident()
    scanner.end = True
    scanner.join(120)
    scanner.kept.close()
    print(
        json.dumps(
            {
                "rounds": rounds,
                "removed": lost,
                "seconds": time.monotonic() - begun,
                "same_devices": sorted(os.listdir(f"{PCI}/devices")) == before,
                "alive": scanner.is_alive(),
                "errors": scanner.errors[:3],
                "bad_sources": dict(scanner.bad),
                "seen": dict(scanner.seen),
                "grown_bytes": last - first,
                "grown_files": len(os.listdir("/proc/self/fd")) - files,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
