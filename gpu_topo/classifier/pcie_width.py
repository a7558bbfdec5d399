"""Missing lanes: below what both ends can do, below the device's own maximum with the port unseen, or by the slot."""

from __future__ import annotations

from gpu_topo.classifier.gpus import is_sxm
from gpu_topo.classifier.links import (
    MATTERS,
    TRAINING,
    at_a_maximum,
    called,
    gbs,
    impact,
    is_chipset,
    lost,
    no_expectation,
    not_judged,
    owners,
    running,
    served,
    slot_words,
    verify_link,
    why_unknown,
    width_severity,
)
from gpu_topo.classifier.nic_rates import Rate, card_rate, fitting
from gpu_topo.classifier.rule import LINKS, Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_NOT_RECORDED,
    CRITICAL,
    INFO,
    LINK_PARTNERS,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, NVSWITCH, STORAGE, Device, Gpu, Link, Node
from gpu_topo.model.reading import known
from gpu_topo.model.units import describe_link, pcie_gbs
from gpu_topo.topology.capacity import card_links, is_inner
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = "pcie-width-degraded"
UNEXPLAINED = "pcie-link-unexplained"
_ASK = ("ask the provider for another machine, or to check the host's slot: a guest cannot see it",)
SLOT = "pcie-slot-limited"

_VGA, _3D_CONTROLLER = 0x0300, 0x0302  # PCI Code and ID Assignment Specification, base class 03
_LEAVE = (
    "leave it: what is on the board is often wired narrow, and nothing is lost",
    "accept it as designed: gpu-topo baseline accept",
)
_MOVE = (
    "check in the board's manual whether this slot shares lanes with another (bifurcation, M.2), and free it",
    "move the card to a wider slot, if there is one",
    "accept it as designed: gpu-topo baseline accept",
)
_WIRED = (
    "look in the machine's manual, or at another one of this kind: the lanes of a module are wired on its board",
    "accept it as designed: gpu-topo baseline accept",
)
_MODULES = ("SXM", "OAM", "Superchip", "APU")  # form factors that no slot is made for
_RESEAT = (
    "look for the link being retrained or for AER messages: dmesg | grep -iE 'pcieport|AER|link'",
    "drain the node and power-cycle it (a warm reboot does not always retrain a link)",
    "reseat the card, its riser or its cable, clean the contacts, and swap with a working slot to tell card from slot",
)


