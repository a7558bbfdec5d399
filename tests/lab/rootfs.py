"""A Debian root tree with systemd, built once into a cache that git ignores: the disk of the virtual machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SUITE = "bookworm"
KERNEL = "linux-image-amd64"
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "kmod", "iproute2", "procps", "netbase",
    "python3", "python3-venv", "libudev1",
    "pciutils", "hwloc-nox", "rdma-core", "ibverbs-utils", "ibverbs-providers", "infiniband-diags",
)  # fmt: skip
# What a machine that lives for a minute has no use for, and what would take an emulated processor's time.
MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "systemd-timesyncd.service", "systemd-networkd.service", "systemd-resolved.service",
    "systemd-pstore.service", "systemd-binfmt.service", "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service", "proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount",
    "console-getty.service", "getty@tty1.service", "serial-getty@ttyS0.service", "rdma-ndd.service", "iwpmd.service",
)  # fmt: skip
_UNREAD = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")


def mirrors() -> list[str]:
    """The lines of sources.list by which this machine gets its own packages."""
    found: list[str] = []
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            if path.suffix == ".list":
                found += re.findall(r"^deb .*", text, re.MULTILINE)
            elif path.suffix == ".sources":
                found += _deb822(text)
    own = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    return [line for line in found if own & set(line.split())]


def _deb822(text: str) -> list[str]:
    lines = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)$", stanza, re.MULTILINE))
        if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes") == "yes":
            for uri in fields.get("URIs", "").split():
                lines += [f"deb {uri} {suite} {fields.get('Components', '')}" for suite in fields["Suites"].split()]
    return lines


def rootfs(cache: Path, packages: Sequence[str] = (*PACKAGES, KERNEL), masked: Sequence[str] = MASKED) -> Path:
    """The tree, built when it is not there yet or was built from other packages (1.5 minutes with a kernel).

    Raises subprocess.CalledProcessError with mmdebstrap's words. Needs root.
    """
    key = hashlib.sha256(repr((SUITE, tuple(packages), tuple(masked))).encode()).hexdigest()[:12]
    done = cache / f"rootfs-{key}"
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    building = cache / f"rootfs-{key}.{os.getpid()}"
    try:
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
             '--aptopt=Apt::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"',
             *(f"--dpkgopt=path-exclude={path}" for path in _UNREAD),
             f"--include={','.join(packages)}", SUITE, str(building), *mirrors()],
            check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        units = building / "etc/systemd/system"
        for unit in masked:
            (units / unit).unlink(missing_ok=True)
            (units / unit).symlink_to("/dev/null")
        (building / "etc/machine-id").write_text("")
        (building / "etc/hostname").write_text("gpulab\n")
        (building / "etc/hosts").write_text("127.0.0.1 localhost gpulab\n")
        (building / "etc/fstab").write_text("")
        (building / "etc/resolv.conf").unlink(missing_ok=True)
        building.rename(done)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return done
