"""Storage: controllers and disks, and the arrays and mount points above them."""

from __future__ import annotations

import time

from gpu_topo.collectors import block
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import BlockDevice
from gpu_topo.source import Entry, Live, Recording, Replay, Tree


def now() -> Context:
    return Context(time.monotonic() + 10)


def nvme(number: int, address: str | None = None, space: str = "") -> dict[str, Entry]:
    """One NVMe controller with one namespace."""
    address = address or f"0000:{0x20 + number:02x}:00.0"
    base = f"/sys/devices/pci0000:17/{address}/nvme/nvme{number}"
    disk = space or f"nvme{number}n1"
    return {
        f"/sys/class/nvme/nvme{number}": f"../..{base[4:]}",
        f"{base}/{disk}/size": b"1000\n",
        f"/sys/block/nvme{number}n1": f"..{base[4:]}/{disk}",
    }


def collect(files: dict[str, Entry]) -> Facts:
    return block.collect(Tree(files), now())


def by_name(facts: Facts) -> dict[str, BlockDevice]:
    return {device.name: device for device in facts.blocks}


def mountinfo(*lines: str) -> dict[str, Entry]:
    return {"/proc/self/mountinfo": "".join(f"{line}\n" for line in lines).encode()}


def test_a_controller_with_its_namespace_and_mount() -> None:
    """Address, namespace, and the mount point with its escaped space."""
    files = nvme(0) | mountinfo(r"36 35 259:1 / /data\040set\09 rw,noatime shared:1 - xfs /dev/nvme0n1p2 rw")
    (device,) = collect(files).blocks
    assert (device.name, device.address, device.namespaces) == ("nvme0", "0000:20:00.0", ("nvme0n1",))
    assert device.mounts == ("/data set\\09",)


def test_what_nobody_mounts_is_not_opened() -> None:
    """Without a mount or an array a controller's namespaces are nobody's business."""
    recording = Recording(Tree(nvme(0) | nvme(1)))
    assert [device.name for device in block.collect(recording, now()).blocks] == ["nvme0", "nvme1"]
    assert not any(path.startswith("/sys/class/nvme/") and "list" in asked for path, asked in recording.answers.items())


def test_a_path_of_a_multipath_disk_is_named_by_the_disk() -> None:
    """nvme1c2n1 is a path; what people mount is nvme1n1."""
    files = nvme(1, space="nvme1c2n1") | mountinfo("36 35 259:1 / /data rw - xfs /dev/nvme1n1 rw")
    (device,) = collect(files).blocks
    assert (device.namespaces, device.mounts) == (("nvme1n1",), ("/data",))


def test_members_of_an_array_carry_its_mount() -> None:
    """RAID 0 over two drives: both name what is mounted from it, through LVM as well."""
    files = nvme(0) | nvme(1) | nvme(2)
    files["/proc/mdstat"] = b"Personalities : [raid0]\nmd0 : active raid0 nvme1n1p1[1] nvme0n1[0](S)\n      7 blocks\n"
    files["/sys/dev/block/253:0"] = "../../devices/virtual/block/dm-0"
    files["/sys/block/dm-0/slaves/md0"] = "../../md0"
    files |= mountinfo("30 1 253:0 / /scratch rw - ext4 /dev/mapper/vg-scratch rw")
    devices = by_name(collect(files))
    assert devices["nvme0"].mounts == devices["nvme1"].mounts == ("/scratch",)
    assert devices["nvme2"].mounts == ()


def test_bind_mounts_are_not_repeated() -> None:
    """A node with pods binds parts of one file system hundreds of times; the file system is named once."""
    binds = [f"{n} 1 259:1 /pods/{n} /var/lib/kubelet/pods/{n} rw - ext4 /dev/nvme0n1p1 rw" for n in range(40, 440)]
    files = nvme(0) | mountinfo("36 35 259:1 / / rw - ext4 /dev/nvme0n1p1 rw", *binds)
    assert collect(files).blocks[0].mounts == ("/",)


def test_a_btrfs_subvolume_is_a_mount() -> None:
    """btrfs has an anonymous device number and a root that is not /."""
    files = nvme(0) | mountinfo("36 35 0:31 /@home /home rw - btrfs /dev/nvme0n1p3 rw,subvol=/@home")
    assert collect(files).blocks[0].mounts == ("/home",)