def judge_width(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-width-degraded."""
    for device, _, reason in owners(node):
        if is_chipset(device):
            continue
        if reason is not None:
            if device.kind in MATTERS and not device.integrated:
                yield Unassessed(WIDTH, device.address, *reason)
            continue
        link = device.link
        if link is None:
            continue
        width = known(link.width)
        if width is None:
            if device.kind in MATTERS:
                yield Unassessed(WIDTH, device.address, *why_unknown(link.width, "link width"))
            continue
        if link.expected_width is None:
            ends = link.max_width, link.port_max_width
            if device.kind in MATTERS and not at_a_maximum(width, *ends):
                yield Unassessed(WIDTH, device.address, no_expectation(*ends), CAUSE_NOT_RECORDED)
        elif width < link.expected_width:
            yield _degraded(node, device, width, link.expected_width, policy)
    yield from _without_link(node)
    yield from _against_peers(node)


def _degraded(node: Node, device: Device, width: int, expected: int, policy: Policy) -> Finding:
    link = device.link
    assert link is not None
    speed = known(link.speed_gts)
    # What the lanes cost is told at the speed that both ends can do: a lower one is idleness, or has its own finding.
    at = link.expected_speed_gts or speed
    can, full = pcie_gbs(at, width), pcie_gbs(at, expected)
    target = served(node, device)
    return Finding(
        WIDTH,
        width_severity(node, device, policy.roles),
        device.address,
        f"{called(target)} runs x{width} of x{expected}: {gbs(can)} instead of {gbs(full)} per direction"
        + (" at full speed" if speed is not None and at is not None and speed < at else ""),
        LINK_PARTNERS,
        impact(node, target, policy.roles),
        _RESEAT,
        verify_link(device),
        related=tuple(a for a in (link.port,) if a),
        observed={"width": width, "speed_gts": speed, "gbs": pcie_gbs(speed, width)},
        expected={"width": expected, "speed_gts": link.expected_speed_gts, "gbs": full},
        lost_gbs=lost(can, full),
    )


def _without_link(node: Node) -> Iterator[Unassessed]:
    """GPUs and accelerators of which the recording says nothing at all; the others together, where it holds no link."""
    if not any(device.link is not None for device in node.devices.values()):
        if lookup(node).of(NIC, STORAGE, NVSWITCH):
            yield Unassessed(WIDTH, "node", "no link of any device is recorded", CAUSE_NOT_RECORDED)
    for device in lookup(node).of(GPU, ACCELERATOR):
        if device.link is not None or device.integrated:
            continue
        if device.function.physical_function:
            continue
        reason = not_judged(node, device) or ("the recording does not hold its link", CAUSE_NOT_RECORDED)
        yield Unassessed(WIDTH, device.address, *reason)


def _against_peers(node: Node) -> Iterator[Finding]:
    """Where only the driver tells a width, same-model GPUs should agree: in a guest, which sees the card's, and of
    modules, which have no slots of their own."""
    groups: dict[tuple[str, int | None], list[tuple[Gpu, int]]] = {}
    for gpu in node.gpus:
        width = known(gpu.driver_link.width) if gpu.driver_link is not None else None
        device = node.devices.get(gpu.address)
        if width is None or device is None or not (gpu.address in node.hidden_links or _is_half_seen(gpu, device)):
            continue
        groups.setdefault((known(gpu.model) or device.name, device.function.device_id), []).append((gpu, width))
    for members in groups.values():
        widths = [width for _, width in members]
        count, most = max((widths.count(width), width) for width in widths)
        verb = "runs" if count == 1 else "run"
        for gpu, width in members:
            if width >= most or count * 2 < len(members):
                continue
            speed = known(gpu.driver_link.speed_gts) if gpu.driver_link is not None else None
            now, full = pcie_gbs(speed, width), pcie_gbs(speed, most)
            yield Finding(
                WIDTH,
                WARNING,
                gpu.address,
                f"{known(gpu.model) or gpu.address} runs x{width} while {count} of the same model {verb} x{most}",
                PEERS,
                TRAINING[GPU],
                _ASK if gpu.address in node.hidden_links else _RESEAT,
                "nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current --format=csv",
                related=tuple(other.address for other, w in members if w == most),
                observed={"width": width, "speed_gts": speed, "gbs": now},
                expected={"width": most, "gbs": full},
                lost_gbs=lost(now, full),
            )


def _is_half_seen(gpu: Gpu, device: Device) -> bool:
    """Whether this is a module on a baseboard of which the recording does not hold the other end of the link."""
    return is_sxm(gpu) and device.link is not None and device.link.expected_width is None


def judge_unexplained(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-link-unexplained."""
    for device, _, reason in owners(node):
        link = device.link
        if link is None or device.kind not in MATTERS or reason is not None:
            continue
        width, most = known(link.width), known(link.max_width)
        if link.expected_width is None and width is not None and most is not None and width < most:
            worst = width_severity(node, device, policy.roles)
            severity = WARNING if worst == CRITICAL else worst
            yield _unexplained(node, device, f"x{width} of x{most}", severity, policy)
            continue
        speed, fastest = known(link.speed_gts), known(link.max_speed_gts)
        # A GPU's speed follows its load, which pcie-speed-degraded judges.
        if device.kind in (GPU, ACCELERATOR) or link.expected_speed_gts is not None:
            continue
        if speed is not None and fastest is not None and speed < fastest:
            yield _unexplained(node, device, f"{speed:g} of {fastest:g} GT/s", INFO, policy)


def _unexplained(node: Node, device: Device, what: str, severity: str, policy: Policy) -> Finding:
    link = device.link
    assert link is not None
    most = pcie_gbs(known(link.max_speed_gts), known(link.max_width))
    return Finding(
        UNEXPLAINED,
        severity,
        device.address,
        f"{called(device)} runs {running(device)}, {what}, and what the port above can do is not known",
        LINK_PARTNERS,
        impact(node, device, policy.roles) + ", if it is a fault and not the slot",
        (
            "record the port too: run gpu-topo inspect on the machine, or lspci -vvv of everything as root",
            "compare with a machine of the same model",
        ),
        f"lspci -PP -s {device.address}; lspci -vv | grep -E '^[0-9a-f]|LnkCap:|LnkSta:'",
        observed={"speed_gts": known(link.speed_gts), "width": known(link.width), "gbs": link.gbs},
        expected={"max_speed_gts": known(link.max_speed_gts), "max_width": known(link.max_width), "gbs": most},
        witness="what the device itself can do",
        lost_gbs=None,
    )


def judge_slot(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-slot-limited."""
    for device, target, reason in owners(node):
        link = device.link
        uplink = device.kind == BRIDGE and (device.switch == device.address or target is not device)
        if link is None or reason is not None or not (device.kind in MATTERS or uplink) or is_chipset(device):
            continue
        if not any(_less(link, link)):
            continue
        port = node.devices.get(link.port or "")
        if port is not None and is_inner(port):
            continue  # an inner link of a card: nobody can plug it elsewhere
        end, own = _card_can(node, target, device)
        assert end.link is not None
        fewer, slower = _less(link, end.link)
        fits = own is not None and link.expected_gbs is not None and link.expected_gbs >= own
        if (fewer or slower) and not fits:
            yield _limited(node, device, end.link, own, fewer, policy)


def _less(link: Link, card: Link) -> tuple[bool, bool]:
    """Whether the port of a slot can do fewer lanes, and a lower speed, than a card."""
    lanes, port_lanes = known(card.max_width), known(link.port_max_width)
    speed, port_speed = known(card.max_speed_gts), known(link.port_max_speed_gts)
    fewer = lanes is not None and port_lanes is not None and port_lanes < lanes
    slower = speed is not None and port_speed is not None and port_speed < speed
    return fewer, slower


def _card_can(node: Node, target: Device, device: Device) -> tuple[Device, float | None]:
    """What a card can do at most: the narrowest of its own links as built, and its GB/s."""
    ends = [d for d in card_links(node.devices, target) if d.link is not None]
    rates = [(most, d) for d in ends if d.link and (most := _most_gbs(d.link)) is not None]
    if len(rates) < len(ends):
        return device, None
    most, end = min(rates, key=lambda rate: rate[0], default=(None, device))
    return end, most


def _most_gbs(link: Link) -> float | None:
    return pcie_gbs(known(link.max_speed_gts), known(link.max_width))


def _limited(node: Node, device: Device, card: Link, own: float | None, fewer: bool, policy: Policy) -> Finding:
    """card: the link whose maxima are the card's own, of `own` GB/s."""
    link = device.link
    assert link is not None
    target = served(node, device)
    can = describe_link(known(card.max_speed_gts), known(card.max_width))
    port_width = known(link.port_max_width)
    port = describe_link(known(link.port_max_speed_gts), port_width)
    rate = card_rate(node, target) if target.kind == NIC and link.expected_gbs is not None else None
    fits = rate is not None and rate.most <= (link.expected_gbs or 0.0)
    unfit = rate is not None and rate.least > (link.expected_gbs or 0.0)
    narrow = target.kind == GPU and fewer and port_width is not None and port_width <= 4
    return Finding(
        SLOT,
        WARNING if (_is_compute(target) and fewer) or narrow or unfit else INFO,
        device.address,
        f"{called(target)} can do {can}, {slot_words(node, device)} only {port}"
        + (f"; its line rate of {gbs(rate.least)} does not fit" if rate is not None and unfit else ""),
        LINK_PARTNERS,
        _of_rate(rate, link.expected_gbs)
        or (
            impact(node, target, policy.roles)
            if fewer or unfit
            else "none beyond the slot's generation: the machine was built this way"
        ),
        _LEAVE if fits else _WIRED if _is_module(target) else _MOVE,
        verify_link(device),
        related=tuple(a for a in (link.port,) if a),
        observed={
            "port_max_speed_gts": known(link.port_max_speed_gts),
            "port_max_width": port_width,
            "gbs": link.expected_gbs,
        },
        expected={"max_speed_gts": known(card.max_speed_gts), "max_width": known(card.max_width), "gbs": own},
        # What a NIC loses is line rate, as far as that is known, and not what its card could do besides.
        lost_gbs=lost(link.expected_gbs, own if rate is None else rate.least if unfit else None),
    )


def _of_rate(rate: Rate | None, carried: float | None) -> str:
    """What a slot that carries less than the card could do is to a NIC, "" where it costs line rate or is no NIC."""
    if rate is None or carried is None:
        return ""
    if rate.most <= carried:
        return f"none: {fitting(rate)}"
    if rate.least > carried:
        return ""
    return f"none, unless its ports, which can do {gbs(rate.most)}, run at more than {gbs(carried)}: that is not known"


def _is_module(device: Device) -> bool:
    """Whether a GPU or an accelerator is part of a board, so that nobody can plug it elsewhere."""
    return device.part is not None and device.part.form_factor.startswith(_MODULES)


def _is_compute(device: Device) -> bool:
    """A data-centre GPU or an accelerator. NVIDIA's say so by their class (3D controller); AMD's are of other classes
    that no monitor hangs from, and the catalogue knows them."""
    display = (device.function.class_code or 0) >> 8
    if device.kind == ACCELERATOR or display == _3D_CONTROLLER:
        return True
    sold = device.part.market if device.part is not None else ""
    return device.kind == GPU and display != _VGA and "datacenter" in sold


_SOURCES = (
    "PCI Express Base Specification 7.5.3.6 (Link Capabilities) and 7.5.3.8 (Link Status)",
    "NVIDIA/NVSentinel#890, scitix/sichek#122, tenstorrent/tt-smi#67",
)

RULES = (
    Rule(
        WIDTH,
        (CRITICAL, WARNING, INFO),
        "a PCIe link has fewer lanes than both of its ends can do",
        "the width in use against the smaller of the device's and the port's maximum; in a virtual machine the width "
        "that the driver shows against GPUs of the same model",
        "the link is as wide as one of its ends can do, whatever the other can; the capability of either end is not "
        "known (unassessed); the device sleeps or is integrated, links inside a chipset, host links "
        "that are chip-to-chip, registers that a hypervisor emulates",
        _RESEAT,
        _SOURCES,
        judge_width,
        reads=("pcie",),
        about=LINKS,
    ),
    Rule(
        UNEXPLAINED,
        (WARNING, INFO),
        "a link is below the device's own maximum and the other end was not recorded",
        "the width and speed in use against the device's own maximum, where the port above is not in the recording",
        "the port is known (then the other PCIe rules judge), and for the speed of GPUs, which follows their load",
        ("record the port too: run gpu-topo inspect on the machine, or lspci -vvv of everything as root",),
        _SOURCES,
        judge_unexplained,
        reads=("pcie",),
    ),
    Rule(
        SLOT,
        (WARNING, INFO),
        "the device could do more than the port above it",
        "what a card can do (of one with bridges of its own the narrowest of its links, inner ones included) against "
        "the port of its slot, lanes and generation; a NIC's line rate against the link",
        "the port can do what the card can; inside cards and chipsets, and in virtual machines",
        ("move the card to a wider slot, or accept it as designed: gpu-topo baseline accept",),
        ("scitix/sichek#122, open-mpi/hwloc#653, NVIDIA/open-gpu-kernel-modules#731",),
        judge_slot,
        reads=("pcie",),
    ),
)
