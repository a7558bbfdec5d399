"""Reads `npu-smi info -t topo`: how every pair of Ascend NPUs is connected."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations

from gpu_topo.collectors.readers.npu_smi import PREFIX
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import ACTIVE, UNKNOWN_STATE, AcceleratorLink, DriverGpu, Peer
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.model.vendors import HUAWEI

KIND = "npu-smi info -t topo"

_NPU = re.compile(r"(?:NPU|Phy-ID)(\d{1,4})\Z")
_DEVICE = re.compile(r"(?:NPU|Phy-ID|NIC)\d{1,4}\Z")
_AFFINITY = "CPU Affinity"
_MOST_DEVICES = 128
_SELF = "X"
# SIO joins the two dies of one package, HCCS_SW leads through a switch; some vendors' builds call HCCS XLink.
_FABRIC = {"HCCS": "HCCS", "HCCS_SW": "HCCS", "XLINK": "HCCS", "XLINK_SW": "HCCS", "SIO": "SIO"}
_LINKS = ("HCCS", "SIO")
_PCIE = {"PIX": "PIX", "PXB": "PXB", "PIB": "PXB", "PHB": "PHB", "SYS": "SYS"}
_SWITCHES = ("PIX", "PXB", "PIB")  # of a 910B and later only
_SAID_UNKNOWN = ("NA", "N/A")
_WORD = re.compile(r"(?!NPU|NIC)[A-Z][A-Z_]{1,11}\Z")  # what another version may call a kind
_LEGEND = re.compile(r"([A-Z]{3})\s{0,9}=")
_LIST = re.compile(r"\d{1,5}(?:[-,]\d{1,5})*[-,]?\Z")
_MOST_RUNS = 50  # many matrices take long, and the last one is the machine's state
_MOST_NAMES = 8  # in the detail of a source


def _header(line: str) -> tuple[tuple[str, ...], bool] | None:
    """The devices that a heading names, and whether a column of CPUs follows; None where the line is none."""
    text = line.strip(PREFIX)
    before, affinity, _ = text.partition(_AFFINITY)
    names = tuple(before.split())
    if not names or not _NPU.match(names[0]) or len(names) + bool(affinity) < 2 or len(names) > _MOST_DEVICES:
        return None
    return (names, bool(affinity)) if len(set(names)) == len(names) and all(map(_DEVICE.match, names)) else None


def _is_cell(token: str) -> bool:
    word = token.upper()
    return word == _SELF or word in _FABRIC or word in _PCIE or word in _SAID_UNKNOWN or bool(_WORD.match(word))


def _begins(line: str) -> bool:
    return ("NPU" in line or "Phy-ID" in line) and _header(line) is not None


class _Matrix:
    """One printed matrix while it is being read."""

    def __init__(self, names: tuple[str, ...], affinity: bool) -> None:
        self.names = list(names)
        self.affinity = affinity
        self.rows: dict[str, list[str]] = {}
        self.legend: set[str] = set()
        self._row: list[str] | None = None  # that the last line added to

    def continues(self, names: tuple[str, ...], affinity: bool) -> bool:
        """Whether a line is the rest of this heading, which a terminal narrower than the table wrapped."""
        if self.rows or self.affinity or not set(names).isdisjoint(self.names):
            return False
        self.names.extend(names)
        self.affinity = affinity
        return True

    def add(self, line: str) -> None:
        """A row, the rest of a wrapped one, a line of the legend, or nothing of interest."""
        text = line.strip(PREFIX)
        if legend := _LEGEND.match(text):
            self.legend.add(legend[1])
        tokens = text.split()
        if not tokens or "=" in tokens[:2]:
            self._row = None
        elif tokens[0] in self.names and len(tokens) > 1 and _is_cell(tokens[1]):
            self._row = self.rows.setdefault(tokens[0], [])
            if not self._row:
                self._row.extend(tokens[1:])
        elif not self.rows and text == _AFFINITY:
            self.affinity = True
        elif self._row is not None and all(_is_cell(token) or _LIST.match(token) for token in tokens):
            if self._row[-1].endswith((",", "-")):
                self._row[-1] += tokens.pop(0)
            self._row.extend(tokens)
        else:
            self._row = None

    def end(self) -> None:
        """The text is over, and it may have been cut off anywhere: SI may be the beginning of SIO, 0-6 of 0-63."""
        if self._row and len(self._row) < len(self.names) + self.affinity:
            self._row.pop()

    def cells(self, name: str) -> list[str]:
        """The cells of a row, in the order of the heading; none where the X stands in a foreign column, or a word that
        is no cell among them: what is behind it would be taken for the cell of another device."""
        cells = [token.upper() for token in self.rows[name][: len(self.names)]]
        own = self.names.index(name)
        misplaced = (_SELF in cells and cells.index(_SELF) != own) or (len(cells) > own and cells[own] != _SELF)
        return [] if misplaced or not all(map(_is_cell, cells)) else cells

    def cpus(self, name: str) -> str | None:
        """The CPUs that a row gives."""
        behind = self.rows.get(name, [])[len(self.names) :] if self.affinity else []
        return behind[0] if len(behind) == 1 and _LIST.match(behind[0]) else None

    def npus(self) -> Iterator[tuple[str, int]]:
        """The NPUs with their numbers. NIC columns are left out: npu-smi fills them by number, not by what it finds."""
        for name in self.names:
            if number := _NPU.match(name):
                yield name, int(number[1])


class _Pairs:
    """What a matrix states of each pair; of what its two rows do not agree on, nothing."""

    def __init__(self, matrix: _Matrix) -> None:
        self.kinds: dict[tuple[str, str], str] = {}  # HCCS, SIO or a kind of path
        self.broken = False  # a row that does not fit the heading
        self.foreign: set[str] = set()  # kinds of another version
        self.disagree = 0
        self._found: dict[tuple[int, int], set[str]] = {}
        npus = {name for name, _ in matrix.npus()}
        for row in matrix.rows.keys() & npus:
            cells = matrix.cells(row)
            self.broken = self.broken or not cells
            self._take(matrix.names, matrix.names.index(row), cells, npus)
        for (one, other), said in sorted(self._found.items()):
            if len(said) == 1:
                self.kinds[matrix.names[one], matrix.names[other]] = min(said)
            else:
                self.disagree += 1

    def of(self, kind: str) -> list[tuple[str, str]]:
        """The pairs of one kind."""
        return [pair for pair, found in self.kinds.items() if found == kind]

    def _take(self, names: Sequence[str], row: int, cells: Sequence[str], npus: set[str]) -> None:
        for column, cell in enumerate(cells):
            if names[column] not in npus or cell == _SELF or column == row:
                continue
            kind = _FABRIC.get(cell) or _PCIE.get(cell)
            if kind is not None:
                self._found.setdefault((min(row, column), max(row, column)), set()).add(kind)
            elif cell not in _SAID_UNKNOWN:
                self.foreign.add(cell)


def _goes_by_numbers(matrix: _Matrix, pairs: _Pairs) -> bool:
    """Whether a matrix may be that of a 910. The driver of a 910B looks at its links, that of a 910C at the board; of a
    910 npu-smi itself says HCCS of NPUs 0 to 3 and of 4 to 7, but PHB of those that share a NUMA node.

    Source: the Ascend driver's query_topo_type, query_topo_type_1980_server and soc_get_dev_topology.
    """
    switches = not matrix.legend.isdisjoint(_SWITCHES) or not {"PIX", "PXB"}.isdisjoint(pairs.kinds.values())
    if switches or not matrix.names[0].startswith("NPU"):
        return False
    cpus = {name: matrix.cpus(name) for name, _ in matrix.npus()}
    return not any(cpus[a] and cpus[a] == cpus[b] for (a, b), kind in pairs.kinds.items() if kind == "HCCS")


def _in_doubt(matrix: _Matrix, pairs: _Pairs) -> Iterator[tuple[str, str]]:
    """The pairs that may be linked and of which the matrix does not tell: cut off, NA, or PHB where a common partner
    shows that they belong to one group of a 910."""
    partners: dict[str, set[str]] = {name: set() for name, _ in matrix.npus()}
    for (a, b), kind in pairs.kinds.items():
        if kind in _LINKS:
            partners[a].add(b)
            partners[b].add(a)
    if not any(partners.values()):
        return
    by_numbers = _goes_by_numbers(matrix, pairs)
    for pair in combinations(partners, 2):
        said = pairs.kinds.get(pair)
        if said is None or (said == "PHB" and by_numbers and not partners[pair[0]].isdisjoint(partners[pair[1]])):
            yield pair


def _detail(matrix: _Matrix, pairs: _Pairs) -> str:
    missing = [name for name, _ in matrix.npus() if name not in matrix.rows]
    more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
    if pairs.broken:
        return "a row does not fit its heading"
    if missing:
        return f"no row of {', '.join(missing[:_MOST_NAMES])}{more}"
    if pairs.disagree:
        return f"the two rows of {pairs.disagree} pair{'s' if pairs.disagree > 1 else ''} do not agree"
    foreign = ", ".join(sorted(pairs.foreign)[:_MOST_NAMES])
    return f"cells of a kind that is not known: {foreign}" if foreign else ""


def _facts(matrix: _Matrix, where: str) -> Facts:
    pairs = _Pairs(matrix)
    detail = _detail(matrix, pairs)
    unrecorded = Unknown(NOT_RECORDED, "npu-smi info -t topo: no row of it")
    return Facts(
        SourceStatus(f"{KIND} ({where})", PARTIAL if detail else OK, detail),
        gpus=tuple(
            DriverGpu(
                ordinal=number,
                name=name,
                vendor_id=HUAWEI,
                local_cpus=matrix.cpus(name) if name in matrix.rows else unrecorded,
            )
            for name, number in matrix.npus()
        ),
        peers=tuple(Peer(a, b, "HC" if kind in _LINKS else kind) for (a, b), kind in pairs.kinds.items()),
        # HCCS first: reports call the whole by its first link. How many links a pair has npu-smi does not print.
        accelerator_links=(
            *(AcceleratorLink(link, *pair, state=ACTIVE) for link in _LINKS for pair in pairs.of(link)),
            *(AcceleratorLink("HCCS", *pair, state=UNKNOWN_STATE) for pair in _in_doubt(matrix, pairs)),
        ),
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every matrix is one sample, oldest first; of many the last ones."""
    samples: deque[_Matrix] = deque(maxlen=_MOST_RUNS)
    for line in lines:
        heading = _header(line) if "NPU" in line or "Phy-ID" in line else None
        if heading and not (samples and samples[-1].continues(*heading)):
            if samples:
                samples[-1].end()
            samples.append(_Matrix(*heading))
        elif not heading and samples:
            samples[-1].add(line)
    if samples:
        samples[-1].end()
    return [_facts(matrix, where) for matrix in samples if matrix.rows]


READER = Reader(KIND, _begins, read)
