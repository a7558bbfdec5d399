"""Makes the bundled example: the capture of an eight-GPU node that never existed, with something wrong in four places.

    python -m tools.make_example

The node has two sockets, eight H100 SXM with 18 NVLinks each to four NVSwitches, and for each GPU a PCIe switch with a
400 Gb/s NIC and an NVMe drive; two storage NICs and two boot drives hang elsewhere. Wrong with it:

- the fourth GPU runs on 8 of its 16 lanes
- two NVLinks of the sixth GPU are down
- the NIC of the seventh GPU has trained two of its four lanes
- one storage NIC shares a switch with four NVMe drives and no GPU, so that all of it crosses one uplink

Its NVML transcript comes from the fake library of the tests, so a C compiler is needed.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from pathlib import Path

from bench.config_space import DOWNSTREAM
from bench.machine import Machine, Rdma
from bench.trees import (
    BOOT_NVME,
    CHIPSET_PORT,
    DISPLAY,
    DISPLAY_BRIDGE,
    GPU,
    NARROW_PORT,
    NIC,
    NVME,
    NVSWITCH,
    PORT,
    SMALL_SWITCH_PORT,
    SMALL_SWITCH_TOP,
    SWITCH_PORT,
    SWITCH_TOP,
    uncore,
)
from gpu_topo.agent.scan import scan
from gpu_topo.collectors import nvml
from gpu_topo.source import Recording, Tree
from gpu_topo.source.capture import save
from tests.fakenvml import Machine as FakeDriver
from tests.fakenvml import build, states

OUT = Path(__file__).resolve().parents[1] / "agent" / "example" / "node.capture.gz"

# The buses of the GPUs, as the fake NVML has them; the first four belong to the first socket.
GPU_BUSES = tuple(int(bus.split(":")[1], 16) for bus in states.HGX_BUSES)
NARROW_GPU, PARTIAL_GPU, SLOW_NIC = 3, 5, 6
LINKS_DOWN = (16, 17)

_FABRIC = Rdma()
_SLOW = Rdma(rate="200 Gb/sec (2X NDR)")
_STORAGE_RATE = "200 Gb/sec (4X HDR)"
# Without ACS, as on a node that was set up for peer-to-peer traffic.
_NO_ACS = 0


def machine() -> Machine:
    """The node as files and links."""
    node = Machine(cpus=112)
    node.host()
    _identity(node)
    for index, bus in enumerate(GPU_BUSES):
        _gpu_switch(node, index, bus)
    _nvswitches(node)
    _storage_switch(node)
    _first_socket(node)
    uncore(node, 24)
    for path in node.files:
        if path.endswith("/counters/link_downed"):
            node.file(path, 0)
    return node


def _identity(node: Machine) -> None:
    """Names that say what they are, and a processor without the flag of a virtual machine."""
    for name, text in {
        "/proc/sys/kernel/hostname": "example-node",
        "/proc/sys/kernel/osrelease": "6.8.0-60-generic",
        "/proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-000000000001",
        "/proc/uptime": "864000.00 90000000.00",
        "/proc/1/cgroup": "0::/init.scope",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07",
        "/sys/class/dmi/id/sys_vendor": "Example",
        "/sys/class/dmi/id/product_name": "Eight-GPU Server",
        "/sys/class/dmi/id/board_vendor": "Example",
        "/sys/class/dmi/id/bios_vendor": "Example",
        "/sys/class/dmi/id/chassis_type": "23",
        "/sys/module/nvidia/version": "550.90.07",
        "/sys/module/nvidia_peermem/version": "550.90.07",
    }.items():
        node.file(name, text)
    cpu = node.files["/proc/cpuinfo"].decode().split("\n\n")[0]
    node.file("/proc/cpuinfo", f"{cpu}\nflags\t\t: fpu vme de pse tsc msr lm avx avx2 avx512f amx_tile\n".encode())
    mounts = ["30 1 259:2 / / rw - ext4 /dev/nvme12n1p2 rw"]
    mounts += [f"{40 + i} 30 259:{10 + i} / /scratch{i} rw - xfs /dev/nvme{i}n1 rw" for i in range(8)]
    mounts += [f"{60 + i} 30 259:{30 + i} / /data{i} rw - xfs /dev/nvme{8 + i}n1 rw" for i in range(4)]
    node.file("/proc/self/mountinfo", "\n".join(mounts))
    node.file("/proc/net/route", "Iface\tDestination\nens1f0 00000000 0100000A 0003 0 0 0 00000000 0 0 0")


def _gpu_switch(node: Machine, index: int, bus: int) -> None:
    """A switch with a GPU, its NIC and an NVMe drive."""
    numa, root = index // 4, bus - 3
    above = node.add(node.root(root), root, PORT, device=1, numa=numa, below=(root + 1, root + 5), acs=_NO_ACS)
    top = node.add(above, root + 1, SWITCH_TOP, numa=numa, below=(root + 2, root + 5), acs=_NO_ACS)
    for place in range(3):
        chip = SWITCH_PORT._replace(generation=4, lanes=4) if place == 2 else SWITCH_PORT
        lanes = 8 if (index, place) == (NARROW_GPU, 0) else chip.lanes
        own = bus + place
        port = node.add(
            top,
            root + 2,
            chip,
            device=place,
            lanes=lanes,
            numa=numa,
            below=(own, own),
            slot=index * 4 + place + 1,
            port=place,
            acs=_NO_ACS,
        )
        node.slot(f"{index * 4 + place + 1}", own)
        if place == 0:
            node.add(port, own, GPU, lanes=lanes, numa=numa)
        elif place == 1:
            node.rdma(node.add(port, own, NIC, numa=numa), _SLOW if index == SLOW_NIC else _FABRIC)
        else:
            _drive(node, node.add(port, own, NVME, numa=numa))


def _drive(node: Machine, path: str) -> None:
    """An NVMe controller with one namespace of 3.84 TB."""
    name = node.nvme(path)
    space = f"{path}/nvme/{name}/{name}n1"
    node.file(f"{space}/size", 7501476528)
    node.link(f"/sys/block/{name}n1", space)


def _nvswitches(node: Machine) -> None:
    """Four NVSwitches behind a small PCIe switch of their own, on the buses that the fake NVML names."""
    bus = 0x02
    port = PORT._replace(generation=4)
    root = node.add(node.root(bus), bus, port, device=1, below=(bus + 1, bus + 6), acs=_NO_ACS)
    top = node.add(root, bus + 1, SMALL_SWITCH_TOP, below=(bus + 2, bus + 6), acs=_NO_ACS)
    for number in range(4):
        own = bus + 3 + number
        above = node.add(top, bus + 2, SMALL_SWITCH_PORT, device=number, below=(own, own), acs=_NO_ACS)
        node.add(above, own, NVSWITCH)


def _storage_switch(node: Machine) -> None:
    """On the second socket: a Gen4 switch with a storage NIC and four NVMe drives, and no GPU."""
    bus, numa = 0xC0, 1
    port = PORT._replace(generation=4)
    above = node.add(node.root(bus), bus, port, device=1, numa=numa, below=(bus + 1, bus + 7), acs=_NO_ACS)
    top = node.add(above, bus + 1, SMALL_SWITCH_TOP, numa=numa, below=(bus + 2, bus + 7), acs=_NO_ACS)
    for place in range(5):
        own = bus + 3 + place
        chip = SMALL_SWITCH_TOP._replace(port_type=DOWNSTREAM, lanes=16 if place == 0 else 4)
        down = node.add(top, bus + 2, chip, device=place, numa=numa, below=(own, own), slot=40 + place, acs=_NO_ACS)
        node.slot(f"{40 + place}", own)
        if place == 0:
            _storage_nic(node, down, own, numa, "ens40f0")
        else:
            _drive(node, node.add(down, own, NVME, numa=numa))


def _storage_nic(node: Machine, above: str, bus: int, numa: int, netdev: str) -> None:
    nic = NIC._replace(device=0x101D, class_code=0x020000, generation=4, subsystem=(0x15B3, 0x0040))
    port = Rdma(_STORAGE_RATE, link_layer="Ethernet", board="MT_0000000223", firmware="22.39.1002", netdev=netdev)
    node.rdma(node.add(above, bus, nic, numa=numa), port)


def _first_socket(node: Machine) -> None:
    """On the first socket: the other storage NIC, two boot drives, and the server's own display."""
    root = node.root(0x70)
    port = PORT._replace(generation=4)
    above = node.add(root, 0x70, port, device=1, below=(0x71, 0x71), acs=_NO_ACS)
    node.slot("1f0", 0x71)
    _storage_nic(node, above, 0x71, 0, "ens1f0")
    for number in range(2):
        bus = 0x72 + number
        narrow = NARROW_PORT._replace(generation=4)
        above = node.add(root, 0x70, narrow, device=3 + number, below=(bus, bus), acs=_NO_ACS)
        _drive(node, node.add(above, bus, BOOT_NVME))
    port = CHIPSET_PORT._replace(generation=2)
    bridge = node.add(node.root(0x76), 0x76, port, below=(0x77, 0x78), acs=_NO_ACS)
    node.add(node.add(bridge, 0x77, DISPLAY_BRIDGE, below=(0x78, 0x78)), 0x78, DISPLAY)


