"""Synthetic machines: a few lines describe a PCI tree, and become the sysfs tree that a kernel would show.

    machine = Machine()
    port = machine.root_port(machine.host(0x16, numa=0))
    gpu = machine.gpu(port, link=(32.0, 8), most=(32.0, 16))
    node = machine.node()

Addresses are handed out in order, so build depth first: a bridge's bus range then holds what is below it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_topo.assemble import assemble
from gpu_topo.classifier import RULES
from gpu_topo.collectors import pcie
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.gpu import DriverGpu, DriverState, Peer
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import BARE_METAL, NetDevice, NumaNode, Platform, Port
from gpu_topo.model.node import Node
from gpu_topo.model.pci import (
    DOWNSTREAM_PORT,
    ENDPOINT,
    INTEGRATED_ENDPOINT,
    PCIE_TO_PCI,
    PORT_TYPES,
    ROOT_PORT,
    UPSTREAM_PORT,
    Function,
)
from gpu_topo.model.reading import Reading, Unknown
from gpu_topo.model.units import GENERATION_OF_GTS
from gpu_topo.source import Entry, Refusal, Source, Tree

DEVICES = "/sys/bus/pci/devices"
Ids = tuple[int, int]
Link = tuple[float, int]  # GT/s, lanes

GEN1, GEN2, GEN3, GEN4, GEN5, GEN6 = 2.5, 5.0, 8.0, 16.0, 32.0, 64.0

H100: Ids = (0x10DE, 0x2330)
H200: Ids = (0x10DE, 0x2335)
A100_SXM: Ids = (0x10DE, 0x20B0)
A100_PCIE: Ids = (0x10DE, 0x20F1)
A800_SXM: Ids = (0x10DE, 0x20F3)
H800_SXM: Ids = (0x10DE, 0x2324)
H100_NVL: Ids = (0x10DE, 0x2321)
H200_NVL: Ids = (0x10DE, 0x233B)
V100_SXM2: Ids = (0x10DE, 0x1DB1)
L40S: Ids = (0x10DE, 0x26B9)
RTX_4090: Ids = (0x10DE, 0x2684)
RTX_3090: Ids = (0x10DE, 0x2204)
RTX_A6000: Ids = (0x10DE, 0x2230)
GH200: Ids = (0x10DE, 0x2342)
B200: Ids = (0x10DE, 0x2901)
MI300X: Ids = (0x1002, 0x74A1)
RX_7900: Ids = (0x1002, 0x744C)
UNLISTED_GPU: Ids = (0x10DE, 0x3FFF)  # no such card: whoever judges it has only its link
NVSWITCH: Ids = (0x10DE, 0x22A3)
INTEL_ROOT: Ids = (0x8086, 0x352A)
AMD_ROOT: Ids = (0x1022, 0x1483)
PEX890: Ids = (0x1000, 0xC030)
PEX880: Ids = (0x1000, 0xC010)
PLX8747: Ids = (0x10B5, 0x8747)
CHIPSET_UP: Ids = (0x1022, 0x43F4)
CHIPSET_DOWN: Ids = (0x1022, 0x43F5)
NAVI_UP: Ids = (0x1002, 0x1478)
NAVI_DOWN: Ids = (0x1002, 0x1479)
BLUEFIELD_BRIDGE: Ids = (0x15B3, 0x1978)
CONNECTX7: Ids = (0x15B3, 0x1021)
I350: Ids = (0x8086, 0x1521)
NVME: Ids = (0x144D, 0xA80A)
ASPEED: Ids = (0x1A03, 0x2000)

GPU_CLASS, VGA_CLASS, NIC_CLASS, IB_CLASS, NVME_CLASS = 0x030200, 0x030000, 0x020000, 0x020700, 0x010802
BRIDGE_CLASS, HOST_CLASS, NVSWITCH_CLASS, ACCELERATOR_CLASS = 0x060400, 0x060000, 0x068000, 0x120000

_LEADS_DOWN = frozenset({ROOT_PORT, DOWNSTREAM_PORT})
_CODE_OF = {name: code for code, name in PORT_TYPES.items()}
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


class Part:
    """One PCI function of a synthetic machine."""

    def __init__(self, address: str, folder: str, ids: Ids, class_code: int, port_type: str | None) -> None:
        self.address = address
        self.folder = folder  # below /sys/devices
        self.above: Part | None = None
        self.ids = ids
        self.subsystem: Ids = (ids[0], 0)
        self.class_code = class_code
        self.port_type = port_type  # None: conventional PCI
        self.link: Link | None = None
        self.most: Link | None = None
        self.numa: int | None = None
        self.driver: str | None = None
        self.secondary: int | None = None
        self.subordinate = 0
        self.acs: Iterable[str] | None = None
        self.payload = (256, 512)  # in use, supported
        self.files: dict[str, Entry | None] = {}  # what differs from a healthy kernel's answer; None: not there


class Machine:
    """A machine under construction; addresses are its names for things.

    config: with configuration space in every function, as root sees it. numa: how many NUMA nodes it has.
    """

    def __init__(self, *, config: bool = False, numa: int = 1, platform: Platform | None = None) -> None:
        self.config = config
        self.numa = numa
        self.platform = platform or Platform(
            kind=BARE_METAL,
            arch="x86_64",
            numa=tuple(NumaNode(n, f"{n * 8}-{n * 8 + 7}") for n in range(numa)),
            numa_count=numa,
        )
        self.parts: dict[str, Part] = {}
        self.extra: dict[str, Entry] = {}
        self.ports: list[Port] = []
        self.netdevs: list[NetDevice] = []
        self._next_bus: dict[int, int] = {}
        self._next_device: dict[tuple[int, int], int] = {}
        self._hosts: dict[str, tuple[int, int, int | None]] = {}  # pci0000:16 -> domain, bus, NUMA node

    # --- what can be built ------------------------------------------------------------------------------------

    def host(self, bus: int = 0, *, domain: int = 0, numa: int | None = 0, bridge: bool = True) -> str:
        """A root bus; with its host bridge as a function of its own, as Intel and AMD show it."""
        name = f"pci{domain:04x}:{bus:02x}"
        self._hosts[name] = (domain, bus, numa)
        self._next_bus[domain] = max(self._next_bus.get(domain, 0), bus + 1)
        if bridge:
            self.function(name, (0x8086, 0x09A2), HOST_CLASS, port_type=None)
        return name

    def function(
        self,
        above: str,
        ids: Ids,
        class_code: int,
        *,
        port_type: str | None = ENDPOINT,
        link: Link | None = None,
        most: Link | None = None,
        same_device: str | None = None,
        number: int | None = None,
        **more: Any,
    ) -> str:
        """Any function below a root bus or a bridge. link: what it runs at; most: what it can do (default: that).

        same_device: a further function of that device. number: its device number. more: attributes of Part.
        """
        parent = self.parts.get(above)
        domain, bus, numa, folder = self._place(above)
        if same_device is not None:
            stem = same_device.rsplit(".", 1)[0]
            address = f"{stem}.{sum(a.startswith(stem + '.') for a in self.parts)}"
        else:
            device = self._next_device.get((domain, bus), 0) if number is None else number
            self._next_device[(domain, bus)] = device + 1
            address = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        part = Part(address, f"{folder}/{address}", ids, class_code, port_type)
        part.above, part.numa = parent, numa
        part.link = link or most
        part.most = most or link
        for name, value in more.items():
            assert hasattr(part, name), name
            setattr(part, name, value)
        if parent is not None and parent.port_type in _LEADS_DOWN and part.link is not None and same_device is None:
            parent.link = part.link  # both ends of a link run alike
        self.parts[address] = part
        return address

    def bridge(self, above: str, ids: Ids, port_type: str, most: Link | None, **more: Any) -> str:
        """A PCI bridge with a bus of its own below it."""
        more.setdefault("driver", "pcieport")
        address = self.function(above, ids, BRIDGE_CLASS, port_type=port_type, most=most, **more)
        domain = int(address.split(":")[0], 16)
        part: Part | None = self.parts[address]
        assert part is not None
        bus = part.secondary = self._next_bus[domain]
        self._next_bus[domain] = bus + 1
        while part is not None:
            part.subordinate = bus
            part = part.above
        return address

    def root_port(self, host: str, most: Link = (GEN5, 16), ids: Ids = INTEL_ROOT, **more: Any) -> str:
        """A root port; its link runs at what is put below it."""
        return self.bridge(host, ids, ROOT_PORT, most, number=more.pop("number", self._after_host(host)), **more)

    def switch(self, above: str, ids: Ids = PEX890, link: Link | None = None, **more: Any) -> str:
        """The upstream port of a switch."""
        return self.bridge(above, ids, UPSTREAM_PORT, more.pop("most", (GEN5, 16)), link=link, **more)

    def down(self, switch: str, most: Link = (GEN5, 16), ids: Ids | None = None, **more: Any) -> str:
        """A downstream port of a switch."""
        return self.bridge(switch, ids or self.parts[switch].ids, DOWNSTREAM_PORT, most, **more)

    def gpu(self, above: str, ids: Ids = H100, link: Link | None = None, most: Link = (GEN5, 16), **more: Any) -> str:
        """A GPU with its driver bound."""
        more.setdefault("driver", {0x10DE: "nvidia", 0x1002: "amdgpu"}.get(ids[0]))
        class_code = more.pop("class_code", GPU_CLASS)
        return self.function(above, ids, class_code, link=link, most=most, **more)

    def nic(
        self,
        above: str,
        ids: Ids = CONNECTX7,
        link: Link | None = None,
        most: Link = (GEN5, 16),
        *,
        gbps: float | None = 400.0,
        infiniband: bool = True,
        **more: Any,
    ) -> str:
        """A NIC; with an RDMA port of that rate where infiniband, else with an Ethernet interface."""
        more.setdefault("driver", "mlx5_core" if ids[0] == 0x15B3 else "igb")
        class_code = IB_CLASS if infiniband else NIC_CLASS
        address = self.function(above, ids, class_code, link=link, most=most, **more)
        number = len(self.ports) + len(self.netdevs)
        if gbps is not None and infiniband:
            self.ports.append(
                Port(
                    f"mlx5_{number}",
                    1,
                    address,
                    link_layer="InfiniBand",
                    transport="infiniband",
                    state="ACTIVE",
                    phys_state="LinkUp",
                    rate_gbps=gbps,
                    lanes=4,
                    speed="NDR",
                    board_id="MT_0000000838",
                )
            )
        elif gbps is not None:
            self.netdevs.append(NetDevice(f"eth{number}", address, int(gbps * 1000)))
        return address

    def nvme(self, above: str, link: Link | None = None, most: Link = (GEN4, 4), **more: Any) -> str:
        """An NVMe drive."""
        return self.function(above, NVME, NVME_CLASS, link=link, most=most, driver="nvme", **more)

    def virtual(self, physical: str, ids: Ids = (0x15B3, 0x101E), *, number: int) -> str:
        """A virtual function of a device, on its bus."""
        base = self.parts[physical]
        above = base.above
        assert above is not None
        address = self.function(above.address, ids, base.class_code, number=number, driver=base.driver)
        base.files[f"virtfn{sum(n.startswith('virtfn') for n in base.files)}"] = f"../{address}"
        self.parts[address].files["physfn"] = f"../{physical}"
        return address

    def slot(self, label: str, address: str) -> None:
        """The platform's label of a physical slot."""
        self.extra[f"/sys/bus/pci/slots/{label}/address"] = address.rsplit(".", 1)[0].encode() + b"\n"

    def files(self, address: str, **files: Entry | None) -> None:
        """Replace what a kernel would answer for one function; None: no such file. / is written __ in names."""
        self.parts[address].files.update({name.replace("__", "/"): entry for name, entry in files.items()})

    def _after_host(self, host: str) -> int | None:
        domain, bus, _ = self._hosts.get(host, (0, 0, None))
        return max(1, self._next_device.get((domain, bus), 0)) if host in self._hosts else None

    def _place(self, above: str) -> tuple[int, int, int | None, str]:
        """Domain, bus, NUMA node and folder of what is put below a root bus or bridge."""
        if above in self._hosts:
            domain, bus, numa = self._hosts[above]
            return domain, bus, numa, above
        part = self.parts[above]
        assert part.secondary is not None
        return int(above.split(":")[0], 16), part.secondary, part.numa, part.folder

    # --- what comes out ---------------------------------------------------------------------------------------

    def entries(self) -> dict[str, Entry]:
        """Every file and link, by absolute path."""
        entries: dict[str, Entry] = dict(self.extra)
        for part in self.parts.values():
            folder = f"/sys/devices/{part.folder}"
            entries[f"{DEVICES}/{part.address}"] = f"../../../devices/{part.folder}"
            files = {**_healthy(part), **part.files}
            if self.config:
                files.setdefault("config", config_of(part))
                files["resource"] = b"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
                files["irq"] = b"0\n"
            for name, entry in files.items():
                if entry is not None:
                    entries[f"{folder}/{name}"] = entry
        return entries

    def tree(self) -> Tree:
        """The machine in memory."""
        return Tree(self.entries(), folders=(DEVICES,))

    def write(self, root: Path) -> Path:
        """The machine as files below `root`, for programs that read /sys. Refusals are left out."""
        write(self.entries(), root)
        (root / DEVICES[1:]).mkdir(parents=True, exist_ok=True)
        return root

    def facts(self, exclude: Iterable[str] = ()) -> Facts:
        """What the PCIe collector brings home from it."""
        return collect(self.tree(), exclude)

    def node(
        self,
        gpus: Sequence[DriverGpu] | Sequence[Sequence[DriverGpu]] = (),
        *,
        driver: DriverState | None = None,
        peers: Sequence[Peer] = (),
        more: Sequence[Facts] = (),
        live: bool = False,
    ) -> Node:
        """The machine as a Node. gpus: what the driver says, once or (a sequence of sequences) several times."""
        looks: list[tuple[DriverGpu, ...]] = []
        if gpus and isinstance(gpus[0], DriverGpu):
            looks = [tuple(g for g in gpus if isinstance(g, DriverGpu))]
        else:
            looks = [tuple(g for g in look if isinstance(g, DriverGpu)) for look in gpus]
        state = driver or (DriverState("nvml", "ok") if looks else None)
        found = [Facts(SourceStatus("platform", OK), platform=self.platform), self.facts()]
        found += [Facts(SourceStatus("nvml", OK), gpus=look, driver=state, peers=tuple(peers)) for look in looks]
        if not looks and (state is not None or peers):
            found.append(Facts(SourceStatus("nvml", OK), driver=state, peers=tuple(peers)))
        if self.ports or self.netdevs:
            found.append(Facts(SourceStatus("rdma", OK), ports=tuple(self.ports), netdevs=tuple(self.netdevs)))
        return assemble([*found, *more], live=live)


