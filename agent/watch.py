"""One scan of the daemon, from descriptors to what is shown: pure but for what it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_topo.agent import inspect
from gpu_topo.agent.history import History, last_heard, observe, past_of, port_flaps
from gpu_topo.agent.life import Change, Key, Life, settle, shifted
from gpu_topo.agent.scan import scan
from gpu_topo.assemble import assemble
from gpu_topo.collectors import COLLECTORS, Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, FAILED, OK, PARTIAL, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.finding import Report
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Source
from gpu_topo.source.kept import Journal, Kept

if TYPE_CHECKING:
    from gpu_topo.agent.scan import Asks

_CLOCK_STEP = 5.0  # a wall clock that moves more against the boot clock was set


def boot_clock() -> float:
    """Seconds since boot, suspended ones too: no setting of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Told(NamedTuple):
    """What a collector told, and what it read for that."""

    facts: Facts
    journal: Journal
    exclude: frozenset[str]


class Guarded:
    """A collector that is not asked again while its last answer is still outstanding, nor while nothing changed.

    A read that hangs in the kernel holds its thread for ever: asking again at every scan would pile threads up. And
    what reads the same means the same: most scans of a healthy node parse nothing.
    """

    def __init__(self, collector: Collector) -> None:
        self.name = collector.name
        self._collector = collector
        self._since: float | None = None  # of the question that is not answered yet
        self._told: _Told | None = None

    def collect(self, source: Source, context: Context) -> Facts:
        """Ask the source, or say what it said last. Never raises on what a machine holds."""
        begun = time.monotonic()
        if self._since is not None:
            waited = begun - self._since
            return Facts(SourceStatus(self.name, TIMEOUT, f"no answer for {waited:.0f} s: a read hangs in the kernel"))
        self._since = begun
        try:
            if not isinstance(source, Kept):
                return self._collector.collect(source, context)
            with source.reading():
                return self._through(source, context, begun)
        finally:
            self._since = None

    def _through(self, source: Kept, context: Context, begun: float) -> Facts:
        if not self._collector.repeatable:
            return self._collector.collect(source, context)
        told = self._told
        if told is not None and told.exclude == context.exclude and source.unchanged(told.journal):
            return told.facts._replace(source=told.facts.source._replace(seconds=time.monotonic() - begun))
        self._told = None
        with source.journal() as journal:
            facts = self._collector.collect(source, context)
        if facts.source.status in (OK, PARTIAL, ABSENT):
            self._told = _Told(facts, journal, context.exclude)
        return facts


def guarded(collectors: Sequence[Collector] = COLLECTORS) -> tuple[Guarded, ...]:
    """Each collector with its guard."""
    return tuple(map(Guarded, collectors))


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
    told: frozenset[str] = frozenset()  # sources that have told something of this machine
    facts: tuple[Facts, ...] = ()  # of the last scan
    node: Node | None = None  # what was made of them
    judged: Report | None = None  # what was concluded of that node,
    grounds: tuple[Past, Policy, bool] | None = None  # and on what grounds


class Seen(NamedTuple):
    """What one scan brought."""

    report: Report  # with the findings that are shown
    memory: Memory
    changes: tuple[Change, ...]
    seconds: float
    ended: float  # seconds since the epoch
    source_age: Mapping[str, float]
    port_flaps: Mapping[tuple[str, int], int]
    last_heard: Mapping[tuple[str, str, int], int]


def look(
    source: Source,
    settings: Settings,
    memory: Memory,
    collectors: Sequence[Asks] = COLLECTORS,
    clock: Callable[[], float] = boot_clock,
    wall: Callable[[], float] = time.time,
) -> Seen:
    """Scan once."""
    begun = time.monotonic()
    facts = tuple(scan(source, settings.timeout, settings.policy.exclude, collectors))
    facts = tuple(_on_the_same_machine(one, memory.facts) for one in facts)
    told = memory.told | {one.source.name for one in facts if inspect.tells(one)}
    known_of = set(told)
    if memory.history.seen_devices or settings.baseline.get("devices") or inspect.read_nothing(facts):
        known_of.add(inspect.NEEDED)  # by an earlier run, or since there is no machine without anything
    facts = tuple(inspect.down_where_known(one, known_of) for one in facts)
    node = _node(facts, memory, source.live)
    now, today = clock(), wall()
    offset = today - now
    lives = memory.lives
    if memory.clock_offset is not None and abs(offset - memory.clock_offset) > _CLOCK_STEP:
        lives = shifted(lives, offset - memory.clock_offset)
    history = observe(memory.history, node, now)
    uptime = known(node.platform.uptime_seconds)
    past = past_of(history, memory.history.samples, now, uptime, settings.baseline)
    in_grace = uptime is not None and uptime < settings.boot_grace
    grounds = (past._replace(uptime_seconds=None), settings.policy, in_grace)
    if memory.judged is not None and node.devices is memory.judged.node.devices and grounds == memory.grounds:
        # The same node on the same grounds: the rules are pure functions.
        judged = memory.judged._replace(node=node, generated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    else:
        judged = inspect.report_on(node, settings.policy, past)
    settled = settle(
        lives,
        judged.findings,
        judged.unassessed,
        today,
        settings.raise_after,
        settings.clear_after,
        in_grace,
    )
    said = inspect.verdict_on(node, settled.findings, judged.unassessed, settings.policy)
    report = judged._replace(findings=settled.findings, verdict=said)
    last_good = dict(memory.last_good)
    for status in node.sources:
        if status.status not in (TIMEOUT, FAILED):
            last_good[status.name] = now
        else:
            last_good.setdefault(status.name, now)
    return Seen(
        report,
        Memory(history, settled.lives, offset, last_good, told, facts, node, judged, grounds),
        settled.changes,
        time.monotonic() - begun,
        wall(),
        {s.name: now - last_good[s.name] for s in node.sources if s.status != ABSENT},
        port_flaps(history, node),
        last_heard(history, node),
    )


def _on_the_same_machine(facts: Facts, before: Sequence[Facts]) -> Facts:
    """A platform that does not answer is still the one it was: a guest does not turn into hardware under a hang."""
    if facts.platform is not None or facts.source.status not in (TIMEOUT, FAILED):
        return facts
    known_as = next((one.platform for one in before if one.source.name == facts.source.name and one.platform), None)
    return facts if known_as is None else facts._replace(platform=known_as._replace(uptime_seconds=None))


def _node(facts: tuple[Facts, ...], memory: Memory, live: bool) -> Node:
    """The node that facts make; the last one again where they say the same but for the time."""
    old = memory.node
    if old is None or [_timeless(one) for one in facts] != [_timeless(one) for one in memory.facts]:
        return assemble(facts, _names, live)
    uptime = next((one.platform.uptime_seconds for one in facts if one.platform is not None), None)
    return old._replace(
        sources=tuple(one.source for one in facts), platform=old.platform._replace(uptime_seconds=uptime)
    )


def _timeless(facts: Facts) -> Facts:
    platform = facts.platform
    return facts._replace(
        source=facts.source._replace(seconds=0.0),
        platform=None if platform is None else platform._replace(uptime_seconds=None),
    )


_known_names: dict[tuple[int, int], str | None] = {}


def _names(ids: Iterable[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
    """Part names, looked up once in the life of the daemon."""
    wanted = list(ids)
    missing = [one for one in wanted if one not in _known_names]
    if missing:
        found = inspect.names(missing)
        _known_names.update({one: found.get(one) for one in missing})
    return {one: name for one in wanted if (name := _known_names[one]) is not None}