def driver() -> str:
    """The state of the fake NVML: busy GPUs, the links that are down, the GPU on eight lanes."""
    lines = [states.hgx_h100(), f"gpu.{NARROW_GPU}.pcie.width=8"]
    lines += [f"gpu.{index}.util={91 + index % 4}" for index in range(8)]
    for link in LINKS_DOWN:
        lines += [f"gpu.{PARTIAL_GPU}.nvlink.{link}=0,{states.UNKNOWN_TYPE},-,6"]
        lines += [f"gpu.{PARTIAL_GPU}.field.{states.SPEED}.{link}=0"]
    return "\n".join(lines)


def transcript() -> tuple[str, ...]:
    """What NVML says of it, without what is this machine's own: paths, times, device nodes."""
    heard: list[str] = []
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeDriver(build(folder / "lib"), folder, driver())
        os.environ.update(fake.environment)
        try:
            nvml.ask(time.monotonic() + 60, False, heard.append)
        finally:
            os.environ.clear()
            os.environ.update(before)
    return tuple(_general(json.loads(line)) for line in heard)


def _general(entry: dict[str, object]) -> str:
    entry.pop("t", None)
    if entry["q"] == "begin":
        entry["r"] = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    elif entry["q"] == "openable":
        entry["r"] = list(range(8))
    return json.dumps(entry)


def capture() -> bytes:
    """The capture file, without compression."""
    node = machine()
    tree = Tree({**node.files, **node.links}, {nvml.NAME: transcript()}, node.folders)
    recording = Recording(tree)
    scan(recording, 60.0)
    return save(recording, redacted=True)


def main() -> None:
    """Write the example where the package ships it."""
    OUT.parent.mkdir(exist_ok=True)
    data = gzip.compress(capture(), mtime=0)
    OUT.write_bytes(data)
    print(f"{OUT}: {len(data)} bytes")


if __name__ == "__main__":
    main()
