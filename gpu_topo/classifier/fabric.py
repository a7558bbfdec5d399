"""NVSwitches that are missing, and a fabric that is not ready."""

from __future__ import annotations

from gpu_topo.catalogue import gpu_ids_by_name, nvswitches_per_baseboard
from gpu_topo.catalogue.words import model_in
from gpu_topo.classifier.gpus import PASSED, is_sxm, nvidia_gpus, why_not
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import (
    CATALOGUE,
    CAUSE_DRIVER,
    CAUSE_NOT_RECORDED,
    CAUSE_PASSTHROUGH,
    CAUSE_VM,
    CRITICAL,
    LINK_PARTNERS,
    WARNING,
    Finding,
    Unassessed,
)
from gpu_topo.model.gpu import Fabric
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import VIRTUAL_MACHINE
from gpu_topo.model.node import NVSWITCH, Gpu, Node
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.vendors import NVIDIA
from gpu_topo.topology.bonds import active_links, built_on_switches
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MISSING = "nvswitch-missing"
NOT_READY = "fabric-not-ready"

_FINE = frozenset({"healthy", "not supported", "n/a", "[n/a]", "", "full", "false", "no", "none", "correct", "0"})
_HOST_BRIDGE = 0x0600
_NOT_SUPPORTED = ("not supported", "n/a", "[n/a]", "")
_REMEDY = (
    "look at the fabric manager: systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
    "check that its version is exactly the driver's",
    "restart it with no job running; if that fails, drain the node and reboot",
)


def judge_missing(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """nvswitch-missing."""
    seen = lookup(node).of(NVSWITCH)
    groups: dict[tuple[int | None, str], list[Gpu]] = {}
    for gpu in nvidia_gpus(node):
        device = node.devices.get(gpu.address)
        if device is not None and (is_sxm(gpu) or (seen and gpu.part is None)):
            name = "" if device.function.device_id is not None else model_in(device.name)
            groups.setdefault((device.function.device_id, name), []).append(gpu)
    for (device_id, name), gpus in groups.items():
        # A recording of names alone: every part that bears the name, as far as their boards agree.
        parts = [(NVIDIA, device_id)] if device_id is not None else gpu_ids_by_name(name)
        expected = nvswitches_per_baseboard(parts, len(gpus))
        if expected is None and seen and node.platform.kind != VIRTUAL_MACHINE:
            reason = f"how many NVSwitches the board of {len(gpus)} such GPUs has is not known: {len(seen)} are there"
            yield Unassessed(MISSING, "node", reason, CAUSE_NOT_RECORDED)
            continue
        if not expected or len(seen) >= expected:
            continue
        if node.platform.kind == VIRTUAL_MACHINE:
            yield Unassessed(MISSING, "node", "a guest may be shown some NVSwitches only, or none", CAUSE_VM)
            return
        # Only a listing of the whole machine, host bridges and all, would hold them.
        if not seen and not any((d.function.class_code or 0) >> 8 == _HOST_BRIDGE for d in node.devices.values()):
            yield Unassessed(MISSING, "node", "the recording does not list all PCI functions", CAUSE_NOT_RECORDED)
            return
        yield Finding(
            MISSING,
            CRITICAL,
            "node",
            f"{len(seen)} of {expected} NVSwitches are on the bus",
            CATALOGUE,
            "the NVLink fabric does not come up, or with less bandwidth for all GPUs; CUDA may fail to initialise",
            (
                "look for what happened: dmesg | grep -iE 'nvswitch|SXid|Xid'",
                "drain the node and power-cycle it",
                "have the baseboard serviced",
            ),
            "lspci -d 10de::0680",
            related=tuple(d.address for d in seen),
            observed={"nvswitches": len(seen)},
            expected={"nvswitches": expected},
        )


def judge_fabric(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """fabric-not-ready."""
    board = bool(lookup(node).of(NVSWITCH))
    for gpu in nvidia_gpus(node):
        on_board = is_sxm(gpu) and gpu.part is not None and "nvswitch" in gpu.part.fabric_attach.lower()
        attached = board or on_board or built_on_switches(node, gpu)  # those of a rack are no SXM modules
        links = active_links(gpu) or ()
        if links and all(link.remote_kind == "gpu" for link in links):
            attached = False  # boards of four are joined directly
        fabric = known(gpu.fabric)
        if fabric is None:
            if attached and gpu.part is not None and gpu.part.arch in _WITH_FABRIC:
                yield Unassessed(NOT_READY, gpu.address, *_why_unknown(node, gpu))
            continue
        if why_not(node, gpu) is not None and known(gpu.mig):
            continue
        yield from _state(node, gpu, fabric, attached, past, policy)


# Architectures whose GPUs register with a fabric of which the driver tells the state.
_WITH_FABRIC = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})


