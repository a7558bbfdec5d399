"""What a user got wrong: one line and a hint, exit status 3. Everything else is a bug and a traceback."""

from __future__ import annotations

import os
import sys

OK = 0
WARNING = 1
CRITICAL = 2
UNUSABLE = 3  # could not inspect, or wrong usage: the monitoring plug-ins' UNKNOWN


class UserError(Exception):
    """A message for a person and what to do about it, printed on one line; "" where it has been said already."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)


def say(message: str) -> None:
    """One line on standard error. That nobody can read it (closed, a full disk) keeps nothing else from happening."""
    line = message if message.startswith("gpu-topo") else f"gpu-topo: {message}"
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # What stays in the buffer must not fail once more on the way out.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
