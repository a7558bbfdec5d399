"""What the NVLink rules share: which GPUs have links to judge, how many are up and should be, and why one cannot be
judged."""

from __future__ import annotations

from gpu_topo.catalogue import baseboards
from gpu_topo.model.finding import CATALOGUE, CAUSE_DRIVER, CAUSE_MIG, CAUSE_NOT_RECORDED, CAUSE_PASSTHROUGH, PEERS
from gpu_topo.model.gpu import ACTIVE, INACTIVE
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import Gpu, Node
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.bonds import built_on_switches
from gpu_topo.topology.interconnect import on_switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED = frozenset({"vfio-pci", "pci-stub"})  # drivers that keep a device for a guest
UNKNOWN_MODEL = "?"
NOT_TOLD = ("NVLink state is not recorded: nvidia-smi nvlink -s would tell", CAUSE_NOT_RECORDED)


class Count(NamedTuple):
    """How many NVLinks of a GPU are up; by_link: told link by link, else from a matrix."""

    gpu: Gpu
    active: int
    total: int
    by_link: bool


def is_sxm(gpu: Gpu) -> bool:
    """A GPU that is soldered into an NVLink baseboard: its links are there, bridge or not."""
    return gpu.part is not None and gpu.part.form_factor.upper().startswith("SXM")


def soldered(node: Node, gpu: Gpu) -> bool:
    """Whether a GPU's NVLinks are wired on a board, so that a missing one is a fault and no missing bridge.

    A matrix names no models, but no set of bridges joins three GPUs by more links than a GPU has ends.
    """
    if gpu.part is None:
        return on_switches(node)
    return is_sxm(gpu) or gpu.part.c2c


def has_nvlink(gpu: Gpu) -> bool | None:
    """Whether this part has NVLink, None where it is not catalogued."""
    if gpu.part is None or not gpu.part.fabric:
        return None
    return gpu.part.fabric == "nvlink"


def nvidia_gpus(node: Node) -> list[Gpu]:
    """The NVIDIA GPUs of a node that are not integrated."""
    found = []
    for gpu in node.gpus:
        device = node.devices.get(gpu.address)
        if gpu.vendor_id in (NVIDIA, None) and not (device is not None and device.integrated):
            if device is None or device.function.vendor_id in (NVIDIA, None):
                found.append(gpu)
    return found


def model_of(node: Node, gpu: Gpu) -> str:
    """What GPUs of one model have in common: the device id, else the name that the driver gives."""
    device = node.devices.get(gpu.address)
    number = device.function.device_id if device is not None else None
    return f"{number:04x}" if number is not None else (known(gpu.model) or UNKNOWN_MODEL)


def why_not(node: Node, gpu: Gpu) -> tuple[str, str] | None:
    """Why nothing of a GPU's NVLinks may be judged, as (reason, cause); None where it may."""
    if known(gpu.mig):
        return "MIG is on: the driver does not show NVLinks then", CAUSE_MIG
    device = node.devices.get(gpu.address)
    if device is not None and device.function.driver in PASSED:
        return "passed through to a guest: its links are not visible here", CAUSE_PASSTHROUGH
    if isinstance(gpu.nvlinks, Unknown):
        if gpu.nvlinks.why == NOT_RECORDED:
            return NOT_TOLD
        return f"NVLink state could not be read: {gpu.nvlinks.why} ({gpu.nvlinks.where})", CAUSE_DRIVER
    if gpu.lost:
        return "the driver does not answer for this GPU", CAUSE_DRIVER
    if gpu.listed is False:
        return "the driver does not list this GPU here", CAUSE_DRIVER
    states = [link.state for link in known(gpu.nvlinks) or ()]
    unread = sum(state not in (ACTIVE, INACTIVE) for state in states)
    if unread and INACTIVE not in states:
        return f"the state of {unread} of its {len(states)} NVLinks is not known", CAUSE_NOT_RECORDED
    if node.platform.kind == VIRTUAL_MACHINE and has_nvlink(gpu) is not False:
        if len(nvidia_gpus(node)) == 1:
            return (
                "a guest with one GPU of what may be a larger board: its links may lead to GPUs of others",
                CAUSE_PASSTHROUGH,
            )
        # Links to switches stay whole; those of a mesh lead out of the guest, from some GPUs more than from others.
        switched = any(link.remote_kind == "nvswitch" for link in known(gpu.nvlinks) or ())
        if soldered(node, gpu) and not switched and not whole_board(node, gpu):
            return "a guest with some GPUs of a larger board: links may lead to GPUs of others", CAUSE_PASSTHROUGH
    return None