def _why_unknown(node: Node, gpu: Gpu) -> tuple[str, str]:
    device = node.devices.get(gpu.address)
    if device is not None and device.function.driver in PASSED:
        return "passed through to a guest: only there the driver tells the fabric state", CAUSE_PASSTHROUGH
    if isinstance(gpu.fabric, Unknown):
        return f"the fabric state could not be read: {gpu.fabric.why} ({gpu.fabric.where})", CAUSE_DRIVER
    return "the fabric state is not recorded: nvidia-smi -q would tell", CAUSE_NOT_RECORDED


def _state(
    node: Node, gpu: Gpu, fabric: Fabric, nvswitch_board: bool, past: Past, policy: Policy
) -> Iterator[Conclusion]:
    state = (known(fabric.state) or "").lower()
    status = (known(fabric.status) or "").lower()
    unhealthy = {name: word for name, word in fabric.health.items() if _bad(name, word)}
    if state == "completed":
        if status not in ("success", *_NOT_SUPPORTED):
            yield _finding(gpu, CRITICAL, f"registration completed with '{known(fabric.status)}'", fabric)
        elif unhealthy:
            words = ", ".join(f"{name} {word}" for name, word in unhealthy.items())
            yield _finding(gpu, CRITICAL, f"registered, but unhealthy: {words}", fabric)
        return
    if state in ("in progress", "not started") and nvswitch_board:
        up = past.uptime_seconds if past.uptime_seconds is not None else known(node.platform.uptime_seconds)
        if up is not None and up < policy.boot_grace_seconds:
            return
        if node.platform.kind == VIRTUAL_MACHINE:
            yield Unassessed(NOT_READY, gpu.address, "in shared-NVSwitch guests registration stays open", CAUSE_VM)
            return
        yield _finding(gpu, WARNING, f"registration is '{known(fabric.state)}'", fabric)


def _bad(name: str, word: str) -> bool:
    """Whether a health field says that something is wrong; "Not Supported" is no fault.

    The summary is healthy or not, the bandwidth full or degraded, the wiring right or described, and of the flags only
    those whose name is a fault: "partition assigned: true" is how it should be.
    """
    field, text = name.lower().replace("_", " "), word.strip().lower()
    if text in _FINE:
        return False
    if "summary" in field or "configuration" in field:
        return True
    if "bandwidth" in field:
        return "degraded" in text or text in ("true", "yes")
    return any(fault in field for fault in ("unhealthy", "recovery", "timeout")) and text in ("true", "yes")


def _finding(gpu: Gpu, severity: str, words: str, fabric: Fabric) -> Finding:
    return Finding(
        NOT_READY,
        severity,
        gpu.address,
        f"the NVLink fabric of {known(gpu.model) or gpu.address} is not ready: {words}",
        LINK_PARTNERS,
        "links may show as active, but peer-to-peer over NVLink does not work; CUDA or NCCL fails to initialise",
        _REMEDY,
        "nvidia-smi -q | grep -A12 -w Fabric",
        observed={"state": known(fabric.state), "status": known(fabric.status), **dict(fabric.health)},
        expected={"state": "Completed", "status": "Success"},
        witness="what the driver says",
    )


RULES = (
    Rule(
        MISSING,
        (CRITICAL,),
        "fewer NVSwitches are on the bus than the baseboard has",
        "NVSwitch functions on PCI against the baseboard that carries exactly this GPU model in this number",
        "guests, boards whose NVSwitches are not on PCI (HGX B200 and later), recordings that list some functions "
        "only. Unassessed where NVSwitches are there and no board is known to carry such GPUs in this number",
        ("drain the node and power-cycle it", "have the baseboard serviced"),
        ("catalogue: baseboards.csv, with a source for each board",),
        judge_missing,
        reads=("pcie",),
        misled_without=("pcie",),
    ),
    Rule(
        NOT_READY,
        (CRITICAL, WARNING),
        "a GPU's registration with the NVLink fabric failed, is unhealthy or does not end",
        "fabric state, status and health of each GPU, as NVML and nvidia-smi -q tell them",
        "completed with success; in progress within the grace after boot, off NVSwitch boards and in guests; "
        "'Not Supported' in health fields; GPUs bound to vfio-pci (unassessed)",
        _REMEDY,
        (
            "kubernetes-sigs/dra-driver-nvidia-gpu#626 (completed, unhealthy), #1264 (in progress for ever by design)",
            "Azure/azhpc-images#506 (insufficient resources), leptonai/gpud#1106",
        ),
        judge_fabric,
        reads=("pcie", "nvml"),
        late=True,
    ),
)
