"""Narrower links further up, and switches whose uplink carries less than what hangs below."""

from __future__ import annotations

from gpu_topo.classifier.links import (
    called,
    gbs,
    impact,
    is_chipset,
    is_nvme,
    lost,
    many,
    owners,
    verify_link,
)
from gpu_topo.classifier.nic_rates import card_rate, fitting, is_fast_nic
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.address import slot_of
from gpu_topo.model.finding import INFO, LINK_PARTNERS, WARNING, Finding
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, Device, Node
from gpu_topo.topology.capacity import card_carries, carries, is_inner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = "pcie-path-bottleneck"
OVERSUBSCRIBED = "pcie-uplink-oversubscribed"
_ROUNDING = 1.02  # 1:1 fabrics whose parts differ by a management lane are no oversubscription


def judge_path(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-path-bottleneck."""
    for device, _, reason in owners(node):
        if reason is not None or (device.bottleneck is None and len(device.path) < 3) or not _wants(node, device):
            continue
        own = card_carries(node, device)
        if own is None:
            continue
        found = _narrowest(node, device, own)
        if found is None:
            continue
        step, rate = found
        line = card_rate(node, device) if device.kind == NIC else None
        asks = min(own, line.most) if line is not None else own
        fits = asks <= rate
        yield Finding(
            PATH,
            INFO if fits else WARNING,
            device.address,
            f"{called(device)} can carry {gbs(own)}, but the link of {called(step)} on its way to the processor "
            f"carries {gbs(rate)}" + (f"; {fitting(line)}" if line is not None and fits else ""),
            LINK_PARTNERS,
            "none: its ports bring no more than that link carries"
            if fits
            else impact(node, device, policy.roles) + ", for traffic that leaves its switch",
            (
                f"look at the link of {step.address}: gpu-topo inspect shows whether it is degraded or built so",
                "move the device, or what it shares the link with, to another switch or root port",
                "accept it as designed: gpu-topo baseline accept",
            ),
            verify_link(step),
            related=(step.address,),
            observed={"gbs": rate, "at": step.address},
            expected={"gbs": own},
            lost_gbs=None if fits else lost(rate, asks),
        )


def _wants(node: Node, device: Device) -> bool:
    return device.kind in (GPU, ACCELERATOR) or is_nvme(device) or is_fast_nic(node, device)


def _narrowest(node: Node, device: Device, own: float) -> tuple[Device, float] | None:
    """The narrowest link above a card that is narrower than its own, with what it carries. Of equals the topmost.

    The bridges of the card itself are not above it: what its slot gives is its own.
    """
    devices, path = node.devices, device.path
    top = len(path) - 1
    while top and (bridge := devices.get(path[top - 1])) is not None and is_inner(bridge):
        top -= 1
    worst: tuple[Device, float] | None = None
    for address in path[:top]:
        step = devices.get(address)
        if step is None or step.link is None or step.link.port is None:
            continue
        rate = carries(node, step)
        if rate is None or rate >= own - 1e-6 or (worst is not None and rate >= worst[1]) or is_chipset(step):
            continue
        worst = (step, rate)
    return worst


def judge_uplink(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-uplink-oversubscribed."""
    for switch in node.switches.values():
        ratio, uplink = switch.oversubscription, switch.uplink
        if ratio is None or uplink is None or ratio <= _ROUNDING or switch.id in node.hidden_links:
            continue
        rate = uplink.expected_gbs or uplink.gbs
        cards = len({slot_of(address) for address in switch.downstream})
        runs_at = f" at best, {gbs(uplink.gbs)} as it runs" if uplink.gbs is not None and uplink.gbs != rate else ""
        yield Finding(
            OVERSUBSCRIBED,
            INFO,
            switch.id,
            f"{ratio:.1f}:1 on {switch.name or 'the switch'} at {switch.id}: {many(cards, 'device')} that can "
            f"carry {gbs(switch.downstream_gbs)} share an uplink of {gbs(rate)}{runs_at}",
            LINK_PARTNERS,
            "none for traffic that stays below the switch (GPU to GPU, GPU to NIC); host copies and data loading of "
            "all devices together cannot exceed the uplink",
            ("usual on GPU servers; nothing to do unless host traffic of several devices at once is the bottleneck",),
            "lspci -tv; " + verify_link(node.devices[switch.id]),
            related=switch.downstream,
            observed={"downstream_gbs": switch.downstream_gbs, "uplink_gbs": rate, "ratio": ratio},
            expected={"ratio": 1.0},
        )


RULES = (
    Rule(
        PATH,
        (WARNING, INFO),
        "a link further up is narrower than the device's own",
        "for GPUs, accelerators, NVMe and NICs of 10 Gb/s and more: the link of every bridge between the card and the "
        "processor, at the speed that it reaches under load, against what the card gets in its slot; a NIC whose line "
        "rate is known and fits loses nothing, which is information",
        "links inside a chipset, in virtual machines, and where a GPU's idleness explains the speed of its own bridge; "
        "a card's own bridges (AMD's GPUs, DPUs): their link to the slot is judged as the card's",
        ("move the device to another root port, or accept it as designed: gpu-topo baseline accept",),
        ("nokyan/resources#512, ilya-zlobintsev/LACT#334 (AMD's inner x16 hides the slot), scitix/sichek#122",),
        judge_path,
        reads=("pcie",),
        consequence=True,
    ),
    Rule(
        OVERSUBSCRIBED,
        (INFO,),
        "what hangs below a switch can carry more than its uplink",
        "the sum of the links below one physical switch against its uplink",
        "the ratio is 1:1; in virtual machines",
        ("nothing: four GPUs on one uplink are usual",),
        ("NVIDIA/nccl#439 and #820 (virtual switches of one chip)",),
        judge_uplink,
        reads=("pcie",),
    ),
)