def write(entries: Mapping[str, Entry], root: Path) -> None:
    """Entries of a Tree as files and links on disk."""
    for path, entry in entries.items():
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, bytes):
            target.write_bytes(entry)
        elif isinstance(entry, str):
            target.symlink_to(entry)


def add_processor(root: Path) -> None:
    """One processor, for programs that look at nothing without one (hwloc). Existing files stay."""
    cpu = "sys/devices/system/cpu"
    topology = f"{cpu}/cpu0/topology"
    files = {f"{cpu}/{name}": "0\n" for name in ("online", "possible", "present")}
    files |= {f"{topology}/{name}": "0\n" for name in ("physical_package_id", "core_id")}
    siblings = ("thread_siblings", "core_siblings", "core_cpus", "package_cpus")
    files |= {f"{topology}/{name}": "1\n" for name in siblings}
    files["proc/cpuinfo"] = "processor : 0\n"
    for name, text in files.items():
        target = root / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def collect(source: Source, exclude: Iterable[str] = ()) -> Facts:
    """The PCIe collector's answer."""
    return pcie.collect(source, Context(time.monotonic() + 60, frozenset(exclude)))


def by_address(facts: Facts) -> Mapping[str, Function]:
    """The PCI functions that a collector found."""
    return {function.address: function for function in facts.functions}


