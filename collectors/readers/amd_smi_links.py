"""What the matrices of AMD's tools say together: which pairs of GPUs have xGMI links of their own.

Sources: ROCm/rocm-systems pull request 7372 and issue 5763 (hops are 1 for every xGMI way; a weight is 15 for each
hop, or the sum of PCIe's 20s), open-mpi/hwloc issue 775, linux drivers/gpu/drm/amd/amdkfd/kfd_crat.c (15, and 13
inside one device), ROCm's release notes (MB/s of one link and of all; 0-0: not directly connected).
"""

from __future__ import annotations

import re
from itertools import combinations

from gpu_topo.collectors.readers.amd_smi_table import BANDWIDTH, HOPS, STATUS, TYPE, WEIGHT, Table
from gpu_topo.model.address import sort_key
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE, AcceleratorLink, Peer
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_XGMI, _PCIE = "XGMI", "PCIE"
_HOP_WEIGHT = 15  # KFD_CRAT_XGMI_WEIGHT: 30 leads through another GPU and is no link of its own
_SAME_DEVICE_WEIGHT = 13  # KFD_CRAT_INTRA_SOCKET_WEIGHT between GPUs: partitions of one device
_ACROSS_PROCESSORS = 3  # hops
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})\Z")
_NO_COUNT = Unknown(NOT_RECORDED, "rocm-smi and amd-smi print the number of links as bandwidths only")


class Found(NamedTuple):
    """links: xGMI links of pairs, by name. peers: what is stated of the other ways. broken: rows are missing or make no
    sense."""

    links: tuple[AcceleratorLink, ...]
    peers: tuple[Peer, ...]
    broken: bool


class _Pair:
    """Everything that the matrices say of one pair, in both directions and of all partitions."""

    def __init__(self) -> None:
        self.words: dict[str, set[str]] = {}

    def numbers(self, kind: str) -> set[int]:
        """The numbers among the words of one matrix."""
        return {int(w) for w in self.words.get(kind, ()) if w.isascii() and w.isdecimal() and len(w) < 6}

    def rates(self) -> set[tuple[int, int]]:
        """MB/s of one link and of all links."""
        matches = (_RANGE.match(word) for word in self.words.get(BANDWIDTH, ()))
        return {(int(match[1]), int(match[2])) for match in matches if match}


def one_device(tables: Sequence[Table]) -> dict[str, str]:
    """Partition -> the first partition of its device, of those that weigh as one device."""
    first: dict[str, str] = {}
    for table in tables:
        for row, column, word in table.cells()[0] if table.kind == WEIGHT else ():
            if word == str(_SAME_DEVICE_WEIGHT):
                low, high = sorted((row, column), key=sort_key)
                first.setdefault(high, first.get(low, low))
    return first


def conclude(tables: Sequence[Table], device: Callable[[str], str]) -> Found:
    """The links between devices. device: a name in a matrix -> the device that it is, or a partition of.

    A pair on which the matrices contradict each other, or of which a matrix was cut off, has a link of unknown state
    where the machine has xGMI at all.
    """
    pairs: dict[tuple[str, str], _Pair] = {}
    broken = False
    for table in tables:
        cells, odd = table.cells()
        broken = broken or odd
        for row, column, word in cells:
            a, b = sorted((device(row), device(column)), key=sort_key)
            if a != b:
                pairs.setdefault((a, b), _Pair()).words.setdefault(table.kind, set()).add(word)
    kinds = {table.kind for table in tables}
    names = sorted({device(name) for table in tables for name in table.names}, key=sort_key)
    told = {kind: {word for pair in pairs.values() for word in pair.words.get(kind, ())} for kind in kinds}
    measured = any(most for pair in pairs.values() for _, most in pair.rates())
    links, peers = [], []
    for a, b in combinations(names, 2):
        pair = pairs.get((a, b)) or _Pair()
        state = _state(pair, told, measured)
        if state is not None:
            count, gbs = _strength(pair) if state == ACTIVE else (_NO_COUNT, None)
            links.append(AcceleratorLink("xGMI", a, b, links=count, state=state, gbs=gbs))
            if state == UNKNOWN_STATE and pair.words.get(TYPE) == {_XGMI} and not _judged(pair, measured):
                peers.append(Peer(a, b, "XG"))
        elif pair.words.get(TYPE) == {_PCIE} and pair.numbers(HOPS) == {_ACROSS_PROCESSORS}:
            peers.append(Peer(a, b, "SYS"))
    return Found(tuple(links), tuple(peers), broken)


def _state(pair: _Pair, told: Mapping[str, set[str]], measured: bool) -> str | None:
    """The state of the pair's own links; None where it surely has none, or where nothing tells of any."""
    types = pair.words.get(TYPE, set()) & {_XGMI, _PCIE}
    if TYPE in told and not types:
        return UNKNOWN_STATE if _XGMI in told[TYPE] else None
    if len(types) > 1:
        return UNKNOWN_STATE
    weights, hops = pair.numbers(WEIGHT), pair.numbers(HOPS)
    if types == {_PCIE}:
        odd = 1 in hops or any(0 < weight <= _HOP_WEIGHT for weight in weights)
        return UNKNOWN_STATE if odd else None
    status = pair.words.get(STATUS, set()) & {"U", "D", "X"}
    if types == {_XGMI}:
        direct = _direct(pair, measured)
        if direct == {False}:
            return None
        if direct != {True} and not status:
            return UNKNOWN_STATE
    elif not status:
        if any(most for _, most in pair.rates()):
            return ACTIVE
        missing = (measured and BANDWIDTH not in pair.words) or bool(told.get(STATUS, set()) & {"U", "D"})
        return UNKNOWN_STATE if missing else None
    if not status:
        return ACTIVE
    if status == {"X"}:
        return None
    # Drivers in guests called every link down that was up (ROCm 7's changes of amd-smi xgmi).
    return ACTIVE if status == {"U"} else INACTIVE if "D" in status and "U" in told[STATUS] else UNKNOWN_STATE


def _direct(pair: _Pair, measured: bool) -> set[bool]:
    """What the matrices say to whether an xGMI way is a link of its own: both answers where they contradict each
    other, none where nothing tells."""
    answers = {weight <= _HOP_WEIGHT or weight % _HOP_WEIGHT != 0 for weight in pair.numbers(WEIGHT)}
    if any(hop > 1 for hop in pair.numbers(HOPS)):
        answers.add(False)
    if measured:  # else the driver knows no bandwidths
        answers |= {most > 0 for _, most in pair.rates()}
    return answers


def _judged(pair: _Pair, measured: bool) -> bool:
    return bool(_direct(pair, measured))


def _strength(pair: _Pair) -> tuple[int | Unknown, float | None]:
    """Number of links and GB/s per direction of all together, where the directions agree."""
    rates = pair.rates()
    if len(rates) != 1:
        return _NO_COUNT, None
    ((least, most),) = rates
    count = most // least if least and most >= least and most % least == 0 else _NO_COUNT
    return count, most / 1000 if most else None
