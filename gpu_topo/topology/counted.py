"""Which devices count: not what is integrated, stands beside its physical function, or is of no known use."""

from __future__ import annotations

from gpu_topo.model.address import sort_key
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, STORAGE, Device, Node
from gpu_topo.topology.lookup import lookup


def accelerators(node: Node) -> tuple[Device, ...]:
    """The GPUs and accelerators that a job would use: no integrated graphics, no virtual function beside its own, and
    of the accelerator class only what the catalogue knows or a driver lists (it also holds compression engines)."""
    return tuple(
        device
        for device in lookup(node).of(GPU, ACCELERATOR)
        if (device.kind == GPU or device.part is not None or _is_listed(node, device))
        and not device.integrated
        and not is_spare(node, device)
    )


def _is_listed(node: Node, device: Device) -> bool:
    gpu = lookup(node).gpus.get(device.address)
    return gpu is not None and bool(gpu.listed)


def is_spare(node: Node, device: Device) -> bool:
    """Whether this is a virtual function beside its visible physical function."""
    physical = device.function.physical_function
    return device.function.virtual_function and physical is not None and physical in node.devices


def endpoints(node: Node) -> list[Device]:
    """GPUs, accelerators, NICs and storage in that order, each by address; virtual functions only in a guest that
    sees nothing else."""
    order = {GPU: 0, ACCELERATOR: 0, NIC: 1, STORAGE: 2}
    chosen = [d for d in lookup(node).of(*order) if not is_spare(node, d)]
    return sorted(chosen, key=lambda d: (order[d.kind], sort_key(d.address)))
