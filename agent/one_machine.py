"""Several recordings are one machine, or they contradict each other on what machine that is.

Compared is only what names a part or a machine for good: ids and models at a PCI address, UUIDs, adapters' GUIDs, host
names, the version of a driver, and where most GPUs of a tool's list are. What a recording leaves out contradicts
nothing, and neither does a placeholder of a redacted one. A GPU that is lost, and a container that is shown some GPUs
only, shift a list: both lists are then of GPUs that one of them has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_topo.assemble.views import unmasked
from gpu_topo.model.facts import Facts
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import known
from gpu_topo.model.record import NamedTuple
from gpu_topo.model.vendors import AMD, NVIDIA

_UUID = re.compile(r"GPU-(?!0{8}-0{4})[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}\Z")
_REDACTED_HOST = re.compile(r"host-\d+\Z")
_TOOLS = ("nvidia-smi", "amd-smi", "rocm-smi", "npu-smi")  # each numbers its GPUs, in all its outputs in one way
_BRANDS = re.compile(r"\b(?:nvidia|tesla|quadro|geforce)\b")  # drivers of different ages print them or not
_NO_NAMES = ("graphics device", "device")
_MOST_LISTS = 32  # that differ: comparing each with each takes its time
_SHARE = 4  # one in so many functions may have been replaced
_FEW = 3  # functions whose makers, told by their names alone, differ: less may be a list of names that differs


class Told(NamedTuple):
    """What one output told, and what to call that output."""

    facts: Facts
    where: str
    host: str = ""  # by the prompt before the command


class _Claim(NamedTuple):
    """That something is so, by one output."""

    what: str
    value: str
    where: Told


def contradiction(told: Sequence[Told]) -> str:
    """What two outputs say of one machine that cannot both be, and where; "" where nothing."""
    told = [one._replace(facts=unmasked(one.facts)) for one in told]
    first: dict[str, _Claim] = {}
    for one in told:
        for claim in _claims(one):
            before = first.setdefault(claim.what, claim)
            if before.value.lower() != claim.value.lower() and not _same_parts(before, claim, told):
                return _line(before, claim)
    return _functions(told) or _models(told) or _lists(told) or _listings(told) or _hosts(told)


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


def _same_parts(a: _Claim, b: _Claim, told: Sequence[Told]) -> bool:
    """Whether both outputs list a part in common, or a third one parts of both: a container that is shown some GPUs
    counts them from 0 again, and a driver, a GPU or an adapter may have been replaced in between."""
    if a.what.startswith("the adapter "):
        cards = [{p.card.lower() for p in claim.where.facts.ports if p.card is not None} for claim in (a, b)]
        return not cards[0].isdisjoint(cards[1])
    if not a.what.startswith(("GPU ", "the GPU ", "the version ")):
        return False
    one, other = _uuids(a.where), _uuids(b.where)
    if a.what.startswith("the version ") and not (one and other) and _file(a.where) == _file(b.where):
        # The table of plain nvidia-smi has no UUIDs. In one recording it stands for before and after.
        here, there = ({gpu.address for gpu in told.facts.gpus} - {None} for told in (a.where, b.where))
        return 0 < min(len(here), len(there)) <= 2 * len(here & there)
    return _has_some(told, one, other)


def _has_some(told: Sequence[Told], one: set[str], other: set[str]) -> bool:
    """Whether an output, one of these two or a third, lists GPUs of both sets of UUIDs."""
    return any(not (one.isdisjoint(listed) or other.isdisjoint(listed)) for listed in (one, *map(_uuids, told)))


def _file(told: Told) -> str:
    """The recording that an output stands in: its kind comes first, as in "nvidia-smi -q (FILE)"."""
    return told.where.partition(" (")[2] or told.where


def _functions(told: Sequence[Told]) -> str:
    """The same for the ids of PCI functions, as numbers or, of several, as the makers' names tell them. A few of many
    may be parts that were replaced, or that a failed card's firmware calls otherwise."""
    first: dict[str, tuple[Function, Told]] = {}
    by_name: list[str] = []
    for one in told:
        by_number: list[str] = []
        common = 0
        for function in one.facts.functions:
            if _says_nobody(function):
                continue
            before, where = first.setdefault(function.address, (function, one))
            common += before is not function
            if before.vendor_id == function.vendor_id and before.device_id == function.device_id:
                continue
            a, b = (_Claim(function.address, _ids(f), t) for f, t in ((before, where), (function, one)))
            if before.device_id is not None and function.device_id is not None:
                by_number.append(_line(a, b))
            elif before.vendor_id != function.vendor_id:
                by_name.append(_line(a, b))
            elif before.device_id is None:
                first[function.address] = (function, one)
        if len(by_number) * _SHARE > common:
            return by_number[0]
    return by_name[0] if len(by_name) >= _FEW else ""


