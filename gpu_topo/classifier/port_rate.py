"""Ports slower than their twins, their past or their grade, and ports faster than the PCIe link behind them."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.classifier.links import not_judged, running, why_unknown
from gpu_topo.classifier.ports import (
    COLLECTIVES,
    Judged,
    baseline_port,
    board,
    by_board,
    judged,
    listed,
    show,
    state_unknown,
    unread,
)
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    BASELINE,
    CATALOGUE,
    CAUSE_BY_DESIGN,
    CAUSE_NO_REFERENCE,
    CAUSE_NOT_RECORDED,
    CAUSE_VM,
    CRITICAL,
    INFO,
    LINK_PARTNERS,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import ACCELERATOR, GPU, Device, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.capacity import card_links, carries
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import line_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RATE = "port-rate-degraded"
OUTRUNS = "port-outruns-pcie"

# What InfiniBand's names promise and what is left of it after line coding: 8b/10b up to QDR, 64b/66b for FDR.
# Source: InfiniBand Architecture Specification volume 2; the kernel prints 56 for FDR's 54.5.
_PAYLOAD_SHARE = {"SDR": 0.8, "DDR": 0.8, "QDR": 0.8, "FDR": 64 / 66}
_TOLERANCE = 0.98  # figures of drivers are rounded
_FALLBACK = 10.0  # "10 Gb/sec (4X SDR)": what kernels print for speeds that they do not know


class _Expected(NamedTuple):
    gbps: float
    basis: str
    why: str
    twins: tuple[str, ...] = ()
    lanes: int | None = None
    speed: str | None = None


def judge_rate(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-rate-degraded."""
    ports = judged(node, policy)
    rates = {item.name: line_rate(node, item.port) for item in ports}
    networks = _networks([item for item in ports if item.up and rates[item.name] is not None], rates)
    for item in ports:
        if not item.up:
            unknown = state_unknown(item.port)
            if unknown is not None:
                yield Unassessed(RATE, item.name, *unknown)
            continue  # a port that is down prints a placeholder
        rate = rates[item.name]
        if rate is None:
            yield Unassessed(RATE, item.name, *unread(item.port.rate_gbps, "rate of the port"))
            continue
        expectations = _expectations(past, item, networks.get(item.name), rates)
        worse = [e for e in expectations if rate < e.gbps * _TOLERANCE]
        if worse:
            yield _degraded(item, rate, worse[0])
        elif not expectations:
            yield Unassessed(
                RATE,
                item.name,
                "neither an equal board with a port that is up, nor the port's past, nor its board id tells what it "
                "should do",
                CAUSE_NO_REFERENCE,
            )


class _Network(NamedTuple):
    """Equal ports, and how many of them run at each rate."""

    members: Sequence[Judged]
    counts: Mapping[float, int]


def _networks(ports: Sequence[Judged], rates: Mapping[str, float | None]) -> dict[str, _Network]:
    """For every port with a board id, the ports of equal boards in the same subnet and for the same purpose, itself
    included. Where a subnet is not known it is taken for the only one that is."""
    found: dict[str, _Network] = {}
    for group in by_board(ports).values():
        subnets = {known(item.port.subnet_prefix) for item in group} - {None}
        split: dict[tuple[str, str | None], list[Judged]] = {}
        for item in group:
            subnet = known(item.port.subnet_prefix) if len(subnets) > 1 else None
            split.setdefault((item.role, subnet), []).append(item)
        for members in split.values():
            at = [rates[member.name] or 0.0 for member in members]
            network = _Network(members, {rate: at.count(rate) for rate in at})
            found.update(dict.fromkeys((item.name for item in members), network))
    return found


def _expectations(
    past: Past, item: Judged, network: _Network | None, rates: Mapping[str, float | None]
) -> list[_Expected]:
    """What the port should run at, the strongest evidence first."""
    found = []
    by_peers = _majority(item, network, rates) if network is not None else None
    if by_peers is not None:
        found.append(by_peers)
    best = past.best_rate_gbps.get(item.name)
    if best is not None:
        found.append(_Expected(best, BASELINE, f"it ran at {best:g} Gb/s earlier in this boot"))
    row = baseline_port(past, item.port)
    saved = row.get("rate_gbps") if row is not None and row.get("state") == "ACTIVE" else None
    if isinstance(saved, (int, float)):
        found.append(_Expected(float(saved), BASELINE, f"it ran at {saved:g} Gb/s when the baseline was saved"))
    psid = known(item.port.board_id)
    grade = catalogue.psid_gbps(psid) if psid else None
    # A kernel that does not know the card's speed prints its fallback, which says nothing of the link. A bond's figure
    # is one member's or a share of it.
    if grade is not None and rates[item.name] != _FALLBACK and not item.port.bond:
        found.append(_Expected(grade, CATALOGUE, f"a {psid} can do {grade:g} Gb/s"))
    return found


