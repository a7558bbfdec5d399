"""GPUs that their driver has lost, a driver that does not answer, and a driver that is not there."""

from __future__ import annotations

from gpu_topo.classifier.gpus import PASSED
from gpu_topo.classifier.links import called
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.facts import DENIED, OK, PARTIAL
from gpu_topo.model.finding import (
    CAUSE_DENIED,
    CAUSE_DRIVER,
    CAUSE_NOT_RECORDED,
    CAUSE_PASSTHROUGH,
    CAUSE_TIMEOUT,
    CRITICAL,
    INFO,
    LINK_PARTNERS,
    PEERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.gpu import DriverState
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import GPU, Device, Gpu, Node
from gpu_topo.model.reading import NOT_RECORDED, Reading, Unknown, known
from gpu_topo.model.vendors import AMD, NVIDIA
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

GPU_LOST = "gpu-lost"
UNRESPONSIVE = "gpu-driver-unresponsive"
MISSING = "gpu-driver-missing"

# The drivers that make a GPU usable for compute, by vendor.
_DRIVERS = {NVIDIA: frozenset({"nvidia"}), AMD: frozenset({"amdgpu", "radeon"})}
_REMEDY = (
    "look for the reason: dmesg | grep -iE 'Xid|NVRM|fallen off'",
    "drain the node; end what still holds the GPU (fuser -v /dev/nvidia*)",
    "power-cycle the node: a lost GPU seldom comes back by a reset",
    "reseat the card, or have it replaced if it is lost again",
)


def judge_lost(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """gpu-lost."""
    state = node.drivers.get("nvml")
    # A source that is silent as a whole is told of for every rule that reads it.
    source = next((one.status for one in node.sources if one.name == "nvml"), OK)
    if state is not None and state.status in ("failed", "crashed") and source in (DENIED, PARTIAL):
        cause = CAUSE_DENIED if source == DENIED else CAUSE_DRIVER
        yield Unassessed(GPU_LOST, "node", f"NVML did not tell of every GPU: {state.detail}", cause)
    for gpu in node.gpus:
        device = node.devices.get(gpu.address)
        if gpu.lost:
            yield _lost(gpu, device, "its driver says that it is lost or cannot be opened")
        elif gpu.listed is False:
            hidden = _hidden(gpu, state)
            if hidden is not None:
                yield Unassessed(GPU_LOST, gpu.address, hidden, CAUSE_DENIED)
            else:
                yield _lost(gpu, device, "its driver is bound to it, lists other GPUs, and not this one")
    if state is not None and state.status == "ok":
        yield from _unbound(node, state)


def _unbound(node: Node, state: DriverState) -> Iterator[Unassessed]:
    """GPUs of a recording whose driver lists others, or fewer, and nothing tells whether it should list these."""
    bare = [
        device
        for device in lookup(node).of(GPU)
        if device.function.vendor_id == NVIDIA
        and _may_be_bound(device.function.driver)
        and not device.function.physical_function
        and not node.live
        and (gpu := lookup(node).gpus.get(device.address)) is not None
        and gpu.listed is None
    ]
    if not bare:
        return
    if state.numbered:
        if state.numbered < len(bare):
            reason = (
                f"the driver's tools tell of {state.numbered} GPUs and {len(bare)} are on the bus; which are which is "
                "not recorded (nvidia-smi --query-gpu=index,pci.bus_id --format=csv tells)"
            )
            yield Unassessed(GPU_LOST, "node", reason, CAUSE_NOT_RECORDED)
    elif any(gpu.listed and ":" in gpu.address for gpu in node.gpus):
        for device in bare:
            why = "or it was not asked for (-i), or is hidden from the container or job that asked"
            if device.function.driver != "nvidia":
                why = "if its driver is bound to it, which is not recorded (lspci -k tells)"
            reason = f"the driver's tool lists other GPUs and not this one: lost, {why}"
            yield Unassessed(GPU_LOST, device.address, reason, CAUSE_NOT_RECORDED)


def _may_be_bound(driver: Reading[str]) -> bool:
    """Whether NVIDIA's driver is bound, or it is not recorded which one is."""
    return driver == "nvidia" or (isinstance(driver, Unknown) and driver.why == NOT_RECORDED)


def _hidden(gpu: Gpu, state: DriverState | None) -> str | None:
    """Why NVML may not be shown a GPU that is well: a container or job gets the device nodes of its own GPUs."""
    if state is None:
        return None
    minor = state.minors.get(gpu.address)
    openable = known(state.openable_minors)
    if minor is not None and openable is not None:
        return (
            None if minor in openable else f"/dev/nvidia{minor} is not there or may not be opened: a container or job"
        )
    if not state.lists_all:
        return "this container or job is shown some GPUs only"
    return None


def _lost(gpu: Gpu, device: Device | None, why: str) -> Finding:
    name = called(device) if device is not None else known(gpu.model) or gpu.address
    return Finding(
        GPU_LOST,
        CRITICAL,
        gpu.address,
        f"{name}: {why}",
        PEERS,
        "jobs that are given this GPU fail at start, running ones hang; other GPUs of the node may follow",
        _REMEDY,
        "nvidia-smi -L; lspci -d 10de: -nn",
        observed={"listed": False},
        expected={"listed": True},
        witness="what the driver says",
    )


def judge_unresponsive(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """gpu-driver-unresponsive."""
    for library, state in node.drivers.items():
        if state.status == "timeout":
            severity, words = CRITICAL, "a call to the GPU driver passed its deadline"
        elif state.status in ("failed", "crashed"):
            severity = WARNING
            words = "the GPU driver's library is there and fails to start" if state.status == "failed" else (
                "the GPU driver's library crashed"
            )  # fmt: skip
        elif state.status == "unasked":
            yield Unassessed(UNRESPONSIVE, "node", f"{library} was not asked to the end: {state.detail}", CAUSE_TIMEOUT)
            continue
        else:
            continue
        yield Finding(
            UNRESPONSIVE,
            severity,
            "node",
            f"{words}: {state.detail}" if state.detail else words,
            LINK_PARTNERS,
            "nothing that needs the driver works: jobs cannot start, running ones may hang and cannot be killed",
            (
                "look for the reason: dmesg | grep -iE 'Xid|NVRM|hung task'",
                "check that driver and library are of one version (cat /proc/driver/nvidia/version)",
                "drain the node and reboot; if it hangs on the way down, power-cycle",
            ),
            "timeout 10 nvidia-smi; echo $?",
            observed={"library": library, "status": state.status, "detail": state.detail},
            expected={"status": "ok"},
            witness="what the driver says",
        )


def judge_missing(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """gpu-driver-missing."""
    state = node.drivers.get("nvml")
    bound = 0
    # A recording without a single driver says nothing of drivers.
    told = node.live or any(isinstance(d.function.driver, str) for d in node.devices.values())
    for device in lookup(node).of(GPU):
        function = device.function
        wanted = _DRIVERS.get(function.vendor_id or 0)
        if device.integrated or wanted is None or function.physical_function:
            continue
        driver = function.driver
        if isinstance(driver, str) and driver in wanted:
            bound += function.vendor_id == NVIDIA
            continue
        if isinstance(driver, str) and driver in PASSED:
            yield Unassessed(
                MISSING, device.address, f"bound to {driver}: passed through to a guest", CAUSE_PASSTHROUGH
            )
        elif (driver is None and told and _told_of(node, device)) or isinstance(driver, str):
            needed = " or ".join(sorted(wanted))
            what = f"is bound to {driver}, not to {needed}" if driver else f"has no driver; {needed} drives it"
            yield _missing(device.address, f"{called(device)} {what}", function.vendor_id == AMD)
    if node.live and bound and state is not None and state.status == "absent":
        yield _missing(
            "node",
            f"the NVIDIA driver runs {bound} GPU{'' if bound == 1 else 's'}, but its library (libnvidia-ml.so.1) is "
            "not found here",
        )


def _told_of(node: Node, device: Device) -> bool:
    """Whether the source that listed this function would have named its driver."""
    if node.live or device.function.link is not None or device.function.answers is False:
        return lookup(node).gpus[device.address].listed is None if device.address in lookup(node).gpus else True
    return False


def _missing(subject: str, words: str, amd: bool = False) -> Finding:
    if amd:
        unknown, load, verify = "load and xGMI links", "modprobe amdgpu", "lspci -d 1002: -k"
        container = "in a container, give it the device nodes: /dev/kfd and /dev/dri"
    else:
        unknown, load = "NVLink, load and P-state", "modprobe nvidia"
        verify = "lspci -d 10de: -k; ldconfig -p | grep nvidia-ml"
        container = "in a container, start it with the GPU runtime so that the library is mounted"
    return Finding(
        MISSING,
        INFO,
        subject,
        words,
        LINK_PARTNERS,
        f"{unknown} are not known; jobs cannot use the GPU from here",
        (
            "nothing, if this machine or container is not meant to compute",
            container,
            f"else install the driver and load it: {load}",
        ),
        verify,
        observed={"driver": None},
        expected={},
        witness="the driver that is bound",
    )


RULES = (
    Rule(
        GPU_LOST,
        (CRITICAL,),
        "the driver has lost a GPU that is on the bus",
        "GPUs on PCI with the NVIDIA driver bound, against those that the driver lists; what it calls lost",
        "the driver as a whole fails (gpu-driver-unresponsive); containers and jobs that are shown some GPUs only: a "
        "GPU whose device node is missing or closed is unassessed. So is one that a recorded list lacks, where the "
        "list may not be the whole (the table of nvidia-smi, CSV) or the GPU's driver is not recorded",
        _REMEDY,
        ("NVIDIA/dcgm-exporter#348, leptonai/gpud#810, utkuozdemir/nvidia_gpu_exporter#393",),
        judge_lost,
        reads=("pcie", "nvml"),
        late=True,
    ),
    Rule(
        UNRESPONSIVE,
        (CRITICAL, WARNING),
        "the GPU driver does not answer in time, or fails to start",
        "whether NVML initialises, and whether each of its calls returns before its deadline",
        "no driver or library is there (gpu-driver-missing); another run was asking all the time, or there was no time "
        "to ask (unassessed)",
        ("drain the node and reboot; if it hangs on the way down, power-cycle",),
        ("NVIDIA/gpu-monitoring-tools#46, leptonai/gpud#117, NVIDIA/NVSentinel#1574",),
        judge_unresponsive,
        late=True,
    ),
    Rule(
        MISSING,
        (INFO,),
        "a GPU has no compute driver, or its library is not found",
        "the kernel driver bound to each NVIDIA and AMD GPU, and whether libnvidia-ml can be found",
        "bound to vfio-pci (passed through, unassessed); recordings that do not tell drivers",
        ("nothing, if this machine or container is not meant to compute",),
        ("NVIDIA/DCGM#263, mej/nhc#111 (no driver is not a fault)",),
        judge_missing,
        reads=("pcie",),
        late=True,
    ),
)
