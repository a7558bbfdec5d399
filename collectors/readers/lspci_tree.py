"""Reader of `lspci -t` and `-tv`: the tree as a drawing, from which addresses, buses and parents follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_topo.collectors.readers.lspci_names import identify, names_virtual_function
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import NOT_RECORDED, Unknown
from gpu_topo.model.record import NamedTuple

# "-[0000:00]-+-00.0" or, with several root buses, "-+-[0000:d7]-+-00.0"; very old ones print no domain.
_FIRST = re.compile(r"([>\s]*)-(?:\+-)?\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}\]-", re.IGNORECASE)
_TOKEN = re.compile(
    r"\[(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2})(?:-(?P<last>[0-9a-f]{2}))?\]"
    r"|(?P<function>[01][0-9a-f]\.[0-7])(?![0-9a-f])",
    re.IGNORECASE,
)
_DRAWING = frozenset(" |+-\\`")
# Box drawings that people's terminals or editors have put in place of the ASCII ones.
_BOXES = str.maketrans("├└│─┬┼┐\u00a0", "+\\|-+++ ")
_MAX_LINE = 1000

_NOT_SHOWN = Unknown(NOT_RECORDED, "lspci -t")


class _Bus(NamedTuple):
    """A bus whose functions are drawn at one column."""

    column: int
    domain: int
    number: int
    bridge: str | None  # None: a root bus
    host_bridge: str


class _Tree:
    """One drawing, taken in line by line."""

    def __init__(self, before: str) -> None:
        self.before = before  # quoting or indentation of the whole paste
        self.functions: dict[str, Function] = {}
        self.lost = 0  # lines with a function at a column where no bus is drawn
        self._open: list[_Bus] = []  # the buses that the current line is on, outermost first

    def take(self, line: str) -> None:
        """One line of the drawing. A function at a column where no bus is drawn is passed over."""
        pending: _Bus | None = None
        address: str | None = None
        position = 0
        while position < len(line):
            if line[position] in _DRAWING:
                if address is not None and line.startswith("  ", position):
                    self._name(address, line[position:])
                    return
                position += 1
                continue
            token = _TOKEN.match(line, position)
            if token is None:
                return
            if token["function"]:
                bus = self._bus_at(position, pending)
                if bus is None:
                    self.lost += 1
                    return
                pending = None
                address = self._add(bus, token["function"])
            else:
                number = int(token["bus"], 16)
                last = int(token["last"] or token["bus"], 16)
                pending = self._bus(token["domain"], number, last, address)
                if pending is None:
                    return
            position = token.end()

    def _bus_at(self, column: int, pending: _Bus | None) -> _Bus | None:
        """The bus that a function at this column is on: the one just named, or one of the lines above."""
        if pending is not None:
            self._open.append(pending._replace(column=column))
            return self._open[-1]
        while self._open and self._open[-1].column > column:
            self._open.pop()
        return self._open[-1] if self._open and self._open[-1].column == column else None

    def _bus(self, domain: str | None, number: int, last: int, bridge: str | None) -> _Bus | None:
        """The bus of a bracket: a root bus at the start of a line, else the one behind the bridge before it."""
        if bridge is None:
            self._open.clear()
            segment = int(domain or "0", 16)
            return _Bus(0, segment, number, None, f"pci{segment:04x}:{number:02x}")
        above = self._open[-1]
        # A bridge leads to a higher bus; anything else would make a loop of parents.
        if number > above.number:
            self.functions[bridge] = self.functions[bridge]._replace(
                bridge=True, secondary_bus=number, subordinate_bus=max(number, last)
            )
        return _Bus(0, above.domain, number, bridge, above.host_bridge) if number > above.number else None

    def _add(self, bus: _Bus, function: str) -> str:
        address = f"{bus.domain:04x}:{bus.number:02x}:{function.lower()}"
        if address not in self.functions:
            self.functions[address] = Function(
                address=address,
                parent=bus.bridge,
                host_bridge=bus.host_bridge,
                driver=_NOT_SHOWN,
                numa_node=_NOT_SHOWN,
                port_type=_NOT_SHOWN,
                acs=_NOT_SHOWN,
                payload_bytes=_NOT_SHOWN,
                power=_NOT_SHOWN,
            )
        return address

    def _name(self, address: str, text: str) -> None:
        identity = identify(text)
        self.functions[address] = self.functions[address]._replace(
            vendor_id=identity.vendor_id,
            device_id=identity.device_id,
            name=identity.name,
            virtual_function=names_virtual_function(identity.name),
        )


def begins(line: str) -> bool:
    """Whether a line is the first of a tree."""
    return _FIRST.match(line.translate(_BOXES)) is not None


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """One Facts for each tree in the lines. They hold structure only: no class, no link, no driver."""
    trees: list[_Tree] = []
    for line in _unwrapped([line[:_MAX_LINE].translate(_BOXES) for line in lines]):
        first = _FIRST.match(line)
        if first:
            trees.append(_Tree(first[1]))
        if trees:
            trees[-1].take(line.removeprefix(trees[-1].before))
    return [_facts(tree, where) for tree in trees if tree.functions]


def _facts(tree: _Tree, where: str) -> Facts:
    """What a drawing says; nothing where most of it cannot be placed, since its blanks are what it says."""
    name = f"lspci -t ({where})"
    if tree.lost > len(tree.functions):
        return Facts(SourceStatus(name, FAILED, "the tree has lost its indentation, and with it who hangs where"))
    detail = f"{tree.lost} line{'s' if tree.lost > 1 else ''} of the tree could not be placed" if tree.lost else ""
    return Facts(
        source=SourceStatus(name, PARTIAL if detail else OK, detail),
        functions=tuple(tree.functions.values()),
        structure_only=True,
    )


def _unwrapped(lines: Sequence[str]) -> Iterator[str]:
    """Lines that a terminal has cut at its width put together again: what follows a line of full width, and does not
    begin like a line of the tree, is the rest of it."""
    full = max((len(line) for line in lines), default=0)
    whole, width = "", 0
    for line in lines:
        cut = width == full and line[:1] not in ("", " ", ">") and not _FIRST.match(line)
        if cut and len(whole) < _MAX_LINE:
            whole += line
        else:
            yield whole
            whole = line
        width = len(line)
    yield whole


READER = Reader("lspci -tv", begins, read)