def why(reading: Reading[object]) -> str | None:
    """The reason of an unknown value."""
    return reading.why if isinstance(reading, Unknown) else None


def conclusions(
    node: Node, code: str, past: Past = Past(), policy: Policy = Policy()
) -> tuple[list[Finding], list[Unassessed]]:
    """What one rule concludes of a node."""
    rule = next(rule for rule in RULES if rule.code == code)
    found = list(rule.judge(node, past, policy))
    return [f for f in found if isinstance(f, Finding)], [u for u in found if isinstance(u, Unassessed)]


def findings(node: Node, code: str, past: Past = Past(), policy: Policy = Policy()) -> list[Finding]:
    """The findings of one rule; each with words, evidence and steps that a person can use."""
    found = conclusions(node, code, past, policy)[0]
    rule = next(rule for rule in RULES if rule.code == code)
    for finding in found:
        assert finding.code == code
        assert finding.severity in rule.severities, f"{code} gives {finding.severity} and does not say so"
        assert finding.summary and "\n" not in finding.summary and "None" not in finding.summary, finding.summary
        assert finding.impact and finding.remedy and finding.verify
    return found


def unassessed(node: Node, code: str, past: Past = Past(), policy: Policy = Policy()) -> list[Unassessed]:
    """What one rule could not judge."""
    return conclusions(node, code, past, policy)[1]


