"""A minimal Debian root tree with systemd and Python, built once into a cache that git ignores."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

SUITE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "libudev1")
# What a container has no use for; without them it boots in a second.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-timesyncd.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "console-getty.service",
    "getty@tty1.service",
)


def mirrors() -> list[str]:
    """The lines of sources.list by which this machine gets its own packages."""
    found: list[str] = []
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        if path.is_file():
            text = path.read_text()
            found += re.findall(r"^deb .*", text, re.MULTILINE)
            found += _deb822(text) if path.suffix == ".sources" else []
    own = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    return [line for line in found if own & set(line.split())]


def _deb822(text: str) -> list[str]:
    lines = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)$", stanza, re.MULTILINE))
        if fields.get("Types", "").split()[:1] == ["deb"]:
            for uri in fields.get("URIs", "").split():
                lines += [f"deb {uri} {suite} {fields.get('Components', '')}" for suite in fields["Suites"].split()]
    return lines


def rootfs(cache: Path) -> Path:
    """The tree, built when it is not there yet or was built from other packages (about half a minute)."""
    key = hashlib.sha256(repr((SUITE, PACKAGES, MASKED)).encode()).hexdigest()[:12]
    done = cache / f"rootfs-{key}"
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    building = cache / f"rootfs-{key}.{os.getpid()}"
    try:
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
             '--aptopt=Apt::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"',
             "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
             "--dpkgopt=path-exclude=/usr/share/doc/*",
             f"--include={','.join(PACKAGES)}", SUITE, str(building), *mirrors()],
            check=True, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        units = building / "etc/systemd/system"
        for unit in MASKED:
            (units / unit).symlink_to("/dev/null")
        (building / "etc/machine-id").write_text("")
        (building / "etc/hostname").write_text("gpulab\n")
        (building / "etc/resolv.conf").unlink(missing_ok=True)
        building.rename(done)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return done
