"""Storage controllers and disks with the mount points that stand on them, through RAID arrays and LVM as well."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.collectors.sysfs import Tally, is_virtual, last_part, open_class, pci_address, shares_a_port, too_late
from gpu_topo.model.facts import ABSENT, Facts, SourceStatus
from gpu_topo.model.host import BlockDevice
from gpu_topo.source import Dir, Refusal, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME = "block"
_NVME = "/sys/class/nvme"
_DISKS = ("/sys/block", "/sys/class/block")
_FUNCTIONS = "/sys/bus/pci/devices"
_DIGITS = "0123456789"
_MAX_DEPTH = 6  # a mount on LVM on a cache on a RAID on partitions


def collect(source: Source, context: Context) -> Facts:
    """NVMe controllers, and disks of other controllers, that are PCI devices of this machine."""
    started = time.monotonic()
    functions = source.dir(_FUNCTIONS)
    found, late = _controllers(source, context, functions)
    if not late:
        found += _other_disks(source, context, functions)
    if not isinstance(functions, Refusal):
        functions.close()
    if not found and not late:
        return Facts(SourceStatus(NAME, ABSENT, "no storage controller in /sys", time.monotonic() - started))
    if found and not late:
        found = _with_users(source, found)
    return Facts(Tally().status(NAME, started, late), blocks=tuple(found))


def _controllers(source: Source, context: Context, functions: Dir | Refusal) -> tuple[list[BlockDevice], bool]:
    """The NVMe controllers, told by their links, and whether the deadline came before the last one."""
    opened = open_class(source, _NVME)
    if isinstance(opened, Refusal):
        return [], False
    entries, names = opened
    found: list[BlockDevice] = []
    with entries:
        for name in names:
            if too_late(context):
                return found, True
            target = entries.link(name)
            address = pci_address(target) or pci_address(entries.link(f"{name}/device"))
            if name in context.exclude or address in context.exclude or is_virtual(target):
                continue  # virtual: NVMe over a network, not a device of this machine
            if not shares_a_port(target, address, functions):
                found.append(BlockDevice(name, address))
    return found, False


def _other_disks(source: Source, context: Context, functions: Dir | Refusal) -> list[BlockDevice]:
    """SATA, SAS and virtio disks by their own name; what hangs from USB or has no hardware is none of ours."""
    found: list[BlockDevice] = []
    for root in _DISKS:
        entries = source.dir(root)
        if isinstance(entries, Refusal):
            continue
        with entries:
            listing = entries.list()
            for name in () if isinstance(listing, Refusal) else listing:
                target = entries.link(name)
                # /sys/class/block has partitions too, one folder further down.
                whole = isinstance(target, str) and f"/block/{name}" in target and "/nvme/" not in target
                address = pci_address(target) if whole and not is_virtual(target) else None
                if not address or name in context.exclude or address in context.exclude:
                    continue
                if not shares_a_port(target, address, functions):
                    found.append(BlockDevice(name, address, namespaces=(name,)))
        break
    return found


def _with_users(source: Source, found: list[BlockDevice]) -> list[BlockDevice]:
    """The same devices with the mount points above them, through RAID arrays as well."""
    arrays, mounted = _arrays(source), _mounts(source)
    if not mounted:
        return found  # whose namespaces they are need not be known
    found = [device if device.namespaces else _with_namespaces(source, device) for device in found]
    owners = {space: device.name for device in found for space in device.namespaces}
    mounts: dict[str, set[str]] = {}
    for device, point in mounted:
        for disk in _disks(source, device, owners, arrays):
            mounts.setdefault(owners[disk], set()).add(point)
    return [device._replace(mounts=tuple(sorted(mounts.get(device.name, ())))) for device in found]


def _with_namespaces(source: Source, controller: BlockDevice) -> BlockDevice:
    listing = source.list(f"{_NVME}/{controller.name}")
    spaces = () if isinstance(listing, Refusal) else _namespaces(listing)
    return controller._replace(namespaces=spaces)


def _namespaces(listing: Iterable[str]) -> tuple[str, ...]:
    """The disks of a controller: nvme0n1. With multipath the path is nvme0c1n1 and the disk nvme0n1."""
    found: dict[str, None] = {}
    for name in listing:
        controller, _, number = name.rpartition("n")
        controller = controller.partition("c")[0]
        if number.isdecimal() and controller[:4] == "nvme" and controller[4:].isdecimal():
            found[f"{controller}n{number}"] = None
    return tuple(found)


def _arrays(source: Source) -> dict[str, list[str]]:
    """Array -> members, from /proc/mdstat: "md0 : active raid0 nvme1n1[1] nvme0n1[0]"."""
    text = source.read("/proc/mdstat")
    arrays: dict[str, list[str]] = {}
    for line in "" if isinstance(text, Refusal) else text.decode("utf-8", "replace").splitlines():
        name, colon, rest = line.partition(" : ")
        if colon and not name.startswith(" "):
            words = (word.partition("[") for word in rest.split())
            arrays[name.strip()] = [member for member, _, role in words if role.partition("]")[0].isdecimal()]
    return arrays


def _mounts(source: Source) -> list[tuple[str, str]]:
    """(block device, mount point) from /proc/self/mountinfo (proc(5)), /proc/mounts where a tree has only that.

    Bind mounts show a part of a file system again and are left out; a btrfs subvolume looks like one and is not.
    """
    found: dict[tuple[str, str], None] = {}
    text = source.read("/proc/self/mountinfo")
    if not isinstance(text, Refusal):
        for line in text.decode("utf-8", "surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            fields, tail = left.split(" "), right.split(" ")
            if len(fields) > 4 and len(tail) > 1 and (fields[3] == "/" or tail[0] == "btrfs"):
                device = _kernel_name(source, tail[1], fields[2])
                if device:
                    found[device, _plain(fields[4])] = None
        return list(found)
    text = source.read("/proc/mounts")
    for line in "" if isinstance(text, Refusal) else text.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        if len(fields) > 1 and (device := _kernel_name(source, fields[0], "")):
            found[device, _plain(fields[1])] = None
    return list(found)


def _kernel_name(source: Source, name: str, number: str) -> str | None:
    """The kernel's name of a mounted block device; /dev/mapper/x and /dev/root are told by their number."""
    if not name.startswith("/dev/"):
        return None
    if number and not number.startswith("0:") and (name.startswith("/dev/mapper/") or name == "/dev/root"):
        return last_part(source.link(f"/sys/dev/block/{number}"))
    return name[len("/dev/") :].replace("/", "!")


