"""Reads the matrices of `amd-smi topology`, and of `amd-smi xgmi` the state of each pair's links."""

from __future__ import annotations

import re
from collections import deque

from gpu_topo.collectors.readers.amd_smi_links import conclude
from gpu_topo.collectors.readers.amd_smi_table import (
    BANDWIDTH,
    HOPS,
    MOST_RUNS,
    OTHER,
    STATUS,
    TYPE,
    WEIGHT,
    Table,
    name_of,
)
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import sort_key
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.vendors import AMD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "amd-smi topology"

_TITLE = re.compile(r"([A-Z][A-Z -]{2,30}):\s{0,20}\Z")
_MATRICES = {
    "LINK TYPE TABLE": TYPE,
    "WEIGHT TABLE": WEIGHT,
    "HOPS TABLE": HOPS,
    "NUMA BW TABLE": BANDWIDTH,
    "XGMI LINK STATUS": STATUS,
    "ACCESS TABLE": OTHER,
    "CACHE COHERANCY TABLE": OTHER,
    "CACHE COHERENCY TABLE": OTHER,
    "ATOMICS TABLE": OTHER,
    "DMA TABLE": OTHER,
    "BI-DIRECTIONAL TABLE": OTHER,
    "LINK METRIC TABLE": OTHER,  # what went over each link: its rows give the number and address of each GPU
    "GPU LINK PORT STATUS": OTHER,  # of each port, but not where it leads
}
# Of these only the rows' number and address are of interest.
_NO_MATRIX = frozenset({"LINK METRIC TABLE", "GPU LINK PORT STATUS"})
_NUMBERED = re.compile(r"GPU(\d{1,3})\s{1,40}([0-9a-fA-F:]{5,14}\.[0-7])(?:\s|\Z)")
_PREFIX = "#>| \t"  # of quoted and commented pastes


def _title(text: str) -> str | None:
    match = _TITLE.match(text) if text.rstrip().endswith(":") else None
    return match[1] if match and match[1] in _MATRICES else None


def _begins(line: str) -> bool:
    return _title(line.strip(_PREFIX)) is not None


def _keeps(line: str) -> bool:
    """Whether a line is a heading or a row, which begin with addresses as lspci's lines do."""
    words = line.strip(_PREFIX).split(None, 2)
    if not words or name_of(words[0]) is None:
        return False
    return len(words) == 1 or name_of(words[1]) is not None or words[1].isupper() or words[1][0].isdigit()


class _Run:
    """The matrices of one run, and the addresses of the GPUs that it numbers."""

    def __init__(self) -> None:
        self.titles: set[str] = set()
        self.tables: list[Table] = []
        self.addresses: dict[str, str] = {}

    def facts(self, where: str) -> Facts | None:
        """None where nothing was understood."""
        names = [name for table in self.tables for name in table.names]
        names += self.addresses
        if not names:
            return None
        members: dict[str, set[str]] = {}
        for name in names:
            members.setdefault(self.device(name), set()).add(self.addresses.get(name, name))
        numbers: dict[str, int] = {}
        for name in sorted(self.addresses, key=sort_key):
            numbers.setdefault(self.device(name), int(name[3:]))
        found = conclude(self.tables, self.device)
        detail = "rows are missing or make no sense" if found.broken else ""
        return Facts(
            SourceStatus(f"{'amd-smi xgmi' if self._states() else KIND} ({where})", PARTIAL if detail else OK, detail),
            gpus=tuple(
                DriverGpu(
                    address=device if ":" in device else None,
                    ordinal=numbers.get(device) if ":" in device else int(device[3:]),
                    vendor_id=AMD,
                    partitions=len(found_as) if len(found_as) > 1 else None,
                )
                for device, found_as in sorted(members.items(), key=lambda item: sort_key(item[0]))
            ),
            peers=found.peers,
            accelerator_links=found.links,
            structure_only=True,
        )

    def _states(self) -> bool:
        return not any(table.kind in (TYPE, WEIGHT, HOPS, BANDWIDTH) for table in self.tables)

    def device(self, name: str) -> str:
        """The address of a GPU, where one is known: partitions are further functions of it."""
        address = self.addresses.get(name, name)
        return f"{address[:-1]}0" if ":" in address else address


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every run is one sample, oldest first; the next begins where a matrix comes for the second time."""
    runs: deque[_Run] = deque(maxlen=MOST_RUNS)
    run = _Run()
    table: Table | None = None
    for line in lines:
        text = line.strip(_PREFIX)
        title = _title(text)
        if title is not None:
            if title in run.titles:
                runs.append(run)
                run = _Run()
            run.titles.add(title)
            table = None
            if title not in _NO_MATRIX:
                table = Table(_MATRICES[title])
                run.tables.append(table)
        elif text.startswith(("Legend", "*")):
            table = None
        elif table is not None:
            table.add(text)
            run.addresses.update(table.addresses)
        elif run.titles and (row := _NUMBERED.match(text)) and (address := name_of(row[2])):
            run.addresses[f"GPU{int(row[1])}"] = address
    if table is not None:
        table.end()
    runs.append(run)
    return [facts for run in runs if (facts := run.facts(where))]


READER = Reader("amd-smi topology", _begins, read, _keeps)
