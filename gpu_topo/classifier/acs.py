"""Access control bits that send peer-to-peer traffic up to the processor instead of straight across."""

from __future__ import annotations

from gpu_topo.classifier.links import called, many
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_ASLEEP,
    CAUSE_BY_DESIGN,
    CAUSE_DENIED,
    CAUSE_NOT_RECORDED,
    CAUSE_PASSTHROUGH,
    CAUSE_UNREADABLE,
    CAUSE_VM,
    LINK_PARTNERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, Device, Node
from gpu_topo.model.pci import ACS_REDIRECTS
from gpu_topo.model.reading import ASLEEP, DENIED, LOST, Unknown, known
from gpu_topo.model.vendors import AMD_PROCESSORS, INTEL
from gpu_topo.topology.bonds import bonds
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.tree import common_steps, root_bus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ACS = "acs-blocks-p2p"
_RDMA_DRIVERS = frozenset({"mlx4_core", "mlx5_core"})  # every card that these drive does RDMA
_X86_MAKERS = (INTEL, AMD_PROCESSORS)
_X86 = frozenset({"x86_64", "x86", "i386", "i686", "amd64"})
_REMEDY = (
    "switch ACS off in the board's firmware settings, where it has such an option",
    "if no device is passed to virtual machines, boot with pci=disable_acs_redir=ADDRESS, or without iommu=on",
    "or clear the bits of this bridge until the next boot: setpci -v -s ADDRESS ECAP_ACS+0x6.w=0000",
)


_UNRECORDED = ("access control bits are not recorded", CAUSE_NOT_RECORDED)
_UNREAD = {
    DENIED: ("reading access control needs root (CAP_SYS_ADMIN)", CAUSE_DENIED),
    ASLEEP: ("reading access control would wake what is suspended", CAUSE_ASLEEP),
    LOST: ("access control cannot be read of what no longer answers", CAUSE_UNREADABLE),
}


def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """acs-blocks-p2p: for every bridge on a path between two peers, once."""
    peers = _peers(node)
    if len(peers) < 2 or not any(_computes(d) for d in peers):
        return
    if node.platform.kind == VIRTUAL_MACHINE:
        yield Unassessed(ACS, "node", "in a virtual machine the host's access control is hidden", CAUSE_VM)
        return
    if not lookup(node).of(BRIDGE):
        yield Unassessed(ACS, "node", "the bridges between peers are not recorded", CAUSE_NOT_RECORDED)
        return
    if not _is_x86(node):
        yield Unassessed(ACS, "node", "only judged on x86: other platforms may need the redirect bits", CAUSE_BY_DESIGN)
        return
    through = _bridges_between(node, peers)
    unread: dict[tuple[str, str], int] = {}  # why, and of how many bridges
    passed = sorted({d.address for d in peers if d.function.driver == "vfio-pci"})
    redirecting: dict[str, list[str]] = {}  # chip (or lone bridge) -> its bridges that redirect
    for bridge in through:
        device = node.devices[bridge]
        bits = device.function.acs
        if isinstance(bits, Unknown) or (
            bits is None and device.function.port_type is None and device.function.link is not None
        ):
            why = _UNREAD.get(bits.why if isinstance(bits, Unknown) else "", _UNRECORDED)
            unread[why] = unread.get(why, 0) + 1
        elif bits is None:
            continue
        elif bits & ACS_REDIRECTS:
            redirecting.setdefault(device.switch or bridge, []).append(bridge)
    for chip, bridges in redirecting.items():
        yield _finding(node, chip, bridges, sorted({user for bridge in bridges for user in through[bridge]}))
    for (reason, cause), count in unread.items():
        yield Unassessed(ACS, "node", f"{reason}: {many(count, 'bridge')} between peers", cause)
    for address in passed:
        yield Unassessed(ACS, address, "bound to vfio-pci: a guest needs the isolation", CAUSE_PASSTHROUGH)


def _computes(device: Device) -> bool:
    return device.kind in (GPU, ACCELERATOR)


def _peers(node: Node) -> list[Device]:
    """GPUs and accelerators that can do peer-to-peer, and NICs with RDMA; not what is passed to a guest."""
    able = _as_driver_says(node)
    found = []
    for device in lookup(node).of(GPU, ACCELERATOR, NIC):
        if device.function.physical_function or device.integrated or not device.path:
            continue
        if able.get(device.address, _is_made_for_p2p(device)) if _computes(device) else _does_rdma(node, device):
            found.append(device)
    return found


def _as_driver_says(node: Node) -> dict[str, bool]:
    """Whether GPUs do peer-to-peer over PCIe, where the driver said so of a pair: it works ("OK"), or not with this GPU
    ("GNS"). What it says of a pair that NVLink joins, or of a chipset or topology ("CNS", "TNS"), tells nothing."""
    able: dict[str, bool] = {}
    bonded = bonds(node) if node.p2p else {}
    for pair, statuses in node.p2p.items():
        status = statuses.get("read")
        if pair not in bonded and status in ("OK", "GNS"):
            for address in pair:
                able[address] = able.get(address, False) or status == "OK"
    return able


