"""The shape of a node's GPU interconnect, its islands, and the largest tensor-parallel group inside one."""

from __future__ import annotations

from gpu_topo.model.address import pair_key, sort_key
from gpu_topo.model.gpu import UNKNOWN_STATE
from gpu_topo.model.node import GPU, Gpu, Node
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.structure import Interconnect
from gpu_topo.topology.bonds import Bonds, bonds
from gpu_topo.topology.cube_mesh import is_cube_mesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

NVSWITCH_SHAPE = "nvswitch"
FULL_MESH = "full-mesh"
CUBE_MESH = "hybrid-cube-mesh"
PAIRS = "pairs"
PARTIAL = "partial"
NONE = "none"
UNKNOWN = "unknown"

_SMALLEST_MESH = 4  # of three, one broken connection looks like a chain that was built so
_MOST_STEPS = 20_000  # of the search for a ring: a cube mesh needs a few dozen
_MOST_LINKS = 18  # of any NVLink GPU so far: a mesh that needs more is a switch


def interconnect(node: Node) -> Interconnect:
    """How the GPUs of a node reach each other without PCIe.

    Islands hold every GPU, alone ones too, by address; max_tensor_parallel is None where the shape is unknown.
    """
    told = {name for link in node.accelerator_links for name in (link.a, link.b)}
    told.update(name for pair in node.stated_paths for name in pair)
    gpus = [gpu for gpu in node.gpus if _is_gpu(node, gpu, told)]
    if not gpus and told:
        return Interconnect(UNKNOWN, (), None, "which device is which in the matrix is not recorded")
    if not gpus and any(gpu.listed and not _linkless(gpu) for gpu in node.gpus):
        return Interconnect(UNKNOWN, (), None, "how the accelerators are connected is not recorded")
    if not gpus:
        return Interconnect(NONE, (), None, "no GPU")
    found = bonds(node)
    addresses = sorted((gpu.address for gpu in gpus), key=sort_key)
    for link in node.accelerator_links:
        if link.state == UNKNOWN_STATE:
            return Interconnect(UNKNOWN, (), None, f"whether {link.a} and {link.b} are linked directly is not known")
    if node.devices and found and not any(a in node.devices or b in node.devices for a, b in found):
        return Interconnect(UNKNOWN, (), None, "which device is which in the matrix is not recorded")
    if not found:
        reason = _why_unknown(node, gpus)
        if reason:
            return Interconnect(UNKNOWN, (), None, reason)
        return Interconnect(NONE, tuple((a,) for a in addresses), 1)
    hidden = hidden_pair(node, addresses)
    if hidden is not None:
        return Interconnect(UNKNOWN, (), None, f"how {hidden[0]} and {hidden[1]} are connected is not recorded")
    bonded = {address for pair in found for address in pair}
    unseen = [gpu.address for gpu in gpus if _is_unseen(gpu) and gpu.address not in bonded]
    seen = [address for address in addresses if address not in unseen]
    islands = _islands(seen, found)
    reason = f"the links of {len(unseen)} of {len(gpus)} GPUs cannot be seen here" if unseen else ""
    return Interconnect(_shape(seen, islands, found), islands, max(len(island) for island in islands), reason)


def _is_gpu(node: Node, gpu: Gpu, told: Container[str]) -> bool:
    """Whether this is a GPU, or an accelerator of which is told how it reaches others."""
    device = node.devices.get(gpu.address)
    if device is None:
        # One of the GPUs that are listed, though its driver cannot say which: only its links tell more.
        return not node.devices or known(gpu.nvlinks) is not None
    return not device.integrated and (device.kind == GPU or gpu.address in told)


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


def _is_unseen(gpu: Gpu) -> bool:
    """Whether a GPU may have links of which nothing is known: its driver does not tell, or hides it from a job."""
    return not _linkless(gpu) and (isinstance(gpu.nvlinks, Unknown) or (gpu.nvlinks is None and gpu.listed is False))


def _linkless(gpu: Gpu) -> bool:
    """Whether the catalogue is sure that this part has no GPU-to-GPU link."""
    return gpu.part is not None and gpu.part.fabric == "none"


