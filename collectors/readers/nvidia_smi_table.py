"""Reads the table of plain `nvidia-smi`: index, name, address, P-state, utilisation and MIG mode of every GPU.

Cells are told apart by the bars between them and by what they say, never by their place in the line: the columns moved
with nearly every driver generation. The table cuts long names, and says nothing of links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpu_topo.collectors.readers.nvidia_smi_gpu import build
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import place_of
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu, DriverState
from gpu_topo.model.reading import NOT_RECORDED, Unknown

KIND = "nvidia-smi"

_BANNER = re.compile(r"\s{0,16}\|\s{0,4}NVIDIA-SMI\s+\d")
_VERSION = re.compile(r"(?:Driver|KMD) Version:\s{0,4}(\d[\w.]{0,30})")  # KMD: drivers from 610
_HEADING = re.compile(r"\s{0,16}\|\s{0,4}GPU\s+Name[^|]{0,60}\|\s{0,4}Bus-Id")
_MIG_HEADING = re.compile(r"\s*\|\s{0,4}MIG devices:")
_PROCESSES = re.compile(r"\s*\|\s{0,4}(?:Compute p|P)rocesses:")  # the former: drivers before 340
_GPU = re.compile(r"\s{0,8}(\d{1,3})\s+(\S.{0,80})")
# The name is followed by persistence mode, on Windows by the driver model.
_MODE = re.compile(r"\s+(?:On|Off|WDDM|TCC|MCDM|N/A|ERR!)\Z")
_ADDRESS = re.compile(r"\s*([\dA-Fa-f]{4,8}:[\dA-Fa-f]{2}:[\dA-Fa-f]{2}\.[0-7])(?![\w.])")
_MASKED = re.compile(r"\s*([\dA-Fa-fXx*#?]{4,8}:[\dA-Fa-fXx*#?]{2}:[\dA-Fa-fXx*#?]{2}\.[\dXx*#?])(?![\w.])")
_NO_ADDRESS = re.compile(r"\s*N/A(?:\s|\Z)")  # Jetson boards
_PERFORMANCE = re.compile(r"(P\d{1,2}|N/A|ERR!|Unknown Error)\s+\S{1,12}\s+/")  # before "62W / 400W"
_PARTITION = re.compile(r"\s{0,8}(\d{1,3})\s+\d{1,4}\s+\d{1,4}\s+\d{1,4}\s*\Z")
_ELLIPSIS = ("...", "…")
_MOST_CELLS = 4  # of a row that may be wrapped: more bars than this never come

_IN_GPUS, _IN_MIG, _IN_PROCESSES = range(3)


def _begins(line: str) -> bool:
    # Also a GPU's own row: people paste the part of the table that matters.
    return "|" in line and bool(_BANNER.match(line) or _HEADING.match(line) or _row(line, strict=True))


def _cells(line: str) -> list[str]:
    """The cells of a row that a bar closes; what stands behind the last bar was cut off."""
    return line.split("|", 6)[1:-1]


def _row(line: str, strict: bool = False) -> tuple[int, str, str | None] | None:
    """Index, name and address in the first line of a GPU; None where it is another line. strict: only with an address
    and the display's state behind it."""
    cells = _cells(line) if line.lstrip()[:1] == "|" else []
    head = _GPU.match(cells[0]) if len(cells) > 1 else None
    if head is None:
        return None
    address = _ADDRESS.match(cells[1]) or _MASKED.match(cells[1])
    if address is None:
        if strict or not _NO_ADDRESS.match(cells[1]):
            return None
    elif strict and cells[1][address.end() :].strip() not in ("On", "Off", "N/A"):
        return None
    name = _MODE.sub("", head.group(2).rstrip())
    return int(head.group(1)), name, place_of(address.group(1)) if address else None


