"""Settings to paste for a job on this node, each line with its reason; what cannot be known is left out and said."""

from __future__ import annotations

from gpu_topo.model.address import sort_key
from gpu_topo.model.node import Node
from gpu_topo.model.reading import known
from gpu_topo.model.structure import GpuPlacement, Interconnect, Setting
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.adapters import Nic
from gpu_topo.topology.ports import is_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def settings(
    node: Node, rows: Sequence[GpuPlacement], fabric: Sequence[Nic], shape: Interconnect, roles: Mapping[str, str]
) -> tuple[Setting, ...]:
    """Environment variables of NCCL and CUDA, and how to bind the process of each GPU."""
    order = _order(node, rows, shape)
    return (
        _adapters(fabric),
        _interfaces(node),
        *_visible(node, order, shape),
        *_binding(node, rows, order),
    )


def _is_plain(name: str) -> bool:
    """Names come from recordings that anybody may have written, and end in somebody's shell."""
    return bool(name) and all(letter.isalnum() or letter in "_.:-" for letter in name)


def _left_out(name: str, reason: str) -> Setting:
    return Setting(f"# {name} is left out", reason)


def _adapters(fabric: Sequence[Nic]) -> Setting:
    name = "NCCL_IB_HCA"
    if not fabric:
        return _left_out(name, "no adapter is known to carry the GPUs' traffic to other nodes")
    if all(nic.integrated for nic in fabric):
        return _left_out(name, "the accelerators have ports on their chips, which a library of their own drives")
    ports = [port for nic in fabric for port in nic.ports if not nic.integrated]
    if any(port.transport == "efa" for port in ports):
        return _left_out(name, "EFA is reached through libfabric, which finds its devices itself")
    up = [f"{port.device}:{port.port}" for port in ports if is_up(port) and _is_plain(port.device)]
    if not up:
        return _left_out(name, "no port of the fabric is known to be up")
    down = len(ports) - len(up)
    count = f"the {len(up)} fabric ports that are" if len(up) > 1 else "the one fabric port that is"
    reason = f"{count} up; the '=' inside the quotes keeps mlx5_1 from meaning mlx5_10 too"
    if down:
        reason += f"; {down} more are down"
    return Setting(f'export {name}="={",".join(sorted(up, key=sort_key))}"', reason)


def _interfaces(node: Node) -> Setting:
    """Bootstrap traffic goes where the default route goes; a member of a bond is no interface to bind to."""
    name = "NCCL_SOCKET_IFNAME"
    masters = {device.master for device in node.netdevs if device.master}
    routed = [d.name for d in node.netdevs if d.default_route and _is_plain(d.name)]
    top = [n for n in routed if n in masters] or routed
    if not top:
        return _left_out(name, "the interface of the default route is not known")
    return Setting(f'export {name}="={",".join(sorted(top))}"', "the default route, for bootstrap and control traffic")


def _order(node: Node, rows: Sequence[GpuPlacement], shape: Interconnect) -> list[GpuPlacement]:
    """The GPUs so that those of one island, then those of one NUMA node, are neighbours."""
    island = {gpu: number for number, members in enumerate(shape.islands) for gpu in members if len(members) > 1}
    last = len(shape.islands)

    def key(row: GpuPlacement) -> tuple[int, int, tuple[int, int, int, str]]:
        numa = row.numa_node if row.numa_node is not None else 1 << 16
        return island.get(row.gpu, last), numa, sort_key(row.gpu)

    return sorted(rows, key=key)


def _visible(node: Node, order: Sequence[GpuPlacement], shape: Interconnect) -> Iterable[Setting]:
    name = "CUDA_VISIBLE_DEVICES"
    if len(order) < 2:
        return
    gpus = {gpu.address: gpu for gpu in node.gpus}
    vendors = {gpus[row.gpu].vendor_id for row in order if row.gpu in gpus}
    if vendors - {NVIDIA, None}:
        yield _left_out(name, "these are no NVIDIA GPUs, and the numbers that their runtime gives are not known")
        return
    numbers = [gpus[row.gpu].ordinal if row.gpu in gpus else None for row in order]
    if None in numbers:
        yield _left_out(name, "the driver's numbers of the GPUs are not known")
        return
    groups = [len(members) for members in shape.islands if len(members) > 1]
    if shape.max_tensor_parallel is None:
        reason = "GPUs of one NUMA node are neighbours; their links to each other are not known"
    elif not groups:
        reason = "GPUs of one NUMA node are neighbours, since they have no links of their own"
    elif len(shape.islands) == 1:
        reason = "all GPUs are one island: the order keeps NUMA nodes together"
    else:
        sizes = " + ".join(str(size) for size in groups)
        reason = f"the GPUs of one island are neighbours ({sizes}): tensor parallel groups stay inside them"
    yield Setting("export CUDA_DEVICE_ORDER=PCI_BUS_ID", "numbers GPUs as nvidia-smi does")
    yield Setting(f"export {name}={','.join(str(number) for number in numbers)}", reason)


def _binding(node: Node, rows: Sequence[GpuPlacement], order: Sequence[GpuPlacement]) -> Iterable[Setting]:
    name = "numactl"
    if known(node.platform.numa_count) == 1:
        yield _left_out(name, "the machine has one NUMA node: there is nothing to bind to")
        return
    if any(row.numa_node is None for row in rows):
        yield _left_out(name, "the NUMA node of some GPU is not known")
        return
    for rank, row in enumerate(order):
        line = f"numactl --cpunodebind={row.numa_node} --membind={row.numa_node} COMMAND  # local rank {rank}"
        cpus = f", CPUs {row.cpus}" if row.cpus else ""
        yield Setting(line, f"{row.gpu} hangs from NUMA node {row.numa_node}{cpus}")
