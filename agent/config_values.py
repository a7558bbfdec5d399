"""What a key of the configuration may hold: how each kind of value is read, checked and written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gpu_topo.agent.errors import meant
from gpu_topo.model.record import NamedTuple

ROLES = ("fabric", "storage", "management", "unused")
EXPECTED = ("gpus", "accelerators", "nics", "nvswitches", "storage")


class Accepted(NamedTuple):
    """A finding that is accepted as designed."""

    code: str
    subject: str
    reason: str
    by: str = ""
    until: str | None = None  # YYYY-MM-DD, the last day on which it holds


class Listen(NamedTuple):
    """Where the daemon listens: host and port, or the path of a unix socket."""

    host: str = ""  # "" means every interface
    port: int = 0
    path: str = ""  # of a unix socket; "" where it is TCP

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BadEntry(ValueError):
    """What is wrong with one entry of a table, or of a row in a list of tables: its key, and which row."""

    def __init__(self, message: str, entry: str, row: int = 0) -> None:
        super().__init__(message)
        self.entry = entry
        self.row = row


def nearest(name: str, names: Collection[str]) -> str:
    """The hint that a message about a wrong name ends with: the name that was meant, or all there are."""
    hint = meant(name, names)
    return f"; {hint}" if hint else f" (it knows {', '.join(names)})"


class Kind(NamedTuple):
    """A kind of value: read takes what TOML gives and raises ValueError; text turns a flag's text into that."""

    takes: str  # for the reference and for messages
    read: Callable[[Any], Any]
    text: Callable[[str], Any]
    toml: Callable[[Any], str]


def value_of(table: Mapping[str, Any], key: str, kind: Kind, default: Any) -> Any:
    """What a key of a table means, the default where it is not set; ValueError names the key."""
    if table.get(key) is None:
        return default
    try:
        return kind.read(table[key])
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(raw: object) -> float:
    """Seconds of "15s", "1h30m", "500ms" or a number of seconds; ValueError where it is none."""
    seconds = math.inf
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        seconds = _float(raw)
    elif isinstance(raw, str) and _DURATION.match(raw):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(raw))
    if math.isfinite(seconds):
        return seconds
    raise ValueError("takes a duration such as 15s, 500ms or 1h30m")


def _float(raw: float) -> float:
    """A number as a float; infinite where it is a whole number that no float holds."""
    try:
        return float(raw)
    except OverflowError:
        return math.inf


def _digits(value: float) -> str:
    return f"{value:.15g}"