class _Gpu:
    """One GPU while its lines are read."""

    def __init__(self, ordinal: int, name: str, address: str | None) -> None:
        self.ordinal = ordinal
        self.name = name
        self.address = address
        self.answers: dict[str, str] = {}
        self.partitions = 0

    def add(self, cells: Sequence[str]) -> None:
        """Its second line (fan, temperature, P-state, power; memory; utilisation), or its third, from driver 450 on."""
        if len(cells) < 3:
            performance = _PERFORMANCE.search(cells[0]) if cells else None
            if performance:
                self.answers.setdefault("performance state", performance.group(1))
        elif cells[0].strip() or cells[1].strip():
            performance = _PERFORMANCE.search(cells[0])
            if performance:
                self.answers.setdefault("performance state", performance.group(1))
                self.answers.setdefault("utilization/gpu", cells[2].strip().partition(" ")[0])
        elif self.answers:
            # An asterisk: the mode changes with the next reset.
            self.answers.setdefault("mig mode/current", cells[2].strip().rstrip("*"))

    def facts(self, partitions_told: bool) -> DriverGpu:
        cut = self.name.endswith(_ELLIPSIS)
        answers = self.answers if cut else {**self.answers, "product name": self.name}
        gpu = build(self.address, self.ordinal, answers, self.partitions)._replace(link=None)
        if cut:
            gpu = gpu._replace(model=Unknown(NOT_RECORDED, f"nvidia-smi: the name is cut off: {self.name}"))
        return gpu if partitions_told else gpu._replace(partitions=None)


class _Table:
    """One printed table while it is being read."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        self.gpus: list[_Gpu] = []
        self.part = _IN_GPUS
        self.partitions = False  # whether there is a list of MIG devices

    def add(self, line: str) -> None:
        if _MIG_HEADING.match(line):
            self.part, self.partitions = _IN_MIG, True
        elif _PROCESSES.match(line):
            self.part = _IN_PROCESSES
        elif self.part == _IN_MIG:
            self._add_partition(line)
        elif self.part == _IN_GPUS and line.lstrip()[:1] == "|":
            if row := _row(line):
                self.gpus.append(_Gpu(*row))
            elif self.gpus:
                self.gpus[-1].add(_cells(line))

    def _add_partition(self, line: str) -> None:
        cells = _cells(line)
        row = _PARTITION.match(cells[0]) if cells else None
        if row:
            for gpu in self.gpus:
                if gpu.ordinal == int(row.group(1)):
                    gpu.partitions += 1

    def facts(self, where: str) -> Facts:
        # The list of processes comes last: a table that has it was not cut off.
        ended = self.part == _IN_PROCESSES
        gpus = tuple(gpu.facts(self.partitions and ended) for gpu in self.gpus)
        lost = sum(gpu.lost for gpu in gpus)
        told = [f"{lost} of {len(gpus)} GPUs lost"] if lost else []
        if not ended:
            told.append("the table may be cut off")
        status = SourceStatus(f"{KIND} ({where})", PARTIAL if told else OK, ", ".join(told))
        # A container or job is shown some GPUs only, numbered from 0 as if they were all, and prints the same table.
        return Facts(status, gpus=gpus, driver=DriverState("nvml", "ok", "", self.version, lists_all=False))


def _is_border(line: str) -> bool:
    return not line.strip().strip("+-=|")


def _rejoined(lines: Iterable[str]) -> Iterator[str]:
    """The rows of the table, each on one line where a narrow page wrapped it: a row has three cells, and no line of the
    table begins with anything but a bar or a plus sign."""
    held = ""
    for line in lines:
        text = line.strip()
        if held and text and text[0] not in "|+" and held.count("|") < _MOST_CELLS:
            if text.endswith("|") and not _is_border(line):
                held = f"{held} {text}"
                continue
        if held:
            yield held
        held = line.rstrip() if text[:1] == "|" else ""
        if not held:
            yield line
    if held:
        yield held


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every table is one sample, oldest first."""
    tables: list[_Table] = []
    for line in _rejoined(lines):
        banner = "NVIDIA-SMI" in line and _BANNER.match(line)
        table = tables[-1] if tables else None
        if banner:
            version = _VERSION.search(line)
            tables.append(_Table(version.group(1) if version else None))
        elif "Bus-Id" in line and _HEADING.match(line):
            if table is None or table.gpus or table.part != _IN_GPUS:
                tables.append(_Table(None))
        elif table is None or table.part == _IN_GPUS:
            row = _row(line, strict=True)
            if row and (table is None or (table.gpus and row[0] <= table.gpus[-1].ordinal)):
                tables.append(_Table(None))
            if tables:
                tables[-1].add(line)
        else:
            table.add(line)
    return [table.facts(where) for table in tables if table.gpus]


READER = Reader(KIND, _begins, read)
