"""How NVML's answers are written down: as values that JSON can hold, structures field by field, errors by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def write_pci(info: Any) -> list[Any]:
    """Bus id, device and vendor, subsystem: the last two as NVML packs them."""
    return [text(info.busId), info.pciDeviceId, info.pciSubSystemId]


def write_fields(values: Iterable[Any]) -> list[Any]:
    """Each field's value by its own type; the error's name where that one field has none."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # in order of nvmlValueType_t
    written: list[Any] = []
    for value in values:
        if value.nvmlReturn:
            written.append(error_name(value.nvmlReturn))
        elif value.valueType < len(members):
            written.append(getattr(value.value, members[value.valueType]))
        else:
            written.append(None)
    return written


class FabricWriter:
    """Writes down the structure that a fabric question fills: state, status, clique, health."""

    def __init__(self, info: Any) -> None:
        self.info = info

    def __call__(self, _: Any) -> dict[str, int]:
        info = self.info
        written = {"state": info.state, "status": info.status}
        if hasattr(info, "cliqueId"):
            written["clique"] = info.cliqueId
        elif info.numCliques:
            written["clique"] = info.cliques[0].id
        if hasattr(info, "healthMask"):
            written["health"] = info.healthMask
        if hasattr(info, "healthSummary"):
            written["summary"] = info.healthSummary
        return written


def text(value: Any) -> str:
    """A string of the library; older nvidia-ml-py leaves bytes in structures."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_error_names: dict[int, str] = {}


def error_name(code: int) -> str:
    """NVML's name of an error code without NVML_ERROR_; the number where this nvidia-ml-py has no name for it."""
    if not _error_names:
        import pynvml  # type: ignore[import-untyped]

        for name, value in vars(pynvml).items():
            if name.startswith("NVML_ERROR_") and isinstance(value, int):
                _error_names[value] = name[len("NVML_ERROR_") :]
    return _error_names.get(code, str(code))
