"""What a driver or its tools say of GPUs and of the links between them."""

from __future__ import annotations

from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import EMPTY, Reading
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIVE = "active"
INACTIVE = "inactive"
UNKNOWN_STATE = "unknown"

# How a source knows the NVLinks of a GPU.
LISTED = "listed"  # each by its own number, those that are down too
COUNTED = "counted"  # so many are up, and where they lead: which is which is not told, and the numbers are made up
CUT_SHORT = "cut-short"  # as listed, but the recording ends here, and more may have followed


class NvLink(NamedTuple):
    """One NVLink of a GPU. gbs is per direction, as reported (NVML prints line rates)."""

    number: int  # the link's own index
    state: str = UNKNOWN_STATE  # ACTIVE | INACTIVE | UNKNOWN_STATE
    version: Reading[int] = None  # major NVLink generation
    remote_kind: str = "unknown"  # gpu | nvswitch | cpu | unknown
    remote: str | None = None  # address (or GPU name) of the other end
    gbs: Reading[float] = None
    errors: Mapping[str, int] = EMPTY  # counter name -> count since the driver was loaded


class Fabric(NamedTuple):
    """NVLink fabric registration of a GPU (nvmlDeviceGetGpuFabricInfo*, nvidia-smi -q 'Fabric')."""

    state: Reading[str] = None  # "Completed" | "In Progress" | "Not Started" | "Not Supported"
    status: Reading[str] = None  # "Success" or the error's text
    clique: Reading[int] = None
    health: Mapping[str, str] = EMPTY  # summary and each sub-field, as text: "Healthy", "Unhealthy", "False", ...


class Peer(NamedTuple):
    """What a source states of the way between two endpoints: a cell of `nvidia-smi topo -m` or of P2P status."""

    a: str  # address where known, else the recording's name: GPU0, NIC3, mlx5_0
    b: str
    kind: str | None = None  # NV18, PIX, PXB, PHB, NODE, SYS, XG1
    p2p: Mapping[str, str] = EMPTY  # capability ("read", "write", "nvlink", ...) -> OK, CNS, GNS, TNS, NS, U


class DriverGpu(NamedTuple):
    """One GPU as one driver tool sees it at one moment. Merged with its PCI function by address."""

    address: str | None = None  # normalised; None where the tool gives none
    ordinal: int | None = None  # the tool's own index
    uuid: Reading[str] = None
    model: Reading[str] = None
    architecture: Reading[str] = None
    vendor_id: int | None = None
    device_id: int | None = None
    minor: Reading[int] = None  # /dev/nvidia<minor>
    numa_node: Reading[int] = None
    local_cpus: Reading[str] = None
    pstate: Reading[int] = None  # 0 to 15
    utilization: Reading[int] = None  # percent
    link: LinkEnd | None = None  # current; max = what GPU and system can do together
    gpu_max_speed_gts: Reading[float] = None  # the GPU's own maximum
    host_max_speed_gts: Reading[float] = None
    replays: Reading[int] = None
    mig: Reading[bool] = None
    partitions: Reading[int] = None  # MIG devices or compute partitions
    virtualization: Reading[str] = None  # "None", "Pass-Through", "Host VGPU", ...
    nvlinks: Reading[tuple[NvLink, ...]] = None
    nvlinks_are: str = LISTED  # LISTED | COUNTED | CUT_SHORT
    fabric: Reading[Fabric] = None
    lost: bool = False  # the driver says that the GPU is lost
    c2c: Reading[bool] = None  # coherent chip-to-chip host link
    unknowns: Mapping[str, str] = EMPTY  # question -> reason, for what this GPU refused
    name: str | None = None  # what matrices call it, where that is not GPU<ordinal>: NPU3, Phy-ID12


class AcceleratorLink(NamedTuple):
    """Links between two accelerators that are not NVLink. gbs per direction, all links together."""

    kind: str  # xGMI | HCCS | SIO, which joins the two dies of one Ascend package
    a: str
    b: str
    links: Reading[int] = None
    state: str = UNKNOWN_STATE
    gbs: Reading[float] = None


class DriverState(NamedTuple):
    """How a whole driver library answered. status: ok | absent | failed | timeout | crashed, or unasked: it was not
    asked to the end, for reasons that are none of its own."""

    library: str  # "nvml"
    status: str
    detail: str = ""
    version: Reading[str] = None
    lists_all: bool = True  # False: container or job that is shown some GPUs only
    openable_minors: Reading[frozenset[int]] = None  # /dev/nvidia<minor> that exist and may be opened
    minors: Mapping[str, int] = EMPTY  # address -> minor, also of GPUs that the kernel driver has and NVML did not list
    numbered: int = 0  # GPUs that it lists by number alone, where nothing says which of those on the bus they are
