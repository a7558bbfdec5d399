"""Which GPUs are bonded by NVLink, xGMI or HCCS, by how many links, and at what rate."""

from __future__ import annotations

from gpu_topo.model.address import pair_key
from gpu_topo.model.cached import of_last
from gpu_topo.model.gpu import ACTIVE, NvLink
from gpu_topo.model.node import NVSWITCH, Gpu, Node
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Nominal GB/s of one NVLink per direction by generation, where neither the part nor NVML's rate decides.
# Source: NVIDIA white papers of P100, V100, A100, H100 and B200; NVML prints the line rate (26.562 on H100).
NOMINAL_GBS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
# A link that reports less than this share of its generation's rate is a slower kind (GA102 boards: 14.0625 GB/s).
_SLOWER = 0.9
# How the catalogue says that boards with a part join their GPUs: all of them by NVSwitches, or the larger ones.
_ON_SWITCHES, _LARGE_ON_SWITCHES = "nvswitch", "nvswitch (8-gpu) or direct (4-gpu)"
_LARGEST_DIRECT = 4
_PREFIX = {"xgmi": "XG", "hccs": "HC", "sio": "HC"}  # SIO joins the two dies of one Ascend package


class Bond(NamedTuple):
    """A direct or switched connection of two GPUs: kind NV18, XG1, XG where the number is not known; gbs per direction,
    all links together."""

    kind: str
    links: int | None
    gbs: float | None
    switched: bool = False


Bonds = dict[tuple[str, str], Bond]


def link_gbs(gpu: Gpu, link: NvLink) -> float | None:
    """Nominal GB/s of one NVLink per direction, None where nothing tells.

    The part's own figure or its generation's, unless the driver reports a clearly slower link; else what was reported.
    """
    reported = known(link.gbs)
    nominal = _nominal(gpu) or NOMINAL_GBS.get(known(link.version) or nvlink_version(gpu) or 0)
    if nominal is not None and (reported is None or reported >= nominal * _SLOWER):
        return nominal
    if reported is None:
        return None
    # A line rate a little above a nominal one is that one (26.562 is 25); anything else is taken as it is.
    return next((n for n in (20.0, 25.0, 50.0) if n <= reported <= n * 1.08), reported)


def nvlink_version(gpu: Gpu) -> int | None:
    """The generation of a GPU's NVLinks, None where none of them tells."""
    return max((v for link in known(gpu.nvlinks) or () if (v := known(link.version)) is not None), default=None)


def active_links(gpu: Gpu) -> tuple[NvLink, ...] | None:
    """The NVLinks that are up, None where it is not known."""
    links = known(gpu.nvlinks)
    return None if links is None else tuple(link for link in links if link.state == ACTIVE)


@of_last
def bonds(node: Node) -> Bonds:
    """Every bonded pair of accelerators, by address in address order."""
    found: dict[tuple[str, str], Bond] = {}
    links_of = {gpu.address: active_links(gpu) or () for gpu in node.gpus}
    by_address = {gpu.address: gpu for gpu in node.gpus}
    for gpu in node.gpus:
        direct: dict[str, list[NvLink]] = {}
        for link in links_of[gpu.address]:
            if link.remote in by_address and link.remote != gpu.address and link.remote_kind != "nvswitch":
                direct.setdefault(link.remote, []).append(link)
        for other, ends in direct.items():
            pair = pair_key(gpu.address, other)
            if pair not in found or (found[pair].links or 0) < len(ends):
                found[pair] = Bond(f"NV{len(ends)}", len(ends), _sum(gpu, ends))
    switched = [(gpu, switched_links(node, gpu)) for gpu in node.gpus]
    switched = [(gpu, links) for gpu, links in switched if links]
    for i, (a, links_a) in enumerate(switched):
        for b, links_b in switched[i + 1 :]:
            fewer, links = (a, links_a) if len(links_a) <= len(links_b) else (b, links_b)
            bond = Bond(f"NV{len(links)}", len(links), _sum(fewer, links), switched=True)
            found.setdefault(pair_key(a.address, b.address), bond)
    for other_link in node.accelerator_links:
        count = known(other_link.links)
        prefix = _PREFIX.get(other_link.kind.lower(), "XG")
        if other_link.state == ACTIVE:
            found[pair_key(other_link.a, other_link.b)] = Bond(f"{prefix}{count or ''}", count, known(other_link.gbs))
    for (name_a, name_b), kind in node.stated_paths.items():
        if kind.startswith("NV") and kind[2:].isdigit() and name_a in by_address and name_b in by_address:
            count = int(kind[2:])
            each = _nominal(by_address[name_a])
            found.setdefault(pair_key(name_a, name_b), Bond(kind, count, each * count if each else None))
    return found


def switched_links(node: Node, gpu: Gpu) -> tuple[NvLink, ...]:
    """The active NVLinks of a GPU that end at an NVSwitch.

    Where the driver does not name the other end, there must be nothing else that it could be.
    """
    links = active_links(gpu) or ()
    if not links:
        return ()
    told = tuple(link for link in links if link.remote_kind == "nvswitch")
    if told or any(link.remote_kind != "unknown" for link in links):
        return told
    return links if _can_only_be_switched(node, gpu) else ()


def built_on_switches(node: Node, gpu: Gpu) -> bool:
    """Whether boards that carry so many GPUs of exactly this part join them by NVSwitches, all of them."""
    attach = gpu.part.fabric_attach.lower() if gpu.part is not None else ""
    return attach == _ON_SWITCHES or (attach == _LARGE_ON_SWITCHES and _is_large(node, gpu))


def _can_only_be_switched(node: Node, gpu: Gpu) -> bool:
    """Whether links of which the other end is not told lead to NVSwitches: those are seen, or known from the part."""
    part = gpu.part
    if lookup(node).of(NVSWITCH):
        return part is None or "bridge" not in part.fabric_attach.lower()
    if part is None or not built_on_switches(node, gpu):
        return False
    if _is_large(node, gpu):
        return True
    # Some parts come on boards with switches and on boards of four that join them directly, and the same superchips
    # fill racks and boards of four. A GPU that has registered with a fabric is attached to switches.
    fabric = known(gpu.fabric)
    registered = fabric is not None and (known(fabric.state) or "").lower() == "completed"
    return registered or (part.fabric_confidence == "verified" and not part.c2c)


def _is_large(node: Node, gpu: Gpu) -> bool:
    """Whether there are more GPUs of this part than links join directly."""
    return sum(other.part == gpu.part for other in node.gpus) > _LARGEST_DIRECT


def _sum(gpu: Gpu, links: Sequence[NvLink]) -> float | None:
    rates = [link_gbs(gpu, link) for link in links]
    known_rates = [rate for rate in rates if rate is not None]
    return round(sum(known_rates), 3) if known_rates and len(known_rates) == len(rates) else None


def _nominal(gpu: Gpu) -> float | None:
    part = gpu.part
    return part.fabric_gbs_per_link if part is not None and part.fabric == "nvlink" else None
