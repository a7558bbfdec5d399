"""Reads the table of `npu-smi info`: which Ascend NPUs there are, and the PCI address of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import is_masked, normalise
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.vendors import HUAWEI

KIND = "npu-smi info"

PREFIX = "#>| \t"  # of quoted and commented pastes, and the bar with which the lines of the table begin
_TITLE = re.compile(r"npu-smi\s{1,4}v?\d\S{0,40}\s{1,80}Version:")
_HEADING = re.compile(r"NPU(?: ID)?\s{1,40}(?:\|\s{0,9})?Name\s{1,80}\|\s{0,9}Health\b")
_SECOND = re.compile(r"(?:Chip\b\s{0,40}([A-Z][\w-]{1,20})?|)\s{0,80}\|?\s{0,80}Bus-Id\b")
_PROCESSES = re.compile(r"NPU\s{1,40}Chip\s{1,80}\||NPU(?: ID)?\s{1,40}\|\s{0,9}Process id\b")
_NUMBER = re.compile(r"\d{1,5}\Z")
_NONE = "NA"  # of an NPU that is part of a processor, and of one behind Huawei's unified bus
_MOST_NAME = 60


def _begins(line: str) -> bool:
    if "npu-smi" not in line and "NPU" not in line:
        return False
    text = line.lstrip(PREFIX)
    barred = "|" in line[: len(line) - len(text)]  # else a mark of quotation would take in the table's own bar
    return barred and bool(_TITLE.match(text) or _HEADING.match(text))


class _Table:
    """One printed table while it is being read. Each chip has two lines: its NPU's number, name and health, then its
    own number and its address. What the second number of that line is, the heading tells: Phy-ID of the two dies of a
    910C, Device of cards for inference; a 910 or 910B has none."""

    def __init__(self) -> None:
        self.gpus: list[DriverGpu] = []
        self.npus: list[int] = []  # the NPU of each
        self.broken = False  # a chip whose two lines do not belong together
        self._headed = False
        self._column = ""
        self._npu: tuple[int, str] | None = None  # the first line of a chip

    def heads(self) -> bool:
        """Whether a heading belongs to this table, whose title alone was met so far."""
        fresh, self._headed = not self._headed, True
        return fresh

    def add(self, line: str) -> None:
        """A line below the heading: one of a chip's two, or nothing of interest."""
        text = line.strip(PREFIX)
        if second := _SECOND.match(text):
            self._column = second[1] or ""
            return
        if _PROCESSES.match(text):
            self._headed = False
        cells = [cell.split() for cell in text.split("|")]
        if not self._headed or len(cells) < 2:
            return
        place = next((number for number, words in enumerate(cells[:3]) if _address(words) is not None), None)
        if place is not None and self._npu is not None:
            numbers = [int(word) for words in cells[:place] for word in words if _NUMBER.match(word)]
            self.gpus.append(self._gpu(self._npu, numbers, _address(cells[place]) or None))
            self.npus.append(self._npu[0])
            self._npu = None
        elif place is not None:
            self.broken = True
        elif cells[0] and _NUMBER.match(cells[0][0]) and (name := cells[0][1:] or cells[1]):
            self.end()
            self._npu = int(cells[0][0]), " ".join(name)[:_MOST_NAME]

    def end(self) -> None:
        """No more of this chip follows: of one whose second line is missing nothing tells which it is."""
        self.broken = self.broken or self._npu is not None
        self._npu = None

    def _gpu(self, npu: tuple[int, str], numbers: Sequence[int], address: str | None) -> DriverGpu:
        number, printed = npu
        chip = numbers[0] if numbers else 0
        own = numbers[1] if len(numbers) > 1 else None
        # By these names `npu-smi info -t topo` calls them.
        name = f"NPU{number}" if chip == 0 else f"NPU{number}.{chip}"
        if self._column == "Phy-ID" and own is not None:
            name = f"Phy-ID{own}"
        index = own if self._column in ("Phy-ID", "Device") else number if chip == 0 else None
        return DriverGpu(
            address=address,
            ordinal=index,
            name=name,
            model=f"Ascend {printed}" if printed[:1].isdigit() else printed,
            vendor_id=HUAWEI,
        )


def _address(words: Sequence[str]) -> str | None:
    """The address in a cell, "" for a chip that has none; None where the cell says nothing of it."""
    if len(words) != 1:
        return None
    if words[0] == _NONE or (words[0].count(":") == 2 and is_masked(words[0])):
        return ""
    return normalise(words[0]) if words[0].count(":") == 2 else None


def _together(gpus: Sequence[DriverGpu], npus: Sequence[int]) -> Iterator[DriverGpu]:
    """The chips of one NPU that share an address (310P Duo) are parts of one device, with the index of the first. NPUs
    that share one have none: it was masked."""
    first: dict[str, int] = {}
    members: dict[str, set[int]] = {}
    for at, (gpu, npu) in enumerate(zip(gpus, npus, strict=True)):
        if gpu.address is not None:
            first.setdefault(gpu.address, at)
            members.setdefault(gpu.address, set()).add(npu)
    shared = [gpu.address for gpu in gpus]
    for gpu in gpus:
        if gpu.address is None or shared.count(gpu.address) == 1:
            yield gpu
        elif len(members[gpu.address]) > 1:
            yield gpu._replace(address=None)
        else:
            leader = gpus[first[gpu.address]]
            yield gpu._replace(ordinal=leader.ordinal, partitions=shared.count(gpu.address))


def _facts(table: _Table, where: str) -> Facts:
    detail = "an NPU without a line that gives its address" if table.broken else ""
    return Facts(
        SourceStatus(f"{KIND} ({where})", PARTIAL if detail else OK, detail),
        gpus=tuple(_together(table.gpus, table.npus)),
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every table is one sample, oldest first."""
    samples: list[_Table] = []
    for line in lines:
        text = line.lstrip(PREFIX)
        if _TITLE.match(text):
            samples.append(_Table())
        elif _HEADING.match(text):
            if not samples or not samples[-1].heads():
                samples.append(_Table())
                samples[-1].heads()
        elif samples:
            samples[-1].add(line)
    for table in samples:
        table.end()
    return [_facts(table, where) for table in samples if table.gpus]


READER = Reader(KIND, _begins, read)