def whole_board(node: Node, gpu: Gpu) -> bool:
    """Whether there are as many GPUs of this model as a board carries (or no board is known to carry it)."""
    device = node.devices.get(gpu.address)
    number = device.function.device_id if device is not None else None
    if number is None:
        return True
    model = model_of(node, gpu)
    count = sum(model_of(node, other) == model for other in nvidia_gpus(node))
    boards = baseboards(NVIDIA, number, count)
    return not boards or any(board.gpus == count for board in boards)


def counts(node: Node) -> list[Count]:
    """The NVLink counts of all GPUs of which something is known and that may be judged."""
    found = []
    stated = stated_links(node)
    for gpu in nvidia_gpus(node):
        if why_not(node, gpu) is not None:
            continue
        links = known(gpu.nvlinks)
        if links is not None:
            found.append(Count(gpu, sum(link.state == ACTIVE for link in links), len(links), True))
        elif gpu.address in stated:
            found.append(Count(gpu, stated[gpu.address], stated[gpu.address], False))
    return found


def stated_links(node: Node) -> dict[str, int]:
    """The links of each GPU as a matrix tells: the most that it has to any one other GPU."""
    most: dict[str, int] = {}
    for (a, b), kind in node.stated_paths.items():
        links = int(kind[2:]) if kind.startswith("NV") and kind[2:].isdigit() else 0
        for name in (a, b):
            most[name] = max(most.get(name, 0), links)
    gpus = {gpu.address for gpu in node.gpus}
    return {name: links for name, links in most.items() if name in gpus}


def groups(node: Node, found: Sequence[Count]) -> list[list[Count]]:
    """The counts by model: within each, one GPU tells what another should have."""
    models: dict[str, list[Count]] = {}
    for count in found:
        models.setdefault(model_of(node, count.gpu), []).append(count)
    return list(models.values())


def name_of(group: Sequence[Count]) -> str:
    """The model of a group, for a sentence."""
    gpu = group[0].gpu
    return known(gpu.model) or (gpu.part.name if gpu.part is not None else "GPUs")


def expected(node: Node, group: Sequence[Count]) -> tuple[int, str]:
    """How many links a GPU of this group should have up, and the basis of it."""
    most = max(count.active for count in group)
    built = _built(node, group)
    return (built, CATALOGUE) if built > most else (most, PEERS)


def _built(node: Node, group: Sequence[Count]) -> int:
    """How many links the catalogue is sure that each GPU of this group has up when nothing is wrong; 0: it is not."""
    gpu, part = group[0].gpu, group[0].gpu.part
    if part is None or part.fabric != "nvlink" or part.fabric_confidence not in ("verified", "one_source"):
        return 0
    links = part.fabric_links or 0
    if not group[0].by_link or (node.platform.kind == VIRTUAL_MACHINE and not whole_board(node, gpu)):
        return 0
    if is_sxm(gpu):
        return links
    # What follows goes by a figure that the driver confirms: it lists as many links, up or down.
    if any(count.total != links for count in group):
        return 0
    # The links of a superchip in a rack are wired to its switches; others (GH200) stand alone, or in pairs.
    if part.c2c:
        return links if built_on_switches(node, gpu) else 0
    # One bridge closes all links of a card: some of them without the others are a fault, none are no bridge.
    one_bridge = part.fabric_attach.lower().endswith("bridge; 2 gpus")
    return links if one_bridge and any(count.active for count in group) else 0


def short(node: Node, group: Sequence[Count], wanted: int) -> list[Count]:
    """Those of a group that lack links which are there and down."""
    return [count for count in group if count.active < wanted and is_fault(node, count, wanted)]


def is_fault(node: Node, count: Count, wanted: int) -> bool:
    """Whether fewer links mean that a link is down. On bridged cards a GPU without any has no bridge, and bridges of
    different kinds are nvlink-partial; but a link that the driver lists as inactive beside active ones is down."""
    if soldered(node, count.gpu):
        return True
    return count.active > 0 and count.by_link and count.active < wanted <= count.total
