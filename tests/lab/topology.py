"""The virtual machine's two sockets, and what hangs below them.

Each socket: a host bridge with five root ports; below them a switch (GPU, InfiniBand card, NVMe drive, an empty slot),
a GPU, a virtio NIC for soft-RoCE, an empty slot for hot-plug, and an e1000e. The switch is a TI XIO3130: ports of
2.5 GT/s and one lane, whatever hangs below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lab.fakepci import CONNECTX6, L40S, Card

BUSES = (0x10, 0x80)  # of the two host bridges
_PORTS = ((16, 16), (16, 16), (8, 8), (16, 16), (8, 4))  # GT/s and lanes of the root ports
SWITCH, DIRECT, ETHERNET, EMPTY, MANAGEMENT = range(5)  # what the root ports are for
_SPEED = (400000, 200000)  # Mb/s of the virtio NICs


class Addresses(NamedTuple):
    """Where a socket's devices come to sit: the firmware counts buses from the host bridge's on."""

    uplink: str
    switch_gpu: str
    infiniband: str
    drive: str
    gpu: str
    ethernet: str
    hotplug: str
    management: str


def addresses(socket: int) -> Addresses:
    """The addresses of socket 0 or 1."""
    return Addresses(*(f"0000:{BUSES[socket] + offset:02x}:00.0" for offset in (1, 3, 4, 5, 7, 8, 9, 10)))


def port(socket: int, number: int) -> str:
    """The address of a root port."""
    return f"0000:{BUSES[socket]:02x}:{number:02x}.0"


def arguments(folder: Path, fake: Callable[[str, Card], int]) -> Iterator[str]:
    """QEMU's arguments. fake: makes a fake card with that name; the descriptor that QEMU is to have."""

    def device(text: str) -> Iterator[str]:
        yield from ("-device", text)

    def proxy(name: str, bus: str, card: Card) -> Iterator[str]:
        yield from device(f"x-pci-proxy-dev,id={name},bus={bus},fd={fake(name, card)}")

    for s, bus in enumerate(BUSES):
        yield from device(f"pxb-pcie,id=pxb{s},bus_nr={bus},numa_node={s},bus=pcie.0")
        for n, (speed, width) in enumerate(_PORTS):
            slot = s * 32 + n + 1
            link = f"x-speed={speed},x-width={width}"
            yield from device(f"pcie-root-port,id=rp{s}{n},bus=pxb{s},addr={n:#x},chassis={slot},slot={slot},{link}")
        yield from device(f"x3130-upstream,id=us{s},bus=rp{s}{SWITCH}")
        for n in range(4):
            slot = 64 + s * 32 + n
            yield from device(f"xio3130-downstream,id=ds{s}{n},bus=us{s},addr={n:#x},chassis={slot},slot={slot}")
        yield from proxy(f"switch_gpu{s}", f"ds{s}0", L40S)
        yield from proxy(f"infiniband{s}", f"ds{s}1", CONNECTX6)
        yield from proxy(f"gpu{s}", f"rp{s}{DIRECT}", L40S)
        drive = folder / f"nvme{s}.img"
        with open(drive, "wb") as file:
            file.truncate(16 << 20)
        yield from ("-drive", f"file={drive},if=none,id=nv{s},format=raw")
        yield from device(f"nvme,id=nvme{s},serial=LAB{s},drive=nv{s},bus=ds{s}2")
        yield from ("-netdev", f"user,id=n{s},restrict=on")
        mac = f"mac=52:54:00:12:34:5{s},speed={_SPEED[s]},duplex=full"
        yield from device(f"virtio-net-pci,id=ethernet{s},netdev=n{s},bus=rp{s}{ETHERNET},romfile=,{mac}")
        yield from device(f"e1000e,id=management{s},bus=rp{s}{MANAGEMENT},mac=52:54:00:12:35:5{s},romfile=")
