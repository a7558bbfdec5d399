"""What topology works out of a Node: paths, the shape of the interconnect, placement."""

from __future__ import annotations

from gpu_topo.model.record import NamedTuple, often

# Path kinds with the meaning of `nvidia-smi topo -m`; NV<n>, XG<n> and HC<n> carry the number of bonded links, XG and
# HC where it is not known.
PIX = "PIX"  # both hang directly from ports of one enumerated switch
PXB = "PXB"  # more bridges between them, no host bridge
PHB = "PHB"  # through one and the same host bridge
NODE = "NODE"  # the same NUMA node, different host bridges
SYS = "SYS"  # across NUMA nodes
UNKNOWN_PATH = "UNKNOWN"  # hidden: virtual machine, no NUMA data
PCIE_KINDS = (PIX, PXB, PHB, NODE, SYS, UNKNOWN_PATH)  # nearest first


@often
class Path(NamedTuple):
    """The way between two endpoints. gbs: GB/s per direction of its narrowest link, None where not known."""

    a: str
    b: str
    kind: str
    gbs: float | None = None
    via: tuple[str, ...] = ()  # addresses between them, from a to b


class Interconnect(NamedTuple):
    """How GPUs reach each other without PCIe."""

    shape: str  # nvswitch | full-mesh | hybrid-cube-mesh | pairs | partial | none | unknown
    islands: tuple[tuple[str, ...], ...] = ()  # addresses of GPUs that reach each other at full speed
    max_tensor_parallel: int | None = None
    reason: str = ""  # why unknown


class Near(NamedTuple):
    """A NIC or storage device as seen from a GPU."""

    address: str
    name: str  # mlx5_0, nvme0, or the device's own name
    kind: str  # path kind
    gbs: float | None = None


class GpuPlacement(NamedTuple):
    """Where one GPU's process should run, and what is nearest to it: None where something of unknown place may be."""

    gpu: str
    numa_node: int | None
    cpus: str | None
    nics: tuple[Near, ...] | None = ()
    storage: tuple[Near, ...] | None = ()


class Setting(NamedTuple):
    """One line of the ready-to-paste block, with the reason for it."""

    line: str
    reason: str


class Placement(NamedTuple):
    """Advice for placing a job on this node; GB/s per direction."""

    gpus: tuple[GpuPlacement, ...] = ()
    nic_to_gpu_ratio: float | None = None
    scale_out_gbs_per_gpu: float | None = None
    settings: tuple[Setting, ...] = ()
    summary: str = ""  # one sentence: what this node is good for and what limits it
