"""What the daemon remembers from scan to scan: growth of counters, best rates, flaps, load samples. All immutable.

`observe` takes a history and a node and gives the next history; `past_of` makes of it what the rules are given. Times
are seconds of CLOCK_BOOTTIME, which no clock setting moves and which goes on over a restart of the daemon. Everything
is bounded: a counter keeps one point a minute for an hour, a GPU forty samples. Of what has been gone for an hour only
its name is kept, and only so many names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from gpu_topo.classifier.pcie_errors import HARMLESS
from gpu_topo.classifier.port_counters import CEILINGS, LINK_DOWNED
from gpu_topo.model.history import Past
from gpu_topo.model.node import Gpu, LinkSample, Node
from gpu_topo.model.reading import EMPTY, Reading, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.baseline import counted
from gpu_topo.topology.ports import line_rate, port_name

WINDOW = 3600.0  # growth is judged by the hour
_STEP = 60.0  # points closer together are one
_SAMPLES = 40  # ten minutes of looks at a GPU's link
_MOST = 4096  # devices, and ports, that are remembered though they may be gone
_CARRIER = "carrier_changes"
_NVLINK = "nvlink_"

# (subject, counter). What the rules judge as a sum is kept part by part, counter/part: a part that is not told for once
# would look like a sum that fell, and so like a reset, and what it had counted before like growth when it is back.
Key = tuple[str, str]


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
    gone: Mapping[str, float] = EMPTY  # what is remembered and was not there at the last look -> since when


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


def growth(trail: Trail, now: float) -> int:
    """What the counter grew by within the last hour."""
    base = trail.points[0][1]
    for when, total in trail.points:
        if when <= now - WINDOW:
            base = total
    return trail.total - base


def observe(history: History, node: Node, now: float) -> History:
    """The history with one more scan. What could not be read leaves what is known of it as it was, and so does what is
    gone for a moment."""
    here = {*node.devices, *(gpu.address for gpu in node.gpus), *map(port_name, node.ports)}
    history = _without_the_gone(history, here, now)
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
        if on_bus and len(seen) < _MOST:
            seen[device.address] = device.name or device.kind
    samples = dict(history.samples)
    for gpu in node.gpus:
        if gpu.samples:
            samples[gpu.address] = (*history.samples.get(gpu.address, ()), *gpu.samples)[-_SAMPLES:]
    was_up = history.was_up | up
    if len(was_up) > _MOST:
        was_up, up = was_up & here, up & here
        best = {name: rate for name, rate in best.items() if name in here}
    return History(counters, best, was_up, frozenset(up), downs, totals, seen, samples, history.gone)


def _without_the_gone(history: History, here: Set[str], now: float) -> History:
    """The history with what is not there marked so, and without what has not been there for as long as anything
    counts."""
    kept = {*(subject for subject, _ in history.counters), *history.downs_total, *history.samples}
    gone = {subject: history.gone.get(subject, now) for subject in kept.difference(here)}
    over = {subject for subject, since in gone.items() if since <= now - WINDOW}
    if not over:
        return history._replace(gone=gone)
    return history._replace(
        counters={key: trail for key, trail in history.counters.items() if key[0] not in over},
        downs_total={name: number for name, number in history.downs_total.items() if name not in over},
        samples={address: looks for address, looks in history.samples.items() if address not in over},
        gone={subject: since for subject, since in gone.items() if subject not in over},
    )


def past_of(
    history: History,
    samples: Mapping[str, tuple[LinkSample, ...]],
    now: float,
    uptime: float | None = None,
    baseline: Mapping[str, Any] = EMPTY,
) -> Past:
    """What the rules are told. samples: those of the history before the scan that is judged, which has its own."""
    return Past(
        counters=_grown(history, now),
        best_rate_gbps=history.best_rate_gbps,
        was_up=history.was_up,
        seen_devices=history.seen_devices,
        flaps=_flaps(history, now),
        samples=samples,
        uptime_seconds=uptime,
        baseline=baseline,
        watching=True,
    )


def _grown(history: History, now: float) -> dict[Key, int]:
    """The growth of each counter, all its parts together."""
    grown: dict[Key, int] = {}
    for (subject, counter), trail in history.counters.items():
        if counter != _CARRIER:
            key = (subject, counter.partition("/")[0])
            grown[key] = grown.get(key, 0) + growth(trail, now)
    return grown


def last_heard(history: History, node: Node) -> dict[tuple[str, str, int], int]:
    """(GPU, kind of NVLink error, link) -> what the link counted when it last told, of links that do not tell now."""
    told = {key for gpu in node.gpus for key, _ in _of_links(gpu)}
    found = {}
    for (subject, counter), trail in history.counters.items():
        kind, of_link, number = counter.partition("/")
        if of_link and (subject, counter) not in told:
            found[subject, kind.removeprefix(_NVLINK), int(number)] = trail.raw
    return found


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


def _flaps(history: History, now: float) -> dict[str, int]:
    """Down and up again between two scans is only seen by the kernel's count of carrier changes, two for each time."""
    result = {name: len(_recent(times, now)) for name, times in history.downs.items()}
    for (name, counter), trail in history.counters.items():
        if counter == _CARRIER:
            times = (growth(trail, now) + 1) // 2
            if times > result.get(name, 0):
                result[name] = times
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
        yield from _of_links(gpu)
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


def _of_links(gpu: Gpu) -> Iterator[tuple[Key, int]]:
    for link in known(gpu.nvlinks) or ():
        for kind, count in link.errors.items():
            yield (gpu.address, f"{_NVLINK}{kind}/{link.number}"), count


def _total(reading: Reading[Mapping[str, int]]) -> int | None:
    counts = known(reading)
    if counts is None:
        return None
    return sum(n for name, n in counts.items() if not name.startswith("TOTAL_") and name not in HARMLESS)