# --- the kernel's words -----------------------------------------------------------------------------------------


def speed_text(gts: float) -> bytes:
    """A link speed as kernels since 5.7 write it."""
    return f"{gts} GT/s PCIe\n".encode()


def _healthy(part: Part) -> dict[str, Entry | None]:
    vendor, device = part.ids
    sub_vendor, sub_device = part.subsystem
    driver = f"DRIVER={part.driver}\n" if part.driver else ""
    files: dict[str, Entry | None] = {
        "uevent": (
            f"{driver}PCI_CLASS={part.class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\n"
            f"PCI_SUBSYS_ID={sub_vendor:04X}:{sub_device:04X}\nPCI_SLOT_NAME={part.address}\n"
        ).encode(),
        "class": f"0x{part.class_code:06x}\n".encode(),
        "vendor": f"0x{vendor:04x}\n".encode(),
        "device": f"0x{device:04x}\n".encode(),
        "subsystem_vendor": f"0x{sub_vendor:04x}\n".encode(),
        "subsystem_device": f"0x{sub_device:04x}\n".encode(),
        "numa_node": f"{-1 if part.numa is None else part.numa}\n".encode(),
        "power/runtime_status": b"active\n",
        "local_cpulist": f"{(part.numa or 0) * 8}-{(part.numa or 0) * 8 + 7}\n".encode(),
    }
    if part.driver:
        files["driver"] = f"/sys/bus/pci/drivers/{part.driver}"
    if part.most is not None:
        speed, width = part.link or part.most
        files["current_link_speed"] = speed_text(speed)
        files["current_link_width"] = f"{width}\n".encode()
        files["max_link_speed"] = speed_text(part.most[0])
        files["max_link_width"] = f"{part.most[1]}\n".encode()
    return files


