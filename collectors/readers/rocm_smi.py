"""Reads `rocm-smi`: matrices of `--showtopo` and `--shownodesbw`, addresses of `--showbus`, device ids of the table.

GPUs are numbers here; only `--showbus` gives their addresses.
"""

from __future__ import annotations

import re
from collections import deque

from gpu_topo.collectors.readers.amd_smi_links import conclude, one_device
from gpu_topo.collectors.readers.amd_smi_table import BANDWIDTH, HOPS, MOST_RUNS, OTHER, TYPE, WEIGHT, Table, heading
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import normalise, slot_of
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.reading import NO_DATA, Reading, Unknown
from gpu_topo.model.vendors import AMD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "rocm-smi"

_TITLE = re.compile(r"={4,200} {0,4}([A-Za-z][A-Za-z0-9 ]{0,60}?) {0,4}={4,200}\Z")
_BANNER = "ROCm System Management Interface"
_MATRICES = {
    "Weight between two GPUs": WEIGHT,
    "Hops between two GPUs": HOPS,
    "Link Type between two GPUs": TYPE,
    "Bandwidth": BANDWIDTH,
    "Link accessibility between two GPUs": OTHER,
}
_BEGINS = frozenset({_BANNER, *_MATRICES, "Numa Nodes", "PCI Bus ID", "Concise Info"})
# GPU[0]   : PCI Bus: 0000:63:00.0; GPU 0 : (Topology) Numa Node: 0
_FIELD = re.compile(r"GPU ?\[?(\d{1,3})\]?\s{0,40}:\s{0,40}(?:\(Topology\) )?([A-Z][A-Za-z ]{2,20}):\s{0,40}(\S{1,40})")
_ADDRESS, _NODE, _AFFINITY, _ID = "PCI Bus", "Numa Node", "Numa Affinity", "Device ID"
_FIELDS = frozenset({_ADDRESS, _NODE, _AFFINITY, _ID})
# 0   2   0x74a1,   3771   47.0°C   154.0W   NPS4, CPX, 0: device, node, device id, GUID; the last: its partition
_DEVICE = re.compile(r"(\d{1,3})\s{1,40}\d{1,4}\s{1,40}(0x[0-9a-fA-F]{4}|N/A),\s{1,40}\d{1,6}\s")
_PARTITION = re.compile(r"\s[A-Z0-9/]{2,8}, [A-Z0-9/]{2,8}, (\d{1,3})\s")
_HEX = re.compile(r"0x[0-9a-fA-F]{4}\Z")
_PREFIX = "#>| \t"  # of quoted and commented pastes


def _title(text: str) -> str | None:
    match = _TITLE.match(text) if text[:4] == "====" else None
    return match[1] if match else None


def _begins(line: str) -> bool:
    text = line.strip(_PREFIX)
    if text[:4] == "====":
        return _title(text) in _BEGINS
    if text[:3] == "GPU":
        match = _FIELD.match(text)
        return match is not None and match[2] in _FIELDS
    return text[:1].isdigit() and bool(_DEVICE.match(text))


def _keeps(line: str) -> bool:
    """Whether a line is a heading of GPUs, as `nvidia-smi topo -m` has them too."""
    return heading(line.strip(_PREFIX)) is not None


