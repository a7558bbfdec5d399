"""One matrix of `rocm-smi --showtopo` or `amd-smi topology`: a title, a heading of GPUs, a row of words for each."""

from __future__ import annotations

import re

from gpu_topo.model.address import normalise

# What a matrix tells of each pair.
TYPE = "type"  # XGMI, PCIE
WEIGHT = "weight"  # of the way, as the kernel driver (amdkfd) adds it up
HOPS = "hops"  # 1: xGMI, however many links; 2: through a processor; 3: through two
BANDWIDTH = "bandwidth"  # MB/s of one link and of all: 50000-200000
STATUS = "status"  # U, D, X: an xGMI link that is up, down, disabled
OTHER = "other"  # access, coherency, atomics: says nothing of links

MOST_RUNS = 50  # of one section: many matrices take long, and the last one is the machine's state
_MOST_NAMES = 128  # of a heading: sixteen GPUs in eight partitions each
_GPU = re.compile(r"GPU(\d{1,3})\Z")
_OWN = frozenset({"0", "0-0", "SELF", "N/A", "X", "TRUE", "ENABLED"})  # on the diagonal


def name_of(word: str) -> str | None:
    """GPU3, or the address of an address; None for any other word."""
    return word if _GPU.match(word) else normalise(word) if ":" in word else None


def heading(text: str) -> tuple[str, ...] | None:
    """The GPUs of a heading; None where a line is none."""
    words = text.split()
    if words and words[0] == "bdf":  # amd-smi xgmi
        del words[0]
    if not words or len(words) > _MOST_NAMES or not name_of(words[0]):
        return None
    names = tuple(name for word in words if (name := name_of(word)))
    return names if len(names) == len(words) else None


class Table:
    """One printed matrix while it is being read. Cells are told apart by their order: rows of pastes do not line up."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.names: list[str] = []
        self.rows: list[tuple[str, list[str]]] = []  # partitions of a GPU may bear the same name
        self.addresses: dict[str, str] = {}  # of the GPUs that rows give both for

    def add(self, text: str) -> bool:
        """A heading, a row, or the rest of a wrapped one; False for any other line."""
        words = text.split()
        names = heading(text)
        if names and not self.rows and len(self.names) + len(names) <= _MOST_NAMES:
            # A row of a wrapped matrix is no heading: it has words besides names.
            self.names.extend(names)
            return True
        name = name_of(words[0]) if words and self.names else None
        if name is not None:
            cells = words[1:]
            if cells and ":" in cells[0] and ":" not in name and (address := normalise(cells[0])):
                self.addresses[name] = address
                del cells[0]
            self.rows.append((name, cells))
            return True
        if words and self.rows and len(self.rows[-1][1]) + len(words) <= len(self.names):
            self.rows[-1][1].extend(words)
            return True
        return False

    def end(self) -> None:
        """The text ends in this matrix, and it may have been cut off: of its last word more may have followed. The
        last word of a whole matrix is on its diagonal and says nothing."""
        if self.rows and self.rows[-1][1]:
            name, cells = self.rows[-1]
            if len(cells) < len(self.names) or self._own(len(self.rows) - 1, name) != len(cells) - 1:
                cells.pop()

    def cells(self) -> tuple[list[tuple[str, str, str]], bool]:
        """Row, column and word of each cell off the diagonal, and whether rows are missing or make no sense: one is
        left out where it has too few or many words, or where something else than itself is on the diagonal."""
        found = []
        broken = len(self.rows) < len(self.names)
        for number, (name, cells) in enumerate(self.rows):
            whole = len(cells) == len(self.names)
            own = self._own(number, name)
            misplaced = own is None or (own < len(cells) and cells[own].upper() not in _OWN)
            if misplaced or len(cells) > len(self.names) or not (whole or number == len(self.rows) - 1):
                broken = True
                continue
            broken = broken or not whole
            found += [
                (name, column, word.upper())
                for at, (column, word) in enumerate(zip(self.names, cells, strict=False))
                if at != own
            ]
        return found, broken

    def _own(self, number: int, name: str) -> int | None:
        """The column of a row's own GPU: that of its name, and by its place where several bear it."""
        if number < len(self.names) and self.names[number] == name:
            return number
        return self.names.index(name) if self.names.count(name) == 1 else None
