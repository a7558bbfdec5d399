"""Where a key stands in a TOML file, which the library that reads it does not tell."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}\s*(?:#.*)?\Z")
_ASSIGNMENT = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def line_of(text: str, name: str, row: int = 0) -> int | None:
    """The line of a dotted key in a TOML text, the first that sets it or something in it; None where none shows it.

    row: of the tables that are headed [[key]], the one to look at.
    """
    table = ""
    rows = 0  # such tables above
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = found = _plain(header[1])
            rows += line.lstrip().startswith("[[") and f"{name}.".startswith(f"{table}.")
        elif assignment := _ASSIGNMENT.match(line):
            found = f"{table}.{_plain(assignment[1])}" if table else _plain(assignment[1])
        else:
            continue
        if max(rows - 1, 0) == row and (found == name or found.startswith(f"{name}.")):
            return number
    return None


def _plain(dotted: str) -> str:
    return re.sub(r"\s*\.\s*", ".", dotted).replace('"', "").replace("'", "")
