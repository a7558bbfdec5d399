"""What the daemon keeps over a restart: one JSON file, for one boot of the machine, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from gpu_topo.agent.history import History, Trail
from gpu_topo.agent.life import Life
from gpu_topo.agent.output import write_atomically
from gpu_topo.model.node import LinkSample
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

FORMAT = 1
_MOST_BYTES = 16 << 20
Log = Callable[[str], None]


class State(NamedTuple):
    """History and lives together."""

    history: History = History()
    lives: Mapping[tuple[str, str], Life] = EMPTY
    clock_offset: int | None = None  # wall clock less boot clock: tells at a start that the clock was set meanwhile


class StateFile:
    """The state file of one boot. path "": nothing is kept. Trouble is told once, until it is over."""

    def __init__(self, directory: str, boot_id: str, warn: Log) -> None:
        self.path = os.path.join(directory, "state.json") if directory else ""
        self._boot_id = boot_id
        self._warn = warn
        self._written = b""
        self.good: bool | None = None if not directory else True  # whether the last write succeeded

    def load(self, now: float) -> State:
        """What was kept in this boot, at a time of CLOCK_BOOTTIME; a damaged file is set aside and told once."""
        if not self.path:
            return State()
        _sweep(self.path)
        try:
            with open(self.path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return State()
        except OSError as error:
            self._warn(f"{self.path} cannot be read ({error.strerror}): starting without a past")
            return State()
        try:
            if len(data) > _MOST_BYTES:
                raise ValueError("too large")
            table = json.loads(data, parse_constant=_refuse)
            if table["format"] != FORMAT or not isinstance(table["boot_id"], str):
                raise ValueError("another format")
            if table["boot_id"] != self._boot_id:
                return State()  # counters and addresses of another boot mean nothing in this one
            return decode(table, now)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            self._set_aside(error)
            return State()

    def save(self, state: State) -> None:
        """Write it, unless nothing changed."""
        if not self.path:
            return
        data = encode(state, self._boot_id)
        if data == self._written and self.good:
            return
        try:
            write_atomically(self.path, data)
        except OSError as error:
            if self.good:
                self._warn(f"{self.path} cannot be written ({error.strerror}): findings go on, a restart will forget")
            self.good = False
            return
        if not self.good:
            self._warn(f"{self.path} can be written again")
        self.good = True
        self._written = data

    def _set_aside(self, error: Exception) -> None:
        aside = f"{self.path}.damaged"
        try:
            os.replace(self.path, aside)
            where = f"set aside as {aside}"
        except OSError as trouble:
            where = f"and cannot be set aside ({trouble.strerror})"
        self._warn(f"{self.path} is damaged ({type(error).__name__}), {where}: starting without a past")


def _sweep(path: str) -> None:
    """Remove what a process that was killed while it wrote left behind."""
    folder, name = os.path.split(path)
    try:
        for entry in os.listdir(folder):
            if entry.startswith(f".{name}.") and entry.endswith(".new"):
                os.unlink(os.path.join(folder, entry))
    except OSError:
        pass


def encode(state: State, boot_id: str) -> bytes:
    """The state as JSON; `decode` gives it back."""
    history = state.history
    table = {
        "format": FORMAT,
        "boot_id": boot_id,
        "clock_offset": state.clock_offset,
        "counters": [[*key, trail.raw, trail.total, trail.points] for key, trail in sorted(history.counters.items())],
        "best_rate_gbps": dict(history.best_rate_gbps),
        "was_up": sorted(history.was_up),
        "up": sorted(history.up),
        "downs": dict(history.downs),
        "downs_total": dict(history.downs_total),
        "seen_devices": dict(history.seen_devices),
        "samples": dict(sorted(history.samples.items())),
        "gone": dict(sorted(history.gone.items())),
        "lives": [
            [*key, life.since, life.held, life.gone, life.raised, life.severity] for key, life in state.lives.items()
        ],
    }
    return json.dumps(table, separators=(",", ":")).encode()


def decode(table: Mapping[str, Any], now: float) -> State:
    """The state of a table. Raises ValueError, KeyError or TypeError where it is none."""
    counters = {}
    for subject, name, raw, total, points in table["counters"]:
        trail = Trail(int(raw), int(total), tuple((_past(when, now), int(value)) for when, value in points))
        if not trail.points:
            raise ValueError("a counter without a point")
        counters[str(subject), str(name)] = trail
    history = History(
        counters,
        {str(name): float(rate) for name, rate in table["best_rate_gbps"].items()},
        frozenset(map(str, table["was_up"])),
        frozenset(map(str, table["up"])),
        {str(name): tuple(_past(when, now) for when in times) for name, times in table["downs"].items()},
        {str(name): int(count) for name, count in table["downs_total"].items()},
        {str(address): str(kind) for address, kind in table["seen_devices"].items()},
        {str(address): tuple(_sample(row) for row in rows) for address, rows in table["samples"].items()},
        {str(subject): _past(since, now) for subject, since in table.get("gone", {}).items()},
    )
    lives = {}
    for code, subject, since, held, gone, raised, severity in table["lives"]:
        shown = None if raised is None else str(raised)
        lives[str(code), str(subject)] = Life(float(since), int(held), int(gone), shown, str(severity))
    offset = table.get("clock_offset")  # not in the files of earlier versions
    return State(history, lives, None if offset is None else int(offset))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")  # NaN and Infinity, which Python's JSON lets through


def _past(when: object, now: float) -> float:
    if not isinstance(when, (int, float)) or not 0 <= when <= now:
        raise ValueError("a time that is not past")
    return float(when)


def _sample(row: list[Any]) -> LinkSample:
    speed, width, pstate, utilization = row[:4]
    for value in (speed, width, pstate, utilization):
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise ValueError("a sample that is none")
    return LinkSample(speed, width, pstate, utilization)
