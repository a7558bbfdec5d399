"""Network interfaces of hardware, and the bonds above them, from /sys/class/net and the routing table."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.sysfs import (
    Tally,
    is_virtual,
    last_part,
    missing,
    open_class,
    pci_address,
    shares_a_port,
    too_late,
)
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import NetDevice
from gpu_topo.model.reading import NO_DATA, Reading, Unknown
from gpu_topo.source import Answer, Refusal, Source

NAME = "net"
ROOT = "/sys/class/net"
_IFF_UP = 0x1  # include/uapi/linux/if.h
_ROUTE_UP = 0x1  # RTF_UP, include/uapi/linux/route.h
_MAX_DEPTH = 4  # a VLAN on a bridge on a bond on its members


def collect(source: Source, context: Context) -> Facts:
    """Interfaces of PCI functions and the masters above them. Other virtual interfaces (containers have hundreds) and
    virtual functions beside their physical function are told by their links and not opened."""
    started = time.monotonic()
    opened = open_class(source, ROOT)
    if isinstance(opened, Refusal):
        return Facts(missing(NAME, ROOT, opened, started))
    entries, names = opened
    tally = Tally()
    functions = source.dir("/sys/bus/pci/devices")
    found: dict[str, NetDevice] = {}
    late = False
    with entries:
        for name in names:
            if too_late(context):
                late = True
                break
            target = entries.link(name)
            if name in context.exclude or name == "bonding_masters" or is_virtual(target):
                continue
            address = pci_address(target) or pci_address(entries.link(f"{name}/device"))
            if address in context.exclude or shares_a_port(target, address, functions):
                continue
            found[name] = _read(source, name, address, context.counters, tally)
        if not late:
            # Not one pass: a bond is listed before its members are known.
            for name in sorted({d.master for d in found.values() if d.master} - found.keys() - context.exclude):
                found[name] = _read(source, name, None, context.counters, tally)
            for name in _carriers(source, _default_routes(source), found):
                found[name] = found[name]._replace(default_route=True)
    if not isinstance(functions, Refusal):
        functions.close()
    return Facts(tally.status(NAME, started, late), netdevs=tuple(found.values()), unread=tally.counts)


def _read(source: Source, name: str, address: str | None, counters: bool, tally: Tally) -> NetDevice:
    folder = source.dir(f"{ROOT}/{name}")
    if isinstance(folder, Refusal):
        tally.text(folder, name)
        return NetDevice(name, address)
    with folder:
        speed = _speed(folder.read("speed"), tally)
        return NetDevice(
            name=name,
            address=address,
            speed_mbps=speed,
            mtu=tally.number(folder.read("mtu"), "mtu"),
            carrier_changes=tally.number(folder.read("carrier_changes"), "carrier_changes") if counters else None,
            master=last_part(folder.link("master")),
            # The kernel tells the speed of an interface only while it is switched on (net/core/net-sysfs.c).
            admin_up=isinstance(speed, int) or _admin_up(tally.number(folder.read("flags"), "flags")),
        )


def _speed(answer: Answer, tally: Tally) -> Reading[int]:
    """Mb/s. An interface that is down answers EINVAL, -1 or its unsigned spelling: it has no speed now."""
    if isinstance(answer, Refusal) and answer.error == "EINVAL":
        return Unknown(NO_DATA, "speed")
    mbps = tally.number(answer, "speed")
    return Unknown(NO_DATA, "speed") if isinstance(mbps, int) and (mbps <= 0 or mbps == 0xFFFFFFFF) else mbps


def _admin_up(flags: Reading[int]) -> Reading[bool]:
    """Whether the interface is switched on: only then does a missing link mean a missing cable or a dead peer."""
    return bool(flags & _IFF_UP) if isinstance(flags, int) else flags


def _default_routes(source: Source) -> frozenset[str]:
    """Interfaces of the default routes, IPv4 and IPv6 (proc_pid_net(5))."""
    names = set()
    table = source.read("/proc/net/route")
    if not isinstance(table, Refusal):
        for line in table.decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[1] == fields[7] == "00000000" and _hex(fields[3]) & _ROUTE_UP:
                names.add(fields[0])
    table = source.read("/proc/net/ipv6_route")
    if not isinstance(table, Refusal):
        for line in table.decode("ascii", "replace").splitlines():
            fields = line.split()
            if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and _hex(fields[8]) & _ROUTE_UP:
                names.add(fields[9])
    return frozenset(names - {"lo"})


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _carriers(source: Source, routes: frozenset[str], found: dict[str, NetDevice]) -> set[str]:
    """The known interfaces that carry a default route: itself, or what a VLAN, bridge or bond of it stands on."""
    carriers: set[str] = set()
    above = set(routes)
    for _ in range(_MAX_DEPTH):
        carriers |= above & found.keys()
        below: set[str] = set()
        for name in above:
            listing = source.list(f"{ROOT}/{name}")
            if not isinstance(listing, Refusal):
                below |= {entry[len("lower_") :] for entry in listing if entry.startswith("lower_")}
            below |= {device.name for device in found.values() if device.master == name}
        above = below
        if not above:
            break
    return carriers
