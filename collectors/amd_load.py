"""How busy AMD GPUs are, in percent, read only where it decides something: while a link is slower than it could be.

The attribute is amdgpu's: gpu_busy_percent (the kernel's Documentation/gpu/amdgpu/thermal).
"""

from __future__ import annotations

from gpu_topo.collectors.pcie_values import text
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.vendors import AMD
from gpu_topo.source import Dir, Refusal


class Loads:
    """The loads of one scan: of GPUs whose link is slow, and of their twins; of a healthy machine nobody is asked."""

    def __init__(self) -> None:
        self.gpus: list[DriverGpu] = []
        self._slow_models: set[int | None] = set()
        self._fast: list[tuple[str, int | None]] = []  # addresses and models of GPUs whose links are not slow

    def look(self, folder: Dir, address: str, model: int | None, slow: bool) -> None:
        """A GPU, the folder of its attributes, and whether its card's link is slower than both ends can do."""
        if slow:
            self._slow_models.add(model)
            self._ask(folder, address, model)
        else:
            self._fast.append((address, model))

    def ask_twins(self, devices: Dir) -> None:
        """GPUs at full speed, where one of the same model is slower: busy twins tell what it could do."""
        for address, model in self._fast:
            folder = devices.dir(address) if model in self._slow_models else None
            if folder is not None and not isinstance(folder, Refusal):
                with folder:
                    self._ask(folder, address, model)

    def _ask(self, folder: Dir, address: str, model: int | None) -> None:
        percent = text(folder.read("gpu_busy_percent"))
        if percent is not None and percent.isdecimal() and int(percent) <= 100:
            self.gpus.append(DriverGpu(address, utilization=int(percent), vendor_id=AMD, device_id=model))
