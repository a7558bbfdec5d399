"""What drivers and their tools say of GPUs, put onto the PCI functions that they are."""

from __future__ import annotations

from gpu_topo.assemble.merge import merge_gpu
from gpu_topo.model.address import sort_key
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import COUNTED, LISTED, DriverGpu, NvLink
from gpu_topo.model.node import LinkSample
from gpu_topo.model.reading import Reading, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.vendors import AMD, INTEL, NVIDIA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HOST_BRIDGE = "0000:00:00.0"
GPU_MAKERS = (None, NVIDIA, AMD, INTEL)  # a source that names no maker speaks of GPUs


class DriverViews(NamedTuple):
    """All that drivers said of one GPU: the merged view and one sample for each look, oldest first.

    counted: NVLinks of a source that only counts them, apart from those that the view has link by link.
    """

    view: DriverGpu
    samples: tuple[LinkSample, ...]
    counted: Reading[tuple[NvLink, ...]] = None


def unmasked(fact: Facts) -> Facts:
    """The facts without addresses that cannot be: somebody masked them, and all GPUs of a tool are at 00:00.0, or two
    of its numbers at one address. Accelerators, and parts of AMD's GPUs, may share theirs: their readers know."""
    numbers: dict[str, set[int]] = {}
    for gpu in fact.gpus:
        if gpu.address is not None and gpu.ordinal is not None and gpu.name is None and gpu.vendor_id != AMD:
            numbers.setdefault(gpu.address, set()).add(gpu.ordinal)
    wrong = {address for address, found in numbers.items() if len(found) > 1 or address == _HOST_BRIDGE}
    if not wrong:
        return fact
    gpus = [gpu._replace(address=None) if gpu.address in wrong and gpu.name is None else gpu for gpu in fact.gpus]
    return fact._replace(gpus=tuple(gpus))


def by_address(facts: Sequence[Facts], nvidia: Sequence[str]) -> tuple[dict[str, DriverViews], dict[str, str]]:
    """Each driver's GPUs by PCI address, and the address of every name that recordings use (GPU0, NPU0).

    nvidia: addresses of the NVIDIA GPUs that were seen on PCI, in address order. A tool that gives no addresses is
    matched by UUID, then by the index that another tool gave, then by place among those that are left where the
    numbers agree; else its GPUs keep their names. Those that have names of their own are matched by these alone.
    """
    index, uuids = _keys(facts)
    amd = {ordinal: address for (maker, ordinal), address in index.items() if maker == AMD}
    others = {ordinal: address for (maker, ordinal), address in index.items() if maker != AMD}
    only = _only(facts, nvidia)
    called = {gpu.name: gpu.address for fact in facts for gpu in fact.gpus if gpu.name and gpu.address}
    views: dict[str, DriverViews] = {}
    for fact in facts:
        nameless = [gpu for gpu in fact.gpus if gpu.address is None and gpu.name is None]
        for gpu in fact.gpus:
            # Each maker's tool numbers its own GPUs, and the order of AMD's is not that of addresses.
            numbered, unnamed = (amd, ()) if gpu.vendor_id == AMD else (others, nvidia)
            if gpu.address is None and gpu.name in called:
                gpu = gpu._replace(address=called[gpu.name], ordinal=None)  # the one with the address has its index
            address = gpu.address or gpu.name or _match(gpu, nameless, numbered, uuids, unnamed) or only
            if address is None:
                continue  # of several GPUs, and nothing says which
            before = views.get(address)
            counted = before.counted if before else None
            if gpu.nvlinks_are == COUNTED:
                counted, gpu = gpu.nvlinks, gpu._replace(nvlinks=None, nvlinks_are=LISTED)
            if before is None:
                merged = gpu
            else:  # what only knows the structure completes, it never overrules
                merged = merge_gpu(gpu, before.view) if fact.structure_only else merge_gpu(before.view, gpu)
            sample = _sample(gpu)
            samples = (before.samples if before else ()) + ((sample,) if sample else ())
            views[address] = DriverViews(merged, samples, counted)
    indexes = {a: v.view.ordinal for a, v in views.items() if v.view.ordinal is not None and v.view.name is None}
    return views, {**{f"GPU{ordinal}": address for address, ordinal in indexes.items()}, **called}