def _is_made_for_p2p(device: Device) -> bool:
    """GeForce cards have no peer-to-peer over PCIe with NVIDIA's own driver."""
    if device.part is not None and device.part.market:
        return "consumer" not in device.part.market.lower() and "consumer" not in device.part.form_factor.lower()
    return "geforce" not in device.name.lower()


def _does_rdma(node: Node, device: Device) -> bool:
    if any(not port.software for port in lookup(node).ports(device.address)):
        return True
    return (device.function.class_code or 0) >> 8 in (0x0207, 0x0C06) or device.function.driver in _RDMA_DRIVERS


def _is_x86(node: Node) -> bool:
    arch = known(node.platform.arch)
    if arch is not None:
        return arch.lower() in _X86
    return any(d.function.parent is None and d.function.vendor_id in _X86_MAKERS for d in lookup(node).of(BRIDGE))


def _bridges_between(node: Node, peers: list[Device]) -> dict[str, set[str]]:
    """Every bridge on a path between two peers of which one computes -> the peers that use it."""
    functions = lookup(node).functions
    by_root: dict[str, list[Device]] = {}
    for device in peers:
        if device.function.driver == "vfio-pci":
            continue
        root = root_bus(functions, device.path)
        if root is not None:
            by_root.setdefault(root, []).append(device)
    through: dict[str, set[str]] = {}
    for group in by_root.values():
        computing = {device.address for device in group if _computes(device)}
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                if a.address not in computing and b.address not in computing:
                    continue
                shared = common_steps(a.path, b.path)
                for bridge in (*a.path[shared:-1], *b.path[shared:-1]):
                    if bridge in node.devices:
                        through.setdefault(bridge, set()).update((a.address, b.address))
    return through


def _finding(node: Node, chip: str, bridges: list[str], users: list[str]) -> Finding:
    """One finding for a switch chip, however many of its ports redirect."""
    subject = bridges[0] if len(bridges) == 1 else chip
    bits = sorted(
        {bit for bridge in bridges for bit in (known(node.devices[bridge].function.acs) or ())} & ACS_REDIRECTS
    )
    shown = ", ".join(users[:4]) + (f" and {len(users) - 4} more" if len(users) > 4 else "")
    ports = f", {len(bridges)} ports," if len(bridges) > 1 else ""
    return Finding(
        ACS,
        WARNING,
        subject,
        f"{called(node.devices[subject])}{ports} redirects peer-to-peer traffic to the processor ({'+'.join(bits)}): "
        f"{shown}",
        LINK_PARTNERS,
        "GPUDirect between these devices goes up to the root complex and back: less bandwidth, more latency, and on "
        "some platforms NCCL hangs",
        _remedy(bridges),
        f"lspci -s {bridges[0]} -vvv | grep ACSCtl"
        if len(bridges) == 1
        else f"for port in {' '.join(bridges)}; do lspci -s $port -vvv | grep ACSCtl; done",
        related=(*bridges, *users),
        observed={"acs": bits, "bridges": len(bridges)},
        expected={"acs": []},
        witness="the access control registers of the bridges between them",
    )


def _remedy(bridges: Sequence[str]) -> tuple[str, ...]:
    """The steps for all bridges of a finding: one that is left out redirects on."""
    option, clear = ";".join(bridges), "setpci -v -s ADDRESS ECAP_ACS+0x6.w=0000"
    if len(bridges) > 1:
        loop = f"for port in {' '.join(bridges)}; do {clear.replace('ADDRESS', '$port')}; done"
        return (
            _REMEDY[0],
            _REMEDY[1].replace("pci=disable_acs_redir=ADDRESS", f'"pci=disable_acs_redir={option}"'),
            f"or clear the bits of these ports until the next boot: {loop}",
        )
    return tuple(step.replace("ADDRESS", option) for step in _REMEDY)


RULES = (
    Rule(
        ACS,
        (WARNING,),
        "access control redirects peer-to-peer traffic to the processor",
        "the redirect bits (ReqRedir, CmpltRedir) of every bridge between two GPUs, or a GPU and an RDMA NIC, under "
        "one host bridge",
        "source validation or upstream forwarding alone; GPUs without peer-to-peer, as the driver says (topo -p2p) or "
        "as all GeForce cards are; virtual machines, other processors than x86, devices bound to vfio-pci (unassessed)",
        _REMEDY,
        (
            "NVIDIA/nccl#2079 (redirect on root ports hung NCCL), #606 (source validation alone is harmless)",
            "linux-rdma/rdma-core#1644, GoogleCloudPlatform/cluster-toolkit#6097 (platforms that need the bits)",
            "PCI Express Base Specification 7.7.11 (Access Control Services)",
        ),
        judge,
        reads=("pcie", "rdma"),
    ),
)
