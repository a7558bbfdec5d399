"""Whether there is an NVIDIA driver to ask: where its library is, and the signs of its kernel side. Nothing is opened
that would load the driver or make device nodes."""

from __future__ import annotations

import os

from gpu_topo.model.facts import ABSENT, Facts, SourceStatus
from gpu_topo.model.gpu import DriverState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "nvml"
LIBRARY = "libnvidia-ml.so.1"

# Where the dynamic linker looks besides its cache and LD_LIBRARY_PATH, and where it does not: WSL's and NixOS's driver.
UNSEARCHED_DIRS = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib")
_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/lib64",
    "/lib",
    *UNSEARCHED_DIRS,
)
# Why there may be nothing to ask, by the error that a transcript begins with.
NO_DRIVER = {
    "LIBRARY_NOT_FOUND": "no libnvidia-ml.so.1 on this machine",
    "DRIVER_NOT_LOADED": "libnvidia-ml.so.1 is installed, the nvidia kernel driver is not loaded",
}
# Any of these exists where the kernel side of the driver is loaded (/dev/dxg: WSL). Without it nvmlInit would try to
# load the module and create device nodes; an audit leaves the machine as it is.
_DRIVER_SIGNS = ("/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidiactl", "/dev/dxg")


def find_library(environment: Mapping[str, str]) -> str | None:
    """The path of libnvidia-ml.so.1 as the dynamic linker would find it, None where this machine has none."""
    given = _given_by(environment)
    if given is not None:
        return given
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            cache = file.read(1 << 24)
    except OSError:
        cache = b""
    name = b"/" + LIBRARY.encode() + b"\0"
    at = cache.find(name)
    while at >= 0:
        path = os.fsdecode(cache[cache.rfind(b"\0", 0, at) + 1 : at + len(name) - 1])
        if os.path.exists(path):
            return path
        at = cache.find(name, at + 1)
    return next((f"{folder}/{LIBRARY}" for folder in _LIBRARY_DIRS if os.path.exists(f"{folder}/{LIBRARY}")), None)


def missing(environment: Mapping[str, str]) -> tuple[str, str]:
    """The library's path, and why there is nothing to ask with it, "" where there is."""
    library = find_library(environment)
    if library is None:
        return "", "LIBRARY_NOT_FOUND"
    if not _given_by(environment) and not any(os.path.exists(sign) for sign in _DRIVER_SIGNS):
        return library, "DRIVER_NOT_LOADED"
    return library, ""


def no_driver(error: str, seconds: float) -> Facts:
    """What is known where there is nothing to ask, for that reason."""
    detail = NO_DRIVER.get(error, error)
    return Facts(SourceStatus(SOURCE, ABSENT, detail, seconds), driver=DriverState(SOURCE, ABSENT, detail))


def _given_by(environment: Mapping[str, str]) -> str | None:
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(f"{folder}/{LIBRARY}"):
            return f"{folder}/{LIBRARY}"
    return None


def openable_minors() -> list[int]:
    """Minor numbers of the /dev/nvidia<minor> that this process may open; device cgroups included, opening nothing."""
    minors = []
    try:
        names = os.listdir("/dev")
    except OSError:
        return []
    for name in names:
        number = name[len("nvidia") :]
        if name.startswith("nvidia") and number.isdigit() and os.access(f"/dev/{name}", os.R_OK | os.W_OK):
            minors.append(int(number))
    return sorted(minors)
