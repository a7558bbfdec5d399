"""The product in a virtual machine: two sockets of emulated PCI Express, soft-RoCE, a real kernel and a real systemd.

QEMU emulates the processors too, so this needs no KVM. Everything that is waited for has an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakenvml import compiler, states
from tests.lab import witness
from tests.lab.image import Image, image
from tests.lab.machine import PATIENCE, Machine, missing, until
from tests.lab.product import CHECKOUT, disk
from tests.lab.rootfs import rootfs
from tests.lab.service import INTERVAL, PROGRAM, UNIT, WATCHDOG, Scrape, Service
from tests.lab.topology import addresses, port

pytestmark = [pytest.mark.lab, pytest.mark.slow]

AGENT = "/opt/gpu-topo/lab/guest_agent.py"
PYTHON = "/opt/gpu-topo/venv/bin/python"
NEAR, FAR = addresses(0), addresses(1)
GPUS = (NEAR.switch_gpu, NEAR.gpu, FAR.switch_gpu, FAR.gpu)
BOOT = 2 * PATIENCE  # of which a quiet computer needs 10 s
ROCE = """
modprobe -a virtio_net rdma_rxe
for number in 0 1; do
    device=$(grep -l 52:54:00:12:34:5$number /sys/class/net/*/address | cut -d/ -f5)
    ip link set $device up
    rdma link add rxe$number type rxe netdev $device
done
"""


class Parts(NamedTuple):
    """What a machine is started from."""

    image: Image
    product: Path
    folder: Path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The disks: a cached root, and the product as it is now."""
    lacking = missing()
    if lacking or compiler() is None:
        pytest.skip(f"the virtual machine cannot be built here: {lacking or 'no C compiler'}")
    if not (CHECKOUT / "pyproject.toml").exists():
        pytest.skip("the virtual machine is built from a checkout")
    cache = CHECKOUT / ".lab"
    folder = tmp_path_factory.mktemp("qemu")
    tree = rootfs(cache)
    return Parts(image(tree, cache), disk(tree, cache, folder), folder)


@pytest.fixture(scope="class")
def guest(parts: Parts) -> Iterator[Machine]:
    """A virtual machine as it is: without systemd, its hypervisor in plain sight, two soft-RoCE ports."""
    with Machine(parts.image, parts.product, parts.folder / "guest", hardware=False, init=AGENT) as machine:
        machine.wait_ready(BOOT)
        machine.sh(ROCE)
        yield machine


@pytest.fixture(scope="class")
def service(parts: Parts) -> Iterator[Service]:
    """A machine that passes for hardware, with systemd, and the daemon installed and started in it."""
    with Machine(parts.image, parts.product, parts.folder / "hardware", hardware=True) as machine:
        machine.wait_ready(BOOT)
        until(lambda: machine.run("systemctl", "is-system-running", check=False).out == "running\n", BOOT, "boot", 1)
        machine.sh(ROCE)
        buses = [f"gpu.{i}.busid=0000{address}" for i, address in enumerate(GPUS)]
        service = Service(machine, "\n".join((states.l40s(len(GPUS)), *buses)))
        service.install()
        service.pass_scans(3)
        yield service


def audit(machine: Machine) -> Any:
    """The JSON report of an audit inside."""
    done = machine.run(PROGRAM, "inspect", "--json", "--timeout", "60", check=False)
    assert done.status in (0, 1, 2), done.err
    assert done.err == ""
    return json.loads(done.out)


def seen_by_lspci(machine: Machine) -> dict[str, witness.Seen]:
    return witness.lspci(machine.sh("lspci -D -vvv 2>/dev/null"), machine.sh("lspci -D -PP"))


def check_devices(report: Any, seen: dict[str, witness.Seen]) -> None:
    """Places and drivers of every device are lspci's."""
    assert {d["address"] for d in report["devices"]} <= set(seen)
    for device in report["devices"]:
        witnessed = seen[device["address"]]
        assert tuple(device["path"]) == witnessed.path
        assert device["parent"] == (witnessed.path[-2] if len(witnessed.path) > 1 else None)
        assert device["numa_node"] == witnessed.numa, device["address"]
        assert device["driver"] == witnessed.driver, device["address"]


def roce_port(report: Any, device: str) -> Any:
    return next(p for p in report["ports"] if p["device"] == device)


class TestGuest:
    """A virtual machine as it is: without systemd, its hypervisor in plain sight."""

    def test_devices_agree_with_lspci(self, guest: Machine) -> None:
        """Every device, its bridges, NUMA node and driver, and nothing that lspci does not see."""
        report, seen = audit(guest), seen_by_lspci(guest)
        check_devices(report, seen)
        assert [d["address"] for d in report["devices"] if d["kind"] == "gpu"] == sorted(GPUS)
        nics = {d["address"] for d in report["devices"] if d["kind"] == "nic"}
        assert nics == {a for s in (NEAR, FAR) for a in (s.infiniband, s.ethernet, s.management)}
        assert {NEAR.drive, FAR.drive} <= {d["address"] for d in report["devices"] if d["kind"] == "storage"}
        assert sorted(s["id"] for s in report["switches"]) == [NEAR.uplink, FAR.uplink]
        everything = json.loads(guest.run(PROGRAM, "inspect", "--json", "--all", "--timeout", "60", check=False).out)
        assert {d["address"] for d in everything["devices"]} == set(seen)

    def test_devices_agree_with_lstopo(self, guest: Machine) -> None:
        """hwloc finds the same bridges above each device, and the same NUMA node."""
        seen = witness.lstopo(guest.sh("lstopo-no-graphics --whole-io --of xml"))
        report = audit(guest)
        assert len(report["devices"]) > 20
        for device in report["devices"]:
            assert (tuple(device["path"]), device["numa_node"]) == seen[device["address"]]
        assert report["node"]["numa_nodes"] == 2
        assert [p["cpus"] for p in report["placement"]] == ["0", "0", "1", "1"]

    def test_emulated_links_are_not_judged(self, guest: Machine) -> None:
        """The platform is a virtual machine: no link rule finds anything, each says why not; kinds that only the host
        knows are UNKNOWN."""
        report = audit(guest)
        assert report["node"]["platform"] == "virtual-machine"
        assert report["node"]["hypervisor"] == "KVM"
        assert not [f for f in report["findings"] if f["code"].startswith("pcie-")]
        for code in ("pcie-width-degraded", "pcie-speed-degraded"):
            subjects = {u["subject"] for u in report["unassessed"] if u["code"] == code}
            assert set(GPUS) <= subjects
        wanted = witness.kinds(seen_by_lspci(guest), sorted(GPUS), {NEAR.uplink, FAR.uplink})
        assert set(wanted.values()) == {"PHB", "SYS"}
        assert {p["kind"] for p in report["paths"] if {p["a"], p["b"]} <= set(GPUS)} == {"UNKNOWN"}
        assert report["verdict"] == "unknown"

    def check_ports(self, guest: Machine, up: tuple[bool, bool]) -> None:
        """The report, ibstat, ibv_devinfo and `rdma link` say the same of both ports, and it is this."""
        report = audit(guest)
        stat, info = witness.ibstat(guest.sh("ibstat")), witness.ibv_devinfo(guest.sh("ibv_devinfo"))
        links = witness.rdma_link(guest.sh("rdma link"))
        for number, active in enumerate(up):
            device = f"rxe{number}"
            mine = roce_port(report, device)
            assert mine["state"] == ("ACTIVE" if active else "DOWN")
            assert mine["phys_state"] == ("LinkUp" if active else "Polling")
            assert stat[device][:2] == (("Active", "LinkUp") if active else ("Down", "Polling"))
            assert info[device] == ("PORT_ACTIVE" if active else "PORT_DOWN", mine["link_layer"])
            assert links[f"{device}/1"] == (mine["state"], "LINK_UP" if active else "POLLING", mine["netdev"])
            if active:
                assert mine["rate_gbps"] == stat[device][2]

    def test_soft_roce_ports(self, guest: Machine) -> None:
        """Ports of rdma_rxe are there, marked as software, and not taken for the fabric."""
        report = audit(guest)
        for device in ("rxe0", "rxe1"):
            mine = roce_port(report, device)
            assert (mine["transport"], mine["link_layer"], mine["port"]) == ("software", "Ethernet", 1)
            assert (mine["address"], mine["virtual_function"]) == (None, False)
            assert mine["role"] != "fabric"
        assert not [f for f in report["findings"] if f["subject"].startswith("rxe")]
        self.check_ports(guest, (True, True))

    def test_soft_roce_goes_down_and_up_without_an_event(self, guest: Machine) -> None:
        """A cable is pulled and put back: each scan sees it, the kernel sends no event at all."""
        guest.sh("stdbuf -oL udevadm monitor --kernel >/tmp/events 2>&1 &")
        until(lambda: "the kernel uevent" in guest.read("/tmp/events"), PATIENCE, "the monitor listens")
        for up in (False, True):
            guest.set_link("ethernet0", up)
            word = "ACTIVE" if up else "DOWN"
            until(lambda word=word: word in guest.read("/sys/class/infiniband/rxe0/ports/1/state"), PATIENCE, word)  # type: ignore[misc]
            self.check_ports(guest, (up, True))
        # Events come in order: before the one that is asked for here there was none.
        guest.sh("echo change >/sys/class/infiniband/rxe0/uevent")
        until(lambda: re.search(r"^KERNEL\[.*rxe0", guest.read("/tmp/events"), re.M), PATIENCE, "the event asked for")
        assert len(re.findall(r"^KERNEL\[", guest.read("/tmp/events"), re.M)) == 1
        guest.sh("pkill udevadm || kill %1 || true")


class TestHardware:
    """The same machine passing for hardware (a maker's name in its firmware, no hypervisor flag), with systemd."""

    @pytest.fixture(autouse=True)
    def whole(self, service: Service) -> Iterator[None]:
        """After each test the machine is as it was, and the daemon has seen that."""
        yield
        service.heal()

    def seen(
        self,
        service: Service,
        cause: Callable[[], None],
        look: Callable[[Scrape], bool],
        happened: Callable[[], bool] | None = None,
    ) -> Scrape:
        """Make something happen, and scrape until it shows: within two scans that began after it had happened."""
        assert not look(service.scrape()), "it was so before"
        cause()
        if happened is not None:
            until(happened, PATIENCE, "the machine does not see it either", 0.1)
        return service.until(look, service.machine.now())

    # --- one audit ------------------------------------------------------------------------------------------------

    def test_audit_agrees_with_lspci(self, service: Service) -> None:
        """On what passes for hardware, places, path kinds and link values are those of lspci."""
        report, seen = audit(service.machine), seen_by_lspci(service.machine)
        assert report["node"]["platform"] == "bare-metal"
        check_devices(report, seen)
        for device in report["devices"]:
            witnessed = seen[device["address"]]
            link = device["link"] or {"speed_gts": None, "width": None}
            assert (link["speed_gts"], link["width"]) == (witnessed.speed_gts, witnessed.width), device["address"]
        ends = sorted({p[end] for p in report["paths"] for end in "ab" if seen[p[end]].numa is not None})
        wanted = witness.kinds(seen, ends, {NEAR.uplink, FAR.uplink})
        told = {
            tuple(sorted((p["a"], p["b"]))): p["kind"] for p in report["paths"] if p["a"] in ends and p["b"] in ends
        }
        assert told == {pair: wanted[pair] for pair in told}
        assert set(told.values()) == {"PIX", "PHB", "SYS"}

    def test_narrow_uplink_is_found(self, service: Service) -> None:
        """The emulated switch has one Gen1 lane to the processor: a bottleneck of what hangs below, of nothing else."""
        report = audit(service.machine)
        found = {f["subject"] for f in report["findings"] if f["code"] == "pcie-path-bottleneck"}
        assert found == {a for s in (NEAR, FAR) for a in (s.switch_gpu, s.infiniband)}
        assert not [f for f in report["findings"] if f["code"] in ("pcie-width-degraded", "pcie-device-lost")]

    # --- the daemon -----------------------------------------------------------------------------------------------

    def test_unit_runs_from_the_wheel(self, service: Service) -> None:
        """Started by systemd in its sandbox, as a user of its own, ready after its first scan; it serves every page."""
        assert service.show("ActiveState") == "active"
        pid = service.show("MainPID")
        status = service.machine.read(f"/proc/{pid}/status")
        assert re.search(r"^CapBnd:\s+0+$", status, re.M)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
        assert not re.search(r"^Uid:\s+0\s", status, re.M)
        for page in ("metrics", "healthz", "readyz", "api/v1/report", "picture", ""):
            assert service.machine.get(f"http://127.0.0.1:10119/{page}", 20).status == 200, page
        scrape = service.scrape()
        known = {labels["address"] for labels, _ in scrape.samples["gputopo_device_info"]}
        assert {*GPUS, NEAR.infiniband, FAR.infiniband, NEAR.drive, FAR.drive} <= known
        for source in ("pcie", "nvml", "rdma", "net", "block", "platform"):
            assert scrape.value("source_up", source=source) == 1, source
        assert scrape.number("pcie_link_width", address=NEAR.gpu) == 16
        assert service.report()["node"]["platform"] == "bare-metal"

    def test_quiet_while_nothing_changes(self, service: Service) -> None:
        """Scans come at their interval and write nothing to the journal."""
        before, mark = service.scrape(), service.mark()
        after = service.pass_scans(5)
        apart = (after.scan_began - before.scan_began) / (after.scans - before.scans)
        # On a busy computer a scan may outlast the interval; the next one follows at once.
        assert 0.95 * INTERVAL < apart < 5 * INTERVAL
        assert service.journal(mark) == []
        assert after.findings() == before.findings()

    def test_link_degrades_and_heals(self, service: Service) -> None:
        """A link retrains to half its lanes: in the metrics within two scans, gone within two, a line each in the
        journal. The kernel sends no event of it."""
        machine, card, mark = service.machine, service.machine.cards["gpu0"], service.mark()
        finding = ("pcie-width-degraded", "critical", NEAR.gpu)
        scrape = self.seen(service, lambda: card.set_link(16.0, 8), lambda s: finding in s.findings())
        assert scrape.number("pcie_link_width", address=NEAR.gpu) == 8
        assert scrape.number("pcie_link_expected_width", address=NEAR.gpu) == 16
        assert "Width x8" in machine.sh(f"lspci -vvs {NEAR.gpu}")
        service.pass_scans(2)
        scrape = self.seen(service, lambda: card.set_link(16.0, 16), lambda s: finding not in s.findings())
        assert scrape.number("pcie_link_width", address=NEAR.gpu) == 16
        lines = service.journal(mark)
        assert [line.split(":")[0] for line in lines] == ["raised", "cleared"], lines
        assert all(f"code=pcie-width-degraded subject={NEAR.gpu}" in line for line in lines)

    def test_flicker_is_no_alarm(self, service: Service) -> None:
        """What only one scan sees is never raised."""
        service.pace(WATCHDOG // 2)  # between two that are asked for here there is no other, but for an event's
        try:
            assert any(self.flicker(service) for _ in range(5)), "each time there was another scan in between"
        finally:
            service.pace(INTERVAL)

    def flicker(self, service: Service) -> bool:
        """A link is narrow for one scan; False where another one may have seen it too, and it was to be raised."""
        card, mark = service.machine.cards["gpu0"], service.mark()
        before = service.scan()
        card.set_link(16.0, 8)
        narrow = service.scan()
        card.set_link(16.0, 16)
        scrapes = [before, narrow, *(service.scan() for _ in range(3))]
        if [scrape.scans - before.scans for scrape in scrapes[:3]] != [0, 1, 2]:
            return False
        assert [s.number("pcie_link_width", address=NEAR.gpu) for s in scrapes] == [16, 8, 16, 16, 16]
        assert not [line for line in service.journal(mark) if line.startswith(("raised", "cleared"))]
        return True

    def test_device_falls_off_the_bus(self, service: Service) -> None:
        """Configuration reads turn all ones, without an event: lost within two scans, and found again."""
        card, mark = service.machine.cards["infiniband1"], service.mark()
        finding = ("pcie-device-lost", "critical", FAR.infiniband)

        def dead(value: bool) -> Callable[[], None]:
            return lambda: setattr(card, "dead", value)

        scrape = self.seen(service, dead(True), lambda s: finding in s.findings())
        assert scrape.value("pcie_link_width", address=FAR.infiniband) is None, "all ones are no width"
        self.seen(service, dead(False), lambda s: finding not in s.findings())
        lines = [line for line in service.journal(mark) if "code=pcie-device-lost" in line]
        assert [line.split(":")[0] for line in lines] == ["raised", "cleared"], lines

    def test_gpu_falls_off_the_bus(self, service: Service) -> None:
        """As a driver tells it: the bus reads all ones and NVML says that the GPU is lost; its twins stay well."""
        card = service.machine.cards["gpu1"]

        def lose() -> None:
            card.dead = True
            service.put_nvml(f"gpu.{GPUS.index(FAR.gpu)}.lost=1")

        def lost(scrape: Scrape) -> set[tuple[str, str]]:
            found = {f for f in scrape.findings() if f[0] in ("pcie-device-lost", "gpu-lost")}
            # A driver that says nothing more of the GPU does not say its address either: then it is called GPU3.
            return {(code, severity) for code, severity, subject in found if subject in (FAR.gpu, "GPU3")}

        both = {("pcie-device-lost", "critical"), ("gpu-lost", "critical")}
        scrape = self.seen(service, lose, lambda s: lost(s) == both)
        assert ("pcie-device-lost", "critical", FAR.gpu) in scrape.findings()
        assert sum(code in ("pcie-device-lost", "gpu-lost") for code, _, _ in scrape.findings()) == 2
        service.heal()
        assert not {code for code, _, subject in service.scrape().findings() if subject == FAR.gpu} & {
            "pcie-device-lost"
        }

    def test_port_goes_down_and_up(self, service: Service) -> None:
        """A soft-RoCE port whose cable is pulled: seen by the daemon's own clock. It is software, so no alarm."""
        machine = service.machine

        def cable(up: bool) -> Callable[[], None]:
            return lambda: machine.set_link("ethernet1", up)

        def active(value: int) -> Callable[[Scrape], bool]:
            return lambda s: s.value("port_active", device="rxe1", port="1") == value

        def state(word: str) -> Callable[[], bool]:
            return lambda: word in machine.read("/sys/class/infiniband/rxe1/ports/1/state")

        flaps = service.scrape().value("port_flaps_total", device="rxe1") or 0
        scrape = self.seen(service, cable(False), active(0), state("DOWN"))
        assert scrape.value("port_rate_bytes_per_second", device="rxe1") is None
        assert scrape.value("port_active", device="rxe0", port="1") == 1
        scrape = self.seen(service, cable(True), active(1), state("ACTIVE"))
        # The interface's own speed: of Ethernet's, the driver knows those up to 100 Gb/s only.
        netdev = next(
            labels["netdev"] for labels, _ in scrape.samples["gputopo_port_info"] if labels["device"] == "rxe1"
        )
        speed = int(machine.read(f"/sys/class/net/{netdev}/speed"))
        assert (speed, scrape.number("port_rate_bytes_per_second", device="rxe1")) == (200_000, 25e9)
        assert scrape.value("port_flaps_total", device="rxe1") == flaps + 1
        assert not [f for f in scrape.findings() if f[2].startswith("rxe")]

    def test_hotplug(self, service: Service) -> None:
        """A drive is plugged in, pulled, and plugged in again: its series come and go within two scans; the pulled one
        is missed until it is back."""
        machine, slot = service.machine, f"/sys/bus/pci/devices/{NEAR.hotplug}"
        finding = ("pcie-device-lost", "critical", NEAR.hotplug)

        def there() -> bool:
            return bool(machine.run("test", "-e", slot, check=False).status == 0)

        def shown(scrape: Scrape) -> bool:
            return scrape.value("device_info", address=NEAR.hotplug, kind="storage") == 1

        def plug(name: str) -> Callable[[], None]:
            return lambda: machine.plug(name, "rp03")

        scrape = self.seen(service, plug("hot1"), shown, there)
        assert scrape.number("pcie_link_width", address=NEAR.hotplug) == 1
        service.pass_scans(2)
        self.seen(service, lambda: machine.qmp("device_del", id="hot1"), lambda s: not shown(s), lambda: not there())
        service.until(lambda s: finding in s.findings(), machine.now())
        self.seen(service, plug("hot2"), lambda s: shown(s) and finding not in s.findings(), there)

    def test_driver_hangs(self, service: Service) -> None:
        """A driver call that does not return: its source is down within two scans, a finding says so, everything else
        stays fresh, a link that degrades meanwhile shows, no scan is missed; all is well when the call returns."""
        machine, card = service.machine, service.machine.cards["gpu0"]
        finding = ("gpu-driver-unresponsive", "critical", "node")
        narrow = ("pcie-width-degraded", "critical", NEAR.gpu)
        restarts = service.show("NRestarts")
        service.put_nvml("gpu.1.hang.*=600")
        began = machine.now()
        scrape = service.until(lambda s: s.value("source_up", source="nvml") == 0, began)
        service.until(lambda s: finding in s.findings(), began)
        self.seen(service, lambda: card.set_link(16.0, 8), lambda s: narrow in s.findings())
        self.seen(service, lambda: card.set_link(16.0, 16), lambda s: narrow not in s.findings())
        while machine.now() - began < WATCHDOG + 2 * INTERVAL:
            scrape = service.pass_scans(1)
            assert finding in scrape.findings()
            assert all(scrape.value("source_up", source=name) == 1 for name in ("pcie", "rdma", "net", "block"))
            assert scrape.number("source_age_seconds", source="pcie") < 1
        assert scrape.number("source_age_seconds", source="nvml") > WATCHDOG
        answers = [machine.get("http://127.0.0.1:10119/metrics") for _ in range(10)]
        assert {answer.status for answer in answers} == {200}
        assert min(answer.seconds for answer in answers) < 1
        assert machine.sh("pgrep -cf '[n]vml_worker' || true").strip() in ("0", "1"), "workers pile up"
        service.put_nvml()
        scrape = service.until(
            lambda s: s.value("source_up", source="nvml") == 1 and finding not in s.findings(), machine.now(), within=3
        )
        assert service.show("NRestarts") == restarts

    @pytest.mark.parametrize("fault", ["hang.*=600", "lost=1"])
    def test_fault_invents_no_device(self, service: Service, fault: str) -> None:
        """What the driver does not name is not a device: while one GPU's calls fail the machine has the devices that it
        had, and afterwards none is missed."""

        def known(scrape: Scrape) -> set[str]:
            return {labels["address"] for labels, _ in scrape.samples["gputopo_device_info"]}

        before = service.scrape()
        service.put_nvml(f"gpu.1.{fault}")
        seen = set[str]().union(*(known(service.pass_scans(1)) for _ in range(3)))
        service.heal()
        after = service.pass_scans(2)
        assert not {f for f in after.findings() - before.findings() if f[0] == "pcie-device-lost"}
        assert seen == known(before)

    def test_state_survives_a_restart(self, service: Service) -> None:
        """A finding is there from the first scan after a restart, held since the same moment; a card that went
        unnoticed in between is missed."""
        card = service.machine.cards["gpu0"]
        finding = ("pcie-width-degraded", "critical", NEAR.gpu)
        name, labels = "finding_since_timestamp_seconds", {"code": finding[0], "subject": NEAR.gpu}
        scrape = self.seen(service, lambda: card.set_link(16.0, 4), lambda s: finding in s.findings())
        since = scrape.number(name, **labels)
        mark = service.mark()
        service.machine.run("systemctl", "restart", UNIT)
        scrape = service.scrape()
        assert scrape.number(name, **labels) == pytest.approx(since, abs=0.01)
        assert not [line for line in service.journal(mark) if line.startswith(("raised", "cleared"))]
        card.set_link(16.0, 16)
        service.until(lambda s: finding not in s.findings(), service.machine.now())

    @pytest.mark.parametrize("days", [1, -1])
    def test_clock_is_set(self, service: Service, days: int) -> None:
        """The wall clock jumps a day: scans go on at their pace, nothing is raised or cleared, and what began a minute
        ago still began a minute ago. It is set back while the daemon is down: the same."""
        machine, card, jump = service.machine, service.machine.cards["gpu0"], days * 86400
        finding = ("pcie-width-degraded", "critical", NEAR.gpu)
        name, labels = "finding_since_timestamp_seconds", {"code": finding[0], "subject": NEAR.gpu}
        scrape = self.seen(service, lambda: card.set_link(16.0, 8), lambda s: finding in s.findings())
        since = scrape.number(name, **labels)
        mark, findings = service.mark(), service.scrape().findings()
        machine.sh(f"date -s @$(($(date +%s) + {jump}))")
        try:
            first = service.pass_scans(2)
            after = service.pass_scans(5)
            apart = (after.scan_began - first.scan_began) / (after.scans - first.scans)
            assert 0.95 * INTERVAL < apart < 5 * INTERVAL
            assert after.findings() == findings
            assert after.number(name, **labels) == pytest.approx(since + jump, abs=2)
            assert 0 <= machine.now() - after.number("last_scan_timestamp_seconds") < 5 * INTERVAL
            assert all(value < 5 * INTERVAL for _, value in after.samples["gputopo_source_age_seconds"])
            machine.run("systemctl", "stop", UNIT)
        finally:
            machine.sh(f"date -s @$(($(date +%s) - {jump}))")
        machine.run("systemctl", "start", UNIT)
        after = service.scrape()
        assert after.number(name, **labels) == pytest.approx(since, abs=4)
        assert not [line for line in service.journal(mark) if line.startswith(("raised", "cleared"))]
        card.set_link(16.0, 16)
        service.until(lambda s: finding not in s.findings(), machine.now())

    def test_state_directory_is_full_and_read_only(self, service: Service) -> None:
        """The unit's own state directory on a file system without room, then on one that is read-only: each is told in
        one line and a metric, nothing half-written replaces the state, what happens is still seen; then it is saved."""
        machine, card, at = service.machine, service.machine.cards["gpu0"], "/var/lib/private/gpu-topo"
        finding = ("pcie-width-degraded", "critical", NEAR.gpu)
        machine.run("systemctl", "stop", UNIT)
        machine.sh(f"mount -t tmpfs -o size=64k,mode=0750 tmpfs {at}")
        try:
            machine.run("systemctl", "start", UNIT)
            assert service.pass_scans(4).value("state_last_write_successful") == 1
            before, mark = machine.read(f"{at}/state.json"), service.mark()
            assert len(before) > 4096
            # Room for a half of it.
            machine.sh(f"dd if=/dev/zero of={at}/filler bs=4096 2>/dev/null || truncate -s -4096 {at}/filler")
            self.seen(service, lambda: card.set_link(16.0, 8), lambda s: finding in s.findings())
            assert service.pass_scans(3).value("state_last_write_successful") == 0
            assert machine.read(f"{at}/state.json") == before
            assert machine.sh(f"ls -A {at}").split() == ["filler", "state.json"]
            machine.sh(f"rm {at}/filler")
            assert service.pass_scans(3).value("state_last_write_successful") == 1
            before = machine.read(f"{at}/state.json")
            assert "pcie-width-degraded" in before
            machine.sh(f"mount -o remount,ro {at}")
            self.seen(service, lambda: card.set_link(16.0, 16), lambda s: finding not in s.findings())
            assert service.pass_scans(3).value("state_last_write_successful") == 0
            assert machine.read(f"{at}/state.json") == before
            machine.sh(f"mount -o remount,rw {at}")
            assert service.pass_scans(3).value("state_last_write_successful") == 1
            assert "pcie-width-degraded" not in machine.read(f"{at}/state.json")
            told = [line.split("state.json ")[1] for line in service.journal(mark) if "state.json" in line]
            assert [words.split(":")[0] for words in told] == [
                "cannot be written (No space left on device)", "can be written again",
                "cannot be written (Read-only file system)", "can be written again",
            ]  # fmt: skip
            assert service.show("NRestarts") == "0"
        finally:
            machine.sh(f"systemctl stop {UNIT}; umount {at}; systemctl start {UNIT}")

    def test_a_stream_of_events_does_not_stop_the_scans(self, service: Service) -> None:
        """A device sends an event five times a second for five intervals: scans come at their pace all the same."""
        event = f"/sys/bus/pci/devices/{NEAR.gpu}/uevent"
        before = service.scrape().scans
        count = INTERVAL * 5 * 5
        service.machine.sh(f"i=0; while [ $i -lt {count} ]; do echo change >{event}; sleep 0.2; i=$((i+1)); done")
        # At the latest the gap between scans that events ask for (3 s) after one another.
        assert service.scrape().scans - before >= INTERVAL * 5 // 3 - 1

    def test_devices_vanish_while_they_are_read(self, service: Service) -> None:
        """Fifty rounds of removing devices and finding them again, while a scanner and the daemon read on: no
        error, no growth, the same machine in the end."""
        machine, before, mark = service.machine, service.scrape(), service.mark()
        restarts = service.show("NRestarts")
        victims = (NEAR.infiniband, FAR.gpu, NEAR.drive, FAR.infiniband, port(0, 0), NEAR.gpu)
        command = (PYTHON, "/opt/gpu-topo/lab/guest_vanish.py", "50", *victims)
        told = json.loads(machine.run(*command, timeout=3 * PATIENCE).out)
        assert told["errors"] == []
        # While a device goes, some of its files refuse; the source as a whole goes on.
        assert {status.split(":")[0] for status in told["bad_sources"]} <= {"pcie partial"}
        assert (told["removed"], told["same_devices"], told["alive"]) == (50, True, False)
        assert len(told["seen"]) > 1, "no scan fell into a removal"
        assert told["grown_files"] <= 0
        assert told["grown_bytes"] < 4 << 20
        assert service.show("NRestarts") == restarts
        # Drivers go on for a while after their devices were found again.
        until(lambda: service.scrape().findings() == before.findings(), PATIENCE, "the machine is as it was")
        after = service.pass_scans(4)
        assert after.scans > before.scans + 4
        assert after.findings() == before.findings()
        assert after.value("source_up", source="pcie") == 1
        assert not [line for line in service.journal(mark) if "failed" in line or "Traceback" in line]

    def test_memory_limit_is_held(self, service: Service) -> None:
        """After all that, the unit has not come near its limits."""
        service.pass_scans(2)
        assert service.memory("max") == str(192 << 20)
        assert int(service.memory("peak")) < 96 << 20
        events = dict(line.split() for line in service.memory("events").splitlines())
        assert (events["high"], events["max"], events["oom_kill"]) == ("0", "0", "0")

    def test_watchdog_strikes_when_scans_stop(self, service: Service) -> None:
        """A read hangs where no deadline reaches; the loop turns and serves. Unhealthy first, then systemd ends it and
        starts it again, and it carries on where it was."""
        machine = service.machine
        restarts, pid, mark = int(service.show("NRestarts")), service.show("MainPID"), service.mark()
        findings = service.scrape().findings()
        machine.sh(f"/usr/bin/python3 /opt/gpu-topo/lab/guest_freeze.py {pid} >/tmp/freeze 2>&1 &")
        until(lambda: "frozen" in machine.read("/tmp/freeze"), PATIENCE, "no scan thread was caught")
        scans = service.scrape().scans
        health = "http://127.0.0.1:10119/healthz"
        answer, _ = until(lambda: sick if (sick := machine.get(health)).status != 200 else None, WATCHDOG, "healthy")
        assert (answer.status, answer.body[:16]) == (503, "no scan finished")
        assert service.scrape().scans == scans, "it still scans"
        until(lambda: int(service.show("NRestarts")) > restarts, PATIENCE, "the watchdog does not strike", 1)
        # What systemd sends when nothing feeds the watchdog.
        assert any("with signal SIGABRT" in line for line in service.systemd(mark))
        until(lambda: service.show("ActiveState") == "active", PATIENCE, "it does not start again", 1)
        assert service.show("MainPID") != pid
        assert service.pass_scans(2).findings() == findings

    def test_memory_limit_is_enforced(self, service: Service) -> None:
        """The kernel ends what exceeds the unit's limit, and systemd starts it again: the limit is a real one."""
        machine, restarts, mark = service.machine, int(service.show("NRestarts")), service.mark()
        machine.write(f"/sys/fs/cgroup/system.slice/{UNIT}/memory.max", str(4 << 20))
        until(lambda: int(service.show("NRestarts")) > restarts, PATIENCE, "it goes on with 4 MiB", 1)
        assert any("oom-kill" in line for line in service.systemd(mark))
        until(lambda: service.show("ActiveState") == "active", PATIENCE, "it does not start again", 1)
        assert service.memory("max") == str(192 << 20)
