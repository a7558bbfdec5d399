"""One scan of the daemon, from descriptors to what is shown: pure but for what it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_topo.agent import inspect
from gpu_topo.agent.history import History, observe, past_of, port_flaps
from gpu_topo.agent.life import Change, Key, Life, settle, shifted
from gpu_topo.agent.scan import scan
from gpu_topo.assemble import assemble
from gpu_topo.classifier import verdict
from gpu_topo.collectors import COLLECTORS, Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import FAILED, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Policy
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.source import Source

_CLOCK_STEP = 5.0  # a wall clock that moves more against the boot clock was set


def boot_clock() -> float:
    """Seconds since boot, suspended ones too: no setting of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guarded(Collector):
    """A collector that is not asked again while its last answer is still outstanding.

    A read that hangs in the kernel holds its thread for ever: asking again at every scan would pile threads up.
    """

    def collect(self, source: Source, context: Context) -> Facts:
        since: float | None = self.__dict__.get("since")
        if since is not None:
            waited = time.monotonic() - since
            return Facts(SourceStatus(self.name, TIMEOUT, f"no answer for {waited:.0f} s: a read hangs in the kernel"))
        self.__dict__["since"] = time.monotonic()
        try:
            return super().collect(source, context)
        finally:
            self.__dict__["since"] = None


def guarded(collectors: Sequence[Collector] = COLLECTORS) -> tuple[Guarded, ...]:
    """Each collector with its guard."""
    return tuple(Guarded(*collector) for collector in collectors)


class Settings(NamedTuple):
    """What one scan is to go by."""

    policy: Policy = Policy()
    timeout: float = 10.0
    raise_after: int = 2
    clear_after: int = 2
    boot_grace: float = 900.0
    baseline: Mapping[str, Any] = EMPTY


class Memory(NamedTuple):
    """What one scan hands to the next."""

    history: History = History()
    lives: Mapping[Key, Life] = EMPTY
    clock_offset: float | None = None  # wall clock less boot clock
    last_good: Mapping[str, float] = EMPTY  # source -> boot clock of its last answer


class Seen(NamedTuple):
    """What one scan brought."""

    report: Report  # with the findings that are shown
    memory: Memory
    changes: tuple[Change, ...]
    seconds: float
    ended: float  # seconds since the epoch
    source_age: Mapping[str, float]
    port_flaps: Mapping[tuple[str, int], int]


def look(
    source: Source,
    settings: Settings,
    memory: Memory,
    collectors: Sequence[Collector] = COLLECTORS,
    clock: Callable[[], float] = boot_clock,
    wall: Callable[[], float] = time.time,
) -> Seen:
    """Scan once."""
    begun = time.monotonic()
    facts = scan(source, settings.timeout, settings.policy.exclude, collectors)
    node = assemble(facts, inspect.names, source.live)
    now, today = clock(), wall()
    offset = today - now
    lives = memory.lives
    if memory.clock_offset is not None and abs(offset - memory.clock_offset) > _CLOCK_STEP:
        lives = shifted(lives, offset - memory.clock_offset)
    history = observe(memory.history, node, now)
    uptime = known(node.platform.uptime_seconds)
    past = past_of(history, memory.history.samples, now, uptime, settings.baseline)
    judged = inspect.report_on(node, settings.policy, past)
    settled = settle(
        lives,
        judged.findings,
        judged.unassessed,
        today,
        settings.raise_after,
        settings.clear_after,
        uptime is not None and uptime < settings.boot_grace,
    )
    report = judged._replace(findings=settled.findings, verdict=verdict(node, settled.findings, judged.unassessed))
    last_good = dict(memory.last_good)
    for status in node.sources:
        if status.status not in (TIMEOUT, FAILED):
            last_good[status.name] = now
        else:
            last_good.setdefault(status.name, now)
    return Seen(
        report,
        Memory(history, settled.lives, offset, last_good),
        settled.changes,
        time.monotonic() - begun,
        wall(),
        {name: now - when for name, when in last_good.items()},
        port_flaps(history, node),
    )
