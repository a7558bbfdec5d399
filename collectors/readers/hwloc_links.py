"""hwloc's matrices: NVLinks between GPUs, NVSwitches and processors, and AMD's xGMI."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING

from gpu_topo.model.address import pair_key
from gpu_topo.model.gpu import ACTIVE, AcceleratorLink, NvLink
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.model.record import NamedTuple

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MAX_OBJECTS = 1024

# MB/s that hwloc enters for one NVLink, by generation: 1, 2, and 3 on. The last are sums of both directions in newer
# versions and not in older ones. Source: open-mpi/hwloc hwloc/topology-nvml.c
_FIRST, _SECOND, _LATER = 20_000, 25_000, 50_000
_PASCAL_IDS, _AMPERE_IDS = 0x1600, 0x2080  # NVIDIA's device ids below these are of P100, and of Volta and Turing
_FULL = (4, 8, 12, 18)  # links of NVLink 3 and later parts with all of them: A30 and GA102; A800, H800; A100; H100
_MOST = 18
_NVSWITCH = 0x0680


class _Matrix(NamedTuple):
    """Names of objects ("OSDev:802", "0") and the values from each to each."""

    objects: list[str]
    values: list[list[int]]


def _matrices(root: Element, name: str) -> list[_Matrix]:
    """The well-formed matrices of that name in a document."""
    found = []
    for element in [*root.findall("distances2"), *root.findall("distances2hetero")]:
        if element.get("name") != name:
            continue
        kind = element.get("type")
        objects = " ".join(part.text or "" for part in element.findall("indexes")).split()
        texts = " ".join(part.text or "" for part in element.findall("u64values")).split()
        size = len(objects)
        if not 0 < size <= _MAX_OBJECTS or len(texts) != size * size:
            continue
        if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
            continue
        values = [int(text) for text in texts]
        rows = [values[row * size : (row + 1) * size] for row in range(size)]
        found.append(_Matrix([index if ":" in index else f"{kind}:{index}" for index in objects], rows))
    return found


def nvlinks(
    root: Element, owner: Mapping[str, str], functions: Mapping[str, Function]
) -> dict[str, tuple[NvLink, ...]]:
    """The active NVLinks of each GPU in the matrix, by address. owner: object -> address of its PCI function."""
    found: dict[str, tuple[NvLink, ...]] = {}
    for matrix in _matrices(root, "NVLinkBandwidth"):
        addresses = [owner.get(name) for name in matrix.objects]
        gpus = [i for i, name in enumerate(matrix.objects) if name.startswith("OSDev:") and addresses[i] in functions]
        totals = {i: sum(value for j, value in enumerate(matrix.values[i]) if j != i) for i in gpus}
        for i in gpus:
            address = addresses[i] or ""
            per_link = _per_link(functions[address].device_id or 0, max(totals.values()))
            links: list[NvLink] = []
            for j, value in enumerate(matrix.values[i]):
                if i == j:
                    continue  # hwloc fills in what its own memory does
                kind, remote = _other_end(matrix.objects[j], addresses[j], functions)
                count = min(value // per_link, _MOST)
                first = len(links)
                links.extend(NvLink(first + n, ACTIVE, None, kind, remote) for n in range(count))
            found[address] = tuple(links)
    return found


def _per_link(device_id: int, most: int) -> int:
    """MB/s of one link of a GPU. most: the largest sum of any GPU in the machine, which tells the versions apart."""
    if device_id < _PASCAL_IDS:
        return _FIRST
    if device_id < _AMPERE_IDS:
        return _SECOND
    for per_link in (_LATER, _SECOND, 2 * _LATER):
        if most % per_link == 0 and most // per_link in _FULL:
            return per_link
    return _LATER


def _other_end(name: str, address: str | None, functions: Mapping[str, Function]) -> tuple[str, str | None]:
    if name.startswith("OSDev:"):
        return "gpu", address
    function = functions.get(address or "")
    if function is not None and (function.class_code or 0) >> 8 == _NVSWITCH:
        return "nvswitch", address
    return ("unknown", address) if name.startswith("PCIDev:") else ("cpu", None)


def xgmi(root: Element, owner: Mapping[str, str], by_name: Mapping[str, str]) -> tuple[AcceleratorLink, ...]:
    """Pairs of AMD GPUs one xGMI hop apart. Neither the number of links nor a rate is in the file: hwloc enters the
    same figure for every pair."""
    pairs: set[tuple[str, str]] = set()
    matrices = _matrices(root, "XGMIHops")
    for matrix in matrices:
        addresses = [owner.get(name) for name in matrix.objects]
        for i, j in combinations(range(len(addresses)), 2):
            a, b = addresses[i], addresses[j]
            if a and b and a != b and matrix.values[i][j] == 1:
                pairs.add(pair_key(a, b))
    if not matrices:
        for device in root.iter("object"):
            if (own := by_name.get(device.get("name") or "")) is None:
                continue
            for info in device.findall("info"):
                if info.get("name") == "XGMIPeers":
                    peers = (by_name.get(name) for name in (info.get("value") or "").split()[:_MAX_OBJECTS])
                    pairs.update(pair_key(own, peer) for peer in peers if peer and peer != own)
    number = Unknown(NOT_RECORDED, "hwloc XML")
    return tuple(AcceleratorLink("xGMI", a, b, links=number, state=ACTIVE) for a, b in sorted(pairs))
