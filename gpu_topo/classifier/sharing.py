"""A network adapter and storage below one PCIe switch: who can ask for what, and what the uplink carries."""

from __future__ import annotations

from gpu_topo.classifier.links import gbs
from gpu_topo.classifier.nic_rates import Rate, card_rate, is_fast_nic
from gpu_topo.classifier.ports import listed
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.address import slot_of
from gpu_topo.model.finding import CAUSE_NOT_RECORDED, CAUSE_VM, INFO, LINK_PARTNERS, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, STORAGE, Device, Link, Node, Switch
from gpu_topo.model.reading import known
from gpu_topo.model.units import describe_link
from gpu_topo.topology.capacity import card_carries
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHARES = "nic-shares-switch-with-storage"
_ROOM = 1.02  # figures of links are rounded


def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nic-shares-switch-with-storage."""
    for switch in node.switches.values():
        here = [node.devices[address] for address in switch.downstream if address in node.devices]
        adapters = [d for d in here if d.kind == NIC and not d.function.virtual_function]
        drives = [d for d in here if d.kind == STORAGE]
        if not adapters or not drives:
            continue
        if node.platform.kind == VIRTUAL_MACHINE:
            reason = "in a virtual machine the switch is emulated, what it shares is hidden"
            yield Unassessed(SHARES, switch.id, reason, CAUSE_VM)
            continue
        gpus = [d for d in lookup(node).below(switch.id) if d.kind in (GPU, ACCELERATOR)]
        if gpus:
            yield _inside(node, switch, adapters, drives, gpus)
        else:
            yield _across(node, switch, adapters, drives)


def _capacity(node: Node, devices: Sequence[Device]) -> float | None:
    """What cards carry together, GB/s, each once: the functions of one device share its links. None where one is
    unknown."""
    cards = {slot_of(device.address): device for device in devices}
    rates = [_card(node, device) for device in cards.values()]
    return None if None in rates else sum(rate for rate in rates if rate is not None)


def _card(node: Node, device: Device) -> float | None:
    """The card's own links as they run, else, where a recording lacks that, as built."""
    link = device.link
    if link is None or not link.trusted:
        return None
    return link.expected_gbs if link.gbs is None else card_carries(node, device)


def _carries(now: float | None, expected: float | None) -> float | None:
    return now if now is not None else expected


def _as_it_runs(uplink: Link | None) -> str:
    """'31.5 GB/s', '15.8 GB/s as it runs, 31.5 GB/s at best'."""
    now = uplink.gbs if uplink else None
    best = uplink.expected_gbs if uplink else None
    if now is None or best is None or now == best:
        return gbs(_carries(now, best))
    return f"{gbs(now)} as it runs, {gbs(best)} at best"


def _demand(node: Node, adapters: Sequence[Device]) -> Rate | None:
    """What the ports of the adapters ask for together, no more than their links carry. None where neither tells."""
    least = most = 0.0
    cards = {slot_of(device.address): device for device in reversed(adapters)}
    for device in cards.values():
        line, link = card_rate(node, device), _capacity(node, [device])
        bounds = [value for value in (line.most if line is not None else None, link) if value is not None]
        if not bounds:
            return None
        most += min(bounds)
        least += min(*bounds, line.least) if line is not None else 0.0
    return Rate(least, most)


def _mounts(node: Node, drives: Sequence[Device]) -> list[str]:
    """Mount points on these devices."""
    blocks = lookup(node).blocks
    return sorted({mount for device in drives for block in blocks(device.address) for mount in block.mounts})


def _who(node: Node, switch: Switch, adapters: Sequence[Device], drives: Sequence[Device]) -> str:
    mounts = _mounts(node, drives)
    where = f" (mounted at {listed(mounts, 4)})" if mounts else ""
    return (
        f"{listed([_short(node, d) for d in adapters])} and {listed([_short(node, d) for d in drives])}{where} "
        f"share the PCIe switch {f'{switch.name} at ' if switch.name else ''}{switch.id}"
    )


def _short(node: Node, device: Device) -> str:
    """The name that people use: mlx5_0, nvme3, else the address."""
    if device.kind == NIC:
        return next((port.device for port in lookup(node).ports(device.address)), device.address)
    return next((block.name for block in lookup(node).blocks(device.address)), device.address)


