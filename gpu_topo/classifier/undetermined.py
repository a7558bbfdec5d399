"""Functions that may be GPUs or accelerators: a recording gave neither their class nor a name or number that tells."""

from __future__ import annotations

from gpu_topo.catalogue.words import MAKERS, kind_of, says_nothing
from gpu_topo.model.cached import of_last
from gpu_topo.model.node import ACCELERATOR, GPU, OTHER, Device, Node
from gpu_topo.topology.lookup import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@of_last
def undetermined(node: Node) -> Sequence[Device]:
    """Those of vendors that build GPUs and accelerators. Where no other GPU or accelerator is there, also those of
    which the recording says nothing but the place (lspci -t), or an unlisted number below a bridge: nobody can say then
    that the machine has none."""
    unclear = [
        device
        for device in node.devices.values()
        if device.kind == OTHER
        and device.function.class_code is None
        and not device.function.bridge
        and (device.part is None or not device.part.management)
        and kind_of(device.function.vendor_id, device.function.name or "") is None
    ]
    if not unclear or lookup(node).of(GPU, ACCELERATOR):
        return [device for device in unclear if device.function.vendor_id in MAKERS]
    return [device for device in unclear if _may_compute(device)]


def _may_compute(device: Device) -> bool:
    function = device.function
    if function.vendor_id in MAKERS or not function.name:
        return True
    return says_nothing(function.name) and len(device.path) > 1
