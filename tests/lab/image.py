"""What QEMU boots, made of a Debian root tree without mounting anything: kernel, initial RAM disk, root disk."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
INSTALLED = "opt/gpu-topo"  # where the disk with the product is mounted
_BUSYBOX = ("sh", "mount", "insmod", "switch_root", "cat", "sleep")
_EARLY = ("virtio_pci", "virtio_blk", "ext4", "virtio_console")  # modules to get at the disks and the control channel
# Of 400 MB of modules, what the emulated machine may load.
_MODULES = (
    "block", "crypto", "lib", "arch", "drivers/nvme", "drivers/infiniband", "drivers/virtio", "drivers/block",
    "drivers/pci", "drivers/acpi", "drivers/firmware", "drivers/char/hw_random", "drivers/char/virtio_console",
    "drivers/net/virtio_net", "drivers/net/net_failover", "drivers/net/ethernet/intel/e1000e", "drivers/ptp",
    "drivers/pps", "drivers/input", "net/core", "net/ipv4/udp_tunnel", "net/ipv6/ip6_udp_tunnel", "fs/ext4", "fs/jbd2",
    "fs/mbcache", "fs/overlayfs", "fs/autofs", "fs/fuse", "fs/configfs", "fs/efivarfs",
)  # fmt: skip
_LEFT_OUT = ("boot", "var/cache", "var/lib/apt/lists", "usr/share/mime", "usr/share/zoneinfo")
_AGENT = """[Unit]
Description=The lab's hands and eyes in this machine
DefaultDependencies=no
After=local-fs.target
[Service]
ExecStart=/usr/bin/python3 /opt/gpu-topo/lab/guest_agent.py
# It also runs what outlives a request.
KillMode=process
"""


class Image(NamedTuple):
    """The files that QEMU takes."""

    kernel: Path
    initrd: Path
    disk: Path


def image(tree: Path, cache: Path) -> Image:
    """Those files, built when they are not there yet (6 s)."""
    recipe = Path(__file__).read_bytes() + (HERE / "initrd-init").read_bytes()
    folder = cache / f"image-{tree.name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    made = Image(folder / "vmlinux", folder / "initrd.cpio", folder / "root.ext4")
    if folder.is_dir():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="image.", dir=cache))
    try:
        release = next((tree / "lib/modules").iterdir()).name
        (building / "vmlinux").write_bytes(_unpacked((tree / f"boot/vmlinuz-{release}").read_bytes()))
        (building / "initrd.cpio").write_bytes(_initrd(tree, release, building / "initrd"))
        _root(tree, release, building / "root")
        ext4(building / "root", building / "root.ext4", "labroot")
        shutil.rmtree(building / "root")
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return made


def ext4(folder: Path, disk: Path, label: str) -> None:
    """A file system with what is in a folder, and some room."""
    used = sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)
    disk.unlink(missing_ok=True)
    size = f"{used * 5 // 4 // 2**20 + 96}M"
    options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0", "-L", label]
    subprocess.run(["mke2fs", *options, "-d", folder, disk, size], check=True, capture_output=True, timeout=300)


def _unpacked(packed: bytes) -> bytes:
    """The kernel without its compression, which an emulated processor would spend four seconds on."""
    start = packed.index(b"\xfd7zXZ\x00")
    kernel = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(packed[start:])
    assert kernel.startswith(b"\x7fELF")
    return kernel


def _initrd(tree: Path, release: str, folder: Path) -> bytes:
    for name in ("bin", "proc", "sys", "dev", "root", "modules"):
        (folder / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy(busybox, folder / "bin/busybox")
    for applet in _BUSYBOX:
        (folder / "bin" / applet).symlink_to("busybox")
    order: dict[str, None] = {}
    for module in _EARLY:
        command = ["chroot", str(tree), "modprobe", "-S", release, "--show-depends", module]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        order.update((line.split()[1], None) for line in shown.splitlines() if line.startswith("insmod "))
    for path in order:
        shutil.copy(tree / path.lstrip("/"), folder / "modules")
    (folder / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in order))
    shutil.copy(HERE / "initrd-init", folder / "init")
    (folder / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    packing = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=folder, input=names.encode(), check=True, capture_output=True,
        timeout=60,
    )  # fmt: skip
    shutil.rmtree(folder)
    return packing.stdout


def _root(tree: Path, release: str, root: Path) -> None:
    """The tree once more, of hard links, without what the machine has no use for and with the lab's agent."""
    subprocess.run(["cp", "-al", tree, root], check=True, timeout=300)
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    modules = root / "lib/modules" / release
    for path in (modules / "kernel").rglob("*.ko*"):
        if not str(path.relative_to(modules / "kernel")).startswith(_MODULES):
            path.unlink()
    subprocess.run(["chroot", root, "depmod", release], check=True, capture_output=True, timeout=120)
    (root / INSTALLED).mkdir(parents=True, exist_ok=True)
    units = root / "etc/systemd/system"
    (units / "lab-agent.service").write_text(_AGENT)
    (units / "sysinit.target.wants").mkdir(exist_ok=True)
    (units / "sysinit.target.wants/lab-agent.service").symlink_to("../lab-agent.service")