def _tool(told: Told) -> str:
    return told.facts.source.name.partition(" ")[0]


def _uuids(told: Told) -> set[str]:
    return {uuid.lower() for gpu in told.facts.gpus if (uuid := known(gpu.uuid)) is not None and _UUID.match(uuid)}


def _addresses(told: Told) -> set[str]:
    return {gpu.address for gpu in told.facts.gpus if gpu.address is not None}


def _models(told: Sequence[Told]) -> str:
    """The same for the models that nvidia-smi names at an address; a name that goes on as another does is the same."""
    first: dict[str, tuple[str, _Claim]] = {}
    for one in told:
        if _tool(one) != _TOOLS[0]:
            continue
        for gpu in one.facts.gpus:
            model = known(gpu.model)
            if gpu.address is None or not model:
                continue
            plain = " ".join(_BRANDS.sub(" ", model.lower()).replace("-", " ").split())
            if not plain or plain in _NO_NAMES or plain.startswith("device "):  # drivers older than the GPU
                continue
            before, claim = first.setdefault(gpu.address, (plain, _Claim(f"the GPU at {gpu.address}", model, one)))
            if plain.startswith(before) or before.startswith(plain) or not _uuids(one).isdisjoint(_uuids(claim.where)):
                continue
            return _line(claim, _Claim(claim.what, model, one))
    return ""


def _lists(told: Sequence[Told]) -> str:
    """The same for the addresses that a tool gives its numbers: most numbers mean another GPU, and neither list is part
    of the other, nor does a third have the GPUs of both."""
    kept: dict[str, list[tuple[dict[int, str], Told]]] = {}
    for one in told:
        tool = _tool(one)
        places = {g.ordinal: g.address for g in one.facts.gpus if g.ordinal is not None and g.address}
        before = kept.setdefault(tool, [])
        if tool not in _TOOLS or len(places) < 2 or len(before) >= _MOST_LISTS:
            continue
        if any(places == other for other, _ in before):
            continue
        for other, where in before:
            moved = [n for n in sorted(places.keys() & other.keys()) if places[n] != other[n]]
            a, b = set(other.values()), set(places.values())
            if len(moved) < 2 or 2 * len(moved) <= len(places.keys() & other.keys()):
                continue
            if 2 * len(a & b) > min(len(a), len(b)) or a <= b or b <= a or not _uuids(one).isdisjoint(_uuids(where)):
                continue
            if not _has_all(told, a | b):
                n = moved[0]
                return _line(_Claim(f"GPU {n}", other[n], where), _Claim(f"GPU {n}", places[n], one))
        before.append((places, one))
    return ""


def _has_all(told: Sequence[Told], addresses: set[str]) -> bool:
    """Whether one output lists all these."""
    return any(addresses <= ({f.address for f in one.facts.functions} | _addresses(one)) for one in told)


def _listings(told: Sequence[Told]) -> str:
    """The same for lists of PCI functions: a whole one has GPUs, and none of several that another output lists."""
    lists = [(one, {f.address for f in one.facts.functions}, _on_the_bus(one) or _addresses(one)) for one in told]
    lists = [found for found in lists if len(found[2]) >= 2][:_MOST_LISTS]
    for whole, functions, gpus in lists:
        if "0000:00:00.0" not in functions:
            continue
        for part, _, others in lists:
            if others.isdisjoint(functions):
                claims = (_Claim("the first GPU", min(found), one) for one, found in ((part, others), (whole, gpus)))
                return _line(*claims)
    return ""


def _on_the_bus(told: Told) -> set[str]:
    return {
        f.address
        for f in told.facts.functions
        if f.vendor_id in (NVIDIA, AMD) and (f.class_code or 0) >> 16 in (0x03, 0x12) and not f.virtual_function
    }


def _hosts(told: Sequence[Told]) -> str:
    """The same for the hosts in prompts. Names that differ in a number alone are those of machines; of others one may
    be a container's, unless both list GPUs, and none in common."""
    first: dict[str, Told] = {}
    uuids: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for one in told:
        if one.host:
            first.setdefault(one.host, one)
            uuids.setdefault(one.host, set()).update(_uuids(one))
            places.setdefault(one.host, set()).update(_addresses(one))
    hosts = list(first)[:_MOST_LISTS]
    for number, a in enumerate(hosts):
        for b in hosts[number + 1 :]:
            if _has_some(told, uuids[a], uuids[b]):
                continue
            alike = re.sub(r"\d+", "#", a) == re.sub(r"\d+", "#", b)
            apart = places[a] and places[b] and places[a].isdisjoint(places[b])
            if alike or (apart and not _has_all(told, places[a] | places[b])):
                return _line(_Claim("the host in the prompt", a, first[a]), _Claim("", b, first[b]))
    return ""


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
