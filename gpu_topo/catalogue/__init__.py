"""What a part can do, for exactly that part: a model that is not listed has no reference, never a near match.

The tables beside this file carry the source of every row. They are searched as bytes and a row is cut at its commas
(no field holds one), because a scan needs half a dozen of some seven hundred rows.
"""

from __future__ import annotations

import os

from gpu_topo.model.cached import cached
from gpu_topo.model.node import Part
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Board vendors that put their own vendor id, but NVIDIA's device id, into the subsystem of professional boards
# (NVIDIA, Dell, HP, Lenovo; list of supported GPUs in NVIDIA/open-gpu-kernel-modules README).
_SUBSYSTEM_VENDORS = frozenset({0x10DE, 0x1028, 0x103C, 0x17AA})
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Baseboard(NamedTuple):
    """How the GPUs of one kind of board are joined. None: not sourced.

    fabric: nvswitch | mesh | cube-mesh | ring | bridge | rack.
    """

    name: str
    gpus: int
    fabric: str
    nvswitches: int | None  # chips that the GPUs of this board use
    nvswitches_on_pci: bool  # whether those chips are PCI functions of the node


@cached
def _table(name: str) -> bytes:
    """One table as it lies on the disk."""
    with open(os.path.join(_FOLDER, name), "rb") as file:
        return file.read()


def _rows(table: str, key: str) -> list[list[str]]:
    """The rows whose first columns are `key`."""
    data = _table(table)
    mark = b"\n" + key.encode() + b","
    rows = []
    at = data.find(mark)
    while at >= 0:
        end = data.find(b"\n", at + 1)
        rows.append(data[at + 1 : end].decode().split(","))
        at = data.find(mark, end)
    return rows


def _all_rows(table: str) -> list[list[str]]:
    return [line.split(",") for line in _table(table).decode().splitlines()[1:]]


def _ids(vendor_id: int, device_id: int) -> str:
    return f"{vendor_id:04x},{device_id:04x}"


def _whole(text: str) -> int | None:
    return int(text) if text else None


def _decimal(text: str) -> float | None:
    return float(text) if text else None


# --- GPUs and accelerators -------------------------------------------------------------------------------------

_IDLE = {"no": True, "yes": False}  # the column says whether the link slows down when idle


def _gpu(row: list[str]) -> Part:
    (_, _, _, name, arch, form_factor, market, gts, lanes, pcie, fabric, links, gbs, attach, graded, c2c, idle) = row[
        :17
    ]
    return Part(
        name=name,
        arch=arch,
        form_factor=form_factor,
        market=market,
        pcie_max_gts=_decimal(gts),
        pcie_max_lanes=_whole(lanes),
        pcie_confidence=pcie,
        fabric=fabric,
        fabric_links=_whole(links),
        fabric_gbs_per_link=_decimal(gbs),
        fabric_attach=attach,
        fabric_confidence=graded,
        c2c=c2c == "yes",
        holds_speed_when_idle=_IDLE.get(idle),
    )


_GRADES = ("", "inferred", "one_source", "verified")  # weakest first


def _agreed(parts: Iterable[Part]) -> Part | None:
    """What several parts have in common: a field in which they differ is as if it had no figure.

    A figure that they share is as sure as its weakest source, and without a figure there is no grade.
    """
    distinct = list(dict.fromkeys(parts))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    blank = Part("")
    shared = [
        values[0] if len(set(values)) == 1 else blank[at] for at, values in enumerate(zip(*distinct, strict=True))
    ]
    common = Part._make(shared)
    pcie = common.pcie_max_gts is not None or common.pcie_max_lanes is not None
    return common._replace(
        name=" / ".join(dict.fromkeys(part.name for part in distinct)),
        pcie_confidence=min((part.pcie_confidence for part in distinct), key=_GRADES.index) if pcie else "",
        fabric_confidence=min((part.fabric_confidence for part in distinct), key=_GRADES.index)
        if common.fabric
        else "",
    )


