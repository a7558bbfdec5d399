"""The shape of a node's GPU interconnect, its islands, and the largest tensor-parallel group inside one."""

from __future__ import annotations

from gpu_topo.model.address import sort_key
from gpu_topo.model.node import GPU, Gpu, Node
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.structure import Interconnect
from gpu_topo.topology.bonds import Bonds, bonds, key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NVSWITCH_SHAPE = "nvswitch"
FULL_MESH = "full-mesh"
CUBE_MESH = "hybrid-cube-mesh"
PAIRS = "pairs"
PARTIAL = "partial"
NONE = "none"
UNKNOWN = "unknown"

_MOST_STEPS = 20_000  # of the search for a ring: a cube mesh needs a few dozen
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
        # One of the GPUs that are listed, though its driver cannot say which: only its links tell more.
        return not node.devices or known(gpu.nvlinks) is not None
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
    """Groups of GPUs whose collectives stay on their bonds, the largest first; GPUs alone are groups of one.

    A connected group is one where every GPU reaches every other directly, or where a ring runs through all of them, as
    it does in a hybrid cube mesh. Anything looser falls into the largest groups that reach each other directly.
    """
    neighbours: dict[str, set[str]] = {address: set() for address in addresses}
    for a, b in found:
        if a in neighbours and b in neighbours:
            neighbours[a].add(b)
            neighbours[b].add(a)
    islands = []
    left = set(addresses)
    while left:
        group = _connected(min(left, key=sort_key), neighbours, left)
        island = tuple(sorted(group, key=sort_key))
        if not (_complete(island, found) or _has_ring(island, neighbours)):
            island = tuple(sorted(_largest_clique(group, neighbours), key=sort_key))
        islands.append(island)
        left -= set(island)
    return tuple(sorted(islands, key=lambda island: -len(island)))


def _connected(start: str, neighbours: Mapping[str, set[str]], inside: set[str]) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        new = (neighbours[waiting.pop()] & inside) - seen
        seen |= new
        waiting.extend(new)
    return seen


def _has_ring(island: tuple[str, ...], neighbours: Mapping[str, set[str]]) -> bool:
    """Whether a ring of bonds runs through all GPUs of an island, by a bounded search."""
    steps = _MOST_STEPS
    path = [island[0]]
    choices = [sorted(neighbours[island[0]], key=sort_key)]
    while choices and steps:
        steps -= 1
        if not choices[-1]:
            choices.pop()
            path.pop()
            continue
        step = choices[-1].pop()
        if step in path:
            continue
        if len(path) + 1 == len(island):
            if island[0] in neighbours[step]:
                return True
            continue
        path.append(step)
        choices.append(sorted(neighbours[step], key=sort_key))
    return False


def _largest_clique(group: set[str], neighbours: Mapping[str, set[str]]) -> set[str]:
    """The largest set of GPUs that reach each other directly, greedily from each GPU: exact on real boards."""
    best: set[str] = set()
    for start in sorted(group, key=sort_key):
        clique = {start}
        candidates = neighbours[start] & group
        while candidates:
            step = max(sorted(candidates, key=sort_key), key=lambda a: len(neighbours[a] & candidates))
            clique.add(step)
            candidates &= neighbours[step]
        if len(clique) > len(best):
            best = clique
    return best


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
