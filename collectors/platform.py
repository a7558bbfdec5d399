"""The machine itself: name, kernel, NUMA nodes, and whether it is bare metal, a virtual machine, a container."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.plain_text import clean
from gpu_topo.model.facts import ABSENT, DENIED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.host import BARE_METAL, UNKNOWN_PLATFORM, VIRTUAL_MACHINE, NumaNode, Platform
from gpu_topo.model.reading import MALFORMED, Reading, Unknown, known
from gpu_topo.source import Answer, Refusal, Source

NAME = "platform"
DMI = "/sys/class/dmi/id"
NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
CPUINFO_BYTES = 4096  # holds the first processor, and the kernel need not describe hundreds of others

# What SMBIOS of virtual machines says, looked for in vendor, product and board vendor; lower case.
# Source: the hypervisors' and clouds' SMBIOS tables, as virt-what and systemd-detect-virt know them too.
_VIRTUAL = (
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("innotek gmbh", "VirtualBox"),
    ("hvm domu", "Xen"),
    ("xen", "Xen"),
    ("parallels", "Parallels"),
    ("bhyve", "bhyve"),
    ("apple virtualization", "Apple"),
    ("nutanix ahv", "KVM"),
    ("kubevirt", "KVM"),
    ("openstack", "KVM"),
    ("qemu", "KVM"),
    ("kvm", "KVM"),
    ("bochs", "KVM"),
    ("droplet", "KVM"),
    ("vserver", "KVM"),
    ("cloud hypervisor", "KVM"),
    ("firecracker", "KVM"),
    ("virtual machine", "Hyper-V"),
)
# Clouds that rent whole machines under the same name: there the processor's flag decides where it has one.
_CLOUDS = (
    ("amazon ec2", "Amazon Nitro"),
    ("google compute engine", "KVM"),
    ("alibaba cloud", "KVM"),
)
# Makers of machines: their name in the SMBIOS is evidence of hardware.
_MAKERS = (
    "dell|hpe|hp|hewlett|lenovo|ibm|supermicro|super micro|asus|asustek|asrock|asrockrack|gigabyte|giga-byte|nvidia|"
    "intel|micro-star|msi|tyan|mitac|quanta|qct|wiwynn|inspur|ieit|h3c|xfusion|cisco|fujitsu|foxconn|ingrasys|inventec|"
    "penguin|cray|ampere|apple|acer|aivres|sugon|atos|bull|nec|oracle|razer|framework|huawei|zte|sgi"
)


def collect(source: Source, context: Context) -> Facts:
    """Read what tells about the machine as a whole. Never raises."""
    begun = time.monotonic()
    reader = _Reader(source)
    dmi = reader.dmi()
    cpu = reader.cpu()
    kind, hypervisor, evidence = _judge(dmi, cpu, reader)
    numa, count = reader.numa()
    kernel = reader.kernel()
    vendor, product = dmi.get("sys_vendor"), dmi.get("product_name")
    platform = Platform(
        hostname=reader.first("/proc/sys/kernel/hostname", "/etc/hostname"),
        kind=kind,
        hypervisor=hypervisor,
        evidence=evidence,
        kernel=kernel,
        arch=_arch(cpu),
        product=" ".join(part for part in (vendor, product) if part) or None,
        chassis=_whole(dmi.get("chassis_type")),
        numa=numa,
        numa_count=count,
        uptime_seconds=reader.uptime(),
        modules=reader.modules(),
        dmabuf=reader.dmabuf(kernel),
    )
    return Facts(reader.status(time.monotonic() - begun), platform=platform, unread=reader.unread)


class _Reader:
    """Reads through the source and counts what was refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = 0
        self.unread: dict[str, int] = {}

    def _refused(self, refusal: Refusal, where: str) -> Unknown | None:
        """Counted, but for what is not there."""
        if refusal.why == ABSENT:
            return None
        key = f"{refusal.why}: {where}"
        self.unread[key] = self.unread.get(key, 0) + 1
        return Unknown(refusal.why, where)

    def _answer(self, answer: Answer, where: str) -> Reading[str]:
        if isinstance(answer, Refusal):
            return self._refused(answer, where)
        self._read += 1
        return clean(answer.replace(b"\0", b" ").decode("utf-8", "replace").strip()) or None

    def text(self, path: str) -> Reading[str]:
        return self._answer(self._source.read(path), path)

    def first(self, *paths: str) -> Reading[str]:
        """The first file that says something."""
        refused: Reading[str] = None
        for path in paths:
            answer = self.text(path)
            if known(answer):
                return answer
            refused = refused or answer
        return refused

    def dmi(self) -> dict[str, str]:
        """What the firmware says of the machine; files that only root may read are left alone."""
        folder = self._source.dir(DMI)
        if isinstance(folder, Refusal):
            return {}
        said = {}
        with folder:
            for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor", "chassis_type"):
                value = known(self._answer(folder.read(name), f"{DMI}/{name}"))
                if value:
                    said[name] = value
        return said

    def cpu(self) -> str:
        """The description of the first processor."""
        folder = self._source.dir("/proc")
        if isinstance(folder, Refusal):
            return ""
        with folder:
            return known(self._answer(folder.read_at("cpuinfo", 0, CPUINFO_BYTES), "/proc/cpuinfo")) or ""

    def kernel(self) -> Reading[str]:
        release = self.text("/proc/sys/kernel/osrelease")
        if release is not None:
            return release
        version = self.text("/proc/version")  # Linux version 6.8.0 (...)
        if isinstance(version, str):
            words = version.split()
            return words[2] if len(words) > 2 else Unknown(MALFORMED, "/proc/version")
        return version

    def uptime(self) -> Reading[float]:
        text = self.text("/proc/uptime")
        if not isinstance(text, str):
            return text
        try:
            return float(text.split()[0])
        except (ValueError, IndexError):
            return Unknown(MALFORMED, "/proc/uptime")

    def modules(self) -> Reading[frozenset[str]]:
        names = self._source.list("/sys/module")
        if isinstance(names, Refusal):
            return self._refused(names, "/sys/module")
        return frozenset(names)

    def dmabuf(self, kernel: Reading[str]) -> Reading[bool]:
        """Whether the NVIDIA driver can export GPU memory as dma-buf: the open kernel modules on Linux 5.12 and
        later (NVIDIA GPU Operator documentation, GPUDirect RDMA). None without that driver."""
        version = self.text("/proc/driver/nvidia/version")
        if not isinstance(version, str) or not isinstance(kernel, str):
            return None
        major, _, rest = kernel.partition(".")
        minor = _digits(rest)
        if not (major.isdecimal() and minor):
            return None
        return "Open Kernel Module" in version and (int(major), int(minor)) >= (5, 12)

    def numa(self) -> tuple[Reading[tuple[NumaNode, ...]], Reading[int]]:
        """The nodes, and how many have processors: memory of GPUs shows as nodes without any."""
        folder = self._source.dir(NODES)
        if isinstance(folder, Refusal):
            why = self._refused(folder, NODES)
            return why, why
        with folder:
            names = folder.list()
            if isinstance(names, Refusal):
                why = self._refused(names, NODES)
                return why, why
            numbers = sorted(int(name[4:]) for name in names if name[:4] == "node" and name[4:].isdecimal())
            nodes = []
            for number in numbers:
                cpus = self._answer(folder.read(f"node{number}/cpulist"), f"{NODES}/node{number}/cpulist")
                if isinstance(cpus, str) and not _is_cpu_list(cpus):
                    cpus = Unknown(MALFORMED, f"{NODES}/node{number}/cpulist")
                nodes.append(NumaNode(number, cpus, self._package(cpus)))
        with_cpus = sum(1 for node in nodes if node.cpus is not None)
        return tuple(nodes), (with_cpus or len(nodes)) or None

    def _package(self, cpus: Reading[str]) -> Reading[int]:
        """The socket of a NUMA node, by its first CPU."""
        if not isinstance(cpus, str):
            return None
        first = _digits(cpus)
        told = self._source.read(f"{CPUS}/cpu{first}/topology/physical_package_id")
        text = "" if isinstance(told, Refusal) else told.decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else None  # some Arm systems say -1

    def status(self, seconds: float) -> SourceStatus:
        if self._read == 0:
            return SourceStatus(NAME, DENIED if self.unread else ABSENT, "nothing of /proc and /sys was there", seconds)
        detail = ", ".join(self.unread)
        return SourceStatus(NAME, PARTIAL if self.unread else OK, detail, seconds)


