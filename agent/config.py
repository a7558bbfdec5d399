"""The configuration: one TOML file, every key also a flag, nothing half-configured.

KEYS is the whole of it: what a key is called, what it takes, what it means when it is not there. Reading, flags,
`gpu-topo config show` and the reference all come from that table. An unknown key or a bad value names its file, its
line and the nearest right key, all of them at once; the agent does not start on it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_topo.agent.config_values import (
    ACCEPTS,
    DURATION,
    EXPECT,
    EXPECTED,
    LISTENS,
    NUMBER,
    ROLE_TABLE,
    ROLES,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Accepted,
    BadEntry,
    Kind,
    Listen,
    merged,
    nearest,
)
from gpu_topo.agent.errors import UserError, meant
from gpu_topo.agent.options import CONFIG_FILE, add_config_file
from gpu_topo.agent.policy import rules_policy
from gpu_topo.agent.toml_lines import line_of
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

if TYPE_CHECKING:
    import argparse


class ConfigError(UserError):
    """What is wrong with the configuration, for a person: one line a problem, each with what to do."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self._problems = problems

    @property
    def lines(self) -> tuple[str, ...]:
        return self._problems


class Config(NamedTuple):
    """The configuration in force. Durations in seconds. A field is its key's name with _ for every . and -."""

    root: str = "/"
    scan_interval: float = 15.0
    scan_timeout: float = 10.0
    scan_events: bool = True
    scan_settle: float = 1.0
    scan_raise_after: int = 2
    scan_clear_after: int = 2
    scan_boot_grace: float = 900.0
    web_listen_address: tuple[Listen, ...] = (Listen("127.0.0.1", 10119),)
    web_config_file: str = ""
    state_directory: str = ""
    baseline_file: str = ""
    log_level: str = "info"
    metrics_nvlink_per_link: bool = False
    thresholds_correctable_errors_per_hour: float = 100.0
    thresholds_replays_per_hour: float = 100.0
    thresholds_port_errors_per_hour: float = 10.0
    thresholds_nvlink_errors_per_hour: float = 10.0
    thresholds_flaps_per_hour: float = 2.0
    expect: Mapping[str, int] = EMPTY
    roles: Mapping[str, str] = EMPTY
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    accept: tuple[Accepted, ...] = ()
    source: str | None = None  # the file that was read
    origins: Mapping[str, str] = EMPTY  # key -> "FILE:LINE" or its flag, for what is no default


class Key(NamedTuple):
    """One key: its name in the file, dotted, which is also its flag."""

    name: str
    kind: Kind
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def default(self) -> Any:
        return Config._field_defaults[self.field]


KEYS = (
    Key("root", TEXT, "the machine to look at: / or a copied file tree"),
    Key("scan.interval", DURATION, "time from one scan to the next", least=1, most=3600),
    Key("scan.timeout", DURATION, "a scan's deadline; what has not answered by then is reported so", least=1, most=600),
    Key("scan.events", SWITCH, "scan at once when the kernel says that a device came or went"),
    Key("scan.settle", DURATION, "wait this long for more events before such a scan", least=0, most=60),
    Key("scan.raise-after", WHOLE, "a finding is raised when it held for this many scans", least=1, most=100),
    Key("scan.clear-after", WHOLE, "a finding is cleared when it was gone for this many scans", least=1, most=100),
    Key("scan.boot-grace", DURATION, "how long after boot drivers, links, fabrics may come up", least=0, most=86400),
    Key("web.listen-address", LISTENS, "where to serve: HOST:PORT, :PORT for every interface, or unix:/PATH"),
    Key("web.config.file", TEXT, "TLS and basic auth, in the exporter-toolkit's YAML format"),
    Key("state.directory", TEXT, "where state is kept over restarts; default: systemd's $STATE_DIRECTORY, else none"),
    Key("baseline.file", TEXT, "the saved baseline; default: baseline.json in the state directory"),
    Key("log.level", TEXT, "the least important messages to log", choices=("debug", "info", "warning", "error")),
    Key("metrics.nvlink-per-link", SWITCH, "one series for each NVLink (144 on an eight-GPU node) instead of sums"),
    Key("thresholds.correctable-errors-per-hour", NUMBER, "PCIe correctable errors of one device", least=0),
    Key("thresholds.replays-per-hour", NUMBER, "PCIe replays of one GPU", least=0),
    Key("thresholds.port-errors-per-hour", NUMBER, "errors of one RDMA port", least=0),
    Key("thresholds.nvlink-errors-per-hour", NUMBER, "NVLink errors of one GPU", least=0),
    Key("thresholds.flaps-per-hour", NUMBER, "times that one RDMA port goes down", least=0),
    Key("expect", EXPECT, f"how many there must be: {', '.join(EXPECTED)}"),
    Key("roles", ROLE_TABLE, f"what a port is for, where it cannot be told: {', '.join(ROLES)}"),
    Key("exclude", TEXTS, "addresses and device names that are not read at all"),
    Key("only", TEXTS, "judge by these rules only"),
    Key("skip", TEXTS, "judge by all rules but these"),
    Key("accept", ACCEPTS, "findings that are as designed: code, subject, reason, and by, until if you like"),
)
_BY_NAME = {key.name: key for key in KEYS}