def _majority(item: Judged, network: _Network, rates: Mapping[str, float | None]) -> _Expected | None:
    """The rate that most equal ports run at, the port itself included.

    Of two cards that differ the faster one is right. Two halves that differ are two networks, and so are the two ports
    of one card.
    """
    members, counts = network
    if len(members) < 2:
        return None
    if len(members) == 2:
        if len(counts) == 2 and members[0].card == members[1].card:
            return None
        expected = max(counts)
    else:
        expected, most = max(counts.items(), key=lambda item: item[1])
        if most * 2 <= len(members):
            return None
    if rates[item.name] == expected:
        return _Expected(expected, PEERS, "")  # as it should be: no words needed
    alike = [member for member in members if rates[member.name] == expected]
    names = [member.name for member in alike]
    return _Expected(
        expected,
        PEERS,
        f"its twins of the same board run at {expected:g} Gb/s ({listed(names)})",
        tuple(names),
        known(alike[0].port.lanes),
        known(alike[0].port.speed),
    )


def _degraded(item: Judged, rate: float, expected: _Expected) -> Finding:
    by_grade = expected.basis == CATALOGUE
    lanes, speed = known(item.port.lanes), known(item.port.speed)
    what = f"{lanes}X {speed}" if lanes and speed else ""
    fewer = lanes is not None and expected.lanes is not None and lanes < expected.lanes and speed == expected.speed
    says = f" ({what}: {lanes} of {expected.lanes} lanes)" if fewer else f" ({what})" if what else ""
    return Finding(
        RATE,
        INFO if by_grade else CRITICAL,
        item.name,
        f"port {item.name} runs at {rate:g} Gb/s{says}, {expected.why}",
        expected.basis,
        "a split cable or a slower switch port explains it; then it is a choice" if by_grade else COLLECTIVES,
        (
            "compare with the switch's side of the link: which speeds and lanes does it enable",
            "look at the lanes' error counters: mlxlink -d DEVICE -e -c",
            "clean and reseat cable or transceiver, then swap it with that of a working port",
        ),
        show(item),
        related=expected.twins,
        observed={"rate_gbps": rate, "lanes": lanes, "speed": speed},
        expected={"rate_gbps": expected.gbps, "lanes": expected.lanes, "speed": expected.speed},
        lost_gbs=round((expected.gbps - rate) / 8, 3),
    )


# --- against PCIe ----------------------------------------------------------------------------------------------


