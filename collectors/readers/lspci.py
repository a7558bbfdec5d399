"""Reader of lspci output with one block a device: -vvv in all its variants, -xxx and -xxxx dumps, -nn inventories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_topo.collectors.config_space import ConfigSpace
from gpu_topo.collectors.readers.lspci_block import Block
from gpu_topo.collectors.readers.lspci_names import header, names_virtual_function
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.collectors.registers import ORDINARY_SIZE
from gpu_topo.model.address import sort_key
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import DENIED, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.topology.buses import place

_BRIDGE_CLASSES = frozenset((0x0604, 0x0609))
# Virtual functions that one recording may announce: every routing id of a domain, once.
_MAX_VIRTUAL_FUNCTIONS = 1 << 16


def begins(line: str) -> bool:
    """Whether a line can only be the first of a device in lspci output."""
    return header(line) is not None


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """One Facts for each lspci run in the lines, oldest first."""
    blocks: list[Block] = []
    broken = ""  # a first line of which a mail program put the end on the next line
    for line in lines:
        head = header(line)
        whole = header(f"{broken} {line}") if broken and head is None and _closes(broken, line) else None
        broken = ""
        if whole is not None:
            blocks[-1] = Block(whole)
        elif head is not None:
            blocks.append(Block(head))
            broken = line if _open(line) else ""
        elif blocks:
            blocks[-1].take(line)
    if blocks:
        blocks[-1].end()
    return [_facts(run, where) for run in _runs(blocks)]


def _open(line: str) -> bool:
    """Whether a bracket is not closed again."""
    return line.count("[") > line.count("]") or line.count("(") > line.count(")")


def _closes(broken: str, line: str) -> bool:
    """Whether a line can be the end of a name or of "(rev ff)": not indented, and all brackets are closed then."""
    return line[:1] not in ("", " ", "\t") and not _open(broken + line)


def _runs(blocks: Iterable[Block]) -> list[list[Block]]:
    """Blocks of one run of lspci: its addresses rise and do not repeat. Runs over different devices (-d, -s) that
    follow one another count as one, but an inventory and a detailed run stay apart."""
    runs: list[list[Block]] = []
    seen: set[str] = set()
    for block in blocks:
        address = block.head.address
        last = runs[-1][-1] if runs else None
        if (
            last is None
            or address in seen
            or (block.bare != last.bare and sort_key(address) < sort_key(last.head.address))
        ):
            runs.append([])
            seen = set()
        runs[-1].append(block)
        seen.add(address)
    return runs


def _facts(blocks: Sequence[Block], where: str) -> Facts:
    """What one run says, with virtual functions told apart and parents worked out."""
    spaces = {block.head.address: block.space() for block in blocks}
    drivers = any("Kernel driver in use" in block.fields for block in blocks)
    functions = [_function(block, spaces[block.head.address], drivers) for block in blocks]
    functions = _with_virtual_functions(functions, spaces)
    denied = sum(block.denied for block in blocks)
    return Facts(
        source=SourceStatus(
            name=f"{_command(blocks)} ({where})",
            status=PARTIAL if denied else OK,
            detail=f"capabilities of {denied} of {len(blocks)} functions denied: run lspci as root" if denied else "",
        ),
        functions=_with_slots(place(functions), spaces),
        structure_only=not any(block.config or block.detailed or block.dead or block.denied for block in blocks)
        and all(_no_link(space) for space in spaces.values()),
        unread={f"{DENIED}: capabilities": denied} if denied else {},
    )


def _command(blocks: Sequence[Block]) -> str:
    """The command that prints such output."""
    longest = max((len(block.config) for block in blocks), default=0)
    if any(block.detailed for block in blocks):
        words = ["lspci -vvv"]
    elif all(block.bare for block in blocks):
        words = ["lspci -nn"]
    else:
        words = ["lspci -v"] if any(block.fields for block in blocks) else ["lspci"]
    if longest:
        words.append("-xxxx" if longest > ORDINARY_SIZE else "-xxx")
    return " ".join(words)


def _no_link(space: ConfigSpace) -> bool:
    return space.link is None or all(known(value) is None for value in space.link)


def _function(block: Block, space: ConfigSpace, drivers: bool) -> Function:
    """One function. drivers: whether this run names drivers at all, so that one without a name has none."""
    head, fields = block.head, block.fields
    class_code = head.class_code if space.class_code is None else space.class_code
    driver: Reading[str] = fields.get("Kernel driver in use")
    if driver is None and (block.cut or not drivers) and "Kernel modules" not in fields:
        driver = Unknown(NOT_RECORDED, "lspci: Kernel driver in use")
    return Function(
        address=head.address,
        vendor_id=head.vendor_id if space.vendor_id is None else space.vendor_id,
        device_id=head.device_id if space.device_id is None else space.device_id,
        class_code=class_code,
        subsystem_vendor_id=space.subsystem_vendor_id,
        subsystem_device_id=space.subsystem_device_id,
        revision=head.revision if space.revision is None else space.revision,
        name=head.name,
        driver=driver,
        numa_node=_numa(fields),
        bridge=space.header_type == 1 or (class_code or 0) >> 8 in _BRIDGE_CLASSES,
        secondary_bus=space.secondary_bus,
        subordinate_bus=space.subordinate_bus,
        port_type=space.port_type,
        slot=fields.get("Physical Slot"),
        link=space.link,
        virtual_function=names_virtual_function(head.name),
        aer=space.aer,
        acs=space.acs,
        payload_bytes=space.payload_bytes,
        power=space.power,
        answers=space.answers,
        hotplug_empty=space.present is False,
    )


def _numa(fields: dict[str, str]) -> Reading[int]:
    """lspci prints no line where the kernel says -1, and old ones never do."""
    text = fields.get("NUMA node")
    if text is None:
        return Unknown(NOT_RECORDED, "lspci: NUMA node")
    if not text.lstrip("-").isdecimal() or len(text) > 12:
        return Unknown(MALFORMED, "lspci: NUMA node")
    node = int(text)
    return node if 0 <= node < 0xFFFF else Unknown(NO_DATA, "lspci: NUMA node")


def _with_virtual_functions(functions: list[Function], spaces: dict[str, ConfigSpace]) -> list[Function]:
    """Virtual functions marked, by the routing ids that their physical function's SR-IOV capability gives them."""
    owners: dict[str, str] = {}
    budget = _MAX_VIRTUAL_FUNCTIONS
    for address, space in spaces.items():
        if space.sriov is None:
            continue
        domain, bus, rest = address.split(":")
        device, function = rest.split(".")
        first = (int(bus, 16) << 8 | int(device, 16) << 3 | int(function)) + space.sriov.first_offset
        for number in range(min(space.sriov.number, budget)):
            routing = first + number * space.sriov.stride
            virtual = f"{domain}:{routing >> 8:02x}:{(routing >> 3) & 0x1F:02x}.{routing & 7}"
            if virtual in spaces and virtual != address:
                owners[virtual] = address
        budget -= min(space.sriov.number, budget)
    return [
        function._replace(virtual_function=True, physical_function=owners[function.address])
        if function.address in owners
        else function
        for function in functions
    ]


def _with_slots(functions: Sequence[Function], spaces: dict[str, ConfigSpace]) -> tuple[Function, ...]:
    """Slot numbers from the port above, where lspci names none itself. Number 0 is what ports without a label have."""
    return tuple(
        function._replace(slot=str(number))
        if function.slot is None
        and isinstance(function.parent, str)
        and (number := spaces[function.parent].slot_number)
        else function
        for function in functions
    )


READER = Reader("lspci -vvv", begins, read)
