"""The daemon's log: one line an event on standard error, a sentence for a person and key=value for a machine."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from gpu_topo.agent.errors import one_line
from gpu_topo.agent.notify import to_journal

LEVELS = ("debug", "info", "warning", "error")
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3}  # syslog's, as in sd-daemon(3)


class Log:
    """Writes what is at least as important as `level`."""

    def __init__(self, level: str = "info", stream: TextIO | None = None, journal: bool | None = None) -> None:
        self.level = level
        self._stream = stream if stream is not None else sys.stderr
        self._journal = to_journal() if journal is None else journal

    def __call__(self, level: str, message: str, **fields: object) -> None:
        """One line. Fields that are None are left out."""
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        pairs = [f"{name}={_value(value)}" for name, value in fields.items() if value is not None]
        line = " ".join([one_line(message.replace("\n", " | ")), *pairs])
        head = f"<{_PRIORITY[level]}>" if self._journal else f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {level} "
        try:
            self._stream.write(f"{head}{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads the log: the metrics still tell

    def debug(self, message: str, **fields: object) -> None:
        self("debug", message, **fields)

    def info(self, message: str, **fields: object) -> None:
        self("info", message, **fields)

    def warning(self, message: str, **fields: object) -> None:
        self("warning", message, **fields)

    def error(self, message: str, **fields: object) -> None:
        self("error", message, **fields)


def _value(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if text and all(c.isprintable() and c not in ' "=' for c in text):
        return text
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
