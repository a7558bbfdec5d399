"""What drivers say of GPUs and NVLinks, for tests: machines full of GPUs, and links in every arrangement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from gpu_topo.assemble import assemble
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.gpu import ACTIVE, INACTIVE, DriverGpu, Fabric, NvLink, Peer
from gpu_topo.model.host import VIRTUAL_MACHINE, Platform
from gpu_topo.model.node import Node
from tests import trees
from tests.trees import H100, NVSWITCH, Ids, Machine

GUEST = Platform(kind=VIRTUAL_MACHINE, arch="x86_64", numa_count=1)


def machine_with(count: int, ids: Ids = H100, *, nvswitches: int = 0, platform: Platform | None = None) -> Machine:
    """That many GPUs, each below a root port of its own, and NVSwitches beside them."""
    machine = Machine(platform=platform)
    host = machine.host(0x10)
    for _ in range(count):
        machine.gpu(machine.root_port(host), ids)
    other = machine.host(0xC0)
    for _ in range(nvswitches):
        port = machine.root_port(other, (5.0, 2))
        machine.function(port, NVSWITCH, trees.NVSWITCH_CLASS, link=(5.0, 2), driver="nvidia-nvswitch")
    return machine


def gpus_of(machine: Machine) -> list[str]:
    """The addresses of its GPUs."""
    return [address for address, part in machine.parts.items() if part.class_code >> 16 == 0x03]


def switched(active: int, total: int | None = None, *, gbs: float = 26.562, version: int = 4) -> tuple[NvLink, ...]:
    """Links to NVSwitches, of which the first `active` are up."""
    return tuple(
        NvLink(n, ACTIVE if n < active else INACTIVE, version, "nvswitch", gbs=gbs if n < active else None)
        for n in range(active if total is None else total)
    )


def unnamed(active: int, total: int | None = None, **more: Any) -> tuple[NvLink, ...]:
    """Links of which only the state is told, as `nvidia-smi nvlink -s` does."""
    return tuple(link._replace(remote_kind="unknown") for link in switched(active, total, **more))


def direct(
    pairs: Mapping[tuple[int, int], int],
    addresses: Sequence[str],
    *,
    total: int | None = None,
    gbs: float = 25.781,
    version: int = 2,
) -> list[tuple[NvLink, ...]]:
    """For each GPU its links: pairs says how many join which two; total adds inactive ones up to that number."""
    found: list[list[NvLink]] = [[] for _ in addresses]
    for (a, b), count in pairs.items():
        for near, far in ((a, b), (b, a)):
            for _ in range(count):
                number = len(found[near])
                found[near].append(NvLink(number, ACTIVE, version, "gpu", addresses[far], gbs))
    for links in found:
        while total is not None and len(links) < total:
            links.append(NvLink(len(links), INACTIVE, version))
    return [tuple(links) for links in found]


def drivers(
    addresses: Sequence[str], links: Iterable[tuple[NvLink, ...] | None] | None = None, **more: Any
) -> list[DriverGpu]:
    """What NVML says of these GPUs; more: the same for all of them."""
    more.setdefault("fabric", None)
    given = list(links) if links is not None else [None] * len(addresses)
    return [
        DriverGpu(address, number, f"GPU-{number:08x}", nvlinks=given[number], minor=number, **more)
        for number, address in enumerate(addresses)
    ]


READY = Fabric("Completed", "Success")

# Two quads, each fully joined, and one link to the opposite corner: the wiring of an eight-GPU V100 board.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2,
    (1, 2): 2, (1, 3): 1, (1, 5): 2,
    (2, 3): 2, (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2,
    (5, 6): 2, (5, 7): 1,
    (6, 7): 2,
}  # fmt: skip


def matrix(count: int, pairs: Mapping[tuple[int, int], int], rows: int | None = None) -> Node:
    """What `nvidia-smi topo -m` alone says of GPUs of which these pairs have so many links, the others none; rows: how
    many of them the paste holds."""
    peers = tuple(
        Peer(f"GPU{a}", f"GPU{b}", f"NV{pairs[a, b]}" if (a, b) in pairs else "SYS")
        for a, b in combinations(range(count), 2)
        if rows is None or a < rows
    )
    gpus = tuple(DriverGpu(None, number) for number in range(count))
    return assemble([Facts(SourceStatus("nvidia-smi topo -m", OK), gpus=gpus, peers=peers)])