def test_an_old_tree_has_only_proc_mounts() -> None:
    """A copied tree without mountinfo still names mount points."""
    files = nvme(0) | {"/proc/mounts": b"/dev/nvme0n1p2 /data xfs rw 0 0\nproc /proc proc rw 0 0\n"}
    assert collect(files).blocks[0].mounts == ("/data",)


def test_disks_of_other_controllers() -> None:
    """SATA and virtio disks are devices of their controller; USB sticks, loops and partitions are none."""
    files: dict[str, Entry] = {}
    sata = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0"
    for name, base in (
        ("sda", f"{sata}/block/sda"),
        ("sdb", "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/host1/target1:0:0/1:0:0:0/block/sdb"),
        ("vda", "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda"),
        ("loop0", "/sys/devices/virtual/block/loop0"),
    ):
        files[f"/sys/block/{name}"] = f"..{base[4:]}"
        files[f"{base}/size"] = b"2000\n"
    files |= mountinfo("36 35 8:1 / / rw - ext4 /dev/sda2 rw", "37 35 8:17 / /stick rw - vfat /dev/sdb1 rw")
    devices = by_name(collect(files))
    assert sorted(devices) == ["sda", "vda"]
    assert (devices["sda"].address, devices["sda"].mounts) == ("0000:00:17.0", ("/",))
    assert (devices["vda"].address, devices["vda"].mounts) == ("0000:00:02.0", ())


def test_a_partition_is_told_by_its_disk() -> None:
    """sdp1 is the first of sdp, nvme0n1p1 of nvme0n1; nvme0n12 is no partition at all."""
    sata = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sdp"
    files = nvme(0)
    files |= {"/sys/block/sdp": f"..{sata[4:]}", f"{sata}/size": b"2000\n"}
    lines = (f"{n} 1 8:{n} / /{n} rw - ext4 /dev/{disk} rw" for n, disk in enumerate(("sdp1", "nvme0n1p1", "nvme0n12")))
    devices = by_name(collect(files | mountinfo(*lines)))
    assert (devices["sdp"].mounts, devices["nvme0"].mounts) == (("/0",), ("/1",))


def test_what_is_not_of_this_machine_is_left_out() -> None:
    """NVMe over a network, virtual functions beside their own, and exclusions."""
    files = nvme(0) | nvme(1) | nvme(2)
    files["/sys/class/nvme/nvme9"] = "../../devices/virtual/nvme-fabrics/ctl/nvme9"
    files["/sys/bus/pci/devices/0000:21:00.0/physfn"] = "../0000:20:00.0"
    facts = block.collect(Tree(files), Context(time.monotonic() + 10, frozenset({"nvme2"})))
    assert list(by_name(facts)) == ["nvme0"]


def test_hostile_tables_are_harmless() -> None:
    """Arrays that contain each other, and lines that are no mounts, end quietly."""
    files = nvme(0) | mountinfo("", "- - -", "1 2 9:0 / / rw - ext4 /dev/md0 rw", "\x1b[2J x")
    files["/proc/mdstat"] = b"md0 : active raid0 md1[0]\nmd1 : active raid0 md0[0]\n : \n"
    assert collect(files).blocks[0].mounts == ()


def test_a_machine_without_storage_is_absent() -> None:
    """Neither NVMe nor disks: the source is absent, and /proc is not read for nothing."""
    assert collect({"/sys/block/loop0": "../devices/virtual/block/loop0"}).source.status == "absent"


def test_a_replay_gives_the_same_facts() -> None:
    """What was recorded replays to the same devices."""
    recording = Recording(Tree(nvme(0) | mountinfo("36 35 259:1 / / rw - ext4 /dev/nvme0n1p1 rw")))
    first = block.collect(recording, now())
    assert block.collect(Replay(recording.answers, {}), now()).blocks == first.blocks


def test_psutil_says_the_same_of_this_machine() -> None:
    """Mount points of the live machine's disks are among those that an independent witness finds."""
    import psutil

    witness = {part.mountpoint: part.device for part in psutil.disk_partitions(all=True)}
    for device in block.collect(Live(), now()).blocks:
        for mount in device.mounts:
            assert mount in witness
