"""The daemon under the machine's systemd: installed, scraped, and timed in scans."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.lab.machine import PATIENCE, Machine
from tests.lab.product import FAKE_NVML

PROGRAM = "/opt/gpu-topo/venv/bin/gpu-topo"
UNIT = "gpu-topo.service"
STATE = f"{FAKE_NVML}/machine.state"
INTERVAL = 2
# The emulated machine is short-lived: it looks more often, and does not wait for what comes up after boot. It is also
# slow, the more so when others use the same processors: a source that takes seconds is none that hangs.
_CONFIG = """scan.interval = "{interval}s"
scan.timeout = "15s"
scan.boot-grace = "0s"
"""
# So long that unhealthy scans (three intervals and a deadline, 21 s) are seen well before it strikes.
WATCHDOG = 40
_DROP_IN = f"""[Service]
WatchdogSec={WATCHDOG}s
Environment=LD_LIBRARY_PATH={FAKE_NVML} FAKE_NVML={STATE}
"""
Labels = Mapping[str, str]


def since(said: str, mark: float) -> list[str]:
    """The messages of `journalctl -o json` after a moment of CLOCK_MONOTONIC. (systemd 252's --after-cursor leaves one
    out where the entry at the cursor is none of those that are asked for.)"""
    entries = map(json.loads, said.splitlines())
    return [entry["MESSAGE"] for entry in entries if int(entry["__MONOTONIC_TIMESTAMP"]) > mark * 1e6]


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
        machine.write("/etc/gpu-topo/gpu-topo.toml", _CONFIG.format(interval=INTERVAL))
        machine.write(f"/etc/systemd/system/{UNIT}.d/lab.conf", _DROP_IN)
        self.put_nvml()
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", UNIT)

    def pace(self, interval: int) -> None:
        """From now on so many seconds from one scan to the next."""
        self.machine.write("/etc/gpu-topo/gpu-topo.toml", _CONFIG.format(interval=interval))
        self.scan()

    def scan(self) -> Scrape:
        """Have it scan at once, as it does when it is reloaded: what it saw."""
        began = self.machine.now()
        self.machine.run("systemctl", "reload", UNIT)
        ends = time.monotonic() + PATIENCE
        while (scrape := self.scrape()).scan_began < began:
            assert time.monotonic() < ends, "no scan after a reload"
            time.sleep(0.1)
        return scrape

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
        ends = time.monotonic() + PATIENCE
        while self.show("ActiveState") != "active" or broken & {
            code for code, _, subject in self.scrape().findings() if ":" in subject or subject == "node"
        }:
            assert time.monotonic() < ends, f"the machine does not get well: {self.journal()[-20:]}"
            time.sleep(0.3)

    def scrape(self) -> Scrape:
        """What /metrics says now."""
        answer = self.machine.get("http://127.0.0.1:10119/metrics")
        assert answer.status == 200
        return Scrape(answer.body)

    def report(self) -> Any:
        """The JSON report."""
        return json.loads(self.machine.get("http://127.0.0.1:10119/api/v1/report").body)

    def until(self, look: Callable[[Scrape], bool], since: float, within: int = 2) -> Scrape:
        """Scrape until there is what is looked for. An AssertionError where a scan does not show it that was at least
        the `within`-th to begin after `since` (the machine's clock)."""
        first = None
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            scrape = self.scrape()
            if look(scrape):
                return scrape
            # A scan may come and go between two scrapes, and would be missed as the first or as the one that showed
            # it: only what was scraped and does not show it counts.
            if first is None and scrape.scan_began >= since:
                first = scrape.scans
            number = 0 if first is None else scrape.scans - first + 1
            assert number < within, f"scan number {number} after the event: {scrape.findings()}\n{self.journal()[-20:]}"
            time.sleep(0.1)
        raise TimeoutError(f"not within {PATIENCE:g} s: {scrape.findings()}")

    def pass_scans(self, number: int) -> Scrape:
        """Wait until so many more scans were finished."""
        scrape = self.scrape()
        goal = scrape.scans + number
        ends = time.monotonic() + PATIENCE
        while scrape.scans < goal:
            assert time.monotonic() < ends, f"{scrape.scans} scans of {goal} after {PATIENCE:g} s"
            time.sleep(0.1)
            scrape = self.scrape()
        return scrape

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.machine.run("systemctl", "show", "--value", "-p", name, UNIT).out.strip()

    def mark(self) -> float:
        """A moment for `journal`: what was logged by now is before it."""
        self.machine.run("journalctl", "--sync")
        return self.machine.monotonic()

    def journal(self, mark: float = 0.0) -> list[str]:
        """What the daemon has logged since then."""
        return self._journal(mark, "_COMM=gpu-topo")

    def systemd(self, mark: float) -> list[str]:
        """What systemd has logged of the unit since then."""
        return self._journal(mark, "_PID=1")

    def _journal(self, mark: float, match: str) -> list[str]:
        self.machine.run("journalctl", "--sync")  # what was sent a moment ago may not be in it yet
        said = self.machine.run("journalctl", "-q", "-o", "json", "--output-fields=MESSAGE", match, "-u", UNIT).out
        return since(said, mark)

    def memory(self, name: str) -> str:
        """A file of the unit's memory cgroup."""
        return self.machine.read(f"/sys/fs/cgroup/system.slice/{UNIT}/memory.{name}")
