"""A made-up machine as the files and links of its sysfs, in memory: for the bench trees and the bundled example.

The layout is the kernel's (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband, sysfs-class-net): real
folders below /sys/devices, links from /sys/bus and /sys/class, and configuration spaces that lspci decodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.config_space import CONVENTIONAL, INTEGRATED, ROOT_PORT, Chip, Space

_SPEEDS = {
    0: "Unknown",
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
}
_PLAIN = {
    "revision": "0xa1",
    "irq": "0",
    "enable": "1",
    "power_state": "D0",
    "ari_enabled": "0",
    "broken_parity_status": "0",
    "consistent_dma_mask_bits": "32",
    "dma_mask_bits": "47",
    "d3cold_allowed": "1",
    "driver_override": "(null)",
    "msi_bus": "1",
    "reset_method": "flr bus",
    "remove": "",
    "rescan": "",
    "power/runtime_status": "active",
    "power/control": "on",
    "power/runtime_suspended_time": "0",
    "power/runtime_active_time": "123456",
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_CORRECTABLE = _words("RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF")
_UNCORRECTABLE = _words(
    "Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr BlockedTLP "
    "AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked DMWrReqBlocked IDECheck MisIDETLP PCRC_CHECK TLPXlatBlocked"
)
_PORT_COUNTERS = _words(
    "VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors "
    "port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors "
    "port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets "
    "unicast_xmit_packets"
)
_HARDWARE_COUNTERS = _words(
    "duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets "
    "out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors "
    "req_remote_invalid_request resp_cqe_error resp_cqe_flush_error resp_local_length_error resp_remote_access_errors "
    "rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps "
    "roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_icrc_encapsulated rx_read_requests "
    "rx_write_requests"
)


class Rdma(NamedTuple):
    """An RDMA port as its driver shows it."""

    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    link_layer: str = "InfiniBand"
    board: str = "MT_0000000838"
    firmware: str = "28.39.1002"
    netdev: str = ""  # by default ib<number>


UP = Rdma()
DOWN = Rdma("10 Gb/sec (4X SDR)", "1: DOWN", "2: Polling")


class Machine:
    """The machine: `files` by absolute path (bytes), `links` by absolute path (relative target), empty `folders`."""

    def __init__(self, cpus: int = 112, domain: int = 0) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: list[str] = []
        self.cpus = cpus  # hardware threads of both sockets together
        self.domain = domain  # of the functions that are added from now on
        self.functions = self.rdma_devices = self.nvme_controllers = 0

    # --- plain entries --------------------------------------------------------------------------------------------

    def file(self, path: str, content: object) -> None:
        """A file of one line, or bytes as they are."""
        self.files[path] = content if isinstance(content, bytes) else f"{content}\n".encode()

    def link(self, path: str, target: str) -> None:
        """A link to an absolute path, written relative as sysfs does."""
        self.links[path] = os.path.relpath(target, os.path.dirname(path))

    def write(self, root: Path) -> None:
        """Put the machine on disk below `root`."""
        made: set[str] = set()
        for path in (*(f"{folder}/." for folder in self.folders), *self.files, *self.links):
            parent = path.rpartition("/")[0]
            if parent not in made:
                os.makedirs(f"{root}{parent}", exist_ok=True)
                made.add(parent)
        for path, content in self.files.items():
            descriptor = os.open(f"{root}{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, content)
            os.close(descriptor)
        for path, target in self.links.items():
            os.symlink(target, f"{root}{path}")

    # --- processors and memory ------------------------------------------------------------------------------------

    def host(self, model: str = "Intel(R) Xeon(R) Platinum 8480C") -> None:
        """Two sockets with their caches, two NUMA nodes, /proc/cpuinfo; and the folders that every kernel has."""
        for name in ("bus/pci/devices", "bus/pci/slots"):
            self.folders.append(f"/sys/{name}")
        self.folders += [f"/sys/class/{name}" for name in ("infiniband", "net", "nvme", "pci_bus", "block")]
        cpu, half = "/sys/devices/system/cpu", self.cpus // 2
        for name in ("online", "possible", "present"):
            self.file(f"{cpu}/{name}", f"0-{self.cpus - 1}")
        for number in range(self.cpus):
            self._processor(f"{cpu}/cpu{number}", number, number // half)
        nodes = "/sys/devices/system/node"
        for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
            self.file(f"{nodes}/{name}", "0-1")
        for number in (0, 1):
            node = f"{nodes}/node{number}"
            self.file(f"{node}/cpumap", self._mask(range(number * half, number * half + half)))
            self.file(f"{node}/cpulist", self._near(number))
            self.file(f"{node}/distance", "10 21" if number == 0 else "21 10")
            self.file(
                f"{node}/meminfo",
                f"Node {number} MemTotal: 1056000000 kB\nNode {number} MemFree: 1000000000 kB",
            )
        rows = [
            f"processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
            f"model name\t: {model}\nphysical id\t: {number // half}\ncore id\t\t: {number % half // 2}\n\n"
            for number in range(self.cpus)
        ]
        self.file("/proc/cpuinfo", "".join(rows).encode())

    def _processor(self, path: str, number: int, socket: int) -> None:
        half = self.cpus // 2
        core = number % half // 2
        twins = (socket * half + core * 2, socket * half + core * 2 + 1)
        package = range(socket * half, socket * half + half)
        topology = {
            "physical_package_id": socket,
            "core_id": core,
            "die_id": 0,
            "thread_siblings": self._mask(twins),
            "core_cpus": self._mask(twins),
            "core_siblings": self._mask(package),
            "package_cpus": self._mask(package),
            "die_cpus": self._mask(package),
        }
        for name, value in topology.items():
            self.file(f"{path}/topology/{name}", value)
        self.file(f"{path}/online", 1)
        caches = ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "107520K"))
        for index, (level, kind, size) in enumerate(caches):
            facts = {
                "level": level,
                "type": kind,
                "size": size,
                "shared_cpu_map": self._mask(package if level == 3 else twins),
                "coherency_line_size": 64,
                "number_of_sets": 64,
                "ways_of_associativity": 12,
                "physical_line_partition": 1,
            }
            for name, value in facts.items():
                self.file(f"{path}/cache/index{index}/{name}", value)

    def _mask(self, cpus: Iterable[int]) -> str:
        bits = sum(1 << cpu for cpu in cpus)
        words = max(1, (self.cpus + 31) // 32)
        return ",".join(f"{bits >> (32 * word) & 0xFFFFFFFF:08x}" for word in reversed(range(words)))

    def _near(self, numa: int) -> str:
        half = self.cpus // 2
        return f"{numa * half}-{numa * half + half - 1}"

    # --- PCI ------------------------------------------------------------------------------------------------------

    def root(self, bus: int) -> str:
        """The folder of a host bridge."""
        return f"/sys/devices/pci{self.domain:04x}:{bus:02x}"

    def add(
        self,
        parent: str,
        bus: int,
        chip: Chip,
        *,
        device: int = 0,
        function: int = 0,
        generation: int | None = None,
        lanes: int | None = None,
        numa: int = 0,
        below: tuple[int, int] | None = None,
        slot: int = 0,
        port: int = 0,
        multi: bool = False,
        errors: int = 0,
        virtual: bool = False,
        virtual_functions: tuple[int, int] | None = None,
        acs: int = 0x1D,
    ) -> str:
        """One PCI function in the folder of the bridge above it; returns its own folder.

        generation and lanes: of the link as it runs, by default its best (0: no link). below: secondary and
        subordinate bus of a bridge. virtual_functions: how many it could have and how many are on. acs: the control
        bits of a port; errors: correctable ones since boot.
        """
        address = f"{self.domain:04x}:{bus:02x}:{device:02x}.{function}"
        path = f"{parent}/{address}"
        now = (chip.generation if generation is None else generation, chip.lanes if lanes is None else lanes)
        sub_vendor, sub_device = chip.subsystem or (chip.vendor, 0x16C1)
        alias = (
            f"pci:v{chip.vendor:08X}d{chip.device:08X}sv{sub_vendor:08X}sd{sub_device:08X}"
            f"bc{chip.class_code >> 16:02X}sc{chip.class_code >> 8 & 0xFF:02X}i{chip.class_code & 0xFF:02X}"
        )
        event = {
            **({"DRIVER": chip.driver} if chip.driver else {}),
            "PCI_CLASS": f"{chip.class_code:X}",
            "PCI_ID": f"{chip.vendor:04X}:{chip.device:04X}",
            "PCI_SUBSYS_ID": f"{sub_vendor:04X}:{sub_device:04X}",
            "PCI_SLOT_NAME": address,
            "MODALIAS": alias,
        }
        facts: dict[str, object] = {
            "vendor": f"0x{chip.vendor:04x}",
            "device": f"0x{chip.device:04x}",
            "class": f"0x{chip.class_code:06x}",
            "subsystem_vendor": f"0x{sub_vendor:04x}",
            "subsystem_device": f"0x{sub_device:04x}",
            **_PLAIN,
            "numa_node": numa,
            "local_cpulist": self._near(numa),
            "local_cpus": self._mask(range(numa * self.cpus // 2, (numa + 1) * self.cpus // 2)),
            "modalias": alias,
            "uevent": "\n".join([f"{key}={value}" for key, value in event.items()]),
            "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
        }
        if chip.port_type not in (CONVENTIONAL, INTEGRATED):
            facts["current_link_speed"], facts["current_link_width"] = _SPEEDS[now[0]], now[1]
            facts["max_link_speed"], facts["max_link_width"] = _SPEEDS[chip.generation], chip.lanes
        if chip.port_type != CONVENTIONAL and not virtual:
            facts.update(_error_counters(errors))
            if chip.port_type == ROOT_PORT:
                facts.update({f"aer_rootport_total_err_{kind}": 0 for kind in ("cor", "fatal", "nonfatal")})
        if below is not None:
            facts["secondary_bus_number"], facts["subordinate_bus_number"] = below
        if virtual_functions is not None:
            facts["sriov_totalvfs"], facts["sriov_numvfs"] = virtual_functions
            facts["sriov_drivers_autoprobe"] = 1
        for name, value in facts.items():
            self.file(f"{path}/{name}", value)
        space = Space(chip, bus, below, slot, port, multi, virtual_functions, acs, (sub_vendor, sub_device))
        self.file(f"{path}/config", space.encode(*now))
        self._place(path, address, chip.driver)
        return path

    def _place(self, path: str, address: str, driver: str) -> None:
        """The links from and to a function: bus, driver, IOMMU group."""
        self.link(f"{path}/subsystem", "/sys/bus/pci")
        self.link(f"/sys/bus/pci/devices/{address}", path)
        if driver:
            self.link(f"{path}/driver", f"/sys/bus/pci/drivers/{driver}")
            self.link(f"/sys/bus/pci/drivers/{driver}/{address}", path)
        group = f"/sys/kernel/iommu_groups/{self.functions}"
        self.link(f"{path}/iommu_group", group)
        self.link(f"{group}/devices/{address}", path)
        self.functions += 1

    def slot(self, label: str, bus: int) -> None:
        """A physical slot with its label."""
        path = f"/sys/bus/pci/slots/{label}"
        self.file(f"{path}/address", f"{self.domain:04x}:{bus:02x}:00")
        self.file(f"{path}/cur_bus_speed", _SPEEDS[5])
        self.file(f"{path}/max_bus_speed", _SPEEDS[5])

    # --- what hangs from functions --------------------------------------------------------------------------------

    def rdma(self, path: str, port: Rdma = UP) -> str:
        """An mlx5 device with one port and its network interface; returns its name."""
        number = self.rdma_devices
        self.rdma_devices += 1
        name = f"mlx5_{number}"
        folder, guid = f"{path}/infiniband/{name}", f"a088:c203:00ab:{number:04x}"
        device = {
            "board_id": port.board,
            "fw_ver": port.firmware,
            "hca_type": "MT4129",
            "hw_rev": "0",
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "node_desc": f"node {name}",
        }
        state = {
            "state": port.state,
            "phys_state": port.phys_state,
            "rate": port.rate,
            "lid": f"0x{number + 1:x}",
            "lid_mask_count": "0",
            "sm_lid": "0x1",
            "sm_sl": "0",
            "link_layer": port.link_layer,
            "cap_mask": "0xa751e848",
            "pkeys/0": "0xffff",
        }
        for key, value in device.items():
            self.file(f"{folder}/{key}", value)
        for key, value in state.items():
            self.file(f"{folder}/ports/1/{key}", value)
        for key in _PORT_COUNTERS:
            traffic = 0 if "err" in key or "disc" in key else number * 7919 + 104729
            self.file(f"{folder}/ports/1/counters/{key}", traffic)
        for key in _HARDWARE_COUNTERS:
            self.file(f"{folder}/ports/1/hw_counters/{key}", 0)
        self.folders.append(f"{folder}/ports/1/gid_attrs/ndevs")
        for row in range(16):
            gid = f"fe80:0000:0000:0000:a088:c203:00ab:{number:04x}" if row == 0 else ":".join(["0000"] * 8)
            self.file(f"{folder}/ports/1/gids/{row}", gid)
            kind = "IB/RoCE v1" if port.link_layer == "InfiniBand" else "RoCE v2"
            self.file(f"{folder}/ports/1/gid_attrs/types/{row}", kind)
        self.link(f"{folder}/device", path)
        self.link(f"/sys/class/infiniband/{name}", folder)
        self._interface(path, number, port)
        return name

    def _interface(self, path: str, number: int, port: Rdma) -> None:
        name = port.netdev or f"ib{number}"
        folder = f"{path}/net/{name}"
        mbps = int(float(port.rate.split()[0]) * 1000) if port.state.startswith("4") else 400000
        facts = {
            "address": f"00:00:10:29:fe:80:00:00:00:00:00:00:a0:88:c2:03:00:ab:00:{number & 255:02x}",
            "operstate": "up",
            "mtu": "4092" if port.link_layer == "InfiniBand" else "9000",
            "speed": mbps,
            "type": "32" if port.link_layer == "InfiniBand" else "1",
            "dev_id": "0x0",
            "dev_port": "0",
            "carrier": "1",
        }
        for key, value in facts.items():
            self.file(f"{folder}/{key}", value)
        self.folders.append(f"{folder}/statistics")
        self.link(f"{folder}/device", path)
        self.link(f"/sys/class/net/{name}", folder)

    def nvme(self, path: str, model: str = "SAMSUNG MZQL23T8HCLS-00A07") -> str:
        """An NVMe controller; returns its name."""
        name = f"nvme{self.nvme_controllers}"
        self.nvme_controllers += 1
        folder = f"{path}/nvme/{name}"
        facts = {"model": model, "state": "live", "address": path.rpartition("/")[2], "transport": "pcie"}
        for key, value in facts.items():
            self.file(f"{folder}/{key}", value)
        self.link(f"{folder}/device", path)
        self.link(f"/sys/class/nvme/{name}", folder)
        return name


def _error_counters(correctable: int) -> dict[str, str]:
    """The three AER files; correctable errors are spread as a bad contact makes them."""
    some = {"RxErr": correctable, "BadDLLP": correctable}
    lines = [f"{name} {some.get(name, 0)}" for name in _CORRECTABLE]
    files = {"aer_dev_correctable": "\n".join([*lines, f"TOTAL_ERR_COR {2 * correctable}"])}
    none = [f"{name} 0" for name in _UNCORRECTABLE]
    for kind in ("fatal", "nonfatal"):
        files[f"aer_dev_{kind}"] = "\n".join([*none, f"TOTAL_ERR_{kind.upper()} 0"])
    return files
