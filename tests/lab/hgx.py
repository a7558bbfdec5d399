"""An HGX H100 node as a tree of files that a test degrades and heals while something reads it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests import trees
from tests.fakenvml.states import HGX_BUSES

GPU_BUSES = tuple(int(bus.split(":")[1], 16) for bus in HGX_BUSES)
_COUNTERS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards")
_AER = {"correctable": ("RxErr", "BadTLP", "BadDLLP"), "nonfatal": ("Undefined", "UnsupReq"), "fatal": ("DLP", "ECRC")}
_NODES = "/sys/devices/system/node"


class Hgx:
    """The node below `root`: eight GPUs and eight NICs with a switch for each pair, NVSwitches, drives.

    The GPUs sit where the fake NVML's hgx_h100 has them, so that both tell of one machine.
    """

    def __init__(self, root: Path, nvswitches: bool = True, config: bool = False) -> None:
        """config: with configuration space, as root sees it."""
        self.root = root
        self.gpus: list[str] = []
        self.nics: list[str] = []
        self.drives: list[str] = []
        self._machine = machine = trees.Machine(config=config, numa=2)
        for number, bus in enumerate(GPU_BUSES):
            self._branch(machine, bus, 0 if number < 4 else 1)
        if nvswitches:
            self._nvswitches(machine)
        for address in machine.parts:
            for severity, names in _AER.items():
                lines = "".join(f"{name} 0\n" for name in names)
                text = f"{lines}TOTAL_ERR_{severity[:3].upper()} 0\n"
                machine.files(address, **{f"aer_dev_{severity}": text.encode()})
        machine.write(root)
        for number, nic in enumerate(self.nics):
            self._rdma(number, nic)
        self._rest()

    def _branch(self, machine: trees.Machine, bus: int, numa: int) -> None:
        """A root port, a switch, and below it a GPU on that very bus, a NIC, and a drive below every other one."""
        host = machine.host(bus - 3, numa=numa)
        switch = machine.switch(machine.root_port(host), link=(trees.GEN5, 16))
        gpu = machine.gpu(machine.down(switch))
        assert gpu == f"0000:{bus:02x}:00.0", gpu
        self.gpus.append(gpu)
        self.nics.append(machine.nic(machine.down(switch)))
        if len(self.gpus) % 2:
            self.drives.append(machine.nvme(machine.down(switch, most=(trees.GEN4, 4))))
        machine.slot(f"GPU{len(self.gpus)}", gpu)

    def _nvswitches(self, machine: trees.Machine) -> None:
        host = machine.host(0x01, numa=0)
        switch = machine.switch(machine.root_port(host, (trees.GEN4, 4)), most=(trees.GEN4, 4), link=(trees.GEN4, 4))
        for _ in range(4):
            port = machine.down(switch, most=(trees.GEN4, 2))
            machine.function(port, trees.NVSWITCH, trees.NVSWITCH_CLASS, most=(trees.GEN4, 2), driver="nvidia-nvswitch")

    def _rdma(self, number: int, address: str) -> None:
        """An InfiniBand device of one NDR port, as mlx5 shows it."""
        device = f"mlx5_{number}"
        folder = self._folder(address) / "infiniband" / device
        self._put(folder / "board_id", "MT_0000000838")
        self._put(folder / "fw_ver", "28.39.1002")
        self._put(folder / "hca_type", "MT4129")
        self._put(folder / "node_type", "1: CA")
        self._put(folder / "node_guid", f"a088:c203:00ab:{number:04x}")
        (folder / "device").symlink_to("../..")
        port = folder / "ports/1"
        self._put(port / "link_layer", "InfiniBand")
        self._put(port / "lid", f"0x{number + 1:x}")
        self._put(port / "sm_lid", "0x1")
        for name in _COUNTERS:
            self._put(port / "counters" / name, "0")
        self.port(number, up=True)
        link = self.root / "sys/class/infiniband" / device
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder, link.parent))

    def _rest(self) -> None:
        """What an audit looks for besides devices: processors, memory nodes, the driver."""
        for node in (0, 1):
            self._put(self.root / f"{_NODES[1:]}/node{node}/cpulist", f"{node * 56}-{node * 56 + 55}")
            self._put(self.root / f"{_NODES[1:]}/node{node}/distance", "10 21" if node == 0 else "21 10")
        for name in ("online", "possible", "has_cpu", "has_memory"):
            self._put(self.root / f"{_NODES[1:]}/{name}", "0-1")
        self._put(self.root / "sys/devices/system/cpu/online", "0-111")
        self._put(self.root / "sys/module/nvidia/version", "550.90.07")
        for address in self.gpus:
            link = self.root / "sys/bus/pci/drivers/nvidia" / address
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../devices/{address}")
        self._put(self.root / "proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2\n")
        self._put(self.root / "sys/class/dmi/id/sys_vendor", "Supermicro")
        for folder in ("sys/class/net", "sys/class/nvme", "sys/block", "sys/fs/cgroup", "sys/kernel"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def link(self, address: str, speed: float = trees.GEN5, width: int = 16) -> None:
        """A link runs at this, at both its ends."""
        for folder in (self._folder(address), self._folder(address).parent):
            self._put(folder / "current_link_width", str(width))
            self._put(folder / "current_link_speed", trees.speed_text(speed).decode().strip())

    def port(self, number: int, up: bool) -> None:
        """A port is up at 400 Gb/s, or down with the placeholder that the kernel then shows."""
        port = self._folder(self.nics[number]) / f"infiniband/mlx5_{number}/ports/1"
        self._put(port / "state", "4: ACTIVE" if up else "1: DOWN")
        self._put(port / "phys_state", "5: LinkUp" if up else "2: Polling")
        self._put(port / "rate", "400 Gb/sec (4X NDR)" if up else "10 Gb/sec (4X SDR)")

    def port_errors(self, number: int, count: int) -> None:
        """How many symbol errors a port has counted."""
        folder = self._folder(self.nics[number]) / f"infiniband/mlx5_{number}/ports/1/counters"
        self._put(folder / "symbol_error", str(count))

    def die(self, address: str) -> Callable[[], None]:
        """A device no longer answers: what the kernel reads from it is all ones, what it remembers stays. Calling what
        this gives back makes it answer again."""
        ones = {
            "config": b"\xff" * 4096, "current_link_speed": b"Unknown\n", "current_link_width": b"63\n",
            "max_link_speed": b"64.0 GT/s PCIe\n", "max_link_width": b"63\n",
        }  # fmt: skip
        before = {name: (self._folder(address) / name).read_bytes() for name in ones}

        def write(files: dict[str, bytes]) -> None:
            for name, content in files.items():
                self._write(self._folder(address) / name, content)

        write(ones)
        return lambda: write(before)

    def take(self, address: str) -> None:
        """A device goes, as in a surprise removal."""
        gone = self._folder(address)
        (self.root / "sys/bus/pci/devices" / address).unlink()
        gone.rename(self.root / f"gone-{address}")

    def bring(self, address: str) -> None:
        """It comes back."""
        (self.root / f"gone-{address}").rename(self._folder(address))
        link = self.root / "sys/bus/pci/devices" / address
        link.symlink_to(f"../../../devices/{self._machine.parts[address].folder}")

    def copy(self, root: Path) -> None:
        """The files as they are now, below another root."""
        shutil.copytree(self.root, root, symlinks=True, dirs_exist_ok=True)

    def _folder(self, address: str) -> Path:
        return self.root / "sys/devices" / self._machine.parts[address].folder

    @staticmethod
    def _put(path: Path, text: str) -> None:
        """As an attribute of /sys changes: the same file has another content, also for those who have it open."""
        path.parent.mkdir(parents=True, exist_ok=True)
        Hgx._write(path, f"{text}\n".encode())

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        with open(path, "r+b" if path.exists() else "xb", buffering=0) as file:
            file.write(content)
            file.truncate(len(content))
