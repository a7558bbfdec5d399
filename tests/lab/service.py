"""The daemon under the machine's systemd: installed, scraped, and timed in scans."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.lab.machine import Machine
from tests.lab.product import FAKE_NVML

PROGRAM = "/opt/gpu-topo/venv/bin/gpu-topo"
UNIT = "gpu-topo.service"
STATE = f"{FAKE_NVML}/machine.state"
INTERVAL = 2
# The emulated machine is slow and short-lived: it looks more often, and does not wait for what comes up after boot.
_CONFIG = f"""scan.interval = "{INTERVAL}s"
scan.timeout = "5s"
scan.boot-grace = "0s"
"""
WATCHDOG = 16
_DROP_IN = f"""[Service]
WatchdogSec={WATCHDOG}s
Environment=LD_LIBRARY_PATH={FAKE_NVML} FAKE_NVML={STATE}
"""
Labels = Mapping[str, str]


class Scrape:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def value(self, name: str, /, **labels: str) -> float | None:
        """The value of the one series with these labels (and perhaps more), None where there is none."""
        found = [v for own, v in self.samples.get(f"gputopo_{name}", ()) if labels.items() <= own.items()]
        assert len(found) < 2, (name, labels, found)
        return found[0] if found else None

    def number(self, name: str, /, **labels: str) -> float:
        """As value, of a series that must be there."""
        value = self.value(name, **labels)
        assert value is not None, (name, labels)
        return value

    def findings(self) -> set[tuple[str, str, str]]:
        """Code, severity and subject of what holds."""
        rows = self.samples.get("gputopo_finding", ())
        return {(own["code"], own["severity"], own["subject"]) for own, value in rows if value == 1}

    @property
    def scans(self) -> int:
        """How many scans were finished."""
        return int(self.number("scans_total"))

    @property
    def scan_began(self) -> float:
        """When the last finished scan began, by the machine's clock."""
        return self.number("last_scan_timestamp_seconds") - self.number("scan_duration_seconds")


class Service:
    """gpu-topo.service in a machine."""

    def __init__(self, machine: Machine, nvml: str) -> None:
        """nvml: the state file of the fake library."""
        self.machine = machine
        self.nvml = nvml

    def install(self) -> None:
        """What an administrator does after `pip install`: the units, the configuration, start."""
        machine = self.machine
        machine.sh(f"cp -a /opt/gpu-topo/root/. /; ln -s {PROGRAM} /usr/local/bin/gpu-topo")
        machine.sh(f"mkdir -p /etc/gpu-topo /etc/systemd/system/{UNIT}.d")
        machine.write("/etc/gpu-topo/gpu-topo.toml", _CONFIG)
        machine.write(f"/etc/systemd/system/{UNIT}.d/lab.conf", _DROP_IN)
        self.put_nvml()
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", UNIT, timeout=120)

    def put_nvml(self, *lines: str) -> None:
        """The driver's answers as they were, with these lines added."""
        self.machine.write(STATE, "\n".join((self.nvml, *lines, "")))

    def heal(self) -> None:
        """Whatever a test broke is whole again, and the daemon runs and knows."""
        for card in self.machine.cards.values():
            card.dead = False
            card.set_link(card.card.speed, card.card.width)
        for number in (0, 1):
            self.machine.set_link(f"ethernet{number}", True)
        self.put_nvml()
        broken = {"pcie-width-degraded", "pcie-device-lost", "gpu-lost", "gpu-driver-unresponsive"}
        ends = time.monotonic() + 90
        while self.show("ActiveState") != "active" or broken & {
            code for code, _, subject in self.scrape().findings() if ":" in subject or subject == "node"
        }:
            assert time.monotonic() < ends, "the machine does not get well"
            time.sleep(0.3)

    def scrape(self) -> Scrape:
        """What /metrics says now."""
        answer = self.machine.get("http://127.0.0.1:10119/metrics")
        assert answer.status == 200
        return Scrape(answer.body)

    def report(self) -> Any:
        """The JSON report."""
        return json.loads(self.machine.get("http://127.0.0.1:10119/api/v1/report").body)

    def until(self, look: Callable[[Scrape], bool], since: float, within: int = 2, seconds: float = 90) -> Scrape:
        """Scrape until there is what is looked for. An AssertionError where more than `within` scans that began after
        `since` (the machine's clock) were needed, or more than so many seconds."""
        first = None
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            scrape = self.scrape()
            if first is None and scrape.scan_began >= since:
                first = scrape.scans
            if look(scrape):
                needed = 0 if first is None else scrape.scans - first + 1
                assert needed <= within, f"only the scan number {needed} after the event showed it"
                return scrape
            assert first is None or scrape.scans - first < within + 2, f"{scrape.findings()}\n{self.journal('')}"
            time.sleep(0.3)
        raise TimeoutError(f"not within {seconds:g} s: {scrape.findings()}")

    def pass_scans(self, number: int, seconds: float = 120) -> Scrape:
        """Wait until so many more scans were finished."""
        scrape = self.scrape()
        goal = scrape.scans + number
        ends = time.monotonic() + seconds
        while scrape.scans < goal:
            assert time.monotonic() < ends, f"{scrape.scans} scans of {goal} after {seconds:g} s"
            time.sleep(0.3)
            scrape = self.scrape()
        return scrape

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.machine.run("systemctl", "show", "--value", "-p", name, UNIT).out.strip()

    def cursor(self) -> str:
        """The journal's end."""
        said = self.machine.run("journalctl", "-n", "0", "--show-cursor", "-q").out
        return said.rpartition("cursor: ")[2].strip()

    def journal(self, cursor: str) -> list[str]:
        """What the daemon has logged since then ("": since boot)."""
        after = (f"--after-cursor={cursor}",) if cursor else ()
        said = self.machine.run("journalctl", "-q", "-o", "cat", "_COMM=gpu-topo", "-u", UNIT, *after)
        return said.out.splitlines()

    def memory(self, name: str) -> str:
        """A file of the unit's memory cgroup."""
        return self.machine.read(f"/sys/fs/cgroup/system.slice/{UNIT}/memory.{name}")
