"""Reads `nvidia-smi topo -m` (how every pair of GPUs and NICs is connected) and `topo -p2p` (what pairs can do)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu, DriverState, Peer
from gpu_topo.model.host import Port
from gpu_topo.model.reading import NO_DATA, NOT_RECORDED, Reading, Unknown

KIND = "nvidia-smi topo"

_GPU = re.compile(r"GPU(\d{1,4})\Z")
# GPU0, NIC3, mlx5_0, mlx5_bond_0, bnxt_re1, rocep26s0: every name of a device ends in a number.
_DEVICE = re.compile(r"[A-Za-z][\w.\-]{0,40}\d\Z")
_KIND = re.compile(r"(?:NV|XG|HC)\d{1,3}\Z|(?:PIX|PXB|PHB|NODE|SYS)\Z")
# Pastes lose a tab now and then: NODENODE, PIXPXB are two cells. NV12 and a number behind it could not be told apart.
_GLUED = re.compile(r"(?:PIX|PXB|PHB|NODE|SYS){2,4}\Z")
_ONE = re.compile(r"PIX|PXB|PHB|NODE|SYS")
_OLDER_KINDS = {"SOC": "SYS", "PSB": "PIX"}  # drivers before 390
_STATUSES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
_SELF = "X"
_LIST = re.compile(r"\d{1,5}(?:[-,]\d{1,5})*[-,]?\Z")
_LEGEND = re.compile(r"(NIC\d{1,4})\s*:\s*(\S{1,64})\Z")
_COMMAND = re.compile(r"nvidia-smi\s{1,4}topo\s{1,4}(?:-p2p|--p2pstatus)\s{1,4}([rwnap]{1,5})\b")
_CAPABILITIES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pci"}
_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_MOST_NAMES = 8  # in the detail of a source
_PREFIX = "#>| \t"  # of quoted and commented pastes


def _header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The device names and the further columns of a heading; None where the line is none."""
    text = line.strip(_PREFIX)
    if not text.startswith("GPU"):
        return None
    start = min((at for at in (text.find(column) for column in _COLUMNS) if at > 0), default=len(text))
    names = tuple(text[:start].split())
    columns = tuple(column for column in _COLUMNS if column in text[start:])
    if not names or len(names) + len(columns) < 2 or not _GPU.match(names[0]):
        return None
    # A heading names each device once, and a row has an X or a kind where a heading has the next name.
    if len(set(names)) < len(names) or not all(_DEVICE.match(name) and not _is_cell(name) for name in names):
        return None
    return names, columns


