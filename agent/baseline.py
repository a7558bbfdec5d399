"""The saved baseline of a machine: a JSON file with its shape, and what was accepted as designed.

The document's format is described in gpu_topo/topology/baseline.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from gpu_topo import __version__
from gpu_topo.agent.config_values import Accepted, accepted
from gpu_topo.agent.output import write_atomically
from gpu_topo.model.node import Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.baseline import SCHEMA, Difference, differences, document

DEFAULT_FILE = "/var/lib/gpu-topo/baseline.json"
_MOST_BYTES = 16 << 20


class BaselineError(Exception):
    """Why a baseline cannot be read or written, in one line with what to do."""


class Saved(NamedTuple):
    """A baseline as it was read; an empty document where there is none."""

    document: Mapping[str, Any] = EMPTY
    accepted: tuple[Accepted, ...] = ()
    path: str = ""
    stamp: object = None  # changes when the file does


def stamp(path: str) -> object:
    """What changes when a file does; None where there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def load_saved(path: str, must: bool = False) -> Saved:
    """Read a baseline; must: it was asked for, so that a missing one is an error. Raises BaselineError."""
    if not path:
        return Saved()
    looked = stamp(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if must:
            raise BaselineError(f"{path}: no such file; `gpu-topo baseline save` makes one") from None
        return Saved(path=path)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        table = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or not isinstance(table.get("schema"), str):
        raise BaselineError(f"{path}: no baseline; `gpu-topo baseline save` makes one")
    if table["schema"] != SCHEMA:
        raise BaselineError(f"{path}: a baseline of another version ({table['schema']}); save a new one")
    rows = table.get("accepted")
    try:
        found = tuple(accepted(row) for row in rows) if isinstance(rows, list) else ()
    except (ValueError, AttributeError, TypeError) as error:
        raise BaselineError(f"{path}: an accepted finding {error}") from None
    return Saved(table, found, path, looked)


def save(path: str, node: Node, keep: Saved) -> None:
    """Write the machine as it is now; what was accepted before stays accepted. Raises BaselineError."""
    table = document(node)
    table["saved_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    table["version"] = __version__
    table["hostname"] = known(node.platform.hostname)
    _write(path, table, keep.accepted)


def accept(path: str, saved: Saved, row: Accepted) -> None:
    """Write that a finding is as designed; an older acceptance of the same finding goes. Raises BaselineError."""
    others = tuple(old for old in saved.accepted if (old.code, old.subject) != (row.code, row.subject))
    table = dict(saved.document) or {"schema": SCHEMA}
    _write(path, table, (*others, row))


def diff(saved: Saved, node: Node, exclude: frozenset[str] = frozenset()) -> tuple[Difference, ...]:
    """What changed since it was saved."""
    return differences(node, saved.document, exclude)


def _write(path: str, table: dict[str, Any], rows: tuple[Accepted, ...]) -> None:
    table["accepted"] = [{name: value for name, value in row._asdict().items() if value} for row in rows]
    data = json.dumps(table, indent=1, ensure_ascii=False) + "\n"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_atomically(path, data.encode())
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written: {error.strerror}; give --file another path") from None