def _inside(
    node: Node, switch: Switch, adapters: Sequence[Device], drives: Sequence[Device], gpus: Sequence[Device]
) -> Finding:
    """GPUs hang below the same switch: RDMA between them and the adapters stays inside it."""
    need, asked = _demand(node, adapters), _capacity(node, drives)
    uplink = switch.uplink
    carries = _carries(uplink.gbs, uplink.expected_gbs) if uplink else None
    too = f"{len(gpus)} GPUs hang" if len(gpus) > 1 else "a GPU hangs"
    return Finding(
        SHARES,
        INFO,
        switch.id,
        f"{_who(node, switch, adapters, drives)}; {too} there too, so RDMA stays inside the switch and only storage "
        f"({gbs(asked)}) crosses the uplink ({_as_it_runs(uplink)})",
        LINK_PARTNERS,
        "none for traffic between GPUs and adapters; data loading shares the uplink with host copies",
        ("leave it: servers are built this way on purpose",),
        "lspci -tv",
        related=tuple(d.address for d in (*adapters, *drives)),
        observed={
            "nic_gbs": _rounded(need.most if need is not None else None),
            "storage_gbs": _rounded(asked),
            "uplink_gbs": _rounded(carries),
            "gpus": len(gpus),
        },
    )


def _across(node: Node, switch: Switch, adapters: Sequence[Device], drives: Sequence[Device]) -> Conclusion:
    """No GPU hangs there: all traffic of adapters and storage has to cross the uplink."""
    need, asked = _demand(node, adapters), _capacity(node, drives)
    uplink = switch.uplink
    carries = _carries(uplink.gbs, uplink.expected_gbs) if uplink and uplink.trusted else None
    if need is None or asked is None or carries is None:
        missing = "the uplink" if carries is None else "the adapters" if need is None else "the storage"
        reason = f"what {missing} can carry is not recorded"
        return Unassessed(SHARES, switch.id, reason, CAUSE_NOT_RECORDED)
    fast = any(is_fast_nic(node, device) for device in adapters)
    fits = need.most + asked <= carries * _ROOM
    over = fast and need.least + asked > carries * _ROOM
    asks = need.least if over else need.most
    both = asks + asked
    link = describe_link(known(uplink.speed_gts), known(uplink.width)) if uplink else "?"
    best = uplink.expected_gbs if uplink else None
    whole = f", {gbs(best)} at best" if best is not None and carries < best else ""
    sums = (
        f"{asks:.1f} + {asked:.1f} = {both:.1f} GB/s below{'' if over or need.known else ' at most'}, "
        f"{carries:.1f} GB/s ({link} as it runs{whole}) above"
    )
    return Finding(
        SHARES,
        WARNING if over else INFO,
        switch.id,
        f"{_who(node, switch, adapters, drives)}, and no GPU does: all of their traffic crosses its uplink, {sums}",
        LINK_PARTNERS,
        "data loading and checkpoints slow down collectives, and the other way round, whenever both are busy"
        if over
        else "none: the uplink carries both at once"
        if fits
        else "none, unless the adapter's ports run at more than the uplink leaves them: how they run is not known"
        if fast
        else "little: the adapter is too slow to be what a job waits for",
        (
            "move data loading to drives on another switch or root port",
            "move the adapter or the drives to slots of the GPUs' switches",
            "limit the storage's rate while training (io.max)",
        )
        if over
        else ("leave it",),
        f"lspci -tv; lspci -s {switch.id} -vv | grep LnkSta:",
        related=tuple(d.address for d in (*adapters, *drives)),
        observed={
            "nic_gbs": _rounded(asks),
            "storage_gbs": _rounded(asked),
            "uplink_gbs": _rounded(carries),
            "gpus": 0,
        },
        expected={"uplink_gbs": _rounded(both)} if over else {},
        lost_gbs=_rounded(both - carries) if over else None,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


RULES = (
    Rule(
        SHARES,
        (WARNING, INFO),
        "a network adapter and storage hang below one PCIe switch",
        "line rate of the adapters, links of the storage, the switch's uplink, and whether GPUs hang below it too",
        "never quite: a switch that also has the GPUs keeps RDMA inside itself and is information, and so is an uplink "
        "that carries both. Virtual machines hide their switches",
        ("move data loading to drives on another switch",),
        ("perplexityai/pplx-garden#2, NVIDIA/nccl#439", "PCI Express Base Specification (switches and uplinks)"),
        judge,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
    ),
)
