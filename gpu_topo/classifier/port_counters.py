"""Error counters and flaps of ports: judged by how fast they grow, never by their totals."""

from __future__ import annotations

from gpu_topo.classifier.links import many
from gpu_topo.classifier.ports import COLLECTIVES, Judged, judged
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CAUSE_NOT_RECORDED,
    CAUSE_UNREADABLE,
    COUNTERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ERRORS = "port-errors"
FLAPPING = "port-flapping"

# Errors of the link itself; congestion and retransmission counters grow on healthy networks.
# Ceilings: InfiniBand Architecture Specification volume 1, 16.1.3.5 (PortCounters). Drivers with extended counters go
# beyond them, so only a value exactly at the ceiling is suspected to be stuck.
CEILINGS = {
    "symbol_error": 0xFFFF,
    "link_error_recovery": 0xFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "local_link_integrity_errors": 0xF,
    "rx_icrc_encapsulated": 0,
}
LINK_DOWNED = "link_downed"
_LINK_DOWNED_CEILING = 0xFF
# The same words for every port, so that a report can put them together.
_NO_RATE = " were counted since the counters were last reset: a total is no rate, a second look would tell"


def judge_errors(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-errors."""
    for item in judged(node, policy):
        counters = {name: known(item.port.counters.get(name)) for name in CEILINGS}
        if not past.watching:
            if any(counters.values()):
                yield Unassessed(ERRORS, item.name, "errors" + _NO_RATE, CAUSE_NOT_RECORDED)
            continue
        yield from _watched(past, policy, item, counters)


def _watched(past: Past, policy: Policy, item: Judged, counters: dict[str, int | None]) -> Iterator[Conclusion]:
    growing = {}
    for name, value in counters.items():
        grown = past.counters.get((item.name, name), 0)
        if grown > policy.port_errors_per_hour:
            growing[name] = grown
        elif CEILINGS[name] and value == CEILINGS[name] and not grown:
            reason = f"{name} stands at its ceiling of {value} and counts no further until it is cleared (perfquery -R)"
            yield Unassessed(ERRORS, item.name, reason, CAUSE_UNREADABLE)
    if not growing:
        return
    words = ", ".join(f"{name} +{grown}" for name, grown in growing.items())
    yield Finding(
        ERRORS,
        WARNING,
        item.name,
        f"port {item.name} counts errors, in the last hour: {words}",
        COUNTERS,
        f"packets are lost and sent again, and a link with many errors goes down; {COLLECTIVES}",
        (
            "look at both ends of the link: mlxlink -d DEVICE -e -c shows lanes and bit error rates",
            "clean and reseat cable or transceiver",
            "swap the cable, then the port, to tell which of them it is",
        ),
        f"grep . /sys/class/infiniband/{item.port.device}/ports/{item.port.port}/counters/*err*",
        observed=growing,
        expected={"per_hour": policy.port_errors_per_hour},
    )


def judge_flapping(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """port-flapping."""
    for item in judged(node, policy):
        downed = known(item.port.counters.get(LINK_DOWNED))
        seen = past.flaps.get(item.name)
        if not past.watching:
            if downed:
                yield Unassessed(FLAPPING, item.name, "losses of the link" + _NO_RATE, CAUSE_NOT_RECORDED)
            continue
        flaps = max(seen or 0, past.counters.get((item.name, LINK_DOWNED), 0))
        if flaps > policy.flaps_per_hour:
            yield Finding(
                FLAPPING,
                WARNING,
                item.name,
                f"port {item.name} went down {many(flaps, 'time')} in the last hour",
                COUNTERS,
                "every time, collectives stall until the link is back or the job fails on a timeout",
                (
                    "look at both ends for what brings the link down: dmesg, the switch's log",
                    "clean and reseat cable or transceiver, then swap it with that of a working port",
                    "update the firmware of transceiver and adapter",
                ),
                f"cat /sys/class/infiniband/{item.port.device}/ports/{item.port.port}/counters/link_downed",
                observed={"flaps": flaps},
                expected={"per_hour": policy.flaps_per_hour},
            )
        elif downed == _LINK_DOWNED_CEILING and seen is None:
            reason = f"{LINK_DOWNED} stands at its ceiling of {downed} and counts no further until it is cleared"
            yield Unassessed(FLAPPING, item.name, reason, CAUSE_UNREADABLE)


RULES = (
    Rule(
        ERRORS,
        (WARNING,),
        "an RDMA port counts link errors",
        "growth of the symbol, receive, integrity and recovery error counters over time",
        "they grow more slowly than the threshold, or there was one look only: totals since a reset are no rate",
        ("clean and reseat cable or transceiver",),
        (
            "linux: Documentation/ABI/stable/sysfs-class-infiniband (counters)",
            "InfiniBand Architecture Specification volume 1, 16.1.3.5",
            "leptonai/gpud#943 (counters at their ceiling)",
        ),
        judge_errors,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
    ),
    Rule(
        FLAPPING,
        (WARNING,),
        "an RDMA port goes down and comes back",
        "changes of state that the daemon saw, and growth of link_downed",
        "it happens more rarely than the threshold, or there was one look only",
        ("clean and reseat cable or transceiver, then swap it with that of a working port",),
        ("prometheus/node_exporter#3522, ROCm/rccl#1423",),
        judge_flapping,
        reads=("pcie", "rdma"),
        misled_without=("pcie",),
    ),
)
