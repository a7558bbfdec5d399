"""The hybrid cube mesh of eight-GPU boards without NVSwitches: which GPUs it joins, and by how many NVLinks."""

from __future__ import annotations

from gpu_topo.model.address import pair_key
from gpu_topo.topology.bonds import Bonds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The wiring of an eight-GPU V100 board, links by corners: two quads, each fully joined, and a link to the opposite
# corner. On P100 boards each of them is a single link. Source: NVIDIA DGX-1 with Tesla V100 system architecture white
# paper, and `nvidia-smi topo -m` of such boards.
_LINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
_CORNERS = 8


def is_cube_mesh(gpus: Sequence[str], found: Bonds) -> bool:
    """Whether these are the eight GPUs of a cube mesh, however many links of a pair are up."""
    return len(gpus) == _CORNERS and _fits(gpus, found, lambda links: min(links, 1))


def in_cube_mesh(gpus: Sequence[str], found: Bonds) -> bool:
    """Whether these GPUs are joined as some of a cube mesh are, link by link: what a guest, a container or a job sees
    of such a board. Its quads are joined by one link here and by two there."""
    if len(gpus) > _CORNERS:
        return False
    inside = set(gpus)
    single = all(bond.links == 1 for (a, b), bond in found.items() if a in inside and b in inside)
    return _fits(gpus, found, (lambda links: min(links, 1)) if single else (lambda links: links))


def _fits(gpus: Sequence[str], found: Bonds, counted: Callable[[int], int]) -> bool:
    """Whether each GPU has a corner such that all are joined as their corners are. counted: what so many links are."""

    def place(corners: tuple[int, ...]) -> bool:
        if len(corners) == len(gpus):
            return True
        new = gpus[len(corners)]
        for corner in range(_CORNERS):
            if corner not in corners and all(
                counted(_between(found, new, gpu)) == counted(_LINKS.get((min(corner, other), max(corner, other)), 0))
                for gpu, other in zip(gpus, corners)  # noqa: B905 - those placed so far
            ):
                if place((*corners, corner)):
                    return True
        return False

    return place(())


def _between(found: Bonds, a: str, b: str) -> int:
    """How many links join two GPUs; one where the number is not known."""
    bond = found.get(pair_key(a, b))
    return 0 if bond is None else bond.links or 1