def _judge(dmi: dict[str, str], cpu: str, reader: _Reader) -> tuple[str, str | None, str]:
    """Hardware or hypervisor, the hypervisor's name, and what speaks for it; unknown where nothing does."""
    if known(reader.text("/proc/xen/capabilities")) == "control_d":
        return BARE_METAL, "Xen", "Xen's control domain"  # it owns the hardware
    flags = _line(cpu, "flags")
    flagged = flags is not None and " hypervisor" in flags
    said = " ".join(dmi.get(name, "") for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor")).lower()
    named = f"DMI: {dmi.get('sys_vendor', '')} {dmi.get('product_name', '')}".strip()
    cloud = next((name for words, name in _CLOUDS if words in said), None)
    if cloud and not flagged and (flags is not None or _is_metal(said)):
        return BARE_METAL, None, named
    # A hidden flag (to please old drivers) does not make hardware of what the firmware calls a virtual machine.
    hypervisor = cloud or next((name for words, name in _VIRTUAL if _says(said, words)), None)
    if hypervisor:
        return VIRTUAL_MACHINE, hypervisor, named
    kind = known(reader.text("/sys/hypervisor/type"))
    if kind:
        return VIRTUAL_MACHINE, kind.capitalize(), "/sys/hypervisor/type"
    if flagged:
        return VIRTUAL_MACHINE, None, "CPU flag: hypervisor"
    if flags is not None:
        return BARE_METAL, None, "CPU flags without hypervisor"
    # What follows is of other processors than x86.
    tree = known(reader.text("/proc/device-tree/hypervisor/compatible"))
    if tree:
        return VIRTUAL_MACHINE, "KVM" if "kvm" in tree else tree.capitalize(), "device tree: hypervisor"
    power = (_line(cpu, "platform") or "").strip()
    if power.startswith("pSeries"):
        return VIRTUAL_MACHINE, "KVM" if "qemu" in cpu else "PowerVM", "/proc/cpuinfo: pSeries"
    if power.startswith("PowerNV"):
        return BARE_METAL, None, "/proc/cpuinfo: PowerNV"
    if any(_says(said, maker) for maker in _MAKERS.split("|")):
        return BARE_METAL, None, named
    return UNKNOWN_PLATFORM, None, ""


def _line(cpu: str, name: str) -> str | None:
    """What the first line of that name says."""
    for line in cpu.split("\n"):
        if line.startswith(name):
            key, colon, value = line.partition(":")
            if colon and key.rstrip() == name:
                return value
    return None


def _says(text: str, words: str) -> bool:
    """Whether the words stand in the text, and are no part of longer ones."""
    before, *parts = text.split(words)
    for after in parts:
        if not (_is_letter(before[-1:]) or _is_letter(after[:1])):
            return True
        before = after
    return False


def _is_letter(text: str) -> bool:
    return text.isalnum() or text == "_"


def _is_metal(said: str) -> bool:
    """Names that clouds give to whole machines: m5.metal, c7g-metal-48xl."""
    return any(part.split(" ")[0] == "metal" for part in said.replace("-", ".").split(".")[1:])


def _is_cpu_list(text: str) -> bool:
    """0-55,112-167"""
    return all(
        low.isdecimal() and (high.isdecimal() or not dash)
        for low, dash, high in (part.partition("-") for part in text.split(","))
    )


def _arch(cpu: str) -> Reading[str]:
    """The architecture, by how its kernel describes a processor."""
    flags = _line(cpu, "flags")
    if flags is not None:
        return "x86_64" if " lm " in f"{flags} " else "i686"
    if "CPU implementer" in cpu:
        return "aarch64"
    if "POWER" in cpu:
        return "ppc64le"
    return "riscv64" if "rv64" in cpu else None


def _whole(text: str | None) -> Reading[int]:
    if text is None:
        return None
    return int(text) if text.isdecimal() else Unknown(MALFORMED, f"{DMI}/chassis_type")


def _digits(text: str) -> str:
    """The digits that a text begins with."""
    return text[: len(text) - len(text.lstrip("0123456789"))]
