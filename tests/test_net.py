"""Network interfaces: hardware only, their speed as far as they have one, and who carries the default route."""

from __future__ import annotations

import time

from gpu_topo.collectors import net
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import NetDevice
from gpu_topo.model.reading import FAILED, NO_DATA, Unknown
from gpu_topo.source import Entry, Live, Recording, Refusal, Replay, Tree

ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def now() -> Context:
    return Context(time.monotonic() + 10)


def interface(name: str, device: str, **attributes: str) -> dict[str, Entry]:
    """An interface below a device folder, with its class entry."""
    base = f"/sys/devices/{device}/net/{name}"
    values = {"speed": "200000", "mtu": "1500"} | attributes
    files: dict[str, Entry] = {f"{base}/{key}": f"{value}\n".encode() for key, value in values.items()}
    files[f"/sys/class/net/{name}"] = f"../..{base[4:]}"
    return files


def route(name: str) -> bytes:
    return f"{ROUTES}{name}\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n".encode()


def collect(files: dict[str, Entry]) -> Facts:
    return net.collect(Tree(files), now())


def by_name(facts: Facts) -> dict[str, NetDevice]:
    return {device.name: device for device in facts.netdevs}


def test_an_interface_of_a_function() -> None:
    """Speed, MTU and the PCI function, through virtio as well."""
    facts = collect(interface("eth0", "pci0000:00/0000:00:03.0/virtio0", carrier_changes="2", mtu="9000"))
    (device,) = facts.netdevs
    assert (device.address, device.speed_mbps, device.mtu) == ("0000:00:03.0", 200000, 9000)
    assert (device.carrier_changes, device.default_route) == (2, False)


def test_one_look_does_not_count_changes_of_the_carrier() -> None:
    """Only who looks again can say that the count has grown."""
    files = interface("eth0", "pci0000:00/0000:00:03.0", carrier_changes="2")
    assert net.collect(Tree(files), now()._replace(counters=False)).netdevs[0].carrier_changes is None


def test_an_interface_that_was_taken_down_is_told_from_one_without_a_cable() -> None:
    """IFF_UP is the operator's switch. An interface that tells its speed is switched on, and is not asked."""
    for speed, flags, up in (("-1", "0x1003", True), ("-1", "0x1002", False), ("100000", "0x1002", True)):
        facts = collect(interface("eth0", "pci0000:00/0000:00:03.0", flags=flags, speed=speed))
        assert facts.netdevs[0].admin_up is up
    assert collect(interface("eth0", "pci0000:00/0000:00:03.0", speed="-1")).netdevs[0].admin_up is None


def test_interfaces_without_hardware_are_not_opened() -> None:
    """Containers have hundreds of veth; none is read, none is reported."""
    files = interface("eth0", "pci0000:00/0000:00:03.0")
    for number in range(300):
        files |= interface(f"veth{number}", "virtual", speed="10000")
    assert list(by_name(collect(files))) == ["eth0"]


def test_what_hangs_from_usb_is_not_its_controller() -> None:
    """A USB adapter has no PCI function of its own."""
    facts = collect(interface("enx0", "pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0"))
    assert facts.netdevs[0].address is None


def test_an_interface_that_is_down_has_no_speed() -> None:
    """EINVAL, -1 and 4294967295 all mean that there is no speed now; another error is a failed reading."""
    for answer in (Refusal("failed", "EINVAL"), b"-1\n", b"4294967295\n"):
        files = interface("eth0", "pci0000:00/0000:00:03.0")
        files["/sys/devices/pci0000:00/0000:00:03.0/net/eth0/speed"] = answer
        facts = collect(files)
        assert facts.netdevs[0].speed_mbps == Unknown(NO_DATA, "speed")
        assert facts.source.status == "ok"
    files["/sys/devices/pci0000:00/0000:00:03.0/net/eth0/speed"] = Refusal("failed", "EIO")
    facts = collect(files)
    assert facts.netdevs[0].speed_mbps == Unknown(FAILED, "speed")
    assert facts.source.status == "partial"


def test_a_bond_comes_with_its_members_and_its_route() -> None:
    """The default route on a VLAN of a bond makes the bond and its members carriers of it."""
    files: dict[str, Entry] = {"/proc/net/route": route("bond0.100")}
    for number in (0, 1):
        files |= interface(f"eth{number}", f"pci0000:17/0000:17:01.0/0000:18:00.{number}")
        files[f"/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.{number}/net/eth{number}/master"] = "../x/net/bond0"
    files |= interface("bond0", "virtual", speed="400000") | interface("bond0.100", "virtual")
    files["/sys/devices/virtual/net/bond0.100/lower_bond0"] = "../bond0"
    files |= interface("ib0", "pci0000:97/0000:97:01.0", type="32")
    devices = by_name(collect(files))
    assert sorted(devices) == ["bond0", "eth0", "eth1", "ib0"]
    assert devices["eth0"].master == "bond0"
    assert [name for name, device in sorted(devices.items()) if device.default_route] == ["bond0", "eth0", "eth1"]


def test_an_ipv6_default_route_counts() -> None:
    """A machine without IPv4 has its default route in the other table."""
    zero = "0" * 32
    line = f"{zero} 00 {zero} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00000003     eth0\n"
    files = interface("eth0", "pci0000:00/0000:00:03.0") | {"/proc/net/ipv6_route": line.encode()}
    assert collect(files).netdevs[0].default_route


def test_virtual_functions_and_exclusions_are_not_read() -> None:
    """A virtual function beside its physical function is left out, and so is what the operator excludes."""
    files = interface("eth0", "pci0000:17/0000:18:00.0") | interface("eth0v0", "pci0000:17/0000:18:00.4")
    files["/sys/bus/pci/devices/0000:18:00.4"] = "../../../devices/pci0000:17/0000:18:00.4"
    files["/sys/devices/pci0000:17/0000:18:00.4/physfn"] = "../0000:18:00.0"
    assert list(by_name(collect(files))) == ["eth0"]
    excluded = net.collect(Tree(files), Context(time.monotonic() + 10, frozenset({"eth0"})))
    assert excluded.netdevs == ()


def test_hostile_tables_are_harmless() -> None:
    """Short lines and words where numbers belong are no routes."""
    files = interface("eth0", "pci0000:00/0000:00:03.0")
    files |= {"/proc/net/route": b"x\ny z\n\xff" * 9, "/proc/net/ipv6_route": b"0 0 0\n"}
    assert not collect(files).netdevs[0].default_route


def test_a_replay_gives_the_same_facts() -> None:
    """What was recorded replays to the same interfaces."""
    files = interface("eth0", "pci0000:00/0000:00:03.0") | {"/proc/net/route": route("eth0")}
    recording = Recording(Tree(files))
    first = net.collect(recording, now())
    assert net.collect(Replay(recording.answers, {}), now()).netdevs == first.netdevs


def test_psutil_says_the_same_of_this_machine() -> None:
    """MTU and speed of the live machine's hardware interfaces, from an independent witness."""
    import psutil

    witness = psutil.net_if_stats()
    for device in net.collect(Live(), now()).netdevs:
        stats = witness[device.name]
        assert device.mtu == stats.mtu
        if isinstance(device.speed_mbps, int):
            assert device.speed_mbps == stats.speed
        if stats.isup:
            assert device.admin_up
