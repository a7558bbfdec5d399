"""What the daemon remembers from scan to scan: growth of counters, best rates, flaps, load samples. All immutable.

`observe` takes a history and a node and gives the next history; `past_of` makes of it what the rules are given. Times
are seconds of CLOCK_BOOTTIME, which no clock setting moves and which goes on over a restart of the daemon. Everything
is bounded: one point a minute and counter, one hour, forty samples a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_topo.classifier.port_counters import CEILINGS, LINK_DOWNED
from gpu_topo.model.history import Growth, Past
from gpu_topo.model.node import LinkSample, Node
from gpu_topo.model.reading import EMPTY, Reading, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.baseline import counted
from gpu_topo.topology.ports import line_rate, port_name

WINDOW = 3600.0  # growth is judged by the hour; what a minute brings is not extrapolated
_STEP = 60.0  # points closer together are one
_SAMPLES = 40  # ten minutes of looks at a GPU's link
_MOST_DEVICES = 4096
# Counted by every probing of a bus, so they say nothing (as in the rule).
_HARMLESS = frozenset({"UnsupReq", "AdvNonFatalErr", "NonFatalErr"})
_CARRIER = "carrier_changes"

Key = tuple[str, str]  # (subject, counter)


class Trail(NamedTuple):
    """A counter's way: what it stood at, what it grew by since it was first seen, and when."""

    raw: int
    total: int
    points: tuple[tuple[float, int], ...]  # (time, total from then on), oldest first, never empty


class History(NamedTuple):
    """Everything remembered. Ports by name (mlx5_0/1), devices and GPUs by address."""

    counters: Mapping[Key, Trail] = EMPTY
    best_rate_gbps: Mapping[str, float] = EMPTY
    was_up: frozenset[str] = frozenset()
    up: frozenset[str] = frozenset()  # at the last look
    downs: Mapping[str, tuple[float, ...]] = EMPTY  # when a port was found down that had been up, within the window
    downs_total: Mapping[str, int] = EMPTY
    seen_devices: Mapping[str, str] = EMPTY  # address -> name, or kind where it has none
    samples: Mapping[str, tuple[LinkSample, ...]] = EMPTY


def advance(trail: Trail | None, raw: int, now: float) -> Trail:
    """The trail with one more look. A counter that fell was reset: it grew by what it shows."""
    if trail is None:
        return Trail(raw, 0, ((now, 0),))
    grown = raw - trail.raw if raw >= trail.raw else raw
    points = trail.points
    while len(points) > 1 and points[1][0] <= now - WINDOW:
        points = points[1:]
    if grown == 0:
        return Trail(raw, trail.total, points)
    total = trail.total + grown
    if len(points) > 1 and now - points[-1][0] < _STEP:
        return Trail(raw, total, (*points[:-1], (points[-1][0], total)))
    return Trail(raw, total, (*points, (now, total)))


def growth(trail: Trail, now: float) -> Growth:
    """What the counter grew by within the last hour."""
    base = trail.points[0][1]
    for when, total in trail.points:
        if when <= now - WINDOW:
            base = total
    return Growth(trail.total - base, WINDOW)


def observe(history: History, node: Node, now: float) -> History:
    """The history with one more scan. What could not be read leaves what is known of it as it was."""
    counters = dict(history.counters)
    for key, raw in _readings(node):
        counters[key] = advance(history.counters.get(key), raw, now)
    best = dict(history.best_rate_gbps)
    downs = {name: recent for name, times in history.downs.items() if (recent := _recent(times, now))}
    totals = dict(history.downs_total)
    up = set(history.up)
    for port in node.ports:
        name, state = port_name(port), known(port.state)
        if state is None:
            continue
        if state.upper().startswith("ACTIVE"):
            up.add(name)
            rate = line_rate(node, port)
            if rate is not None:
                best[name] = max(rate, best.get(name, 0.0))
        elif name in up:
            up.discard(name)
            downs[name] = (*downs.get(name, ()), now)[-_SAMPLES:]
            totals[name] = totals.get(name, 0) + 1
    seen = dict(history.seen_devices)
    for device in counted(node):
        # What only a driver names was never on the bus: it calls a GPU whose address it does not tell GPU3.
        on_bus = device.function.class_code is not None
        if on_bus and len(seen) < _MOST_DEVICES:
            seen[device.address] = device.name or device.kind
    samples = dict(history.samples)
    for gpu in node.gpus:
        if gpu.samples:
            samples[gpu.address] = (*history.samples.get(gpu.address, ()), *gpu.samples)[-_SAMPLES:]
    return History(counters, best, history.was_up | up, frozenset(up), downs, totals, seen, samples)