def refused(why: str = "denied", error: str = "EACCES") -> Refusal:
    """A file that may not be read."""
    return Refusal(why, error)


# --- configuration space, laid out by the PCI Express Base Specification ------------------------------------------


def config_of(part: Part) -> bytes:
    """4 KiB of configuration space: header, PCI Express capability at 40h, ACS at 100h where the part has it."""
    space = bytearray(4096)
    vendor, device = part.ids
    bridge = part.secondary is not None
    code = part.class_code
    struct.pack_into("<HHHH", space, 0, vendor, device, 0x0406, 0x0010 if part.port_type else 0)
    struct.pack_into("<BBBB", space, 8, 0xA1, code & 0xFF, code >> 8 & 0xFF, code >> 16)
    space[0x0E] = 0x01 if bridge else 0x00
    if bridge:
        bus = int(part.address.split(":")[1], 16)
        struct.pack_into("<BBBB", space, 0x18, bus, part.secondary, max(part.subordinate, part.secondary or 0), 0)
    else:
        struct.pack_into("<HH", space, 0x2C, *part.subsystem)
    if part.port_type is None:
        return bytes(space)
    space[0x34] = 0x40
    slot = 0x0100 if part.port_type in _LEADS_DOWN else 0
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, 0x0002 | _CODE_OF[part.port_type] << 4 | slot)
    now, can = (payload.bit_length() - 8 for payload in part.payload)
    struct.pack_into("<IHH", space, 0x44, can, now << 5, 0)
    if part.most is not None:
        speed, width = part.link or part.most
        generation, most = GENERATION_OF_GTS[speed], GENERATION_OF_GTS[part.most[0]]
        struct.pack_into("<I", space, 0x4C, most | part.most[1] << 4)
        struct.pack_into("<HH", space, 0x50, 0, generation | width << 4)
        struct.pack_into("<IHH", space, 0x6C, (2 << most) - 2, most, 0)
    if part.acs is not None:
        bits = sum(1 << _ACS_BITS.index(name) for name in part.acs)
        struct.pack_into("<IHH", space, 0x100, 0x0001000D, 0x5F, bits)
    return bytes(space)