def _keys(facts: Sequence[Facts]) -> tuple[dict[tuple[int | None, int], str], dict[str, str]]:
    """Address by maker and index, and by UUID, from the tools that give both, the driver's before those of a job
    (NCCL's). A UUID that two GPUs carry was masked."""
    index: dict[tuple[int | None, int], str] = {}
    uuids: dict[str, set[str]] = {}
    for fact in sorted(facts, key=lambda fact: fact.structure_only):
        for gpu in fact.gpus:
            if gpu.address is None:
                continue
            if gpu.ordinal is not None and gpu.name is None:
                index.setdefault((AMD if gpu.vendor_id == AMD else None, gpu.ordinal), gpu.address)
            uuid = known(gpu.uuid)
            if uuid:
                uuids.setdefault(uuid, set()).add(gpu.address)
    return index, {uuid: min(found) for uuid, found in uuids.items() if len(found) == 1}


def _match(
    gpu: DriverGpu,
    nameless: Sequence[DriverGpu],
    index: Mapping[int, str],
    uuids: Mapping[str, str],
    nvidia: Sequence[str],
) -> str | None:
    uuid = known(gpu.uuid)
    same = [other for other in nameless if known(other.uuid) == uuid]
    if uuid and uuid in uuids and len(same) == 1:
        return uuids[uuid]
    if gpu.ordinal is not None and gpu.ordinal in index:
        return index[gpu.ordinal]
    claimed = set(index.values())
    free = [address for address in nvidia if address not in claimed]
    unplaced = sorted(other.ordinal for other in nameless if other.ordinal is not None and other.ordinal not in index)
    if gpu.ordinal is not None and len(free) == len(unplaced):
        return free[unplaced.index(gpu.ordinal)]
    return f"GPU{gpu.ordinal}" if gpu.ordinal is not None else uuid


def _only(facts: Sequence[Facts], nvidia: Sequence[str]) -> str | None:
    """The GPU of a machine that has one, for outputs that do not name theirs; None where there are several."""
    gpus = [gpu for fact in facts for gpu in fact.gpus]
    names = {*nvidia, *(gpu.address for gpu in gpus if gpu.address is not None)} or {
        f"GPU{gpu.ordinal}" for gpu in gpus if gpu.ordinal is not None
    }
    return next(iter(names or {"GPU?"})) if len(names) < 2 else None


def numbered_twice(views: Mapping[str, DriverViews]) -> frozenset[str]:
    """The names of AMD's GPUs (GPU3) that are among those of which another of its tools tells the address and no
    number: rocm-smi numbers them, amd-smi topology calls them by address."""
    names = [name for name, found in views.items() if found.view.vendor_id == AMD and ":" not in name]
    free = [a for a, found in views.items() if found.view.vendor_id == AMD and ":" in a and found.view.ordinal is None]
    return frozenset(names if len(names) <= len(free) else ())


def _sample(gpu: DriverGpu) -> LinkSample | None:
    link = gpu.link
    if link is None and known(gpu.pstate) is None and known(gpu.utilization) is None:
        return None
    return LinkSample(
        known(link.speed_gts) if link else None,
        known(link.width) if link else None,
        known(gpu.pstate),
        known(gpu.utilization),
    )


def renamed(links: Sequence[NvLink], names: Mapping[str, str]) -> tuple[NvLink, ...]:
    """The links with recordings' names (GPU3) replaced by addresses."""
    return tuple(link._replace(remote=names.get(link.remote or "", link.remote)) for link in links)


def order(gpu_ordinal: int | None, address: str) -> tuple[int, tuple[int, int, int, str]]:
    """By the driver's index, then by address."""
    return (gpu_ordinal if gpu_ordinal is not None else 1 << 20, sort_key(address))