def judge_outruns(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-outruns-pcie."""
    for item in judged(node, policy):
        if not item.up:
            unknown = state_unknown(item.port)
            if unknown is not None:
                yield Unassessed(OUTRUNS, item.name, *unknown)
            continue
        line = line_rate(node, item.port)
        if line is None:
            yield Unassessed(OUTRUNS, item.name, *unread(item.port.rate_gbps, "rate of the port"))
            continue
        address = known(item.port.address)
        device = node.devices.get(address or "")
        if device is None:
            reason = "which PCI function is behind the port is not recorded"
            yield Unassessed(OUTRUNS, item.name, reason, CAUSE_NOT_RECORDED)
            continue
        hidden = _hidden(node, device)
        if hidden is not None:
            yield Unassessed(OUTRUNS, item.name, *hidden)
            continue
        need = _payload_gbs(item, line)
        # What is above the slot of a card is shared, and pcie-path-bottleneck judges it.
        rates = [(end, carries(node, end)) for end in _own_links(node, device)]
        if any(rate is None or need > rate / _TOLERANCE for _, rate in rates):
            yield _too_narrow(item, device, rates, line, need)


def _own_links(node: Node, device: Device) -> Iterator[Device]:
    """The lower ends of the links between an adapter and the GPUs: its card's own, up to the bridge that has GPUs below
    it too (ConnectX-8, converged cards). What they exchange does not cross that bridge's own link."""
    for end in card_links(node.devices, device):
        if end is not device and any(below.kind in (GPU, ACCELERATOR) for below in lookup(node).below(end.address)):
            return
        yield end


def _too_narrow(
    item: Judged, device: Device, rates: Sequence[tuple[Device, float | None]], line: float, need: float
) -> Conclusion:
    """Which of a card's own links is too narrow for `need` GB/s, else which is not known. The inner links of a DPU are
    wide whatever its slot gives."""
    gbs = min((rate for _, rate in rates if rate is not None), default=None)
    if gbs is not None and need > gbs / _TOLERANCE:
        return _outrun(item, device, next(end for end, rate in rates if rate == gbs), line, need, gbs)
    end = next(end for end, rate in rates if rate is None)
    link = end.link
    missing = known(link.width) if link is not None else None
    reading = None if link is None else link.speed_gts if missing is not None else link.width
    whose = "function" if end is device else f"card at {end.address}"
    return Unassessed(OUTRUNS, item.name, *why_unknown(reading, f"PCIe link of its {whose}"))


def _hidden(node: Node, device: Device) -> tuple[str, str] | None:
    if device.function.virtual_function:
        return "a virtual function has no PCIe link of its own", CAUSE_VM
    if device.link is None and device.integrated:
        return "the adapter is part of the processor and has no PCIe link", CAUSE_BY_DESIGN
    return not_judged(node, device)


def _payload_gbs(item: Judged, gbps: float) -> float:
    """GB/s that a port brings to PCIe. Ethernet's rates are payload rates, whatever InfiniBand name they print."""
    infiniband = known(item.port.link_layer) == "InfiniBand"
    share = _PAYLOAD_SHARE.get(known(item.port.speed) or "", 1.0) if infiniband else 1.0
    return gbps * share / 8


def _outrun(item: Judged, device: Device, end: Device, rate: float, need: float, gbs: float) -> Finding:
    """end: the lower end of the link of `device`'s card that is too narrow, usually the device itself."""
    return Finding(
        OUTRUNS,
        WARNING,
        item.name,
        f"port {item.name} brings {need:.1f} GB/s ({rate:g} Gb/s), its PCIe link carries {gbs:.1f} GB/s "
        f"({running(end)})",
        LINK_PARTNERS,
        f"the port never reaches its line rate, and other nodes wait; {COLLECTIVES}",
        (
            "see whether the link itself is degraded (pcie-width-degraded, pcie-speed-degraded, pcie-slot-limited)",
            "move the card to a slot with the lanes and the generation that it has",
            "accept it where the port was never meant to run at its line rate",
        ),
        f"lspci -s {end.address} -vv | grep LnkSta: ; cat /sys/class/infiniband/{item.port.device}/ports/"
        f"{item.port.port}/rate",
        related=(device.address,) if end is device else (device.address, end.address),
        observed={"pcie_gbs": round(gbs, 3), "pcie_link": running(end)},
        expected={"port_gbs": round(need, 3), "rate_gbps": rate, "board": board(item)},
        lost_gbs=round(need - gbs, 3),
    )


RULES = (
    Rule(
        RATE,
        (CRITICAL, INFO),
        "an RDMA port runs slower than its twins, its past or its grade",
        "lanes, speed and rate of ports that are up, against equal boards in the same subnet, the best rate since "
        "start, the baseline, and the grade of the board's PSID",
        "the port is down (it prints a placeholder), it runs like most of its twins, or nothing tells its rate. One "
        "type of chip is sold in several grades, so the device id alone decides nothing",
        ("compare with the switch's side of the link", "swap the cable with that of a working port"),
        (
            "linux: drivers/infiniband/core/sysfs.c (rate_show)",
            "board grades: catalogue psids.csv",
            "openucx/ucx#6553, deepseek-ai/DeepEP#614 (lanes and rails that are by design)",
        ),
        judge_rate,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie", "net"),
        late=True,
    ),
    Rule(
        OUTRUNS,
        (WARNING,),
        "an RDMA port is faster than the PCIe link behind it",
        "line rate of ports that are up against the PCIe link of their own card, both per direction: of a card with "
        "bridges of its own (DPUs) the narrowest of its links, so the one in the slot too, unless GPUs hang from those "
        "bridges",
        "the rate fits, the port is down, or link values are hidden (virtual machine) or not recorded",
        ("move the card to a slot with the lanes and the generation that it has",),
        ("PCI Express Base Specification (line coding)", "scitix/sichek#122"),
        judge_outruns,
        reads=("pcie", "rdma", "net"),
        misled_without=("pcie",),
        consequence=True,
    ),
)
