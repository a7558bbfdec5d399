"""What the PCIe rules share: which links there are to judge, and why one cannot be judged."""

from __future__ import annotations

from gpu_topo.classifier.nic_rates import is_fast_nic
from gpu_topo.model.address import slot_of
from gpu_topo.model.cached import of_last
from gpu_topo.model.finding import (
    CAUSE_ASLEEP,
    CAUSE_BY_DESIGN,
    CAUSE_DENIED,
    CAUSE_NOT_RECORDED,
    CAUSE_UNREADABLE,
    CAUSE_VM,
    CRITICAL,
    INFO,
    WARNING,
)
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, NVSWITCH, STORAGE, Device, Node
from gpu_topo.model.pci import DOWNSTREAM_PORT, ROOT_PORT, UPSTREAM_PORT
from gpu_topo.model.reading import ASLEEP, DENIED, LOST, NO_DATA, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.units import describe_link
from gpu_topo.model.vendors import AMD_PROCESSORS
from gpu_topo.topology.capacity import is_c2c, is_inner
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.roles import FABRIC, MANAGEMENT, role
from gpu_topo.topology.roles import STORAGE as FOR_STORAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NVME_CLASS = 0x0108
MATTERS = frozenset({GPU, ACCELERATOR, NIC, STORAGE, NVSWITCH})

TRAINING = {
    GPU: "host-to-device copies, data loading, checkpoints and PCIe peer traffic of this GPU run at this rate; "
    "every step of the job waits for its slowest GPU",
    ACCELERATOR: "data loading and collectives of this accelerator run at this rate; the job waits for its slowest one",
    NVSWITCH: "the management of the NVLink fabric is slowed; initialisation may time out",
    NIC: "collectives between nodes run at the rate of the slowest NIC: the whole job, not this node alone",
    STORAGE: "data loading and checkpoints from this device are slower",
    BRIDGE: "everything below this switch shares the narrower uplink: host copies, data loading and RDMA that cross it",
}


_ASIDE = "traffic through this adapter is slower; jobs wait for it only where their own data takes this way"
_TO_STORAGE = "data loading and checkpoints through this adapter are slower"
_LEAD_DOWN = (ROOT_PORT, DOWNSTREAM_PORT)


class Owner(NamedTuple):
    """The lower end of a PCIe link: the device, the one that the link is for, and why nothing of it may be judged."""

    device: Device
    served: Device
    not_judged: tuple[str, str] | None  # reason, cause


@of_last
def owners(node: Node) -> Sequence[Owner]:
    """The lower end of every PCIe link: endpoints and upstream ports, each link once.

    The functions of one device share one link: its lowest function stands for them. Virtual functions beside their
    physical function have none.
    """
    return [Owner(d, served(node, d), not_judged(node, d)) for d in _lower_ends(node)]


def _lower_ends(node: Node) -> Iterator[Device]:
    port_type = lookup(node).port_type
    seen = set()
    for device in node.devices.values():
        if device.link is None:
            continue
        function = device.function
        if function.bridge and (function.port_type in _LEAD_DOWN or port_type(device.address) != UPSTREAM_PORT):
            continue
        if function.physical_function:
            continue
        slot = slot_of(device.address)
        if slot not in seen:
            seen.add(slot)
            yield device


def is_chipset(device: Device) -> bool:
    """A bridge inside a chipset: AMD builds no switches, and a catalogued bridge that is neither switch nor card."""
    if device.kind != BRIDGE:
        return False
    part = device.part
    if part is not None:
        return not part.switch_chip and not part.internal_bridge
    return device.function.vendor_id == AMD_PROCESSORS


def served(node: Node, device: Device) -> Device:
    """The device that a link is for: a bridge inside a card stands for that card's GPU or NIC, else itself."""
    if device.kind != BRIDGE or not is_inner(device):
        return device
    below = lookup(node).below(device.address)
    return below[0] if len({slot_of(d.address) for d in below}) == 1 else device


def not_judged(node: Node, device: Device) -> tuple[str, str] | None:
    """Why nothing of a device's link may be judged, as (reason, cause); None where it may."""
    function = device.function
    if device.address in node.hidden_links:
        return "in a virtual machine the link registers are emulated, the real link is hidden", CAUSE_VM
    if isinstance(function.answers, Unknown) and function.answers.why == ASLEEP:
        return "the device is suspended and reading it would wake it", CAUSE_ASLEEP
    if function.power == "D3cold":
        return "the device is in D3cold and reading it would wake it", CAUSE_ASLEEP
    if function.answers is False:
        return "the device no longer answers", CAUSE_UNREADABLE
    if device.integrated:
        return "integrated in the processor: it has no link of its own", CAUSE_BY_DESIGN
    if is_c2c(node, device):
        return "the host link is a chip-to-chip link, its PCIe values mean nothing", CAUSE_BY_DESIGN
    if device.link is not None and not device.link.trusted:
        return "the recording holds maxima or guesses instead of link values", CAUSE_NOT_RECORDED
    return None


