"""The trees of the bench: a DGX-H100-like node of 200 PCI functions, in one or more PCI domains."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.config_space import CONVENTIONAL, DOWNSTREAM, INTEGRATED, ROOT_PORT, TO_PCI, UPSTREAM, Chip
from bench.machine import DOWN, UP, Machine

FUNCTIONS = 200  # of one domain, virtual functions aside

PORT = Chip(0x8086, 0x352A, 0x060400, ROOT_PORT, 5, 16, "pcieport")
NARROW_PORT = Chip(0x8086, 0x352B, 0x060400, ROOT_PORT, 5, 4, "pcieport")
CHIPSET_PORT = Chip(0x8086, 0x1BBC, 0x060400, ROOT_PORT, 3, 1, "pcieport")
SWITCH_TOP = Chip(0x1000, 0xC030, 0x060400, UPSTREAM, 5, 16, "pcieport")
SWITCH_PORT = Chip(0x1000, 0xC030, 0x060400, DOWNSTREAM, 5, 16, "pcieport")
SWITCH_MANAGEMENT = Chip(0x1000, 0x02B2, 0x010700, generation=4, lanes=1, driver="mpi3mr")
SMALL_SWITCH_TOP = Chip(0x11F8, 0x4000, 0x060400, UPSTREAM, 4, 16, "pcieport")
SMALL_SWITCH_PORT = Chip(0x11F8, 0x4000, 0x060400, DOWNSTREAM, 4, 2, "pcieport")
GPU = Chip(0x10DE, 0x2330, 0x030200, generation=5, lanes=16, driver="nvidia")
NVSWITCH = Chip(0x10DE, 0x22A3, 0x068000, generation=4, lanes=2, driver="nvidia-nvswitch")
NIC = Chip(0x15B3, 0x1021, 0x020700, generation=5, lanes=16, driver="mlx5_core", subsystem=(0x15B3, 0x0041))
VIRTUAL_NIC = NIC._replace(device=0x101E, subsystem=None)
NVME = Chip(0x144D, 0xA824, 0x010802, generation=4, lanes=4, driver="nvme")
BOOT_NVME = NVME._replace(device=0xA80A)
DISPLAY_BRIDGE = Chip(0x1A03, 0x1150, 0x060400, TO_PCI, 2, 1)
DISPLAY = Chip(0x1A03, 0x2000, 0x030000, CONVENTIONAL, driver="ast")


def build(copies: int = 1, virtual_functions: int = 0, degraded: bool = False) -> Machine:
    """The machine: `copies` domains of 200 functions, each NIC with that many virtual functions besides.

    degraded: in the first domain a GPU at 8 GT/s x8 with error counts, an RDMA port down, a slow NVSwitch.
    """
    machine = Machine()
    machine.host()
    for domain in range(copies):
        machine.domain = domain
        _node(machine, virtual_functions, degraded and domain == 0)
    return machine


def _node(machine: Machine, vfs: int, degraded: bool) -> None:
    before = machine.functions
    for group in range(4):
        _gpu_switch(machine, group, vfs, degraded)
    _nvswitches(machine, degraded)
    for numa, bus in ((0, 0x00), (1, 0xE2)):
        _socket(machine, numa, bus, vfs)
    _management(machine)
    uncore(machine, FUNCTIONS - (machine.functions - before - 10 * vfs))


def _gpu_switch(machine: Machine, group: int, vfs: int, degraded: bool) -> None:
    """A PCIe switch with two GPUs, two NICs, two NVMe drives and two empty ports."""
    numa, bus = group // 2, 0x17 + 0x30 * group
    root = machine.add(machine.root(bus), bus, PORT, device=1, numa=numa, below=(bus + 1, bus + 12))
    top = machine.add(root, bus + 1, SWITCH_TOP, numa=numa, below=(bus + 2, bus + 12), multi=True)
    machine.add(root, bus + 1, SWITCH_MANAGEMENT, function=1, numa=numa, multi=True)
    for place, kind in enumerate(("gpu", "nic", "gpu", "nic", "nvme", "nvme", "empty", "empty")):
        bad = degraded and group == 1 and place == 0
        own, below = bus + 3 + place, f"{16 * group + place}"
        port = SWITCH_PORT._replace(lanes=4) if kind == "nvme" else SWITCH_PORT
        generation, lanes = {"nvme": (4, 4), "empty": (1, 0)}.get(kind, (3, 8) if bad else (5, 16))
        above = machine.add(
            top,
            bus + 2,
            port,
            device=place,
            generation=generation,
            lanes=lanes,
            numa=numa,
            below=(own, own),
            slot=16 * group + place,
            port=place,
        )
        if kind == "gpu":
            machine.add(above, own, GPU, generation=generation, lanes=lanes, numa=numa, errors=812 if bad else 0)
        elif kind == "nic":
            _nic(machine, above, own, numa, vfs, down=degraded and group == 2 and place == 1)
        elif kind == "nvme":
            machine.nvme(machine.add(above, own, NVME, numa=numa))
        if kind != "empty":
            machine.slot(below if machine.domain == 0 else f"{below}-{machine.domain}", own)


def _nic(machine: Machine, above: str, bus: int, numa: int, vfs: int, down: bool = False, multi: bool = False) -> None:
    path = machine.add(above, bus, NIC, numa=numa, virtual_functions=(max(16, vfs), vfs), multi=multi)
    machine.rdma(path, DOWN if down else UP)
    for number in range(vfs):
        routing = 8 + number  # with ARI the virtual functions follow their physical one on its bus
        virtual = machine.add(
            above,
            bus,
            VIRTUAL_NIC,
            device=routing >> 3,
            function=routing & 7,
            generation=0,
            lanes=0,
            numa=numa,
            virtual=True,
        )
        machine.link(f"{virtual}/physfn", path)
        machine.link(f"{path}/virtfn{number}", virtual)


def _nvswitches(machine: Machine, degraded: bool) -> None:
    """Four NVSwitches behind a PCIe switch of their own."""
    bus = 0xD7
    port = PORT._replace(generation=4)
    root = machine.add(machine.root(bus), bus, port, device=1, numa=1, below=(bus + 1, bus + 6))
    top = machine.add(root, bus + 1, SMALL_SWITCH_TOP, numa=1, below=(bus + 2, bus + 6))
    for number in range(4):
        own = bus + 3 + number
        above = machine.add(top, bus + 2, SMALL_SWITCH_PORT, device=number, numa=1, below=(own, own))
        machine.add(above, own, NVSWITCH, generation=3 if degraded and number == 2 else 4, numa=1)


def _socket(machine: Machine, numa: int, bus: int, vfs: int) -> None:
    """What hangs from a socket itself: a storage NIC of two functions and a boot drive."""
    root = machine.root(bus)
    above = machine.add(root, bus, PORT, device=1, numa=numa, below=(bus + 1, bus + 1))
    _nic(machine, above, bus + 1, numa, vfs, multi=True)
    second = machine.add(above, bus + 1, NIC, function=1, numa=numa, multi=True)
    machine.rdma(second)
    above = machine.add(root, bus, NARROW_PORT, device=3, numa=numa, generation=4, below=(bus + 2, bus + 2))
    machine.nvme(machine.add(above, bus + 2, BOOT_NVME, numa=numa))


def _management(machine: Machine) -> None:
    """The server's own display, behind its bridge to conventional PCI."""
    port = machine.add(machine.root(0), 0, CHIPSET_PORT, device=0x1C, generation=2, below=(3, 4))
    bridge = machine.add(port, 3, DISPLAY_BRIDGE, below=(4, 4))
    machine.add(bridge, 4, DISPLAY)


def uncore(machine: Machine, count: int) -> None:
    """The processors' own functions, a quarter of them integrated endpoints, the others conventional."""
    buses = ((0x00, 0), (0x06, 0), (0xFA, 1), (0xFB, 1), (0xF6, 1), (0xF2, 0))
    for number in range(count):
        bus, numa = buses[number // 24 % 6]
        place = number % 24
        kind = INTEGRATED if number % 4 == 0 else CONVENTIONAL
        chip = Chip(0x8086, 0x3250 + number % 96, 0x088000 if number % 3 else 0x110100, kind)
        device = place // 8 + (8 if bus == 0 else 0)
        machine.add(machine.root(bus), bus, chip, device=device, function=place % 8, numa=numa, multi=True)


def main() -> None:
    """trees.py ROOT COPIES VIRTUAL_FUNCTIONS: put a tree on disk."""
    root, copies, virtual_functions = sys.argv[1:]
    build(int(copies), int(virtual_functions)).write(Path(root))


if __name__ == "__main__":
    main()
