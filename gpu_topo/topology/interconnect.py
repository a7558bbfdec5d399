"""The shape of a node's GPU interconnect, its islands, and the largest tensor-parallel group inside one."""

from __future__ import annotations

from gpu_topo.model.address import sort_key
from gpu_topo.model.node import GPU, Gpu, Node
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.structure import Interconnect
from gpu_topo.topology.bonds import Bonds, bonds, key

NVSWITCH_SHAPE = "nvswitch"
FULL_MESH = "full-mesh"
CUBE_MESH = "hybrid-cube-mesh"
PAIRS = "pairs"
PARTIAL = "partial"
NONE = "none"
UNKNOWN = "unknown"

_MOST_LINKS = 18  # of any NVLink GPU so far: a mesh that needs more is a switch


def interconnect(node: Node) -> Interconnect:
    """How the GPUs of a node reach each other without PCIe.

    Islands hold every GPU, alone ones too, by address; max_tensor_parallel is None where the shape is unknown.
    """
    gpus = [gpu for gpu in node.gpus if _is_gpu(node, gpu)]
    if not gpus:
        return Interconnect(NONE, (), None, "no GPU")
    found = bonds(node)
    addresses = sorted((gpu.address for gpu in gpus), key=sort_key)
    if not found:
        reason = _why_unknown(node, gpus)
        if reason:
            return Interconnect(UNKNOWN, (), None, reason)
        return Interconnect(NONE, tuple((a,) for a in addresses), 1)
    islands = _islands(addresses, found)
    shape = _shape(addresses, islands, found)
    return Interconnect(shape, islands, max(len(island) for island in islands))


def _is_gpu(node: Node, gpu: Gpu) -> bool:
    device = node.devices.get(gpu.address)
    if device is None:
        return True
    return not device.integrated and (
        device.kind == GPU or any(gpu.address in (a.a, a.b) for a in node.accelerator_links)
    )


def _why_unknown(node: Node, gpus: list[Gpu]) -> str:
    """Why a machine without a single bond may have some all the same; "" where it surely has none."""
    stated = {a for pair in node.stated_paths for a in pair}
    for gpu in gpus:
        links = known(gpu.nvlinks)
        if _linkless(gpu):
            continue
        if isinstance(gpu.nvlinks, Unknown):
            return f"NVLink state not read: {gpu.nvlinks.why}"
        if known(gpu.mig):
            return "MIG is on: NVLink state says nothing"
        if links is not None and not any(link.state == "active" for link in links):
            continue
        if links is not None:
            return "NVLinks are active but where they lead is not known"
        if gpu.address in stated:
            continue
        return "the recording does not hold NVLink or xGMI state"
    return ""


def _linkless(gpu: Gpu) -> bool:
    """Whether the catalogue is sure that this part has no GPU-to-GPU link."""
    return gpu.part is not None and gpu.part.fabric == "none"


def _islands(addresses: list[str], found: Bonds) -> tuple[tuple[str, ...], ...]:
    """Connected groups of bonded GPUs, the largest first."""
    group = {a: {a} for a in addresses}
    for a, b in found:
        if a in group and b in group and group[a] is not group[b]:
            merged = group[a] | group[b]
            for member in merged:
                group[member] = merged
    seen: list[set[str]] = []
    for address in addresses:
        if group[address] not in seen:
            seen.append(group[address])
    ordered = [tuple(sorted(island, key=sort_key)) for island in seen]
    return tuple(sorted(ordered, key=lambda island: -len(island)))


def _complete(island: tuple[str, ...], found: Bonds) -> bool:
    return all(key(a, b) in found for i, a in enumerate(island) for b in island[i + 1 :])


def _needs_switch(island: tuple[str, ...], found: Bonds) -> bool:
    """Whether the GPUs of an island are joined by switches: as told, or because a mesh would need more links than a
    GPU has ends (topo -m does not say what is between)."""
    inside = [bond for (a, b), bond in found.items() if a in island and b in island]
    if any(bond.switched for bond in inside):
        return True
    per_gpu = sum(bond.links or 1 for bond in inside) * 2 / len(island)
    return bool(inside) and per_gpu > _MOST_LINKS and all(bond.kind.startswith("NV") for bond in inside)


def on_switches(node: Node) -> bool:
    """Whether NVSwitches join GPUs of this node, seen or inferred from the numbers of links."""
    found = bonds(node)
    addresses = sorted((gpu.address for gpu in node.gpus), key=sort_key)
    return any(len(island) > 2 and _needs_switch(island, found) for island in _islands(addresses, found))


def _shape(addresses: list[str], islands: tuple[tuple[str, ...], ...], found: Bonds) -> str:
    if len(islands) == 1:
        island = islands[0]
        if _complete(island, found):
            if _needs_switch(island, found):
                return NVSWITCH_SHAPE
            return PAIRS if len(island) == 2 and len(addresses) == 2 else FULL_MESH
        degrees = sorted(sum(a in pair for pair in found) for a in island)
        if len(island) == 8 and degrees == [4] * 8:
            return CUBE_MESH
        return PARTIAL
    sizes = {len(island) for island in islands}
    if sizes == {2}:
        return PAIRS
    return PARTIAL
