"""The hypervisor that the PCI functions of a machine give away, for recordings that hold nothing else of it."""

from __future__ import annotations

from gpu_topo import catalogue
from gpu_topo.model.pci import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_VENDORS = {
    0x1B36: "KVM",  # Red Hat's emulated bridges and controllers: QEMU
    0x15AD: "VMware",
    0x1414: "Hyper-V",
    0x5853: "Xen",
    0x80EE: "VirtualBox",
    0x1AB8: "Parallels",
}
# Their devices serve guests and rented metal alike: it is the host bridge that tells.
_CLOUDS = {0x1D0F: "Amazon Nitro", 0x1AE0: "KVM"}  # Amazon, Google
_BOCHS_DISPLAY = (0x1234, 0x1111)
_QEMU_SUBSYSTEM = (0x1AF4, 0x1100)
_VIRTIO = 0x1AF4
_440FX = (0x8086, 0x1237)  # of 1996: it has PCI and no PCI Express
# Host bridges that virtual machines show: Q35, QEMU's generic one, Cloud Hypervisor's.
_VIRTUAL_HOST_BRIDGES = frozenset({_440FX, (0x8086, 0x29C0), (0x1B36, 0x0008), (0x8086, 0x0D57)})
_NATOMA = ("440fx", "82441fx")  # its name, where a recording has no ids
_HOST_BRIDGE, _PCI_BRIDGE, _NVME = 0x0600, 0x0604, 0x0108
_DISPLAY = 0x03


def hypervisor_of_functions(functions: Iterable[Function]) -> str | None:
    """The hypervisor whose emulated devices are among the functions, None where there are none.

    Virtio alone is no proof, since cards of some clouds show it to bare metal: it counts unless a real host bridge is
    there. Amazon's and Google's own devices count where each host bridge is an emulated one or theirs.
    """
    virtio = natoma = express = ports = False
    cloud = ""
    host_bridges: set[tuple[int | None, int | None]] = set()
    for function in functions:
        vendor, name = function.vendor_id, function.name
        if vendor in _VENDORS:
            return _VENDORS[vendor]
        ids = (vendor, function.device_id)
        if ids == _BOCHS_DISPLAY or (function.subsystem_vendor_id, function.subsystem_device_id) == _QEMU_SUBSYSTEM:
            return "KVM"
        sub = (function.class_code or 0) >> 8
        if sub == _PCI_BRIDGE:
            ports = True
        if vendor == _VIRTIO:
            virtio = True
        elif vendor in _CLOUDS:
            cloud = _CLOUDS[vendor]
        if ids == _440FX or (name is not None and any(word in name.lower() for word in _NATOMA)):
            natoma = True
            host_bridges.add(_440FX)
        elif sub == _HOST_BRIDGE:
            host_bridges.add(ids)
        else:
            express = express or _is_express(function, sub)
    if natoma and (express or cloud):
        return cloud or "KVM"
    if virtio and (not host_bridges or host_bridges & _VIRTUAL_HOST_BRIDGES):
        return cloud or "KVM"
    told = bool(host_bridges) and all(ids in _VIRTUAL_HOST_BRIDGES or ids[0] in _CLOUDS for ids in host_bridges)
    if cloud and told and (not ports or host_bridges <= _VIRTUAL_HOST_BRIDGES):
        return cloud
    return None


def _is_express(function: Function, sub: int) -> bool:
    """Whether this is a device of PCI Express: no board with a 440FX has one, whatever a guest's registers say."""
    if function.link is not None or isinstance(function.port_type, str) or sub == _NVME:
        return True
    if sub >> 8 != _DISPLAY or function.vendor_id is None or function.device_id is None:
        return function.name is not None and "nvme" in function.name.lower()
    return catalogue.gpu_part(function.vendor_id, function.device_id) is not None
