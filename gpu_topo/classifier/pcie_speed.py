"""A link below the speed that both ends can do, where idleness does not explain it."""

from __future__ import annotations

from gpu_topo.classifier.links import (
    MATTERS,
    at_a_maximum,
    called,
    gbs,
    impact,
    is_chipset,
    lost,
    no_expectation,
    not_judged,
    owners,
    served,
    verify_link,
    why_unknown,
)
from gpu_topo.classifier.rule import LINKS, Conclusion, Rule
from gpu_topo.model.finding import (
    CATALOGUE,
    CAUSE_LOAD,
    CAUSE_NOT_RECORDED,
    INFO,
    LINK_PARTNERS,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, Device, Gpu, LinkSample, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.units import describe_link, pcie_gbs
from gpu_topo.model.vendors import AMD, NVIDIA
from gpu_topo.topology.capacity import gpu_of
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPEED = "pcie-speed-degraded"

_IDLE_FROM = 5  # P5 and higher numbers: P-states that only an idle GPU takes
_BUSY_TO = 2  # P0 to P2: full clocks
_FEWEST_TWINS = 3  # at full speed, for each idle GPU that is not, make that one odd
_REMEDY = (
    "look for errors that made the link fall back: gpu-topo rules pcie-errors, dmesg | grep -iE 'AER|pcieport'",
    "check the board's firmware settings for a forced link generation, and the port's target speed (LnkCtl2)",
    "drain the node and power-cycle it; the link trains anew",
    "reseat the card, its riser or cable; swap slots to tell card from slot",
)


def _look(device: Device, gpu: Gpu) -> str:
    """How to see the load of a GPU and the speed of its link, at `device`, together."""
    vendor = gpu.vendor_id
    speed = f"/sys/bus/pci/devices/{device.address}/current_link_speed"
    if vendor == AMD:
        # Documented in the kernel's guide to amdgpu (driver thermal and power management).
        how = f"grep . /sys/bus/pci/devices/{gpu.address}/gpu_busy_percent {speed}"
    elif vendor in (NVIDIA, None):
        how = (
            "gpu-topo inspect --samples 5, or nvidia-smi --query-gpu=pci.bus_id,pstate,utilization.gpu,"
            "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current --format=csv -l 1"
        )
    else:
        how = f"cat {speed}"
    return f"put load on the GPU and look again: {how}"


class _Verdict(NamedTuple):
    """What the load says of a low speed: a severity with its basis, or why nothing can be said; all None: idle."""

    severity: str | None = None
    basis: str = LINK_PARTNERS
    unassessed: str | None = None
    evidence: str = ""


def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-speed-degraded."""
    for device, target, reason in owners(node):
        switch_uplink = device.kind == BRIDGE and device.switch == device.address
        if is_chipset(device) or not (target.kind in MATTERS or switch_uplink):
            continue
        if reason is not None:
            if device.kind in MATTERS and not device.integrated:
                yield Unassessed(SPEED, device.address, *reason)
            continue
        link = device.link
        assert link is not None
        speed = known(link.speed_gts)
        if speed is None:
            if device.kind in MATTERS:
                yield Unassessed(SPEED, device.address, *why_unknown(link.speed_gts, "link speed"))
            continue
        gpu = gpu_of(node, device)
        if link.expected_speed_gts is None:
            yield from _end_unseen(device, gpu, speed, past)
            continue
        if speed >= link.expected_speed_gts:
            continue
        if gpu is None:
            yield _finding(node, device, speed, _Verdict(WARNING), None, policy)
            continue
        samples = _samples(gpu, past)
        if gpu.vendor_id == AMD:  # its load is only read while its card's link is slow, so it belongs to such a speed
            samples = tuple([s._replace(speed_gts=speed) if s.speed_gts is None else s for s in samples])
        seen = [s.speed_gts for s in samples if s.speed_gts is not None and device.address == gpu.address]
        if seen and max(seen) >= link.expected_speed_gts:
            continue  # it was seen at full speed: what is low now is idleness
        verdict = weigh(node, device, gpu, samples, link.expected_speed_gts)
        if verdict.severity is not None:
            yield _finding(node, device, speed, verdict, gpu, policy)
        elif verdict.unassessed is not None:
            yield Unassessed(SPEED, device.address, f"{verdict.unassessed}; {_look(device, gpu)}", CAUSE_LOAD)
    yield from _without_link(node)


def _samples(gpu: Gpu, past: Past) -> tuple[LinkSample, ...]:
    return (*past.samples.get(gpu.address, ()), *gpu.samples)


def weigh(node: Node, device: Device, gpu: Gpu, samples: Sequence[LinkSample], expected: float) -> _Verdict:
    """What the known load of a GPU makes of a speed below `expected` GT/s; samples oldest first. device: the lower end
    of the link, the GPU or a bridge above it."""
    # A desktop's GPU draws its screen in P8, at some percent and a slow link: that P-state is by the driver's choice.
    busy = [
        s
        for s in samples
        if (s.utilization or 0) > 0
        and (s.pstate or 0) < _IDLE_FROM
        and s.speed_gts is not None
        and s.speed_gts < expected
    ]
    if len(busy) >= 2:
        return _Verdict(WARNING, evidence=f"busy in {len(busy)} of {len(samples)} samples")
    part = gpu.part
    if part is not None and part.holds_speed_when_idle:
        return _Verdict(WARNING, CATALOGUE, evidence=f"{part.name} holds its link speed even when idle")
    if busy and any((s.utilization or 0) > 0 and full for looks in _twins(node, device, gpu) for s, full in looks):
        return _Verdict(WARNING, PEERS, evidence="same-model GPUs in this node are busy at full speed")
    if busy and busy[-1].pstate is not None and busy[-1].pstate <= _BUSY_TO:
        return _Verdict(INFO, evidence=f"one sample at {busy[-1].utilization} % in P{busy[-1].pstate}")
    told = [s for s in samples if s.pstate is not None or s.utilization is not None]
    last = told[-1] if told else None
    if last is not None and ((last.pstate or 0) >= _IDLE_FROM or last.utilization == 0):
        return _Verdict() if last.utilization else _among_idle_twins(node, device, gpu, last)
    if last is not None and last.utilization:
        return _Verdict(unassessed="it was at work in one sample only, and an idle GPU lowers its link speed")
    return _Verdict(unassessed="the load is not known, and an idle GPU lowers its link speed")


def _among_idle_twins(node: Node, device: Device, gpu: Gpu, last: LinkSample) -> _Verdict:
    """What twins in the very state of an idle GPU say: where they run at full speed, idleness does not explain it."""
    state = (last.pstate, last.utilization)
    latest = [looks[-1] for looks in _twins(node, device, gpu)]
    alike = [full for s, full in latest if (s.pstate, s.utilization) == state]
    fast = sum(alike)
    slow = len(alike) - fast + 1
    most = fast >= _FEWEST_TWINS and fast >= _FEWEST_TWINS * slow
    at_work = last.pstate is not None and last.pstate < _IDLE_FROM  # a P-state in which links do not slow down
    if not most and not (at_work and fast):
        return _Verdict()
    words = f"{fast} of {len(alike)} same-model GPUs in the same state ({_state(last)}) run at full speed"
    return _Verdict(unassessed=f"{words}, so that idleness may not be why it is slow")


def _state(sample: LinkSample) -> str:
    """P0, 0 %"""
    load = [f"P{sample.pstate}"] if sample.pstate is not None else []
    return ", ".join(load + ([f"{sample.utilization} %"] if sample.utilization is not None else []))


def _twins(node: Node, device: Device, gpu: Gpu) -> Iterator[list[tuple[LinkSample, bool]]]:
    """The looks at each other GPU of the same model, and whether its link ran as fast as it can then: its own, or that
    of the bridge which is as far above it as `device` is above this one."""
    mine = node.devices[gpu.address]
    above = len(mine.path) - len(device.path)
    for twin in node.gpus:
        other = node.devices.get(twin.address)
        if twin.address == gpu.address or other is None or _model(twin, other) != _model(gpu, mine):
            continue
        told = [s for s in twin.samples if s.pstate is not None or s.utilization is not None]
        end = node.devices.get(other.path[-1 - above]) if 0 < above < len(other.path) else other
        link = end.link if end is not None else None
        full = link.expected_speed_gts or known(link.max_speed_gts) if link is not None else None
        if not told or link is None or full is None:
            continue
        speeds = [None if above else s.speed_gts for s in told]
        # amdgpu tells the load alone, and of a bridge no driver tells: there the bus shows the speed, that of now.
        if speeds[-1] is None:
            speeds[-1] = known(link.speed_gts)
        yield [(s, (speed or 0) >= full) for s, speed in zip(told, speeds, strict=True)]


def _model(gpu: Gpu, device: Device) -> tuple[int | None, str | None]:
    """By what GPUs are of one model: the id, and where no source has ids, the driver's name, else each by itself."""
    number = device.function.device_id
    return (number, None) if number is not None else (None, known(gpu.model) or gpu.address)


def _end_unseen(device: Device, gpu: Gpu | None, speed: float, past: Past) -> Iterator[Unassessed]:
    """With one end unknown only a link at the most that the other can do is known to be right."""
    link = device.link
    assert link is not None
    ends = link.max_speed_gts, link.port_max_speed_gts
    if device.kind not in MATTERS or at_a_maximum(speed, *ends):
        return
    told = _samples(gpu, past) if gpu is not None else ()
    last = next((s for s in reversed(told) if s.pstate is not None or s.utilization is not None), None)
    if last is not None and ((last.pstate or 0) >= _IDLE_FROM or last.utilization == 0):
        return
    reason = no_expectation(*ends)
    if gpu is not None:
        load = f"; it is at work ({_state(last)})" if last is not None and last.utilization else ", nor is the load"
        yield Unassessed(SPEED, device.address, f"{reason}{load}; {_look(device, gpu)}", CAUSE_LOAD)
    else:
        yield Unassessed(SPEED, device.address, reason, CAUSE_NOT_RECORDED)


def _without_link(node: Node) -> Iterator[Unassessed]:
    for device in lookup(node).of(GPU, ACCELERATOR):
        if device.link is None and not device.integrated:
            if device.function.physical_function:
                continue
            reason = not_judged(node, device) or ("the recording does not hold its link", CAUSE_NOT_RECORDED)
            yield Unassessed(SPEED, device.address, *reason)


def _finding(node: Node, device: Device, speed: float, verdict: _Verdict, gpu: Gpu | None, policy: Policy) -> Finding:
    link = device.link
    assert link is not None and verdict.severity is not None
    width = known(link.width)
    now, full = pcie_gbs(speed, width), pcie_gbs(link.expected_speed_gts, width)
    target = served(node, device)
    because = f" ({verdict.evidence})" if verdict.evidence else ""
    confirm = (_look(device, gpu),) if verdict.severity == INFO and gpu is not None else ()
    return Finding(
        SPEED,
        verdict.severity,
        device.address,
        f"{called(target)} runs {describe_link(speed, width)} where both ends can do "
        f"{describe_link(link.expected_speed_gts, width)}: {gbs(now)} instead of {gbs(full)} per direction{because}",
        verdict.basis,
        impact(node, target, policy.roles),
        confirm + _REMEDY,
        verify_link(device),
        related=tuple(a for a in (link.port,) if a),
        observed={
            "speed_gts": speed,
            "width": width,
            "gbs": now,
            "pstate": known(gpu.pstate) if gpu is not None else None,
            "utilization": known(gpu.utilization) if gpu is not None else None,
            "target_speed_gts": known(device.function.link.target_speed_gts) if device.function.link else None,
        },
        expected={"speed_gts": link.expected_speed_gts, "gbs": full},
        lost_gbs=lost(now, full),
    )


RULES = (
    Rule(
        SPEED,
        (WARNING, INFO),
        "a PCIe link runs below the speed of both of its ends, and idleness does not explain it",
        "the speed in use against the smaller maximum of device and port; for GPUs also P-state and utilisation "
        "(of AMD's gpu_busy_percent) in every sample, same-model GPUs in the node, and models known to hold their "
        "speed when idle",
        "the GPU is in P5 to P15 or at zero utilisation, and no twin in the same state says otherwise (unassessed "
        "where one does); it was seen at full speed in any sample; its load is not known (then unassessed, with the "
        "command that would tell); virtual machines, chipsets, chip-to-chip hosts",
        _REMEDY,
        (
            "NVIDIA/open-gpu-kernel-modules#731 (link generation by P-state), #1010 (stuck at Gen1 under load)",
            "NVIDIA/nccl-tests#228 (P0 is no proof of load)",
        ),
        judge,
        reads=("pcie",),
        about=LINKS,
    ),
)
