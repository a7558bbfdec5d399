"""What one collector or reader brings home from one source at one moment."""

from __future__ import annotations

from gpu_topo.model.gpu import AcceleratorLink, DriverGpu, DriverState, Peer
from gpu_topo.model.host import BlockDevice, NetDevice, Platform, Port
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

OK = "ok"
PARTIAL = "partial"
ABSENT = "absent"
DENIED = "denied"
FAILED = "failed"
TIMEOUT = "timeout"


class SourceStatus(NamedTuple):
    """How a source answered; detail says in words what is missing and why."""

    name: str  # pcie, nvml, rdma, ... or "lspci -vvv (FILE)"
    status: str  # OK | PARTIAL | ABSENT | DENIED | FAILED | TIMEOUT
    detail: str = ""
    seconds: float = 0.0


class Facts(NamedTuple):
    """Everything that one source said. Several Facts of one machine are assembled into a Node.

    Sources of the same kind in one recording are samples over time, in order of appearance.
    """

    source: SourceStatus
    functions: tuple[Function, ...] = ()
    gpus: tuple[DriverGpu, ...] = ()
    peers: tuple[Peer, ...] = ()
    accelerator_links: tuple[AcceleratorLink, ...] = ()
    ports: tuple[Port, ...] = ()
    netdevs: tuple[NetDevice, ...] = ()
    blocks: tuple[BlockDevice, ...] = ()
    platform: Platform | None = None
    driver: DriverState | None = None
    structure_only: bool = False  # an inventory or tree without link values (lspci -tv, -nn, NCCL XML)
    unread: Mapping[str, int] = EMPTY  # "denied: config" -> how many readings ended so
