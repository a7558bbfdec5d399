"""What was read of the host: platform, NUMA, network devices, RDMA ports, storage."""

from __future__ import annotations

from gpu_topo.model.reading import EMPTY, Reading
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BARE_METAL = "bare-metal"
VIRTUAL_MACHINE = "virtual-machine"
UNKNOWN_PLATFORM = "unknown"


class NumaNode(NamedTuple):
    """One NUMA node and the CPUs that are near it: none where it is memory only."""

    number: int
    cpus: Reading[str] = None
    package: Reading[int] = None  # the socket of its CPUs: with NPS4 or SNC one has several nodes


class Platform(NamedTuple):
    """What kind of machine this is, and on what evidence."""

    hostname: Reading[str] = None
    kind: str = UNKNOWN_PLATFORM  # BARE_METAL | VIRTUAL_MACHINE | UNKNOWN_PLATFORM
    hypervisor: Reading[str] = None
    evidence: str = ""
    kernel: Reading[str] = None
    arch: Reading[str] = None
    product: Reading[str] = None  # DMI vendor and product
    chassis: Reading[int] = None  # DMI chassis type, 8 to 14, 30 to 32 are portable
    numa: Reading[tuple[NumaNode, ...]] = None
    numa_count: Reading[int] = None  # nodes with processors: memory of GPUs and of CXL shows as nodes without
    uptime_seconds: Reading[float] = None
    modules: Reading[frozenset[str]] = None  # loaded kernel modules
    dmabuf: Reading[bool] = None


class Port(NamedTuple):
    """One port of an RDMA device (/sys/class/infiniband/DEVICE/ports/N or ibstat)."""

    device: str
    port: int
    address: Reading[str] = None  # the PCI function behind it
    netdev: Reading[str] = None
    link_layer: Reading[str] = None  # InfiniBand | Ethernet
    transport: str | None = None  # infiniband | roce | iwarp | efa | software
    state: Reading[str] = None  # DOWN INIT ARMED ACTIVE ACTIVE_DEFER
    phys_state: Reading[str] = None  # Sleep Polling Disabled PortConfigurationTraining LinkUp ...
    rate_gbps: Reading[float] = None
    lanes: Reading[int] = None
    speed: Reading[str] = None  # SDR DDR QDR FDR10 FDR EDR HDR NDR XDR
    sm_lid: Reading[int] = None  # sysfs: only of a port in INIT or ARMED
    subnet_prefix: Reading[str] = None
    mtu: Reading[int] = None  # active MTU of the port, or the netdev's for RoCE
    firmware: Reading[str] = None
    board_id: Reading[str] = None  # PSID
    hca_type: Reading[str] = None
    software: bool = False  # rxe, siw
    virtual_function: bool = False
    physical_function: str | None = None
    management: bool = False  # NVSwitch management function (HGX B200 and later)
    bond: str | None = None  # the bond that this port's netdev or device is part of
    counters: Mapping[str, Reading[int]] = EMPTY  # counters/ and hw_counters/, by file name
    # What address and function tell elsewhere: the system image GUID that the functions of one adapter share, and
    # which of them this is (its node GUID less that). Text only, and only where no two devices claim the same.
    card: str | None = None
    card_function: int | None = None


class NetDevice(NamedTuple):
    """A network interface (/sys/class/net)."""

    name: str
    address: Reading[str] = None  # the PCI function behind it
    speed_mbps: Reading[int] = None
    mtu: Reading[int] = None
    carrier_changes: Reading[int] = None  # where counters were wanted
    default_route: bool = False
    master: str | None = None  # bond or bridge above
    admin_up: Reading[bool] = None  # False: the operator has taken it down (IFF_UP is not set)


class BlockDevice(NamedTuple):
    """A storage controller with what stands on it: namespaces or disks, and mount points."""

    name: str  # nvme0
    address: Reading[str] = None
    model: Reading[str] = None
    namespaces: tuple[str, ...] = ()  # sysfs: only where anything is mounted
    mounts: tuple[str, ...] = ()
