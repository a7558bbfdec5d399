"""A Node: the readings of all sources put together, identified, with its tree worked out."""

from __future__ import annotations

from gpu_topo.model.facts import SourceStatus
from gpu_topo.model.gpu import AcceleratorLink, DriverState, Fabric, NvLink
from gpu_topo.model.host import BlockDevice, NetDevice, Platform, Port
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import EMPTY, Reading
from gpu_topo.model.record import NamedTuple, often

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

GPU = "gpu"
ACCELERATOR = "accelerator"
NIC = "nic"
STORAGE = "storage"
NVSWITCH = "nvswitch"
BRIDGE = "bridge"
OTHER = "other"
KINDS = (GPU, ACCELERATOR, NIC, STORAGE, NVSWITCH, BRIDGE, OTHER)
ENDPOINT_KINDS = (GPU, ACCELERATOR, NIC, STORAGE, NVSWITCH)


class Part(NamedTuple):
    """What the catalogue has of exactly this part. None: no sourced figure, so no ground for judging.

    Each confidence is verified | one_source | inferred, or "" where the facet has no figure.
    """

    name: str
    arch: str = ""
    form_factor: str = ""  # SXM, PCIe, OAM, NVL, integrated, ...
    market: str = ""  # datacenter, workstation, consumer, ...
    pcie_max_gts: float | None = None
    pcie_max_lanes: int | None = None
    pcie_confidence: str = ""
    fabric: str = ""  # nvlink, xgmi, hccs, none, or "" where unknown
    fabric_links: int | None = None
    fabric_gbs_per_link: float | None = None  # nominal, per direction
    fabric_attach: str = ""  # nvswitch, bridge, mesh, ...
    fabric_confidence: str = ""
    c2c: bool = False  # host link is a coherent chip-to-chip link: its PCIe values mean nothing
    holds_speed_when_idle: bool | None = None  # only where verified
    port_max_gbps: float | None = None  # NICs
    internal_bridge: bool = False  # a bridge inside a GPU, NIC or DPU, not a slot
    switch_chip: bool = False  # a PCIe switch (not a chipset)
    management: bool = False  # management function inside a switch or NVSwitch


class Link(NamedTuple):
    """The link above a device: its own end joined with the port's. GT/s, lanes, GB/s per direction."""

    port: str | None = None
    speed_gts: Reading[float] = None
    width: Reading[int] = None
    max_speed_gts: Reading[float] = None
    max_width: Reading[int] = None
    port_max_speed_gts: Reading[float] = None
    port_max_width: Reading[int] = None
    expected_speed_gts: float | None = None
    expected_width: int | None = None
    gbs: float | None = None
    expected_gbs: float | None = None
    trusted: bool = True  # False: maxima or guesses, never judged


class LinkSample(NamedTuple):
    """One look at a GPU's link together with what was known of the load at that moment."""

    speed_gts: float | None
    width: int | None
    pstate: int | None = None
    utilization: int | None = None


@often
class Device(NamedTuple):
    """An identified PCI function in its place. `function` has everything that was read of it."""

    address: str
    kind: str  # one of KINDS
    name: str
    function: Function
    part: Part | None = None
    link: Link | None = None  # None: nothing was said of a link
    path: tuple[str, ...] = ()  # root first, itself last
    switch: str | None = None  # id of the physical switch that it hangs from
    bottleneck: str | None = None  # address whose link is the narrowest on the path, narrower than its own
    integrated: bool = False  # integrated graphics, chipset function: no link verdict


class Gpu(NamedTuple):
    """A GPU or accelerator with what its driver says. `device` is the address in Node.devices."""

    address: str
    ordinal: int | None = None  # the driver's index
    uuid: Reading[str] = None
    model: Reading[str] = None
    architecture: Reading[str] = None
    pstate: Reading[int] = None
    utilization: Reading[int] = None
    busy: bool | None = None
    mig: Reading[bool] = None
    partitions: Reading[int] = None
    nvlinks: Reading[tuple[NvLink, ...]] = None
    fabric: Reading[Fabric] = None
    driver_link: Link | None = None  # the PCIe link as the driver sees it
    samples: tuple[LinkSample, ...] = ()  # oldest first
    replays: Reading[int] = None
    lost: bool = False
    listed: bool | None = None  # True: its driver lists it; False: lists others and not it; None: nothing was asked
    c2c: Reading[bool] = None
    part: Part | None = None
    vendor_id: int | None = None


class Switch(NamedTuple):
    """One PCIe switch chip: cascaded virtual bridges of one chip are one. id: address of its topmost port."""

    id: str
    name: str
    ports: tuple[str, ...]  # every bridge of the chip, topmost first
    uplink: Link | None = None
    downstream: tuple[str, ...] = ()  # endpoint addresses below it (that no deeper switch holds)
    downstream_gbs: float | None = None
    oversubscription: float | None = None  # downstream over uplink


class Node(NamedTuple):
    """The whole machine as it is known. What no source said is None or Unknown, never a default."""

    platform: Platform = Platform()
    sources: tuple[SourceStatus, ...] = ()
    devices: Mapping[str, Device] = EMPTY  # every function, by address, in address order
    gpus: tuple[Gpu, ...] = ()  # GPUs and accelerators, by index where known, else by address
    accelerator_links: tuple[AcceleratorLink, ...] = ()
    ports: tuple[Port, ...] = ()
    netdevs: tuple[NetDevice, ...] = ()
    blocks: tuple[BlockDevice, ...] = ()
    switches: Mapping[str, Switch] = EMPTY
    stated_paths: Mapping[tuple[str, str], str] = EMPTY  # (a, b) with a < b by sort key -> kind, from topo -m
    p2p: Mapping[tuple[str, str], Mapping[str, str]] = EMPTY
    drivers: Mapping[str, DriverState] = EMPTY  # by library name
    unread: Mapping[str, int] = EMPTY
    live: bool = False  # read from a running machine, not from a recording
    hidden_links: Mapping[str, str] = EMPTY  # address -> why its link values mean nothing (VM, asleep, ...)