def _plain(text: str) -> str:
    """A mount point without the octal escapes of mountinfo, safe to print."""
    start, *escaped = text.split("\\")
    for part in escaped:
        octal = part[:3]
        start += chr(int(octal, 8)) + part[3:] if len(octal) == 3 and not octal.strip("01234567") else "\\" + part
    return start.encode("utf-8", "replace").decode("utf-8")


def _disks(source: Source, name: str, owners: Mapping[str, str], arrays: Mapping[str, list[str]]) -> set[str]:
    """The known disks that a block device stands on: itself, its disk, its array's members, its mapper's slaves."""
    found: set[str] = set()
    pending = {name}
    for _ in range(_MAX_DEPTH):
        below: set[str] = set()
        for device in pending:
            disk = device if device in owners else _disk_of(device, owners)
            if disk:
                found.add(disk)
            elif device in arrays:
                below.update(arrays[device])
            elif device.startswith(("dm-", "md", "bcache")):
                slaves = source.list(f"/sys/block/{device}/slaves")
                below.update(() if isinstance(slaves, Refusal) else slaves)
        pending = below
        if not pending:
            break
    return found


def _disk_of(partition: str, owners: Mapping[str, str]) -> str | None:
    """nvme0n1 of nvme0n1p2, sda of sda1; None where that disk is none of ours."""
    disk = partition.rstrip(_DIGITS)
    return next((name for name in (disk, disk.removesuffix("p")) if name in owners), None)
