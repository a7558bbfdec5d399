"""What a user got wrong: one line and a hint, exit status 3. Everything else is a bug and a traceback."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

OK = 0
WARNING = 1
CRITICAL = 2
UNUSABLE = 3  # could not inspect, or wrong usage: the monitoring plug-ins' UNKNOWN


class UserError(Exception):
    """A message for a person and what to do about it, printed on one line; "" where it has been said already."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to say, a line each."""
        return (str(self),) if str(self) else ()


def meant(name: str, names: Collection[str], otherwise: str = "") -> str:
    """What to tell who wrote a name that is none: the nearest of those that exist, or what else there is to say."""
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else otherwise


def one_line(text: str) -> str:
    """A text of which nothing can speak to a terminal: what is not printable, line breaks too, as Python escapes it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(message: str) -> None:
    """One line on standard error, whatever names and values it quotes."""
    line = one_line(message)
    tell(f"{line}\n" if line.startswith("gpu-topo") else f"gpu-topo: {line}\n")


def tell(text: str) -> None:
    """Write to standard error. That nobody can read it (closed, a full disk) keeps nothing else from happening."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # What stays in the buffer must not fail once more on the way out.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