def why_unknown(reading: Reading[int] | Reading[float], what: str) -> tuple[str, str]:
    """The reason and cause for a link value that is not known."""
    if not isinstance(reading, Unknown):
        return f"the {what} is not recorded", CAUSE_NOT_RECORDED
    cause = {DENIED: CAUSE_DENIED, NOT_RECORDED: CAUSE_NOT_RECORDED, LOST: CAUSE_UNREADABLE, ASLEEP: CAUSE_ASLEEP}
    words = {
        DENIED: "may not be read without root",
        NOT_RECORDED: "is not recorded",
        NO_DATA: "is not known to the kernel either",
        ASLEEP: "cannot be read without waking the device",
    }
    said = words.get(reading.why, f"could not be read: {reading.why}")
    return f"the {what} {said} ({reading.where})", cause.get(reading.why, CAUSE_UNREADABLE)


def is_fabric_nic(node: Node, device: Device, roles: Mapping[str, str]) -> bool:
    """A NIC with a port that carries the job's traffic between nodes."""
    return any(role(node, port, roles) == FABRIC for port in lookup(node).ports(device.address))


def impact(node: Node, device: Device, roles: Mapping[str, str]) -> str:
    """What a slower link of a device does to a job; of an adapter, by what it is there for."""
    if device.kind != NIC:
        return TRAINING.get(device.kind, "this device is slower than it could be")
    told = {role(node, port, roles) for port in lookup(node).ports(device.address)}
    if FABRIC in told:
        return TRAINING[NIC]
    if FOR_STORAGE in told:
        return _TO_STORAGE
    return TRAINING[NIC] if is_fast_nic(node, device) and MANAGEMENT not in told else _ASIDE


def no_expectation(own: Reading[int] | Reading[float], port: Reading[int] | Reading[float]) -> str:
    """Which end of a link keeps its expectation open. own, port: the maxima of the device and of the port above."""
    if known(own) is None and known(port) is None:
        return "what the device and the port above can do is not known"
    return f"the capability of the {'device itself' if known(own) is None else 'port above'} is not known"


def at_a_maximum(now: float, own: Reading[int] | Reading[float], port: Reading[int] | Reading[float]) -> bool:
    """Whether a link runs at the most that one of its ends can do, so that it is right whatever the other can."""
    return any(most is not None and now >= most for most in (known(own), known(port)))


def width_severity(node: Node, device: Device, roles: Mapping[str, str]) -> str:
    """How bad missing lanes are for this kind of device; on-board parts are often wired narrow."""
    target = served(node, device)
    if target.kind in (GPU, ACCELERATOR, NVSWITCH) or is_fabric_nic(node, target, roles):
        return CRITICAL
    if is_nvme(target) or is_fast_nic(node, target) or _is_uplink(node, device):
        return WARNING
    return INFO


def _is_uplink(node: Node, device: Device) -> bool:
    """Whether a bridge is the top of a switch, or of a card below which several devices share the slot's link
    (ConnectX-8 and BlueField with GPUs, A100X) and one of them matters."""
    if device.kind != BRIDGE:
        return False
    if device.switch == device.address:
        return True
    return is_inner(device) and any(
        below.kind in (GPU, ACCELERATOR, NVSWITCH) or is_nvme(below) or is_fast_nic(node, below)
        for below in lookup(node).below(device.address)
    )


def is_nvme(device: Device) -> bool:
    """Storage on PCIe itself, as opposed to a host adapter."""
    return (device.function.class_code or 0) >> 8 == NVME_CLASS


def lost(now: float | None, expected: float | None) -> float | None:
    """GB/s per direction that are missing, None where either side is unknown."""
    return round(expected - now, 2) if now is not None and expected is not None else None


def gbs(value: float | None) -> str:
    """'31.5 GB/s', '? GB/s'."""
    return "? GB/s" if value is None else f"{value:.1f} GB/s"


def many(count: int, what: str) -> str:
    """'1 bridge', '2 bridges'."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def running(device: Device) -> str:
    """'Gen4 x8', as the link runs."""
    link = device.link
    return describe_link(known(link.speed_gts), known(link.width)) if link is not None else "?"


def called(device: Device) -> str:
    """A device for a sentence: its name and address."""
    return f"{device.name} at {device.address}" if device.name and ":" in device.address else device.address


def verify_link(device: Device) -> str:
    """The command that shows the link and its port to a person."""
    return f"lspci -s {device.address} -vv | grep -E 'LnkCap|LnkSta'"


def slot_words(node: Node, device: Device) -> str:
    """'slot 3' or 'the port 0000:16:02.0'."""
    for address in (device.link.port if device.link else None, device.address):
        step = node.devices.get(address) if address else None
        if step is not None and step.function.slot:
            return f"slot {step.function.slot}"
    return f"the port {device.link.port}" if device.link and device.link.port else "its slot"
