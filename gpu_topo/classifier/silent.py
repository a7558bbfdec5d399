"""Sources that do not answer: what was not read is not gone, and what was found before is not over."""

from __future__ import annotations

from gpu_topo.model.facts import FAILED, TIMEOUT
from gpu_topo.model.finding import CAUSE_TIMEOUT, Unassessed
from gpu_topo.model.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NEAREST = ("nic-gpu-ratio-low", "gpu-without-near-nic", "cross-numa-nic")
_COUNTING = ("inventory-short", "baseline-drift", "nvswitch-missing")
_PORTS = (
    "port-down",
    "port-not-active",
    "port-rate-degraded",
    "port-outruns-pcie",
    "port-errors",
    "port-flapping",
    "firmware-mismatch",
    "roce-mtu-small",
    "gpudirect-missing",
)
_FUNCTIONS = (
    "pcie-width-degraded",
    "pcie-link-unexplained",
    "pcie-slot-limited",
    "pcie-speed-degraded",
    "pcie-path-bottleneck",
    "pcie-uplink-oversubscribed",
    "pcie-errors",
    "pcie-device-lost",
    "acs-blocks-p2p",
    "nic-shares-switch-with-storage",
    "numa-unknown",
    "payload-size-mismatch",
    "gpu-lost",
    "gpu-driver-missing",
)
_NVLINKS = ("nvlink-inactive", "nvlink-partial", "nvlink-absent", "nvlink-errors", "fabric-not-ready")

# Source -> the rules whose conclusions rest on it.
_READERS = {
    "pcie": frozenset((*_FUNCTIONS, *_NVLINKS, *_PORTS, *_NEAREST, *_COUNTING)),
    "rdma": frozenset((*_PORTS, *_NEAREST, "baseline-drift", "nic-shares-switch-with-storage", "acs-blocks-p2p")),
    "net": frozenset(("port-rate-degraded", "port-outruns-pcie", "roce-mtu-small", *_NEAREST)),
    "nvml": frozenset((*_NVLINKS, "gpu-lost")),
    "kfd": frozenset(("xgmi-degraded",)),
}
# Source -> those of them that would take what was not read for missing, or a virtual function for a card.
_MISLED = {
    "pcie": frozenset((*_PORTS, *_NEAREST, *_COUNTING)),
    "rdma": frozenset((*_NEAREST, "baseline-drift")),
    "net": frozenset(("port-rate-degraded",)),
}


def silent(node: Node) -> Mapping[str, str]:
    """The sources that did not answer, or not to the end, with what is known of why."""
    return {source.name: source.detail for source in node.sources if source.status in (TIMEOUT, FAILED)}


def misled(code: str, missing: Mapping[str, str]) -> bool:
    """Whether a rule may not judge at all while these sources are missing."""
    return any(code in _MISLED.get(name, ()) for name in missing)


def left_open(code: str, missing: Mapping[str, str]) -> Unassessed | None:
    """What a rule cannot tell while these sources are missing; None where it reads none of them."""
    for name, detail in missing.items():
        if code in _READERS.get(name, ()):
            return Unassessed(code, "node", f"{name} did not answer: {detail or 'it failed'}", CAUSE_TIMEOUT)
    return None