# --- reading ------------------------------------------------------------------------------------------------------


def add_flags(parser: argparse._ActionsContainer, names: Collection[str] = tuple(_BY_NAME)) -> None:
    """A flag for each of the named keys, and --config.file. Repeated list flags add up."""
    import argparse

    add_config_file(parser)
    for key in KEYS:
        if key.name not in names:
            continue
        if key.kind is SWITCH:
            action = argparse.BooleanOptionalAction
            parser.add_argument(key.flag, dest=key.name, action=action, default=argparse.SUPPRESS, help=key.help)
        else:
            what = key.field.rpartition("_")[2].upper()
            words = f"{key.help.replace('%', '%%')} (default: {_shown(key, key.default)})"
            parser.add_argument(
                key.flag, dest=key.name, metavar=what, action="append", default=argparse.SUPPRESS, help=words
            )


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that were given as flags, by name, and nothing else."""
    given = vars(args)
    return {key.name: given[key.name] for key in KEYS if key.name in given}


def load(path: str | None = None, flags: Mapping[str, Any] = EMPTY, codes: Collection[str] = ()) -> Config:
    """The configuration from its file (None: CONFIG_FILE where there is one) and flags, which win.

    flags: key name -> list of texts, or a bool. codes: the rules that exist, so that a wrong one is told.
    Raises ConfigError with every problem, a line each.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    file = path or CONFIG_FILE
    text = _read(file, must=path is not None)
    if text is not None:
        for name, raw in _entries(_parse(text, file)):
            key = _BY_NAME.get(name)
            if key is None:
                problems.append(f"{_where(file, text, name)}: unknown key {name!r}{nearest(name, _BY_NAME)}")
                continue
            try:
                values[key.field] = _value(key, raw, codes)
                origins[name] = _where(file, text, name)
            except ValueError as error:
                problems.append(f"{_where(file, text, name, error)}: {name} {error}")
    for name, given in flags.items():
        key = _BY_NAME[name]
        try:
            raw = given if isinstance(given, bool) else _joined(key, [key.kind.text(one) for one in given])
            values[key.field] = _value(key, raw, codes)
            origins[name] = key.flag
        except ValueError as error:
            problems.append(f"{key.flag} {error}")
    if problems:
        raise ConfigError(*problems)
    config = Config(**values, source=file if text is not None else None, origins=origins)
    if codes and not any(rules_policy(config, "").asks(code) for code in codes):
        chosen = [_named(name, origins[name]) for name in ("only", "skip") if name in origins]
        raise ConfigError(f"{' and '.join(chosen)}: no rule is left to judge by")
    return config._replace(state_directory=config.state_directory or _systemd_state())


def _systemd_state() -> str:
    return os.environ.get("STATE_DIRECTORY", "").split(":")[0]


