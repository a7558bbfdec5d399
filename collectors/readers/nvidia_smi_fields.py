"""The fields of `nvidia-smi --query-gpu`: their names, the answers of `nvidia-smi -q` that they are, and a row of them.

What they mean is in `nvidia-smi --help-query-gpu`: pcie.link.gen.max is what GPU and system can do together, gpumax and
hostmax, which older drivers lack, are each end's own.
"""

from __future__ import annotations

import re

from gpu_topo.collectors.readers.nvidia_smi_gpu import build, reading
from gpu_topo.model.gpu import DriverGpu

KIND = "nvidia-smi --query-gpu"

INDEX, UUID, ADDRESS, NAME, VERSION, COUNT = "index", "uuid", "pci.bus_id", "name", "driver_version", "count"
WIDTHS = ("pcie.link.width.current", "pcie.link.width.max")
GENERATIONS = tuple(f"pcie.link.gen.{end}" for end in ("current", "gpucurrent", "max", "gpumax", "hostmax"))
OTHER_NAMES = {
    "gpu_name": NAME,
    "gpu_uuid": UUID,
    "gpu_bus_id": ADDRESS,
    "pcie.link.gen.gpucurrent": GENERATIONS[0],
}
# Which answer of `nvidia-smi -q` a field is.
_ANSWERS = {
    NAME: "product name",
    UUID: "gpu uuid",
    "pci.device_id": "device id",
    "pstate": "performance state",
    "utilization.gpu": "utilization/gpu",
    "pcie.link.gen.current": "pcie generation/current",
    "pcie.link.gen.max": "pcie generation/max",
    "pcie.link.gen.gpumax": "pcie generation/device max",
    "pcie.link.gen.hostmax": "pcie generation/host max",
    "pcie.link.width.current": "link width/current",
    "pcie.link.width.max": "link width/max",
    "mig.mode.current": "mig mode/current",
    "c2c.mode": "c2c mode",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
    "fabric.cliqueId": "fabric/clique id",
}
_HEALTH = "fabric.health."

_FIELD = re.compile(r"([a-z][A-Za-z0-9_.]{0,79})(?: \[[%A-Za-z]{1,4}\])?\Z")
# No other tool's columns are called so; a header needs one of these.
_OWN = re.compile(
    r"(?:pcie?|utilization|clocks(?:_(?:event|throttle)_reasons)?|memory|power|ecc|mig|fabric|temperature|fan|display"
    r"|compute|retired_pages|remapped_rows)[._][a-zA-Z]|(?:driver_version|vbios_version|pstate|uuid|gpu_\w{4,6})\Z"
)
# Of --query-compute-apps, -retired-pages and -supported-clocks, which have several rows for a GPU.
OTHER_QUERIES = frozenset(
    {"pid", "process_name", "used_memory", "used_gpu_memory", "retired_pages.address", "memory", "graphics"}
)
_CALL = re.compile(r"(?:\A|[\s/\\])nvidia-smi(?:\.exe)?\s")
_ASKED = re.compile(r"[= ][\"']?([\w.,]{2,8000})")
MOST_FIELDS = 600  # of 212 that there are
_NUMBER = re.compile(r"\d{1,3}\Z")
# What a value of a field looks like; other fields may say anything.
_VALUES = {
    "timestamp": re.compile(r"\d{4}/\d\d/\d\d "),
    COUNT: re.compile(r"\d{1,4}\Z"),
    INDEX: re.compile(r"\d{1,4}\Z"),
    UUID: re.compile(r"(?:GPU|MIG)-.{1,80}\Z|[\w*<>.-]{8,80}\Z"),  # Jetson boards have no prefix; people mask it
    ADDRESS: re.compile(r"[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.[0-7]\Z"),
}


def fields_of(text: str) -> tuple[str, ...] | None:
    """The fields of a line that names nothing else."""
    if not (text := text.strip())[:1].islower():
        return None
    parts = [part.strip() for part in text.removesuffix(",").split(",", MOST_FIELDS)]
    names = []
    for part in parts:
        match = _FIELD.match(part)
        if match is None:
            return None
        names.append(match.group(1))
    return tuple(names)


def header(line: str) -> tuple[str, ...] | None:
    """The fields of a line that can only be a header of one of nvidia-smi's queries."""
    names = fields_of(line) if "," in line else None
    if names is None or len(names) < 2:
        return None
    return names if any(map(_OWN.match, names)) or {"pid", "process_name"} <= {*names} else None


def asked(line: str) -> tuple[str, ...] | None:
    """The fields that a command line asks for; None where it is none or goes on behind its end."""
    before, found, behind = line.partition("--query-gpu")
    call = _CALL.search(before) if found else None
    asked = _ASKED.match(behind) if call else None
    if call is None or asked is None or asked.group(1).endswith(","):
        return None
    # At a prompt or alone; not the name of a process in some other tool's list.
    prompt = before[: call.start()]
    alone = all(word == "sudo" or word[0] in "/.\\" for word in prompt.split())
    if not alone and not any(mark in prompt for mark in "#$%>") and not prompt.startswith("Every "):
        return None
    return tuple(asked.group(1).split(",", MOST_FIELDS))


def _is_value(cell: str | None) -> bool:
    """Whether a cell is none of the words for what is not supported or refused."""
    return isinstance(reading(cell, KIND), str)


def fits(field: str, cell: str) -> bool:
    """Whether a cell can be a value of this field, or the refusal of one."""
    value = _VALUES.get(field)
    return value is None or bool(value.match(cell)) or not _is_value(cell)


class Row:
    """One GPU at one moment: its cells by field."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.cells = cells
        self.identity = tuple(cells[f] if _is_value(cells.get(f)) else None for f in (INDEX, UUID, ADDRESS))

    def is_one(self, whole: bool) -> bool:
        """Whether these cells are a GPU's and not some other line with commas. whole: no cell is missing."""
        if not all(fits(field, cell) for field, cell in self.cells.items()):
            return False
        if any(self.identity):
            return True
        figures = [self.cells[field] for field in (*WIDTHS, *GENERATIONS) if field in self.cells]
        return whole and bool(figures) and all(_NUMBER.match(figure) or figure[:1] == "[" for figure in figures)

    def facts(self) -> DriverGpu:
        answers: dict[str, str] = {}
        for field, value in self.cells.items():
            name = _ANSWERS.get(field, field)
            if field.startswith(_HEALTH):
                name = f"health/{field[len(_HEALTH) :].replace('_', ' ')}"
            if field in WIDTHS and _NUMBER.match(value):
                value += "x"
            answers.setdefault(name, value)
        index, _, address = self.identity
        gpu = build(address, int(index) if index else None, answers, 0)._replace(partitions=None)
        # What was not asked for is not a link without values.
        return gpu if any(field in self.cells for field in (*WIDTHS, *GENERATIONS)) else gpu._replace(link=None)
