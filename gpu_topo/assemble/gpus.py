"""GPUs and accelerators: what their drivers say, beside their PCI functions."""

from __future__ import annotations

from gpu_topo.assemble.devices import driver_link
from gpu_topo.assemble.nvlinks import completed, most_listed, whole
from gpu_topo.assemble.views import GPU_MAKERS, DriverViews, order, renamed
from gpu_topo.catalogue import gpu_part_by_name
from gpu_topo.model.facts import Facts
from gpu_topo.model.gpu import INACTIVE, UNKNOWN_STATE, DriverGpu, NvLink
from gpu_topo.model.node import ACCELERATOR, GPU, Device, Gpu, LinkSample, Part
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known
from gpu_topo.model.vendors import AMD, NVIDIA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def gpus_of(
    devices: Mapping[str, Device],
    views: Mapping[str, DriverViews],
    rename: Mapping[str, str],
    facts: Sequence[Facts],
) -> tuple[Gpu, ...]:
    """GPUs and accelerators with what their driver says, by the driver's index."""
    listed = _listed(facts)
    earlier = _link_samples(facts)
    most = most_listed(found.view for found in views.values())
    gpus = []
    for address, device in devices.items():
        if device.kind not in (GPU, ACCELERATOR) or device.function.physical_function:
            continue
        found = views.get(address)
        samples = earlier.get(address, ())
        if found is None:
            nvidia = device.function.vendor_id == NVIDIA
            gpus.append(
                Gpu(
                    address,
                    part=device.part,
                    vendor_id=device.function.vendor_id,
                    samples=samples,
                    listed=False if nvidia and listed and device.function.driver == "nvidia" else None,
                )
            )
            continue
        gpus.append(_gpu(address, device.part, device.function.vendor_id, found, rename, samples, most))
    for name in _further(devices, views):
        found = views[name]
        model = known(found.view.model)
        gpus.append(
            _gpu(
                name,
                gpu_part_by_name(model) if model else None,
                found.view.vendor_id or NVIDIA,
                found,
                rename,
                (),
                most,
            )
        )
    if any(views[name].view.nvlinks is not None for name in untied(devices, views)):
        gpus = [gpu._replace(nvlinks=_WHOSE) if _is_bare(gpu) else gpu for gpu in gpus]
    return tuple(sorted(gpus, key=lambda gpu: order(gpu.ordinal, gpu.address)))


_WHOSE = Unknown(NOT_RECORDED, "NVLinks are told by GPU number, and which GPU has which number is not recorded")


def untied(devices: Mapping[str, Device], views: Mapping[str, DriverViews]) -> tuple[str, ...]:
    """The names of NVIDIA's GPUs (GPU3) that are among those on the bus, and nothing says which they are."""
    if not any(d.kind == GPU and d.function.vendor_id == NVIDIA and ":" in a for a, d in devices.items()):
        return ()
    return tuple(a for a, found in views.items() if a not in devices and found.view.vendor_id in (None, NVIDIA))


def _further(devices: Mapping[str, Device], views: Mapping[str, DriverViews]) -> tuple[str, ...]:
    """The GPUs to list beside the devices: those of which nobody knows the device, but none twice. What is wrong with
    a GPU counts, even where its device cannot be told: then so do the links of all, with which its own are compared."""
    among = untied(devices, views)
    amd = any(d.kind == GPU and d.function.vendor_id == AMD for d in devices.values())
    if among and any(_at_fault(views[name].view) for name in among):
        return tuple(name for name in among if views[name].view.nvlinks is not None or views[name].view.lost)
    return tuple(
        name
        for name, found in views.items()
        if name not in devices
        and name not in among
        and found.view.vendor_id in GPU_MAKERS
        and not (amd and found.view.vendor_id == AMD)
    )


def _at_fault(view: DriverGpu) -> bool:
    links = known(view.nvlinks) or ()
    inactive = not known(view.mig) and any(link.state == INACTIVE for link in links)
    return view.lost or inactive or any(any(link.errors.values()) for link in links)


def _is_bare(gpu: Gpu) -> bool:
    """Whether this is a GPU on the bus of which no driver told anything."""
    return gpu.vendor_id == NVIDIA and ":" in gpu.address and gpu.listed is None and gpu.nvlinks is None


def _gpu(
    address: str,
    part: Part | None,
    vendor_id: int | None,
    found: DriverViews,
    rename: Mapping[str, str],
    samples: tuple[LinkSample, ...],
    most: dict[str, int],
) -> Gpu:
    """One GPU. most: the number of NVLinks of each model, where a whole list of them tells."""
    view = found.view
    links = completed(whole(view, part, most), found.counted)
    return Gpu(
        address=address,
        ordinal=view.ordinal,
        uuid=view.uuid,
        model=view.model,
        architecture=view.architecture,
        pstate=view.pstate,
        utilization=view.utilization,
        busy=_busy(found.samples),
        mig=view.mig,
        partitions=view.partitions,
        nvlinks=links if links is None or isinstance(links, Unknown) else _links(links, known(view.mig), rename),
        fabric=view.fabric,
        driver_link=driver_link(view),
        samples=samples + found.samples,
        replays=view.replays,
        lost=view.lost,
        listed=not view.lost,
        c2c=view.c2c,
        part=part,
        vendor_id=vendor_id,
    )


def _links(links: Sequence[NvLink], mig: bool | None, rename: Mapping[str, str]) -> tuple[NvLink, ...]:
    """The links by the addresses that they lead to. With MIG on the driver calls every link inactive, which says
    nothing of the link."""
    shown = [link._replace(state=UNKNOWN_STATE) if mig and link.state == INACTIVE else link for link in links]
    return renamed(shown, rename)


def _busy(samples: Sequence[LinkSample]) -> bool | None:
    """Whether the GPU works, by the latest look: utilisation, else a P-state that only an idle GPU takes."""
    if not samples:
        return None
    last = samples[-1]
    if last.utilization is not None:
        return last.utilization > 0
    return False if last.pstate is not None and last.pstate >= 5 else None


def _listed(facts: Sequence[Facts]) -> bool:
    """Whether a driver that works as a whole lists GPUs by address, so that one it does not list is missing, or
    hidden from this container or job: that of which it tells device nodes knows more than it may open."""
    for fact in facts:
        state = fact.driver
        if state is None or state.library != "nvml" or state.status != "ok":
            continue
        if (state.lists_all or state.minors) and any(gpu.address and not gpu.lost for gpu in fact.gpus):
            return True
    return False


def _link_samples(facts: Sequence[Facts]) -> dict[str, tuple[LinkSample, ...]]:
    """Link speeds that PCI sources saw, oldest first; only worth keeping where there are several looks."""
    sources = [fact for fact in facts if fact.functions and not fact.structure_only]
    if not sources or (len(sources) == 1 and not any(fact.gpus for fact in facts)):
        return {}
    samples: dict[str, tuple[LinkSample, ...]] = {}
    for fact in sources:
        for f in fact.functions:
            if f.link is None or not f.link_trusted or (f.class_code or 0) >> 16 not in (0x03, 0x0B, 0x12):
                continue
            look = LinkSample(known(f.link.speed_gts), known(f.link.width))
            samples[f.address] = (*samples.get(f.address, ()), look)
    return samples
