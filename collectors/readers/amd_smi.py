"""Reads `amd-smi list`, `amd-smi static` and `amd-smi metric`: one block of names and values for each GPU.

A GPU idles at a low speed and, by its driver's power levels, at fewer lanes too, and what the driver says may be the
bridge's inside the card: PCIe values are shown and never judged.
"""

from __future__ import annotations

import re

from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import normalise, slot_of
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.pci import Function, LinkEnd
from gpu_topo.model.reading import NO_DATA, Reading, Unknown
from gpu_topo.model.vendors import AMD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KIND = "amd-smi"

_GPU = re.compile(r"GPU: ?(\d{1,3})\s{0,40}\Z")
_OTHER = re.compile(r"(?:CPU|CORE|[A-Z]{0,10}_?NIC|SWITCH): ?\d{1,4}\s{0,40}\Z")
_BLOCK = re.compile(r"[A-Z][A-Z\d_ -]{1,30}: ?\d{1,4}\s{0,40}\Z")  # of anything, no deeper than "GPU: 0"
_PAIR = re.compile(r"([A-Z][A-Z0-9_]{1,40}):(?:\s{1,40}(\S.{0,200}))?\Z")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) ?GT/s\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,4}\Z")
# Group and name of what is of interest; lists have no groups.
_WANTED = frozenset(
    {
        (None, "BDF"),
        (None, "UUID"),
        (None, "PARTITION_ID"),
        ("ASIC", "MARKET_NAME"),
        ("ASIC", "DEVICE_ID"),
        ("BUS", "BDF"),
        ("BUS", "MAX_PCIE_WIDTH"),
        ("BUS", "MAX_PCIE_SPEED"),
        ("NUMA", "NODE"),
        ("PCIE", "WIDTH"),
        ("PCIE", "SPEED"),
        ("PCIE", "REPLAY_COUNT"),
    }
)
_LINK = ("WIDTH", "SPEED", "MAX_PCIE_WIDTH", "MAX_PCIE_SPEED")
_WHOLE = re.compile(r".*\.[0-7]\Z|[0-9a-f-]{36}\Z|.* GT/s\Z")
_NONE = frozenset({"N/A", "UNKNOWN"})
_PREFIX = "#>| \t"  # of quoted and commented pastes
_MOST_WIDTH = 32


def _begins(line: str) -> bool:
    return "GPU:" in line[:20] and bool(_GPU.match(line.strip(_PREFIX)))


def _number(text: str | None, name: str, most: int) -> Reading[int]:
    if text is None:
        return None
    plain = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most
    return int(text) if plain else Unknown(NO_DATA, f"amd-smi: {name} {text[:40]}")


def _lanes(fields: Mapping[str, str], name: str) -> Reading[int]:
    return _number(fields.get(name), name, _MOST_WIDTH) or (
        Unknown(NO_DATA, f"amd-smi: {name} 0") if name in fields else None
    )


def _speed(fields: Mapping[str, str], name: str) -> Reading[float]:
    if name not in fields:
        return None
    match = _SPEED.match(fields[name])
    return float(match[1]) if match and float(match[1]) else Unknown(NO_DATA, f"amd-smi: {name} {fields[name][:40]}")


def _link(fields: Mapping[str, str]) -> LinkEnd | None:
    if not any(name in fields and fields[name] not in _NONE for name in _LINK):
        return None
    return LinkEnd(
        speed_gts=_speed(fields, "SPEED"),
        width=_lanes(fields, "WIDTH"),
        max_speed_gts=_speed(fields, "MAX_PCIE_SPEED"),
        max_width=_lanes(fields, "MAX_PCIE_WIDTH"),
    )


def _gpu(number: int, address: str | None, fields: Mapping[str, str], partitions: int) -> DriverGpu:
    device = fields.get("DEVICE_ID", "")
    model, uuid = fields.get("MARKET_NAME", "N/A"), fields.get("UUID", "N/A")
    return DriverGpu(
        address=address,
        ordinal=number,
        uuid=uuid if uuid not in _NONE else None,
        model=model if model not in _NONE else None,
        vendor_id=AMD,
        device_id=int(device, 16) if _HEX.match(device) else None,
        numa_node=_number(fields.get("NODE"), "NUMA NODE", 99_999),
        replays=_number(fields.get("REPLAY_COUNT"), "REPLAY_COUNT", 1 << 64),
        partitions=partitions if partitions > 1 else None,
    )


def _facts(blocks: Mapping[int, Mapping[str, str]], where: str) -> Facts:
    """One GPU for each device: partitions are further functions of it, or further blocks of the same function."""
    places = {n: address for n, fields in blocks.items() if (address := normalise(fields.get("BDF", "")))}
    first: dict[str, int] = {}
    members: dict[int, int] = {}
    for number in sorted(blocks):
        place = places.get(number)
        device = number if place is None else first.setdefault(f"{slot_of(place)}.0", number)
        members[device] = members.get(device, 0) + 1
    at = {number: f"{slot_of(places[number])}.0" for number in members if number in places}
    functions = []
    for number, address in at.items():
        if (link := _link(blocks[number])) is not None:
            gpu = _gpu(number, address, blocks[number], 1)
            functions.append(
                Function(address, AMD, gpu.device_id, numa_node=gpu.numa_node, link=link, link_trusted=False)
            )
    nowhere = len(members) - len(at)
    detail = f"{nowhere} GPUs without an address" if at and nowhere else ""
    return Facts(
        SourceStatus(f"{KIND} ({where})", PARTIAL if detail else OK, detail),
        functions=tuple(functions),
        gpus=tuple(_gpu(number, at.get(number), blocks[number], count) for number, count in members.items()),
        structure_only=True,
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every run is one sample, oldest first; the next begins where a GPU says something for the second time."""
    samples: list[Facts] = []
    blocks: dict[int, dict[str, str]] = {}
    said: set[tuple[int, str | None, str]] = set()
    number: int | None = None
    group: str | None = None
    last = ""  # the name in the line before this one
    margin: int | None = None  # of the line that names the GPU, once a line below it stands deeper
    begun = 0
    for line in lines:
        text, last = line.strip(_PREFIX), ""
        indent = len(line) - len(line.lstrip(_PREFIX))
        if head := _GPU.match(text):
            number, group = int(head[1]), None
            margin, begun = None, indent
            continue
        if margin is None and number is not None and text and indent > begun:
            margin = begun
        if _OTHER.match(text) or (margin is not None and indent <= margin and _BLOCK.match(text)):
            number = None
            continue
        pair = _PAIR.match(text) if number is not None else None
        if pair is None or number is None:
            continue
        name, value = pair[1], (pair[2] or "").strip()
        if not value:
            group = name
        elif (group, name) in _WANTED:
            if (number, group, name) in said:
                samples.append(_facts(blocks, where))
                blocks, said = {}, set()
            said.add((number, group, name))
            blocks.setdefault(number, {})[name] = value
            last = name
    # The text may have been cut off: of its last word more may have followed, but for words whose end shows.
    if number is not None and last and not _WHOLE.match(blocks[number][last]):
        del blocks[number][last]
    if blocks:
        samples.append(_facts(blocks, where))
    return samples


READER = Reader("amd-smi list", _begins, read)