def _show_duration(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= size and seconds % size == 0:
            return f'"{_digits(seconds / size)}{unit}"'
    return f'"{_digits(seconds * 1000)}ms"'


def _number(raw: object) -> float:
    # inf is a number, too: a threshold that is never reached.
    if isinstance(raw, float) or (isinstance(raw, int) and not isinstance(raw, bool) and math.isfinite(_float(raw))):
        return float(raw)
    raise ValueError("takes a number")


def _whole(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    raise ValueError("takes a whole number")


def _switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    raise ValueError("takes true or false")


def _string(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("takes a text")
    if "\0" in raw:  # no name of a file, a host or a device has one, and the system's calls refuse it
        raise ValueError("holds a null character")
    return raw


def _strings(raw: object) -> tuple[str, ...]:
    if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        return tuple(map(_string, raw))
    raise ValueError("takes a list of texts")


def _read_number_text(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _split(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:  # a shell variable that is not set, most likely
        raise ValueError("was given nothing: name something, or leave the flag out")
    return parts


def _pairs(text: str) -> dict[str, object]:
    pairs: list[tuple[str, object]] = []
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"takes name=value pairs, and {part!r} is none")
        pairs.append((name.strip(), _read_number_text(value.strip())))
    return merged(pairs)


def merged(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """The pairs as a table; ValueError where two contradict each other, as TOML refuses a key that is set twice."""
    table: dict[str, object] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise ValueError(f"gives {name} twice: {table[name]} and {value}")
    return table


def quoted(text: str) -> str:
    """A text as TOML writes it."""
    import json

    return json.dumps(text, ensure_ascii=False)


def _toml_list(items: Sequence[object]) -> str:
    return f"[{', '.join(quoted(str(item)) for item in items)}]"


def _toml_table(table: Mapping[str, object]) -> str:
    inside = ", ".join(f"{quoted(k)} = {quoted(v) if isinstance(v, str) else v}" for k, v in table.items())
    return f"{{ {inside} }}" if inside else "{}"


def _expect(raw: object) -> dict[str, int]:
    if not isinstance(raw, Mapping):
        raise ValueError("takes counts such as gpus=8,nics=8")
    for name, count in raw.items():
        if name not in EXPECTED:
            raise BadEntry(f"knows no {name!r}{nearest(name, EXPECTED)}", name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise BadEntry(f"takes a whole number for {name}", name)
    return dict(raw)


def _roles(raw: object) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise ValueError("takes port=role pairs such as mlx5_4/1=storage")
    for name, role in raw.items():
        if role not in ROLES:
            raise BadEntry(f"knows no role {role!r} (for {name}){nearest(str(role), ROLES)}", name)
    return dict(raw)


_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^:\[\]/]*)):(\d{1,5})\Z")


def listen(text: str) -> Listen:
    """An address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or unix:/PATH; ValueError where it is none."""
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        if path.startswith("/"):
            return Listen(path=path)
        raise ValueError(f"takes an absolute path after unix:, and {path!r} is none")
    match = _LISTEN.match(text)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"takes addresses such as 127.0.0.1:10119, :10119 or unix:/run/x.sock, and {text!r} is none")
    return Listen(match[1] or match[2] or "", int(match[3]))


def _listens(raw: object) -> tuple[Listen, ...]:
    texts = _strings([raw] if isinstance(raw, str) else raw)
    if not texts:
        raise ValueError("takes at least one address")
    return tuple(listen(text) for text in texts)


_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")


def _accepts(raw: object) -> tuple[Accepted, ...]:
    if not isinstance(raw, list) or not all(isinstance(row, Mapping) for row in raw):
        raise ValueError("takes tables, each headed [[accept]]")
    found: list[Accepted] = []
    for row in raw:
        try:
            found.append(accepted(row))
        except BadEntry as error:
            error.row = len(found)
            raise
    return tuple(found)


def accepted(row: Mapping[str, object]) -> Accepted:
    """One accepted finding; ValueError where a field is missing, unknown or malformed."""
    for name in row:
        if name not in Accepted._fields:
            raise BadEntry(f"knows no {name!r}{nearest(name, Accepted._fields)}", name)
    for name in ("code", "subject", "reason"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise BadEntry(f"needs {name} (code, subject and reason say what is accepted, and why)", name)
    until = None if row.get("until") is None else str(row["until"])[:10]  # TOML has dates of its own
    if until is not None and not _is_date(until):
        raise BadEntry(f"takes until as a date such as 2030-12-31, and {str(row['until'])!r} is none", "until")
    return Accepted(str(row["code"]), str(row["subject"]), str(row["reason"]), str(row.get("by") or ""), until)


def _is_date(text: str) -> bool:
    from datetime import date

    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return bool(_DATE.match(text))


def _accept_text(text: str) -> object:
    row: dict[str, object] = {}
    name = ""
    for part in text.split(","):  # a reason may hold commas of its own
        before, equals, after = part.partition("=")
        if equals and before.strip() in Accepted._fields:
            name = before.strip()
            if name in row:
                raise ValueError(f"gives {name} twice: {row[name]} and {after}")
            row[name] = after
        elif name:
            row[name] = f"{row[name]},{part}"
        else:
            raise ValueError("takes code=CODE,subject=SUBJECT,reason=WHY[,by=WHO][,until=DATE]")
    return [row]


def _toml_accepts(rows: Sequence[Accepted]) -> str:
    tables = (_toml_table({k: v for k, v in row._asdict().items() if v}) for row in rows)
    return f"[{', '.join(tables)}]"


def _toml_bool(value: bool) -> str:
    return "true" if value else "false"


DURATION = Kind("duration", duration, _read_number_text, _show_duration)
NUMBER = Kind("number", _number, _read_number_text, _digits)
WHOLE = Kind("whole number", _whole, _read_number_text, str)
SWITCH = Kind("true or false", _switch, str, _toml_bool)
TEXT = Kind("text", _string, str, quoted)
TEXTS = Kind("list", _strings, _split, _toml_list)
LISTENS = Kind("list of addresses", _listens, _split, _toml_list)
EXPECT = Kind("counts", _expect, _pairs, _toml_table)
ROLE_TABLE = Kind("port = role", _roles, _pairs, _toml_table)
ACCEPTS = Kind("tables [[accept]]", _accepts, _accept_text, _toml_accepts)