def _rest_of_heading(text: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names and further columns of a line that can only be the rest of a wrapped heading."""
    start = min((at for at in (text.find(column) for column in _COLUMNS) if at >= 0), default=len(text))
    names = tuple(text[:start].split())
    columns = tuple(column for column in _COLUMNS if column in text[start:])
    return (names, columns) if (names or columns) and all(_DEVICE.match(name) for name in names) else None


def _is_cell(token: str) -> bool:
    word = token.upper()
    return word == _SELF or word in _STATUSES or word in _OLDER_KINDS or bool(_KIND.match(word))


def _tokens(text: str) -> list[str]:
    """The words of a line, cells that ran together apart again."""
    return [part for word in text.split() for part in (_ONE.findall(word) if _GLUED.match(word) else (word,))]


def _begins(line: str) -> bool:
    return ("GPU" in line and _header(line) is not None) or ("p2p" in line and bool(_COMMAND.search(line)))


class _Matrix:
    """One printed matrix while it is being read. Cells are told apart by what they say, never by their position in
    the line: headings and rows of real pastes do not line up."""

    def __init__(self, names: tuple[str, ...], columns: tuple[str, ...], capabilities: str) -> None:
        self.names = list(names)
        self.columns = columns
        self.capabilities = capabilities
        self.rows: dict[str, list[str]] = {}
        self.legend: dict[str, str] = {}
        self._row: list[str] | None = None
        self._last = ""  # what the last line added to: the name of a row or of a NIC in the legend

    def add(self, line: str) -> None:
        """A row, the rest of a wrapped row or heading, a line of the legend, or nothing of interest."""
        text = line.strip(_PREFIX)
        if text:
            self._last = ""
        legend = _LEGEND.match(text)
        if legend:
            self._last = legend.group(1)
            self.legend.setdefault(legend.group(1), legend.group(2))
            return
        tokens = _tokens(text)
        if not tokens or "=" in tokens[:2]:
            self._row = None
        elif len(tokens) > 1 and tokens[0] in self.names and _is_cell(tokens[1]):
            self._row = self.rows.setdefault(tokens[0], [])
            self._last = tokens[0]
            if not self._row:
                self._row.extend(tokens[1:])
        elif not self.rows and (rest := _rest_of_heading(text)):
            self.continues(*rest)
        elif self._row is not None and (_is_cell(tokens[0]) or _LIST.match(tokens[0]) or tokens[0] == "N/A"):
            if self._row[-1].endswith((",", "-")) and _LIST.match(tokens[0]):
                self._row[-1] += tokens.pop(0)
            self._row.extend(tokens)
        elif self._row is not None and not _is_cell(self._row[-1]) and _is_cell(self._row[-1] + tokens[0]):
            self._row[-1] += tokens.pop(0)  # wrapped within a word
            self._row.extend(tokens)

    def continues(self, names: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """Whether a line is the rest of this heading, which a terminal narrower than the table wrapped."""
        if self.rows or self.columns or not set(names).isdisjoint(self.names):
            return False
        self.names.extend(names)
        self.columns = columns
        return True

    def end(self) -> None:
        """The text is over, and it may have been cut off anywhere. In its last line NV1 may be the beginning of NV18,
        0-6 that of 0-63 and mlx5_1 that of mlx5_10: where more should follow, the last word does not count."""
        row = self.rows.get(self._last)
        if row and len(row) < len(self.names) + (len(self.columns) if _GPU.match(self._last) else 0):
            row.pop()
        name = self.legend.get(self._last)
        doubtful = self._unnamed() or list(self.legend.values()).count(name or "") > 1
        if name is not None and (doubtful or not _DEVICE.match(name)):
            del self.legend[self._last]

    def _unnamed(self) -> bool:
        """Whether there are NICs that the legend does not name."""
        return any(name.startswith("NIC") and name not in self.legend for name in self.names)

    def rdma(self) -> tuple[str, ...]:
        """The RDMA devices, all or none: by a legend that was cut off some NICs would be adapters and others not."""
        if self._unnamed():
            return ()
        return tuple(self.name(name) for name in self.names if not _GPU.match(name))

    def _cells(self, name: str) -> list[str]:
        """The cells of a row, in the order of the heading; none where the X stands in a foreign column, or a word that
        is no cell among them: what is behind it would be taken for the cell of another device."""
        cells = [token.upper() for token in self.rows[name][: len(self.names)]]
        own = self.names.index(name)
        misplaced = _SELF in cells and cells.index(_SELF) != own
        return [] if misplaced or not all(_is_cell(cell) for cell in cells) else cells

    def name(self, column: str) -> str:
        """A device by its RDMA name where the legend has one."""
        return self.legend.get(column, column)

    def peers(self) -> tuple[tuple[Peer, ...], bool]:
        """Every pair once, in the order of the heading; and whether a row could not be understood."""
        kinds: dict[tuple[int, int], str] = {}
        states: dict[tuple[int, int], str] = {}
        broken = False
        order = {name: number for number, name in enumerate(self.names)}
        for row in self.rows:
            cells = self._cells(row)
            broken = broken or not cells
            for column, cell in enumerate(cells):
                pair = (min(order[row], column), max(order[row], column))
                kind = _OLDER_KINDS.get(cell, cell)
                if pair[0] == pair[1]:
                    continue
                if _KIND.match(kind):
                    kinds.setdefault(pair, kind)
                elif cell in _STATUSES and states.get(pair, "OK") == "OK":
                    states[pair] = cell  # where the two directions differ, the one that does not work
        peers = []
        for pair in sorted(kinds.keys() | states.keys()):
            p2p = {_CAPABILITIES[letter]: states[pair] for letter in self.capabilities if pair in states}
            peers.append(Peer(self.name(self.names[pair[0]]), self.name(self.names[pair[1]]), kinds.get(pair), p2p))
        return tuple(peers), broken

    def gpu(self, name: str, ordinal: int) -> DriverGpu:
        """What the columns behind the matrix say of a GPU; of one that only the heading names they say nothing."""
        if name not in self.rows:
            unrecorded = Unknown(NOT_RECORDED, f"topo -m: no row of {name}")
            return DriverGpu(ordinal=ordinal, local_cpus=unrecorded, numa_node=unrecorded)
        behind = self.rows[name][len(self.names) :]
        # A missing value shifts the others: only a full row says which is which.
        values = dict(zip(self.columns, behind, strict=False)) if len(behind) >= len(self.columns) else {}
        cpus = values.get("CPU Affinity", "")
        return DriverGpu(
            ordinal=ordinal,
            local_cpus=cpus if _LIST.match(cpus) else None,
            numa_node=_numa(values.get("NUMA Affinity")),
            # Its own memory is a NUMA node only where the GPU is coherent with the CPU (Grace).
            c2c=True if values.get("GPU NUMA ID", "").isdecimal() else None,
        )


def _numa(text: str | None) -> Reading[int]:
    if text is None:
        return None
    return int(text) if text.isdecimal() and len(text) < 6 else Unknown(NO_DATA, f"topo -m: NUMA Affinity {text[:40]}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )


def _facts(matrix: _Matrix, where: str) -> Facts:
    peers, broken = matrix.peers()
    ordinals = {name: int(match.group(1)) for name in matrix.names if (match := _GPU.match(name))}
    gpus = tuple(matrix.gpu(name, ordinal) for name, ordinal in ordinals.items())
    ports = tuple(Port(device, 1) for device in matrix.rdma())
    p2p = any(peer.p2p for peer in peers)
    missing = [name for name in matrix.names if name not in matrix.rows]
    detail = "a row does not fit its heading" if broken else f"no row of {_listed(missing)}" if missing else ""
    return Facts(
        SourceStatus(f"{KIND} {'-p2p' if p2p else '-m'} ({where})", PARTIAL if detail else OK, detail),
        gpus=gpus,
        peers=peers,
        ports=ports,
        driver=DriverState("nvml", "ok", lists_all=False),
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every matrix is one sample, oldest first. Which capability a P2P matrix shows only its command tells ("read"
    where the command is not in the paste)."""
    samples: list[_Matrix] = []
    capabilities = "r"
    for line in lines:
        command = _COMMAND.search(line) if "p2p" in line else None
        heading = _header(line) if "GPU" in line else None
        if command:
            capabilities = "".join(sorted(set(command.group(1))))
        elif heading and not (samples and samples[-1].continues(*heading)):
            samples.append(_Matrix(*heading, capabilities))
            capabilities = "r"
        elif samples:
            samples[-1].add(line)
    if samples:
        samples[-1].end()
    return [_facts(matrix, where) for matrix in samples if matrix.rows]


READER = Reader(f"{KIND} -m", _begins, read)
