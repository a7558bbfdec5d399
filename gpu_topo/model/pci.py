"""What was read of PCI functions and their links."""

from __future__ import annotations

from gpu_topo.model.reading import NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple, often

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Port types of the PCI Express capability (PCI Express Base Specification 7.5.3.2).
ENDPOINT = "endpoint"
LEGACY_ENDPOINT = "legacy-endpoint"
ROOT_PORT = "root-port"
UPSTREAM_PORT = "upstream-port"
DOWNSTREAM_PORT = "downstream-port"
PCIE_TO_PCI = "pcie-to-pci-bridge"
PCI_TO_PCIE = "pci-to-pcie-bridge"
INTEGRATED_ENDPOINT = "integrated-endpoint"
EVENT_COLLECTOR = "event-collector"
PORT_TYPES: Mapping[int, str] = {
    0: ENDPOINT,
    1: LEGACY_ENDPOINT,
    4: ROOT_PORT,
    5: UPSTREAM_PORT,
    6: DOWNSTREAM_PORT,
    7: PCIE_TO_PCI,
    8: PCI_TO_PCIE,
    9: INTEGRATED_ENDPOINT,
    10: EVENT_COLLECTOR,
}

# Access control bits that send peer-to-peer traffic up to the root complex.
ACS_REDIRECTS = frozenset({"ReqRedir", "CmpltRedir"})


class LinkEnd(NamedTuple):
    """What one function says of the link it is on: GT/s and lanes, now and at most.

    For a bridge this is the link of its own port: downwards for root and downstream ports, upwards for the others.
    """

    speed_gts: Reading[float] = None
    width: Reading[int] = None
    max_speed_gts: Reading[float] = None
    max_width: Reading[int] = None
    target_speed_gts: Reading[float] = None


class Aer(NamedTuple):
    """Advanced Error Reporting: name of the error -> how often.

    sticky: these are status bits that stay set until cleared (lspci, config), so 1 means "at least once";
    otherwise they are the kernel's counters since boot.
    """

    correctable: Reading[Mapping[str, int]] = None
    nonfatal: Reading[Mapping[str, int]] = None
    fatal: Reading[Mapping[str, int]] = None
    sticky: bool = False


@often
class Function(NamedTuple):
    """One PCI function as its sources describe it. Ids are None where a recording does not say."""

    address: str
    vendor_id: int | None = None
    device_id: int | None = None
    class_code: int | None = None  # 24 bits: base class, subclass, programming interface
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    driver: Reading[str] = None
    numa_node: Reading[int] = None
    # The bridge above; None on a root bus; Unknown where the recording does not hold the bridge.
    parent: Reading[str] = Unknown(NOT_RECORDED, "the bridge above")
    host_bridge: str | None = None  # "pci0000:17", where known
    slot: str | None = None  # physical slot as the platform labels it
    revision: int | None = None
    name: str | None = None  # as the recording itself spells it, vendor included
    bridge: bool = False  # header type 1 or a bridge class
    secondary_bus: int | None = None
    subordinate_bus: int | None = None
    port_type: Reading[str] = None  # one of PORT_TYPES
    link: LinkEnd | None = None  # None: nothing was said of a link
    virtual_function: bool = False
    physical_function: str | None = None  # address of the physical function, where visible
    aer: Aer | None = None
    acs: Reading[frozenset[str]] = None  # enabled control bits, names as lspci prints them
    payload_bytes: Reading[int] = None  # MaxPayload in use
    power: Reading[str] = None  # D0, D3hot, D3cold, "suspended"
    answers: Reading[bool] = None  # False: configuration reads all ones
    hotplug_empty: bool = False  # a slot whose presence detect says that nothing is in it
    local_cpus: Reading[str] = None  # list format: 0-55,112-167
    link_trusted: bool = True  # False: link values are maxima or guesses (NCCL XML, hwloc for GPUs); never judged
    link_gbs: Reading[float] = None  # where a recording gives only the product (hwloc XML)
