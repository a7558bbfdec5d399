"""The exporter-toolkit's web configuration: TLS, client certificates, basic auth, headers, a rate limit.

The format that Prometheus users already have for their exporters (YAML, exporter-toolkit's docs/web-configuration.md).
Unknown keys are errors. The file and everything it names are read again when they change; a bad change keeps what was
in force.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpu_topo.agent import web_tls
from gpu_topo.agent.config import ConfigError
from gpu_topo.agent.config_values import DURATION, SWITCH, TEXT, WHOLE, nearest, value_of
from gpu_topo.agent.http_connection import Gate
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

_KEYS: Mapping[str, tuple[str, ...]] = {
    "tls_server_config": web_tls.KEYS,
    "http_server_config": ("http2", "headers"),
    "basic_auth_users": (),
    "rate_limit": ("interval", "burst"),
}
_MOST_BURST = 1_000_000  # far more than one daemon can answer at once
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)


class Web(NamedTuple):
    """A web configuration in force."""

    gate: Gate = Gate()
    users: Mapping[str, bytes] = EMPTY  # name -> bcrypt hash
    interval: float = 0.0  # of the rate limit, seconds between two requests; 0: no limit
    burst: int = 0
    files: tuple[str, ...] = ()  # everything that was read


def load(path: str) -> Web:
    """Read the file and the certificates that it names; ConfigError says what is wrong with it, one line a problem."""
    text = _content(path, "the web configuration")
    table = _parse(text, path)
    problems = list(_unknown(table, path))
    if problems:
        raise ConfigError(*problems)
    tls = table.get("tls_server_config") or {}
    http = table.get("http_server_config") or {}
    try:
        context, files = web_tls.context_of(tls, os.path.dirname(path))
        interval, burst = _limit(table.get("rate_limit") or {})
        value_of(http, "http2", SWITCH, False)  # is taken and means nothing: what is served here is HTTP/1.1
        gate = Gate(context, web_tls.admits_of(tls), _headers(http.get("headers")))
        users = _users(table.get("basic_auth_users") or {})
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Web(gate, users, interval, burst, (path, *files))


class Watched:
    """A web configuration that is read again when one of its files has changed, looked at once a second at most."""

    def __init__(self, path: str, clock: Callable[[], float], log: Callable[[str], None]) -> None:
        """Raises ConfigError where it is bad from the start; later log is told and what was in force stays."""
        self._path = path
        self._clock = clock
        self._log = log
        self._web = load(path) if path else Web()
        self._seen = _stamps(self._web.files)
        self._next = clock() + 1.0
        self._problem = ""  # what was told last; "" where what is in force is what is written

    @property
    def good(self) -> bool:
        """Whether what is in force is what was written, as far as it was looked at."""
        return not self._problem

    def now(self) -> Web:
        """What is in force."""
        if self._path and self._clock() >= self._next:
            self._next = self._clock() + 1.0
            # While it is bad it is read each time: what it waits for may be a file that none in force has named.
            if not self.good or _stamps(self._web.files) != self._seen:
                self._read()
        return self._web

    def reload(self) -> bool:
        """Read it now; False where it is bad and what was in force stays, which is told each time."""
        self._problem = ""
        if self._path:
            self._read()
        return self.good

    def _read(self) -> None:
        """Raises nothing: a daemon that runs does not end because somebody saved half a file."""
        told = self._problem
        try:
            self._web = load(self._path)
        except ConfigError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = f"{self._path}: please report it: {error!r}"
        else:
            self._problem = ""
        self._seen = _stamps(self._web.files)
        if self._problem and self._problem != told:
            self._log(f"web configuration not reloaded, the old one stays in force: {self._problem}")


def _stamps(paths: tuple[str, ...]) -> tuple[object, ...]:
    found: list[object] = []
    for path in paths:
        try:
            state = os.stat(path)
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _content(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {what} cannot be read: {error.strerror}") from None


def _parse(text: bytes, path: str) -> dict[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'malformed'}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not YAML: nested too deeply") from None
    except ValueError as error:  # the library's own, for 2024-13-45 and numbers of thousands of digits
        raise ConfigError(f"{path}: not YAML: {error}") from None
    except (LookupError, AttributeError, TypeError):  # likewise, for a value that is not what its tag says
        raise ConfigError(f"{path}: not YAML: malformed") from None
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: takes {', '.join(_KEYS)}, and is a {type(table).__name__}")
    return table


def _unknown(table: Mapping[str, Any], path: str) -> list[str]:
    problems = []
    for name, section in table.items():
        if name not in _KEYS:
            problems.append(f"{path}: unknown key {str(name)!r}{nearest(str(name), _KEYS)}")
        elif section is not None and not isinstance(section, dict):
            problems.append(f"{path}: {name} takes keys of its own")
        elif name != "basic_auth_users":
            problems += [
                f"{path}: {name} knows no {str(key)!r}{nearest(str(key), _KEYS[name])}"
                for key in section or {}
                if key not in _KEYS[name]
            ]
    return problems


def _headers(headers: object) -> tuple[tuple[str, str], ...]:
    if headers is None:
        return ()
    if not isinstance(headers, dict):
        raise ValueError("headers takes names and texts")
    found = []
    for name, value in headers.items():
        if name not in _HEADERS:
            raise ValueError(f"headers knows no {str(name)!r}{nearest(str(name), _HEADERS)}")
        # X-XSS-Protection: 0 is a number to YAML.
        text = str(value) if type(value) is int else value_of(headers, name, TEXT, "")
        if any(not 32 <= ord(c) < 127 for c in text):
            raise ValueError(f"headers: {name} holds a character that no header may have")
        if text:
            found.append((name, text))
    return tuple(found)


_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}\Z")


def _users(users: Mapping[str, Any]) -> dict[str, bytes]:
    for name, hashed in users.items():
        if not isinstance(hashed, str) or not _BCRYPT.match(hashed):
            raise ValueError(f"basic_auth_users: {name} needs a bcrypt hash (htpasswd -nBC 10 {name} makes one)")
    return {str(name): hashed.encode() for name, hashed in users.items()}


def _limit(limit: Mapping[str, Any]) -> tuple[float, int]:
    try:
        interval = value_of(limit, "interval", DURATION, 0.0)
        burst = value_of(limit, "burst", WHOLE, 0)
    except ValueError as error:
        raise ValueError(f"rate_limit: {error}") from None
    if interval < 0:  # would take a token back for every second that passes
        raise ValueError(f"rate_limit: interval is at least 0, not {limit['interval']}")
    if not 0 <= burst <= _MOST_BURST:
        raise ValueError(f"rate_limit: burst takes a whole number up to {_MOST_BURST}")
    if interval and not burst:
        raise ValueError("rate_limit: an interval without a burst lets nothing through")
    return interval, burst
