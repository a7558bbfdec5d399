"""Reads `nvidia-smi --query-gpu=FIELDS --format=csv`, once or over time (-l), with units or without.

Without a header (noheader) only a command line in front of the rows tells which field a column is, else they are not
read.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from gpu_topo.collectors.readers.nvidia_smi_fields import (
    COUNT,
    GENERATIONS,
    KIND,
    MOST_FIELDS,
    NAME,
    OTHER_NAMES,
    OTHER_QUERIES,
    VERSION,
    WIDTHS,
    Row,
    asked,
    fields_of,
    fits,
    header,
)
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import normalise
from gpu_topo.model.facts import FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverState

_VERSION_TEXT = re.compile(r"\d[\w.]{1,30}\Z")
# Values that cannot be the beginning of longer ones, by which the last cell of a recording that ends there is whole.
_WHOLE = re.compile(
    r"\[[^\]]{1,80}\]\Z|N/A\Z|(?:Enabled|Disabled|Not Active|Active|Completed|Success)\Z|\d+ ?%\Z"
    r"|.{1,20} (?:MiB|W|MHz)\Z|P(?:[02-9]|1[0-5])\Z|0x[\dA-Fa-f]{8}\Z"
    r"|(?:GPU|MIG)-[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\Z"
)
_LONGEST_CELL = 200
_MOST_SAMPLES = 1_000
_WHOLE_WIDTH = ("2", "4", "8", "12", "16", "32")  # 1 may be the beginning of 16


def _begins(line: str) -> bool:
    return header(line) is not None or asked(line) is not None


class _Sample:
    """The rows of one moment."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.ambiguous = False  # one of several rows that name no GPU: of as many GPUs, or of one over time
        self.cut = False


class _Table:
    """The rows below one header, while they are read; their samples go to `samples`."""

    def __init__(self, fields: Sequence[str], goes_on: bool, samples: _Samples) -> None:
        self.fields = [OTHER_NAMES.get(field, field) for field in fields]
        self.header_goes_on = goes_on
        self.other = not OTHER_QUERIES.isdisjoint(fields)  # --query-compute-apps: a row for each process
        self._samples = samples
        self._sample: _Sample | None = None
        self._seen: set[tuple[str | None, ...]] = set()
        self._names: set[str] = set()
        self._held: list[str] = []

    @property
    def has_rows(self) -> bool:
        """Whether a row was read."""
        return self._sample is not None

    def add(self, line: str, last: bool) -> None:
        """A row, a piece of one that a narrow page wrapped, or nothing of interest. last: the recording ends here."""
        text = line.strip()
        if not text or self.other:
            return
        cells = [cell.strip() for cell in text.split(",", MOST_FIELDS)]
        if self._held:
            begun, self._held = self._held, []
            joined = [*begun[:-1], f"{begun[-1]} {cells[0]}".strip(), *cells[1:]]
            if len(joined) <= len(self.fields) and len(joined[len(begun) - 1]) < _LONGEST_CELL:
                cells = joined
            else:
                self._add_cut(begun)
        if len(cells) < len(self.fields) or (len(cells) == len(self.fields) and not cells[-1]):
            if all(map(fits, self.fields, cells[:-1] or cells)):
                self._held = cells
            if last:
                self.end()
        elif len(cells) == len(self.fields):
            if last and not self._is_whole(self.fields[-1], cells[-1]):
                cells = cells[:-1]
            self._add(cells, len(cells) == len(self.fields))

    def end(self) -> None:
        """No row follows."""
        if self._held:
            self._add_cut(self._held)
            self._held = []

    def _is_whole(self, field: str, cell: str) -> bool:
        """Whether the last cell of a recording cannot be the beginning of a longer one."""
        if field == NAME:  # "NVIDIA A10" beside an NVIDIA A100
            return not any(name != cell and name.startswith(cell) for name in self._names)
        whole = field in GENERATIONS or field == "utilization.gpu" or normalise(cell) is not None
        return whole or (field in WIDTHS and cell in _WHOLE_WIDTH) or bool(_WHOLE.match(cell))

    def _add(self, cells: Sequence[str], whole: bool) -> bool:
        row = Row(dict(zip(self.fields, cells, strict=False)))
        if not row.is_one(whole):
            return False
        before = self._sample
        if before is None or row.identity in self._seen:  # a GPU that comes again begins the next sample
            self._sample = self._samples.begin()
            self._seen.clear()
            if before is not None and not any(row.identity) and row.cells.get(COUNT) != "1":
                before.ambiguous = self._sample.ambiguous = True
        assert self._sample is not None
        self._seen.add(row.identity)
        self._names.add(row.cells.get(NAME, ""))
        self._sample.rows.append(row)
        return True

    def _add_cut(self, cells: list[str]) -> None:
        """A row of which the end is missing: its last cell may be cut off too."""
        if self._add(cells[:-1], False) and self._sample is not None:
            self._sample.cut = True


class _Samples:
    """The last samples of a recording: a log of a day has a hundred thousand, and the last tell the state."""

    def __init__(self) -> None:
        self.kept: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self._count = 0

    def begin(self) -> _Sample:
        """The next one."""
        self._count += 1
        self.kept.append(_Sample())
        return self.kept[-1]

    def remark(self) -> str:
        """That there are more, "" where there are none."""
        more = self._count > len(self.kept)
        return f"the last {len(self.kept)} of {self._count} samples are looked at" if more else ""


def _facts(sample: _Sample, remark: str, where: str) -> Facts:
    name = f"{KIND} ({where})"
    if sample.ambiguous:
        words = "its rows name neither index, UUID nor pci.bus_id: several GPUs, or one over time"
        return Facts(SourceStatus(name, FAILED, words))
    rows = sample.rows
    gpus = tuple(row.facts() for row in rows)
    version = rows[0].cells.get(VERSION, "")
    count = rows[0].cells.get(COUNT, "")
    lost = sum(gpu.lost for gpu in gpus)
    told = [f"{lost} of {len(gpus)} GPUs lost"] if lost else []
    if count.isdecimal() and count != str(len(gpus)):
        told.append(f"{len(gpus)} of {count} GPUs in it")
    if sample.cut:
        told.append("the last row is cut off")
    if remark:
        told.append(remark)
    # Without the field `count` nothing tells whether these are all: -i selects, and a paste may lack rows.
    driver = DriverState(
        "nvml", "ok", "", version if _VERSION_TEXT.match(version) else None, lists_all=count == str(len(gpus))
    )
    return Facts(SourceStatus(name, PARTIAL if told else OK, ", ".join(told)), gpus=gpus, driver=driver)


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every look at the GPUs is one sample, oldest first, of which the last thousand are given."""
    samples = _Samples()
    table: _Table | None = None
    end = len(lines)
    for number, line in enumerate(lines, 1):
        wrapped = table is not None and table.header_goes_on and not table.has_rows
        fields = fields_of(line) if wrapped else header(line)
        if fields is None and (fields := asked(line)) is not None:
            wrapped = False
        if fields is None:
            if table is not None:
                table.add(line, number == end)
            continue
        if table is not None:
            table.end()
            fields = (*table.fields, *fields) if wrapped else fields
        table = _Table(fields, line.rstrip().endswith(","), samples)
    if table is not None:
        table.end()
    remark = samples.remark()
    return [_facts(sample, remark, where) for sample in samples.kept]


READER = Reader(KIND, _begins, read)