class _Log:
    """What one run printed: a table of matrices, and of each GPU, by number, what lines told of it."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.fields: dict[int, dict[str, str]] = {}
        self.partition_of: dict[int, int] = {}  # partition -> its device, as the table of devices has them

    def __bool__(self) -> bool:
        return bool(self.fields) or any(table.rows for table in self.tables)

    def numbers(self) -> list[int]:
        """Every GPU that is named."""
        named = {int(name[3:]) for table in self.tables for name in table.names if name.startswith("GPU")}
        return sorted(named | self.fields.keys() | self.partition_of.keys())

    def places(self) -> dict[int, str]:
        """The address of each GPU's device. Partitions are its further functions, and some versions lost the domain
        of those: an address that two GPUs claim is nobody's."""
        claimed: dict[str, list[int]] = {}
        for number, fields in self.fields.items():
            if (address := normalise(fields.get(_ADDRESS, ""))) is not None:
                claimed.setdefault(address, []).append(number)
        doubtful = {slot_of(address) for address, numbers in claimed.items() if len(numbers) > 1}
        return {
            numbers[0]: f"{slot_of(address)}.0"
            for address, numbers in claimed.items()
            if slot_of(address) not in doubtful
        }

    def devices(self) -> dict[int, int]:
        """GPU -> the first GPU of its device, itself where it is no partition."""
        first: dict[str, int] = {}
        found = {number: self.partition_of.get(number, number) for number in self.numbers()}
        found |= {int(name[3:]): int(low[3:]) for name, low in one_device(self.tables).items()}
        for number, address in sorted(self.places().items()):
            found[number] = first.setdefault(address, number)
        return found


def _gpu(log: _Log, number: int, address: str | None, partitions: int) -> DriverGpu:
    fields = log.fields.get(number, {})
    device = fields.get(_ID, "")
    return DriverGpu(
        address=address,
        ordinal=number,
        vendor_id=AMD,
        device_id=int(device, 16) if _HEX.match(device) else None,
        numa_node=_numa(fields.get(_AFFINITY, fields.get(_NODE))),
        partitions=partitions if partitions > 1 else None,
    )


def _numa(text: str | None) -> Reading[int]:
    if text is None:
        return None
    plain = text.isascii() and text.isdecimal() and len(text) < 6
    return int(text) if plain else Unknown(NO_DATA, f"rocm-smi: NUMA {text}")


def _facts(log: _Log, where: str) -> Facts:
    devices, places = log.devices(), log.places()
    members: dict[int, int] = {}
    for device in devices.values():
        members[device] = members.get(device, 0) + 1

    found = conclude(log.tables, lambda name: f"GPU{devices[int(name[3:])]}")
    claimed = sum(_ADDRESS in fields for fields in log.fields.values())
    detail = "rows are missing or make no sense" if found.broken else ""
    if claimed > len(places):
        detail = detail or f"{claimed - len(places)} GPUs without an address of their own"
    return Facts(
        SourceStatus(f"{KIND} ({where})", PARTIAL if detail else OK, detail),
        gpus=tuple(_gpu(log, number, places.get(number), count) for number, count in sorted(members.items())),
        peers=found.peers,
        accelerator_links=found.links,
        structure_only=True,
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every run is one sample, oldest first; one without its title begins where a matrix comes for the second time."""
    logs: deque[_Log] = deque(maxlen=MOST_RUNS)
    log, table = _Log(), None
    device = 0
    for line in lines:
        text = line.strip(_PREFIX)
        title = _title(text)
        if title is not None:
            kind = _MATRICES.get(title)
            if title == _BANNER or (kind is not None and any(kind == other.kind for other in log.tables)):
                if log:
                    logs.append(log)
                log = _Log()
            table = None
            if kind is not None:
                table = Table(kind)
                log.tables.append(table)
        elif text.startswith("GPU") and (field := _FIELD.match(text)):
            table = None
            if field[2] in _FIELDS:
                log.fields.setdefault(int(field[1]), {})[field[2]] = field[3]
        elif table is not None:
            if text and not text.startswith("bdf") and all(":" not in word for word in text.split()):
                table.add(text)
        elif row := _DEVICE.match(text):
            number, partition = int(row[1]), _PARTITION.search(text)
            if partition is not None and int(partition[1]) > 0:
                log.partition_of[number] = device
            else:
                device = number
                log.fields.setdefault(number, {})[_ID] = row[2]
    if table is not None:
        table.end()
    if log:
        logs.append(log)
    return [_facts(log, where) for log in logs]


READER = Reader("rocm-smi", _begins, read, _keeps)