def _joined(key: Key, raws: list[Any]) -> Any:
    """Several flags of one key: lists and tables add up, of anything else the last counts."""
    if all(isinstance(raw, list) for raw in raws):
        return [item for raw in raws for item in raw]
    if all(isinstance(raw, dict) for raw in raws):
        return merged((name, value) for raw in raws for name, value in raw.items())
    return raws[-1]


def _named(name: str, origin: str) -> str:
    """A key as its user wrote it: a flag, or a key at its line of a file."""
    return origin if origin == _BY_NAME[name].flag else f"{origin}: {name}"


def _read(path: str, must: bool) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        if not must:
            return None
        raise ConfigError(f"{path}: no such file; give --config.file the configuration's path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); TOML files are UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(text: str, path: str) -> dict[str, Any]:
    from importlib import import_module

    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table: dict[str, Any] = toml.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:
        message, _, where = str(error).partition(" (at ")
        line = match[1] if (match := re.match(r"line (\d+)", where)) else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: not TOML: {message}") from None
    return table


def _entries(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each key of the file with its value: a table that is no key's value is gone into."""
    for part, raw in table.items():
        name = prefix + part
        inside = isinstance(raw, dict) and name not in _BY_NAME
        if inside and any(key.startswith(f"{name}.") for key in _BY_NAME):
            yield from _entries(raw, f"{name}.")
        else:
            yield name, raw


def _where(file: str, text: str, name: str, error: ValueError | None = None) -> str:
    """FILE:LINE of a key, or of the entry below it that an error is about; FILE where no line shows it."""
    line = None
    if isinstance(error, BadEntry):
        line = line_of(text, f"{name}.{error.entry}", error.row) or line_of(text, name, error.row)
    line = line or line_of(text, name)
    return f"{file}:{line}" if line else file


def _value(key: Key, raw: object, codes: Collection[str]) -> Any:
    """What a key's raw value means; ValueError where it is wrong."""
    value = key.kind.read(raw)
    if key.choices and value not in key.choices:
        raise ValueError(f"takes one of {', '.join(key.choices)}, not {value!r}")
    if key.least is not None and not value >= key.least:  # so that NaN is refused, too
        raise ValueError(f"is at least {_shown(key, key.least)}, not {_shown(key, value)}")
    if key.most is not None and not value <= key.most:
        raise ValueError(f"is at most {_shown(key, key.most)}, not {_shown(key, value)}")
    if codes and key.name in ("only", "skip", "accept"):
        for row, item in enumerate(value):
            code = item.code if isinstance(item, Accepted) else item
            if code not in codes:
                hint = meant(code, codes, "`gpu-topo rules` lists them")
                raise BadEntry(f"names no rule {code!r}; {hint}", "code", row)
    return value


def remark(config: Config) -> str:
    """What works and is hardly meant, "" where nothing is."""
    if config.scan_timeout <= config.scan_interval:
        return ""
    timeout, interval = (
        f"{name} {_shown(_BY_NAME[name], value)}"
        for name, value in (("scan.timeout", config.scan_timeout), ("scan.interval", config.scan_interval))
    )
    return f"{timeout} is longer than {interval}: while a source hangs, scans come that much later"


# --- showing ------------------------------------------------------------------------------------------------------


def _shown(key: Key, value: Any) -> str:
    return key.kind.toml(value)


def show(config: Config) -> str:
    """The configuration in force as TOML, each value with where it comes from."""
    lines = []
    for key in KEYS:
        origin = config.origins.get(key.name, "default")
        lines.append(f"{key.name} = {_shown(key, getattr(config, key.field))}  # {origin}")
    return "\n".join(lines) + "\n"


def reference() -> str:
    """The table of keys for the README, as Markdown."""
    rows = ["| key and flag | takes | default | what it is |", "|---|---|---|---|"]
    for key in KEYS:
        takes = ", ".join(key.choices) or key.kind.takes
        if key.least is not None and key.most is not None:
            takes = f"{takes}, {_bare(key, key.least)} to {_bare(key, key.most)}"
        rows.append(f"| `{key.name}` | {takes} | `{_shown(key, key.default)}` | {key.help} |")
    return "\n".join(rows) + "\n"


def _bare(key: Key, value: float) -> str:
    return "0" if not value else _shown(key, value).strip('"')