@cached
def gpu_part(vendor_id: int, device_id: int, subsystem: tuple[int, int] | None = None) -> Part | None:
    """The GPU or accelerator with exactly these ids. subsystem: (vendor, device).

    Boards that share an id are told apart by an equal subsystem; without one, only what they agree on is said.
    """
    rows = _rows("gpus.csv", _ids(vendor_id, device_id))
    if subsystem is not None and subsystem[0] in _SUBSYSTEM_VENDORS:
        board = f"{subsystem[1]:04x}"
        exact = [row for row in rows if row[2] == board]
        if exact:
            return _agreed(map(_gpu, exact))
    general = _agreed(_gpu(row) for row in rows if not row[2])
    if general is None or subsystem is not None:
        return general or _agreed(map(_gpu, rows))
    shared = _agreed(map(_gpu, rows))
    return shared and shared._replace(name=general.name)


_PREFIXES = (
    "nvidia corporation ",
    "nvidia ",
    "advanced micro devices, inc. [amd/ati] ",
    "amd ",
    "intel corporation ",
    "intel(r) ",
    "intel ",
    "habana labs ltd. ",
    "huawei technologies co., ltd. ",
)


def _normalised(model: str) -> str:
    """A model name without its vendor, in lower case, words parted by single spaces."""
    name = " ".join(model.lower().replace("-", " ").replace("_", " ").split())
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


@cached
def _gpus_by_name() -> dict[str, list[list[str]]]:
    names: dict[str, list[list[str]]] = {}
    for row in _all_rows("gpus.csv"):
        names.setdefault(_normalised(row[3]), []).append(row)
    for name, vendor, device, *_ in _all_rows("gpu_names.csv"):
        names.setdefault(_normalised(name), []).extend(_rows("gpus.csv", f"{vendor},{device}"))
    return names


@cached
def gpu_part_by_name(model: str) -> Part | None:
    """The GPU with exactly this model name, as its driver or pci.ids prints it: for recordings that hold no ids.

    Vendor prefix, case and hyphens do not count. Where several parts bear the name, only what they agree on.
    """
    return _agreed(map(_gpu, _gpus_by_name().get(_normalised(model), ())))


def gpu_ids_by_name(model: str) -> list[tuple[int, int]]:
    """(vendor id, device id) of every part with exactly this model name."""
    rows = _gpus_by_name().get(_normalised(model), ())
    return list(dict.fromkeys((int(row[0], 16), int(row[1], 16)) for row in rows))


_MOST_WORDS = 9  # "Advanced Micro Devices, Inc. [AMD/ATI]" has five, "MT43244 BlueField-3 integrated ..." five more


def _ends(name: str) -> Iterator[str]:
    """A name as the tables spell it, whole, then without its first word, and so on: vendors have many spellings."""
    words = name.lower().replace(", ", "; ").replace(",", ";").split(" ")
    for first in range(min(len(words), _MOST_WORDS)):
        yield " ".join(words[first:])


def _by_name(table: str, names: str) -> dict[str, list[tuple[int, int]]]:
    """Name -> the ids that bear it, in a table of parts and in one of further names for them."""
    found: dict[str, list[tuple[int, int]]] = {}
    rows = [(row[2], *row[:2]) for row in _all_rows(table)]
    for name, vendor, device in (*rows, *((row[0], row[1], row[2]) for row in (_all_rows(names) if names else ()))):
        found.setdefault(name.lower(), []).append((int(vendor, 16), int(device, 16)))
    return found


def _display_row(vendor_id: int, device_id: int) -> list[str] | None:
    rows = _rows("displays.csv", _ids(vendor_id, device_id))
    return rows[0] if rows else None


@cached
def display_role(vendor_id: int, device_id: int) -> str:
    """apu (inside a processor or chipset) | management (a server's own display), "" for every other display."""
    row = _display_row(vendor_id, device_id)
    return row[3] if row else ""


def integrated_part(vendor_id: int, device_id: int) -> Part | None:
    """The graphics inside a processor or chipset with exactly these ids: a name, and no link to judge."""
    row = _display_row(vendor_id, device_id)
    return Part(name=row[2], form_factor="integrated", market="consumer") if row and row[3] == "apu" else None


@cached
def _displays_by_name() -> dict[str, list[tuple[int, int]]]:
    return _by_name("displays.csv", "")


def display_by_name(name: str) -> tuple[str, Part | None]:
    """Role and part, as by ids, of the display with exactly this name ("... [AMD/ATI] Raphael")."""
    for end in _ends(name):
        for ids in _displays_by_name().get(end, ()):
            return display_role(*ids), integrated_part(*ids)
    return "", None


# --- network, switches, bridges --------------------------------------------------------------------------------