def one_gpu() -> tuple[Machine, str]:
    """A machine with one GPU behind a root port, and the GPU's address."""
    machine = Machine()
    return machine, machine.gpu(machine.root_port(machine.host(0x16)))


def navi(machine: Machine, above: str, slot_link: Link = (GEN4, 16), ids: Ids = RX_7900, **more: Any) -> str:
    """An AMD card with the two bridges that it has inside: the link of the upper one is the slot's."""
    up = machine.bridge(above, NAVI_UP, UPSTREAM_PORT, (GEN4, 16), link=slot_link)
    down = machine.bridge(up, NAVI_DOWN, DOWNSTREAM_PORT, (GEN4, 16))
    return machine.gpu(down, ids, most=(GEN4, 16), class_code=more.pop("class_code", VGA_CLASS), **more)


def dpu(machine: Machine, above: str, slot_link: Link = (GEN5, 16), **more: Any) -> str:
    """A BlueField with the two bridges that it has inside: its network function always shows x16."""
    up = machine.bridge(above, BLUEFIELD_BRIDGE, UPSTREAM_PORT, (GEN5, 16), link=slot_link)
    return machine.nic(machine.bridge(up, BLUEFIELD_BRIDGE, DOWNSTREAM_PORT, (GEN5, 16)), **more)


def display(machine: Machine, host: str) -> str:
    """A server's management display below a bridge to conventional PCI, as most boards have it."""
    port = machine.root_port(host, (GEN2, 1))
    pci = machine.bridge(port, (0x1A03, 0x1150), PCIE_TO_PCI, (GEN1, 1))
    return machine.function(pci, ASPEED, VGA_CLASS, port_type=None, driver="ast")


def integrated_graphics(machine: Machine, host: str) -> str:
    """Intel's graphics inside the processor."""
    return machine.function(host, (0x8086, 0x46A6), VGA_CLASS, port_type=INTEGRATED_ENDPOINT, number=2, driver="i915")