def hidden_pair(node: Node, gpus: Sequence[str]) -> tuple[str, str] | None:
    """Two of these GPUs that may be bonded, since a matrix was cut short and holds other pairs of them; None where all
    pairs are known."""
    if not node.stated_paths:
        return None
    found = bonds(node)
    stated = {a for pair in node.stated_paths for a in pair}
    by_link = {gpu.address for gpu in node.gpus if known(gpu.nvlinks) is not None}
    told = [gpu for gpu in gpus if gpu in stated and gpu not in by_link]
    pairs = (pair_key(a, b) for i, a in enumerate(told) for b in told[i + 1 :])
    return next((pair for pair in pairs if pair not in found and pair not in node.stated_paths), None)


def joined(addresses: Iterable[str], found: Bonds) -> list[tuple[str, ...]]:
    """The GPUs that bonds join at all, directly or by way of others: each such group in address order."""
    neighbours = _neighbours(addresses, found)
    groups = []
    left = set(neighbours)
    while left:
        group = _connected(min(left, key=sort_key), neighbours, left)
        groups.append(tuple(sorted(group, key=sort_key)))
        left -= group
    return groups


def _neighbours(addresses: Iterable[str], found: Bonds) -> dict[str, set[str]]:
    neighbours: dict[str, set[str]] = {address: set() for address in addresses}
    for a, b in found:
        if a in neighbours and b in neighbours:
            neighbours[a].add(b)
            neighbours[b].add(a)
    return neighbours


def _islands(addresses: list[str], found: Bonds) -> tuple[tuple[str, ...], ...]:
    """Groups of GPUs whose collectives stay on their bonds, the largest first; GPUs alone are groups of one.

    A connected group is one where every GPU reaches every other directly, or where a ring runs through all of them, as
    it does in a hybrid cube mesh. Anything looser, such as a chain, falls into the largest groups that reach each other
    directly. So does a mesh with a hole: the two GPUs at its edges do not reach each other at full speed.
    """
    neighbours = _neighbours(addresses, found)
    islands = []
    left = set(addresses)
    while left:
        group = _connected(min(left, key=sort_key), neighbours, left)
        island = tuple(sorted(group, key=sort_key))
        if not _complete(island, found) and (_has_hole(group, neighbours) or not _has_ring(island, neighbours)):
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


def _has_hole(group: set[str], neighbours: Mapping[str, set[str]]) -> bool:
    """Whether half of a group or more reach all others of it: a mesh, of which nobody builds one with a hole."""
    full = sum(group <= neighbours[a] | {a} for a in group)
    return len(group) >= _SMALLEST_MESH and full * 2 >= len(group)


def _has_ring(island: tuple[str, ...], neighbours: Mapping[str, set[str]]) -> bool:
    """Whether a ring of bonds runs through all GPUs of an island, by a bounded search."""
    inside = set(island)
    steps = _MOST_STEPS
    path = [island[0]]
    choices = [sorted(neighbours[island[0]] & inside, key=sort_key)]
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
        choices.append(sorted(neighbours[step] & inside, key=sort_key))
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
    return all(pair_key(a, b) in found for i, a in enumerate(island) for b in island[i + 1 :])


def needs_switch(island: Sequence[str], found: Bonds) -> bool:
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
    return any(len(island) > 2 and needs_switch(island, found) for island in _islands(addresses, found))


def _shape(addresses: list[str], islands: tuple[tuple[str, ...], ...], found: Bonds) -> str:
    if len(islands) == 1:
        island = islands[0]
        if _complete(island, found):
            if needs_switch(island, found):
                return NVSWITCH_SHAPE
            return PAIRS if len(island) == 2 and len(addresses) == 2 else FULL_MESH
        return CUBE_MESH if is_cube_mesh(island, found) else PARTIAL
    if {len(island) for island in islands} == {2} and not bridged(islands, found):
        return PAIRS
    return PARTIAL


def bridged(islands: Iterable[Sequence[str]], found: Bonds) -> bool:
    """Whether bonds lead from one island to another: such islands are what is left of a larger group, as of a chain."""
    at = {address: number for number, island in enumerate(islands) for address in island}
    return any(at.get(a) != at.get(b) for a, b in found)