@cached
def nic_part(vendor_id: int, device_id: int) -> Part | None:
    """The network adapter with exactly these ids; port_max_gbps is the most that any board with this id does."""
    for _, _, name, role, gts, lanes, graded, gbps, *_ in _rows("nics.csv", _ids(vendor_id, device_id)):
        return Part(
            name=name,
            pcie_max_gts=_decimal(gts),
            pcie_max_lanes=_whole(lanes),
            pcie_confidence=graded,
            port_max_gbps=_decimal(gbps),
            management=role == "management",
        )
    return None


@cached
def _nics_by_name() -> dict[str, list[tuple[int, int]]]:
    return _by_name("nics.csv", "nic_names.csv")


def nic_part_by_name(model: str) -> Part | None:
    """The network adapter with exactly this name ("ConnectX-7", "... Ethernet Controller E810-C for QSFP"): for
    recordings that hold no ids. Where several parts bear the name, only what they agree on."""
    for end in _ends(model.strip()):
        if ids := _nics_by_name().get(end):
            return _agreed(part for vendor, device in ids if (part := nic_part(vendor, device)) is not None)
    return None


@cached
def is_virtual_function(vendor_id: int, device_id: int) -> bool:
    """Whether these ids are those of a network adapter's virtual function: in a guest nothing else tells it apart."""
    return any(row[3] == "vf" for row in _rows("nics.csv", _ids(vendor_id, device_id)))


@cached
def nvswitch_part(vendor_id: int, device_id: int) -> Part | None:
    """The NVSwitch with exactly these ids."""
    for row in _rows("nvswitches.csv", _ids(vendor_id, device_id)):
        return Part(name=row[2])
    return None


def _bridge_row(vendor_id: int, device_id: int) -> list[str] | None:
    rows = _rows("bridges.csv", _ids(vendor_id, device_id))
    return rows[0] if rows else None


@cached
def bridge_part(vendor_id: int, device_id: int) -> Part | None:
    """The bridge, or the function inside a switch, with exactly these ids. Chipset bridges are no switch chips."""
    row = _bridge_row(vendor_id, device_id)
    if row is None:
        return None
    role = row[3]
    return Part(
        name=row[2],
        internal_bridge=role == "internal",
        switch_chip=role == "switch",
        management=role in ("management", "placeholder"),
    )


@cached
def _bridges_by_name() -> dict[str, list[tuple[int, int]]]:
    return _by_name("bridges.csv", "bridge_names.csv")


def bridge_part_by_name(name: str, vendor_id: int | None) -> Part | None:
    """The bridge with exactly this name: for recordings that hold no ids."""
    for end in _ends(name):
        for vendor, device in _bridges_by_name().get(end, ()):
            if vendor_id in (vendor, None):
                return bridge_part(vendor, device)
    return None


@cached
def psid_gbps(psid: str) -> float | None:
    """The grade of a board by its PSID (board_id): Gb/s of one port."""
    for row in _rows("psids.csv", psid):
        return float(row[1])
    return None


# --- baseboards ------------------------------------------------------------------------------------------------


@cached
def baseboards(vendor_id: int, device_id: int, gpus: int) -> tuple[Baseboard, ...]:
    """The boards that `gpus` GPUs with these ids can be on: those with exactly so many, else the next larger ones."""
    key = f"{vendor_id:04x}:{device_id:04x}"
    boards = [
        Baseboard(name, int(count), fabric, _whole(chips), on_pci == "yes")
        for name, count, ids, fabric, chips, on_pci, *_ in _all_rows("baseboards.csv")
        if key in ids.split() and int(count) >= gpus
    ]
    fewest = min((board.gpus for board in boards), default=0)
    return tuple(board for board in boards if board.gpus == fewest)


def nvswitches_per_baseboard(parts: Iterable[tuple[int, int]], gpus: int) -> int | None:
    """How many NVSwitches a node with so many GPUs of one model has on PCI; None where not known or not on PCI.

    parts: the (vendor, device) that the GPUs may have, one where a recording gives ids, else all that bear their name.
    """
    counts = {
        board.nvswitches if board.nvswitches_on_pci or not board.nvswitches else None
        for vendor, device in parts
        for board in baseboards(vendor, device, gpus)
    }
    return counts.pop() if len(counts) == 1 else None