def past_of(
    history: History,
    samples: Mapping[str, tuple[LinkSample, ...]],
    now: float,
    uptime: float | None = None,
    baseline: Mapping[str, Any] = EMPTY,
) -> Past:
    """What the rules are told. samples: those of the history before the scan that is judged, which has its own."""
    return Past(
        counters={key: growth(trail, now) for key, trail in history.counters.items() if key[1] != _CARRIER},
        best_rate_gbps=history.best_rate_gbps,
        was_up=history.was_up,
        seen_devices=history.seen_devices,
        flaps=_flaps(history, now),
        samples=samples,
        uptime_seconds=uptime,
        baseline=baseline,
        watching=True,
    )


def forget_missing(history: History) -> History:
    """A new baseline was saved, so the machine is right as it is now: nothing that was there before is missed."""
    return history._replace(seen_devices=EMPTY, was_up=history.up, best_rate_gbps=EMPTY)


def port_flaps(history: History, node: Node) -> dict[tuple[str, int], int]:
    """How often each port went down since it was first seen: found down, by its own counter, by its interface's."""
    result = {}
    for port in node.ports:
        name = port_name(port)
        carrier = history.counters.get((name, _CARRIER))
        downed = history.counters.get((name, LINK_DOWNED))
        by_carrier = (carrier.total + 1) // 2 if carrier else 0
        result[port.device, port.port] = max(
            history.downs_total.get(name, 0), by_carrier, downed.total if downed else 0
        )
    return result


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(when for when in times if when > now - WINDOW)


def _flaps(history: History, now: float) -> dict[str, Growth]:
    """Down and up again between two scans is only seen by the kernel's count of carrier changes, two for each time."""
    result = {name: Growth(len(_recent(times, now)), WINDOW) for name, times in history.downs.items()}
    for (name, counter), trail in history.counters.items():
        if counter == _CARRIER:
            times = (growth(trail, now).delta + 1) // 2
            if times > (result[name].delta if name in result else 0):
                result[name] = Growth(times, WINDOW)
    return result


def _readings(node: Node) -> Iterator[tuple[Key, int]]:
    for device in node.devices.values():
        aer = device.function.aer
        if aer is not None and not aer.sticky:
            for name, reading in (
                ("aer_correctable", aer.correctable),
                ("aer_nonfatal", aer.nonfatal),
                ("aer_fatal", aer.fatal),
            ):
                total = _total(reading)
                if total is not None:
                    yield (device.address, name), total
    for gpu in node.gpus:
        replays = known(gpu.replays)
        if replays is not None:
            yield (gpu.address, "replays"), replays
        links = known(gpu.nvlinks)
        for kind in sorted({kind for link in links or () for kind in link.errors}):
            yield (gpu.address, f"nvlink_{kind}"), sum(link.errors.get(kind, 0) for link in links or ())
    carriers = {netdev.name: known(netdev.carrier_changes) for netdev in node.netdevs}
    for port in node.ports:
        name = port_name(port)
        for counter in (*CEILINGS, LINK_DOWNED):
            value = known(port.counters.get(counter))
            if value is not None:
                yield (name, counter), value
        carrier = carriers.get(known(port.netdev) or "")
        if carrier is not None:
            yield (name, _CARRIER), carrier


def _total(reading: Reading[Mapping[str, int]]) -> int | None:
    counts = known(reading)
    if counts is None:
        return None
    return sum(n for name, n in counts.items() if not name.startswith("TOTAL_") and name not in _HARMLESS)
