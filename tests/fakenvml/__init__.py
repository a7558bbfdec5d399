"""A fake libnvidia-ml.so.1 for tests: built with this machine's compiler, its machine described by states.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("fakenvml.c")

# What drivers of the 418 series (2019) do not export yet.
SINCE_418 = (
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)


def compiler() -> str | None:
    """The C compiler of this machine, None where it has none."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def build(folder: Path, without: Iterable[str] = ()) -> Path:
    """Compile the library into `folder`, without the symbols that an old driver lacks; the folder comes back."""
    cc = compiler()
    if cc is None:
        raise FileNotFoundError("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    hidden = "".join(f"    {symbol};\n" for symbol in without)
    script = folder / "symbols.map"
    script.write_text("{ global: nvml*;\n  local:\n" + hidden + "    *;\n};\n")
    library = folder / "libnvidia-ml.so.1"
    options = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,--version-script={script}"]
    command = [cc, *options, f"-Wl,-soname,{library.name}", "-o", str(library), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


class Machine:
    """The state file of one fake machine. Its environment makes a process meet that machine."""

    def __init__(self, library: Path, folder: Path, state: str) -> None:
        self.file = folder / "machine.state"
        self.state = state
        self.environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(self.file)}
        self.put()

    def put(self, *lines: str) -> None:
        """The machine as it was described, with these lines added (the last of equal keys counts)."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("\n".join([self.state, *lines, ""]))
        fresh.replace(self.file)
