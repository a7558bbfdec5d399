"""Ports that do not carry data: down, or up without a subnet manager."""

from __future__ import annotations

from gpu_topo.classifier.ports import (
    COLLECTIVES,
    Judged,
    board,
    by_board,
    judged,
    listed,
    phys_state_unknown,
    position,
    show,
    state_unknown,
    was_up,
)
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import BASELINE, CRITICAL, INFO, PEERS, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import NetDevice
from gpu_topo.model.node import Node
from gpu_topo.model.reading import NO_DATA, Unknown, known
from gpu_topo.topology.ports import has_link, line_rate, netdev_of
from gpu_topo.topology.roles import UNUSED, overridden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOWN = "port-down"
NOT_ACTIVE = "port-not-active"

_CABLE = (
    "look at the other end: is the switch port up, and does its log name this node",
    "clean and reseat cable or transceiver, then swap it with that of a working port",
    "reset the adapter (mlxfwreset) or power-cycle the node",
)


def judge_down(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-down."""
    ports = judged(node, policy)
    twins_of: dict[str, list[Judged]] = {}
    for group in by_board(ports).values():
        places: dict[tuple[str, int], list[Judged]] = {}
        for item in group:
            places.setdefault(position(item), []).append(item)
        twins_of.update({item.name: place for place in places.values() for item in place})
    for item in ports:
        state = known(item.port.state)
        if item.up:
            continue
        unknown = state_unknown(item.port)
        if unknown is not None:
            yield Unassessed(DOWN, item.name, *unknown)
        elif state in ("DOWN", "NOP"):
            twins = _twins(twins_of.get(item.name, ()), item, policy)
            yield _down(node, past, item, twins, _declared_unused(item, policy))
    yield from _halved_bonds(node, [item for item in ports if item.port.bond and item.up], policy)


def _halved_bonds(node: Node, ports: Sequence[Judged], policy: Policy) -> Iterator[Finding]:
    """Bonds of which some members have no link. One RDMA device stands for all members of a bond, so that a member
    has no state of its own: its interface, without a speed then, tells. One with an RDMA port is judged by that."""
    own = {known(port.netdev) for port in node.ports}
    told = set()
    for item in ports:
        bond = item.port.bond
        if bond in told or _declared_unused(item, policy):
            continue
        told.add(bond)
        members = [device for device in node.netdevs if device.master == bond and known(device.admin_up) is not False]
        up = [device for device in members if known(device.speed_mbps) is not None]
        down = [d for d in members if _without_link(d) and d.name not in own]
        if up and down:
            yield _halved(item, up, down)


def _without_link(device: NetDevice) -> bool:
    speed = device.speed_mbps
    return isinstance(speed, Unknown) and speed.why == NO_DATA


def _halved(item: Judged, up: Sequence[NetDevice], down: Sequence[NetDevice]) -> Finding:
    names, working = [device.name for device in down], [device.name for device in up]
    alone = len(down) == 1  # then every twin is up
    count = len(up) + len(down)
    return Finding(
        DOWN,
        WARNING if alone else INFO,
        item.name,
        f"port {item.name} is up on {len(up)} of the {count} members of {item.port.bond}: {listed(names)} "
        f"{'has' if alone else 'have'} no link",
        PEERS,
        f"the bond carries {len(up)} of {count} shares of its traffic; {COLLECTIVES}",
        _CABLE if alone else ("leave it where the bond was built for later", *_CABLE),
        f"grep -E 'Slave Interface|MII Status' /proc/net/bonding/{item.port.bond}",
        related=tuple(address for device in down if (address := known(device.address))),
        observed={"members_up": working, "members_down": names},
        expected={"members_up": [*working, *names]},
        lost_gbs=sum(known(d.speed_mbps) or 0 for d in up) / len(up) * len(down) / 8000,
    )


def _declared_unused(item: Judged, policy: Policy) -> bool:
    return overridden(item.port, policy.roles) == UNUSED


def _twins(group: Sequence[Judged], item: Judged, policy: Policy) -> list[Judged]:
    """Equal ports at the same position of other cards: the second port of a card has the other second ports. One that
    the configuration calls unused is nobody's example. group: all at that position."""
    return [other for other in group if other.card != item.card and not _declared_unused(other, policy)]


def _disabled(node: Node, item: Judged) -> bool:
    """Whether somebody switched the port off. RoCE drivers say Disabled for every missing link, so there the
    interface's own switch decides where it is known."""
    if known(item.port.phys_state) != "Disabled":
        return False
    device = netdev_of(node, item.port)
    up = known(device.admin_up) if device else None
    return not (known(item.port.link_layer) == "Ethernet" and up)


def _down(node: Node, past: Past, item: Judged, twins: Sequence[Judged], declared_unused: bool) -> Finding:
    phys = known(item.port.phys_state)
    observed = {"state": known(item.port.state), "phys_state": phys}
    up = [twin for twin in twins if has_link(twin.port)]
    severity, basis, expected = INFO, PEERS, {}
    if declared_unused:
        why = "the configuration says that it is not used"
    elif _disabled(node, item):
        why = "it is disabled"
    elif was_up(past, item):
        severity, basis, expected = CRITICAL, BASELINE, {"state": "ACTIVE"}
        why = "it was up before"
    elif twins and len(up) == len(twins):
        severity, expected = WARNING, {"state": "ACTIVE"}
        why = f"the same port of every other {board(item)} here is up ({listed([twin.name for twin in up])})"
    else:
        why = "nothing says that it was ever in use"
    rate = max((r for twin in up if (r := line_rate(node, twin.port)) is not None), default=None)
    words = f" ({phys})" if phys and phys.lower() not in why else ""  # "is down: it is disabled" says it once
    return Finding(
        DOWN,
        severity,
        item.name,
        f"port {item.name} is down{words}: {why}",
        basis,
        "none, unless a job was meant to use it"
        if severity == INFO
        else f"no traffic through this port; {COLLECTIVES}",
        ("leave it, or name its role 'unused' in the configuration",) if severity == INFO else _remedy(phys),
        show(item),
        related=tuple(twin.name for twin in up),
        observed=observed,
        expected=expected,
        lost_gbs=rate / 8 if rate is not None and severity != INFO else None,
    )


def _remedy(phys: str | None) -> tuple[str, ...]:
    if phys == "Polling":
        return ("the port looks for a partner and finds none: no cable, a dead or disabled switch port", *_CABLE)
    return _CABLE


def judge_not_active(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-not-active."""
    for item in judged(node, policy):
        state, phys = known(item.port.state), known(item.port.phys_state)
        if state in ("ACTIVE", "DOWN") or known(item.port.link_layer) == "Ethernet":
            continue  # Ethernet has no subnet manager
        waits = not item.up and has_link(item.port)
        unknown = phys_state_unknown(item.port) if waits else state_unknown(item.port)
        if unknown is not None:
            yield Unassessed(NOT_ACTIVE, item.name, *unknown)
            continue
        if not waits or phys not in ("LinkUp", None):
            continue
        if state == "INIT":
            why = "no subnet manager has reached it"
            first = "see whether a subnet manager runs in this subnet: sminfo"
        else:
            why = "a subnet manager has begun to configure it and has not finished"
            first = "look into the subnet manager's log for this port"
        yield Finding(
            NOT_ACTIVE,
            WARNING,
            item.name,
            f"port {item.name} has a link but stays in {state}: {why}",
            PEERS,
            f"no traffic through this port; {COLLECTIVES}",
            (
                first,
                "look for the port's partition and for duplicate GUIDs in that log",
                "restart the subnet manager (opensm, UFM), or the port: ibportstate reset",
            ),
            show(item),
            observed={"state": state, "phys_state": phys, "sm_lid": known(item.port.sm_lid)},
            expected={"state": "ACTIVE"},
            witness="the state of the port",
        )


RULES = (
    Rule(
        DOWN,
        (CRITICAL, WARNING, INFO),
        "an RDMA port is down",
        "the port's state, whether it was up before, and the same port of equal boards in this node; of a bond, which "
        "of its members have a link",
        "it is up, and so are all members of its bond; a port that nobody is known to have used, or that is disabled, "
        "is information only. A state that is missing or no known one is unassessed. Software devices, virtual "
        "functions and NVSwitch management functions are not judged",
        _CABLE,
        (
            "linux: Documentation/ABI/stable/sysfs-class-infiniband (state, phys_state)",
            "NVIDIA/NVSentinel#1361, leptonai/gpud#1164 (ports that are down on purpose)",
        ),
        judge_down,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
        late=True,
    ),
    Rule(
        NOT_ACTIVE,
        (WARNING,),
        "an RDMA port has a link but no subnet manager has made it active",
        "the logical state of ports whose physical state is LinkUp",
        "the state is ACTIVE or DOWN; one that is missing or no known one is unassessed",
        ("see whether a subnet manager runs in this subnet: sminfo",),
        ("InfiniBand Architecture Specification volume 1, 7.2 (port states)",),
        judge_not_active,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
        late=True,
    ),
)
