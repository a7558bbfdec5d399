"""Several recordings are one machine, or they contradict each other on what machine that is.

Compared is only what names a part or a machine for good: ids at a PCI address, UUIDs, adapters' GUIDs, host names, the
version of a driver. What a recording leaves out contradicts nothing, and neither does a placeholder of a redacted one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_topo.model.facts import Facts
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple

_UUID = re.compile(r"GPU-(?!0{8}-0{4})[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}\Z")
_REDACTED_HOST = re.compile(r"host-\d+\Z")
_FEW = 3  # functions whose makers, told by their names alone, differ: less may be a list of names that differs


class Told(NamedTuple):
    """What one output told, and what to call that output."""

    facts: Facts
    where: str


class _Claim(NamedTuple):
    """That something is so, by one output."""

    what: str
    value: str
    where: Told


def contradiction(told: Sequence[Told]) -> str:
    """What two outputs say of one machine that cannot both be, and where; "" where nothing."""
    first: dict[str, _Claim] = {}
    for one in told:
        for claim in _claims(one):
            before = first.setdefault(claim.what, claim)
            if before.value.lower() != claim.value.lower() and not _same_gpus(before, claim):
                return _line(before, claim)
    return _functions(told)


def _line(a: _Claim, b: _Claim) -> str:
    where = f"in {a.where.where} and {b.value} in {b.where.where}"
    if a.where.where == b.where.where:
        where = f"and then {b.value} in {a.where.where}"
    return f"these are two machines: {a.what} is {a.value} {where}; inspect them one at a time"


def _claims(told: Told) -> Iterator[_Claim]:
    facts = told.facts
    for gpu in facts.gpus:
        uuid = known(gpu.uuid)
        if uuid is not None and _UUID.match(uuid):
            if gpu.address is not None:
                yield _Claim(f"the GPU at {gpu.address}", uuid, told)
            if gpu.ordinal is not None:
                yield _Claim(f"GPU {gpu.ordinal}", uuid, told)
    for port in facts.ports:
        if port.card is not None and not port.virtual_function and _is_guid(port.card):
            yield _Claim(f"the adapter of {port.device}", port.card, told)
    host = known(facts.platform.hostname) if facts.platform is not None else None
    if host and not _REDACTED_HOST.match(host) and host not in ("localhost", "(none)"):
        yield _Claim("the host", host.partition(".")[0], told)
    version = known(facts.driver.version) if facts.driver is not None else None
    if facts.driver is not None and version:
        yield _Claim(f"the version of {facts.driver.library}'s driver", version, told)


def _is_guid(text: str) -> bool:
    """Whether this is no placeholder, which are small numbers."""
    digits = text.lower().removeprefix("0x").replace(":", "")
    return len(digits.lstrip("0")) > 8


def _same_gpus(a: _Claim, b: _Claim) -> bool:
    """Whether both outputs list a GPU in common: a container that is shown some GPUs counts them from 0 again, and a
    driver may have been replaced in between."""
    if not a.what.startswith(("GPU ", "the version ")):
        return False
    one, other = ({known(gpu.uuid) for gpu in told.facts.gpus} - {None} for told in (a.where, b.where))
    if a.what.startswith("the version ") and not (one and other) and _file(a.where) == _file(b.where):
        # The table of plain nvidia-smi has no UUIDs. In one recording it stands for before and after.
        one, other = ({gpu.address for gpu in told.facts.gpus} - {None} for told in (a.where, b.where))
    return not one.isdisjoint(other)


def _file(told: Told) -> str:
    """The recording that an output stands in: its kind comes first, as in "nvidia-smi -q (FILE)"."""
    return told.where.partition(" (")[2] or told.where


def _functions(told: Sequence[Told]) -> str:
    """The same for the ids of PCI functions, as numbers or, of several, as the makers' names tell them."""
    first: dict[str, tuple[Function, Told]] = {}
    by_name: list[str] = []
    for one in told:
        for function in one.facts.functions:
            if _says_nobody(function):
                continue
            before, where = first.setdefault(function.address, (function, one))
            if before.vendor_id == function.vendor_id and before.device_id == function.device_id:
                continue
            a, b = (_Claim(function.address, _ids(f), t) for f, t in ((before, where), (function, one)))
            if before.device_id is not None and function.device_id is not None:
                return _line(a, b)
            if before.vendor_id != function.vendor_id:
                by_name.append(_line(a, b))
            elif before.device_id is None:
                first[function.address] = (function, one)
    return by_name[0] if len(by_name) >= _FEW else ""


def _says_nobody(function: Function) -> bool:
    """Whether the ids are none, or not the device's own: all ones where nobody answers."""
    return (
        function.vendor_id in (None, 0, 0xFFFF)
        or function.device_id in (0, 0xFFFF)
        or function.virtual_function
        or function.answers is False
    )


def _ids(function: Function) -> str:
    vendor = f"{function.vendor_id:04x}"
    return (function.name or vendor) if function.device_id is None else f"{vendor}:{function.device_id:04x}"
