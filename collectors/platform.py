"""The machine itself: name, kernel, NUMA nodes, and whether it is bare metal, a virtual machine, a container."""

from __future__ import annotations

import re
import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.readers.reader import clean
from gpu_topo.model.facts import ABSENT, DENIED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.host import BARE_METAL, UNKNOWN_PLATFORM, VIRTUAL_MACHINE, NumaNode, Platform
from gpu_topo.model.reading import EMPTY, MALFORMED, Reading, Unknown, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Answer, Refusal, Source

NAME = "platform"
DMI = "/sys/class/dmi/id"
NODES = "/sys/devices/system/node"
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
# Makers of machines: their name in the SMBIOS is evidence of hardware. Compiled where it is looked for: seldom.
_MAKERS = (
    r"\b(?:dell|hpe|hp|hewlett|lenovo|ibm|supermicro|super micro|asus|asustek|asrock|asrockrack|giga-?byte|nvidia|"
    r"intel|micro-star|msi|tyan|mitac|quanta|qct|wiwynn|inspur|ieit|h3c|xfusion|cisco|fujitsu|foxconn|ingrasys|inventec|"
    r"penguin|cray|ampere|apple|acer|aivres|sugon|atos|bull|nec|oracle|razer|framework|huawei|zte|sgi)\b"
)
_CONTAINER = rb"docker|kubepods|containerd|libpod|podman|lxc|garden|crio"
_CPU_LIST = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?\Z")


class _Machine(NamedTuple):
    """What decides between hardware and hypervisor."""

    kind: str
    hypervisor: str | None
    evidence: str


def collect(source: Source, context: Context) -> Facts:
    """Read what tells about the machine as a whole. Never raises."""
    begun = time.monotonic()
    reader = _Reader(source)
    dmi = reader.dmi()
    cpu = reader.cpu()
    machine = _judge(dmi, cpu, reader)
    numa, count = reader.numa()
    vendor, product = dmi.get("sys_vendor"), dmi.get("product_name")
    platform = Platform(
        hostname=reader.first("/proc/sys/kernel/hostname", "/etc/hostname"),
        kind=machine.kind,
        hypervisor=machine.hypervisor,
        evidence=machine.evidence,
        kernel=reader.kernel(),
        arch=_arch(cpu),
        product=" ".join(part for part in (vendor, product) if part) or None,
        chassis=_whole(dmi.get("chassis_type")),
        container=reader.container(),
        numa=numa,
        numa_count=count,
        uptime_seconds=reader.uptime(),
        boot_id=reader.text("/proc/sys/kernel/random/boot_id"),
        iommu=reader.iommu(),
        modules=reader.modules(),
        dmabuf=reader.dmabuf(),
    )
    return Facts(reader.status(time.monotonic() - begun), platform=platform, unread=reader.unread)


