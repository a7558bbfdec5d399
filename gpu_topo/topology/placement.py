"""Advice for placing a job on a node: what is near each GPU, what leaves the node per GPU, and settings to paste."""

from __future__ import annotations

from gpu_topo.model.node import STORAGE, Device, Node
from gpu_topo.model.reading import EMPTY, known
from gpu_topo.model.structure import GpuPlacement, Interconnect, Near, Placement
from gpu_topo.topology.adapters import Nic, nics, uncounted
from gpu_topo.topology.capacity import card_carries
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.interconnect import NONE, interconnect
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.nearness import Nearest, Neighbourhood, nearest_adapters
from gpu_topo.topology.paths import router
from gpu_topo.topology.ports import is_up
from gpu_topo.topology.roles import FABRIC
from gpu_topo.topology.settings import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BYTE = 8.0  # Gb/s of a line to GB/s


def placement(node: Node, roles: Mapping[str, str] = EMPTY) -> Placement:
    """Where the process of each GPU should run and what limits it. roles: overrides from the configuration.

    What is not known is left out, never guessed: a figure is None, a line of the settings says why it is missing.
    """
    gpus = accelerators(node)
    if not gpus:
        return Placement()
    found = nics(node, roles)
    fabric = tuple(nic for nic in found if nic.role == FABRIC)
    shape = interconnect(node)
    rows = _rows(node, gpus, fabric, nearest_adapters(node, roles))
    # An inventory may hold more that serve the fabric: their number is then as unknown as their rate.
    open_ended = len(fabric) < len(gpus) <= len(fabric) + len(uncounted(node, roles))
    ratio = round(len(fabric) / len(gpus), 4) if fabric and not open_ended else None
    carried = [carried_gbs(node, nic) for nic in fabric]
    total = sum(gbs for gbs in carried if gbs is not None) if carried and None not in carried else None
    per_gpu = round(total / len(gpus), 3) if total is not None else None
    return Placement(
        gpus=rows,
        nic_to_gpu_ratio=ratio,
        scale_out_gbs_per_gpu=per_gpu,
        settings=settings(node, rows, fabric, shape, roles),
        summary=_summary(node, gpus, fabric, shape, per_gpu, "at least " if open_ended else ""),
    )


def _rows(
    node: Node, gpus: Sequence[Device], fabric: Sequence[Nic], networks: Mapping[str, Nearest]
) -> tuple[GpuPlacement, ...]:
    names = {nic.address or nic.name: nic.name for nic in fabric}
    blocks = {known(block.address): block.name for block in reversed(node.blocks)}
    drives = [d.address for d in lookup(node).of(STORAGE) if not d.function.virtual_function]
    storage = Neighbourhood(router(node), drives)
    rows = []
    for gpu in gpus:
        numa = lookup(node).numa_node(gpu)
        rows.append(
            GpuPlacement(
                gpu=gpu.address,
                numa_node=numa,
                cpus=_cpus(node, gpu, numa),
                nics=_named(networks[gpu.address], lambda address: names.get(address, address)),
                storage=_named(
                    storage.nearest(gpu.address), lambda address: blocks.get(address, node.devices[address].name)
                ),
            )
        )
    return tuple(rows)


def _named(nearest: Nearest, name: Callable[[str], str]) -> tuple[Near, ...] | None:
    """The nearest candidates, None where one whose place is not known may be nearer."""
    if nearest.hidden is not None:
        return None
    return tuple([Near(path.b, name(path.b), path.kind, path.gbs) for path in nearest.paths])


def _cpus(node: Node, gpu: Device, numa: int | None) -> str | None:
    """The processors near a GPU as the kernel lists them, else those of its NUMA node."""
    own = known(gpu.function.local_cpus)
    if own:
        return own
    nodes = known(node.platform.numa) or ()
    return next((known(entry.cpus) or None for entry in nodes if entry.number == numa), None)


def pcie_gbs_of(node: Node, nic: Nic) -> float | None:
    """GB/s per direction that PCIe gives an adapter; None where it needs none, or it is hidden, guessed or unknown."""
    device = node.devices.get(nic.address or "")
    if device is None or nic.integrated or nic.address in node.hidden_links:
        return None
    return card_carries(node, device)


def carried_gbs(node: Node, nic: Nic) -> float | None:
    """GB/s per direction that an adapter brings to the network: its ports, or its PCIe link where that is less."""
    if nic.ports and not any(is_up(port) for port in nic.ports):
        return 0.0 if all(known(port.state) for port in nic.ports) else None
    if nic.rate_gbps is None:
        return None
    line = nic.rate_gbps / _BYTE
    host = pcie_gbs_of(node, nic)
    return line if host is None else min(line, host)


def _summary(
    node: Node,
    gpus: Sequence[Device],
    fabric: Sequence[Nic],
    shape: Interconnect,
    per_gpu: float | None,
    some: str,
) -> str:
    """One sentence: what this node is good for, and what limits it. some: what to say before the number of adapters."""
    return f"{_inside(node, gpus, shape)}; {_outside(node, gpus, fabric, per_gpu, some)}."


def _inside(node: Node, gpus: Sequence[Device], shape: Interconnect) -> str:
    if len(gpus) == 1:
        return "One GPU"
    if shape.max_tensor_parallel is None:
        return f"{len(gpus)} GPUs whose links to each other are not known" + (
            f" ({shape.reason})" if shape.reason else ""
        )
    if shape.shape == NONE or shape.max_tensor_parallel < 2:
        return f"{len(gpus)} GPUs without links of their own: tensor parallelism crosses PCIe"
    kind = {link.kind for link in node.accelerator_links}
    name = "/".join(sorted(kind)) if kind else "NVLink"
    return f"Tensor parallelism up to {shape.max_tensor_parallel} inside {name} ({shape.shape})"


def _outside(node: Node, gpus: Sequence[Device], fabric: Sequence[Nic], per_gpu: float | None, some: str) -> str:
    if not fabric:
        return "no adapter for traffic to other nodes is known"
    over = _many(len(fabric), "fabric adapter")
    if per_gpu is None:
        return f"{some}{over} for {_many(len(gpus), 'GPU')}, at a rate that is not known"
    text = f"{per_gpu:.4g} GB/s per GPU and direction to other nodes over {over}"
    limits = _limits(node, gpus, fabric)
    return f"{text}, limited by {limits}" if limits else text


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _limits(node: Node, gpus: Sequence[Device], fabric: Sequence[Nic]) -> str:
    """What is narrowest on the way GPU, PCIe, port, network."""
    down = [nic.name for nic in fabric if carried_gbs(node, nic) == 0]
    if down:
        return f"ports that are down ({', '.join(down)})"
    narrow = []
    for nic in fabric:
        host = pcie_gbs_of(node, nic)
        if host is not None and nic.rate_gbps is not None and host < nic.rate_gbps / _BYTE:
            narrow.append(nic.name)
    if narrow:
        return f"the PCIe links of {', '.join(narrow)}"
    if len(fabric) < len(gpus):
        return f"{_many(len(fabric), 'adapter')} for {len(gpus)} GPUs"
    return "the line rate of the ports"