class _Reader:
    """Reads through the source and counts what was refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read = 0
        self.unread: dict[str, int] = {}

    def _answer(self, answer: Answer, where: str) -> Reading[str]:
        if isinstance(answer, Refusal):
            if answer.why == ABSENT:
                return None
            key = f"{answer.why}: {where}"
            self.unread[key] = self.unread.get(key, 0) + 1
            return Unknown(answer.why, where)
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

    def iommu(self) -> Reading[bool]:
        names = self._source.list("/sys/class/iommu")
        return None if isinstance(names, Refusal) else bool(names)

    def modules(self) -> Reading[frozenset[str]]:
        names = self._source.list("/sys/module")
        if isinstance(names, Refusal):
            return None if names.why == ABSENT else Unknown(names.why, "/sys/module")
        return frozenset(names)

    def dmabuf(self) -> Reading[bool]:
        """Whether the NVIDIA driver can export GPU memory as dma-buf: the open kernel modules on Linux 5.12 and
        later (NVIDIA GPU Operator documentation, GPUDirect RDMA). None without that driver."""
        version = self.text("/proc/driver/nvidia/version")
        kernel = self.kernel()
        if not isinstance(version, str) or not isinstance(kernel, str):
            return None
        match = re.match(r"(\d+)\.(\d+)", kernel)
        if match is None:
            return None
        return "Open Kernel Module" in version and (int(match[1]), int(match[2])) >= (5, 12)

    def container(self) -> Reading[bool]:
        """Whether process 1 runs in a container. None where the machine does not show it."""
        for path in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"):
            if not isinstance(self._source.read(path), Refusal):
                return True
        groups = self._source.read("/proc/1/cgroup")
        if isinstance(groups, Refusal):
            return None
        if re.search(_CONTAINER, groups):
            return True
        if groups.strip() != b"0::/":
            return False
        # A cgroup namespace hides the path; then a root that is an overlay gives the container away.
        folder = self._source.dir("/proc/self")
        if isinstance(folder, Refusal):
            return None
        with folder:
            mounts = folder.read_at("mountinfo", 0, 4096)
        return None if isinstance(mounts, Refusal) else re.search(rb" / / [^\n]* - overlay ", mounts) is not None

    def numa(self) -> tuple[Reading[tuple[NumaNode, ...]], Reading[int]]:
        """The nodes, and how many have processors: memory of GPUs shows as nodes without any."""
        folder = self._source.dir(NODES)
        if isinstance(folder, Refusal):
            return (None, None) if folder.why == ABSENT else (Unknown(folder.why, NODES), Unknown(folder.why, NODES))
        with folder:
            names = folder.list()
            if isinstance(names, Refusal):
                return Unknown(names.why, NODES), Unknown(names.why, NODES)
            numbers = sorted(int(name[4:]) for name in names if name[:4] == "node" and name[4:].isdecimal())
            nodes = []
            for number in numbers:
                cpus = self._answer(folder.read(f"node{number}/cpulist"), f"{NODES}/node{number}/cpulist")
                if isinstance(cpus, str) and not _CPU_LIST.match(cpus):
                    cpus = Unknown(MALFORMED, f"{NODES}/node{number}/cpulist")
                steps: dict[int, int] = {}
                if cpus is not None:
                    said = known(self._answer(folder.read(f"node{number}/distance"), f"{NODES}/node{number}/distance"))
                    words = said.split() if said else []
                    if len(words) == len(numbers) and all(word.isdecimal() for word in words):
                        steps = dict(zip(numbers, map(int, words), strict=True))
                nodes.append(NumaNode(number, cpus, steps or EMPTY))
        with_cpus = sum(1 for node in nodes if node.cpus is not None)
        return tuple(nodes), (with_cpus or len(nodes)) or None

    def status(self, seconds: float) -> SourceStatus:
        if self._read == 0:
            return SourceStatus(NAME, DENIED if self.unread else ABSENT, "nothing of /proc and /sys was there", seconds)
        detail = ", ".join(self.unread)
        return SourceStatus(NAME, PARTIAL if self.unread else OK, detail, seconds)


def _judge(dmi: dict[str, str], cpu: str, reader: _Reader) -> _Machine:
    """Hardware or hypervisor, by what speaks for each; unknown where nothing does."""
    if known(reader.text("/proc/xen/capabilities")) == "control_d":
        return _Machine(BARE_METAL, "Xen", "Xen's control domain")  # it owns the hardware
    flags = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
    flagged = flags is not None and " hypervisor" in flags[1]
    said = " ".join(dmi.get(name, "") for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor")).lower()
    named = f"DMI: {dmi.get('sys_vendor', '')} {dmi.get('product_name', '')}".strip()
    cloud = next((name for words, name in _CLOUDS if words in said), None)
    if cloud and not flagged and (flags is not None or re.search(r"[.-]metal\b", said)):
        return _Machine(BARE_METAL, None, named)
    # A hidden flag (to please old drivers) does not make hardware of what the firmware calls a virtual machine.
    hypervisor = cloud or next(
        (name for words, name in _VIRTUAL if words in said and re.search(rf"\b{words}\b", said)), None
    )
    if hypervisor:
        return _Machine(VIRTUAL_MACHINE, hypervisor, named)
    kind = known(reader.text("/sys/hypervisor/type"))
    if kind:
        return _Machine(VIRTUAL_MACHINE, kind.capitalize(), "/sys/hypervisor/type")
    tree = known(reader.text("/proc/device-tree/hypervisor/compatible"))
    if tree:
        return _Machine(VIRTUAL_MACHINE, "KVM" if "kvm" in tree else tree.capitalize(), "device tree: hypervisor")
    if flagged:
        return _Machine(VIRTUAL_MACHINE, None, "CPU flag: hypervisor")
    if re.search(r"^platform\s*:\s*pSeries", cpu, re.MULTILINE):
        return _Machine(VIRTUAL_MACHINE, "KVM" if "qemu" in cpu else "PowerVM", "/proc/cpuinfo: pSeries")
    if re.search(r"^platform\s*:\s*PowerNV", cpu, re.MULTILINE):
        return _Machine(BARE_METAL, None, "/proc/cpuinfo: PowerNV")
    if flags is not None:
        return _Machine(BARE_METAL, None, "CPU flags without hypervisor")
    if re.search(_MAKERS, said):
        return _Machine(BARE_METAL, None, named)
    return _Machine(UNKNOWN_PLATFORM, None, "")


def _arch(cpu: str) -> Reading[str]:
    """The architecture, by how its kernel describes a processor."""
    if re.search(r"^flags\s*:", cpu, re.MULTILINE):
        return "x86_64" if re.search(r"^flags\s*:.* lm\b", cpu, re.MULTILINE) else "i686"
    if "CPU implementer" in cpu:
        return "aarch64"
    if "POWER" in cpu:
        return "ppc64le"
    return "riscv64" if "rv64" in cpu else None


def _whole(text: str | None) -> Reading[int]:
    if text is None:
        return None
    return int(text) if text.isdecimal() else Unknown(MALFORMED, f"{DMI}/chassis_type")
