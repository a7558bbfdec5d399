"""The lines of one device in lspci output: its first line, what -v prints below it, and the rows of a dump."""

from __future__ import annotations

import re
from typing import TypeVar

from gpu_topo.collectors import config_space
from gpu_topo.collectors.config_space import ConfigSpace
from gpu_topo.collectors.readers import lspci_verbose
from gpu_topo.collectors.readers.lspci_names import Header
from gpu_topo.collectors.readers.lspci_verbose import DENIED_TEXT, HOMES, WANTED, Capability, Text
from gpu_topo.collectors.registers import HEADER_SIZE
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import DENIED, NOT_RECORDED, Reading, Unknown, known

T = TypeVar("T")

_HEX_DIGITS = frozenset("0123456789abcdef")
_ROW = 16  # bytes in a row of a dump
_KEY = re.compile(r"([A-Za-z][\w ./-]{0,30}): ?(.*)")
_CAPABILITY = re.compile(r"Capabilities: (?:\[[0-9a-f]+(?: v\d+)?\] )?(.*)")
_FLAGS_NUMA = re.compile(r"NUMA node (-?\d+)")
_FLAGS_IOMMU = re.compile(r"IOMMU group (\d+)")
_OPEN_WIDTH = re.compile(r"\bWidth x\d+\Z")
_MAX_CONFIG = 4096
_MAX_LINE = 1000
_MAX_PARTS = 32  # lines that one value may be spread over

# Keys outside any capability. The first group comes before the capabilities; inside them the same words mean others.
_BEFORE = frozenset(("Control", "Flags", "Subsystem", "Bus", "NUMA node", "IOMMU group", "Physical Slot"))
_AFTER = frozenset(("Kernel driver in use", "Kernel modules"))


class Block:
    """The lines of one device, taken in one by one."""

    def __init__(self, head: Header) -> None:
        self.head = head
        self.config = bytearray()
        self.fields: dict[str, str] = {}
        self.capabilities: list[tuple[str, dict[str, list[str]]]] = []
        self.denied = self.dead = self.detailed = False
        self.cut = False  # the text ends within this device
        self._inside = False  # a capability has begun
        self._open: dict[str, list[str]] | None = None  # the fields of it, where it is one that matters
        self._key = ""
        self._indented = False  # this paste has kept its indentation
        self._ended = False  # a blank line came

    def take(self, line: str) -> None:
        """One more line; whatever is no lspci output is passed over."""
        before = self.head.before
        if before and line.startswith(before):
            line = line[len(before) :]
        text = line.strip()
        if not text:
            self._ended = True
        elif text[0] in _HEX_DIGITS and ":" in text[2:4] and self._row(text):
            pass
        elif line[0] in " \t":
            self._indented = True
            self._text(text[:_MAX_LINE])
        elif not self._ended and not self._indented and not self.config:
            self._text(text[:_MAX_LINE])

    def end(self) -> None:
        """The text is over. lspci prints a dump or a blank line after each device, and -vvv more below a link's width:
        where they are missing, x1 may be the beginning of x16."""
        self.cut = self.detailed and not self._ended and not self.config
        if self.cut and self._open is not None and self._key in ("LnkCap", "LnkSta"):
            parts = self._open.get(self._key, [])
            if len(parts) == 1 and _OPEN_WIDTH.search(parts[0]):
                del self._open[self._key]

    def _row(self, text: str) -> bool:
        """A row of a dump, taken if it comes right after what is there already."""
        offset, _, row = text.partition(":")
        try:
            start, data = int(offset, 16), bytes.fromhex(row)
        except ValueError:
            return False
        if start == len(self.config) < _MAX_CONFIG and len(data) <= _ROW:
            self.config += data
        return True

    def _text(self, text: str) -> None:
        if text.startswith("Capabilities: "):
            self._capability(text)
            return
        if text.startswith("!!! Unknown header type"):
            # All ones, less the bit of multifunction devices. Any other number was read from a device that answers.
            self.dead |= text.endswith(" 7f")
            return
        found = _KEY.match(text)
        if not found:
            if self._open is not None and len(self._open.get(self._key, ())) in range(1, _MAX_PARTS):
                self._open[self._key].append(text)
            return
        key, value = found[1], found[2].strip()
        if key in _AFTER or (key in _BEFORE and not self._inside):
            self._outside(key, value)
            return
        if key in ("Link", "Device"):
            key = _old_key(key, value)
        home = HOMES.get(key)
        if home is not None and not (self._open is not None and self.capabilities[-1][0].startswith(home)):
            self._begin(home)
        self._key = key
        if self._open is not None:
            self._open.setdefault(key, [value])

    def _begin(self, title: str) -> None:
        self._inside, self._open = True, {}
        self.capabilities.append((title, self._open))

    def _capability(self, text: str) -> None:
        found = _CAPABILITY.match(text)
        title = found[1] if found else ""
        self._inside, self._key, self._open = True, "", None
        if title.startswith(DENIED_TEXT):
            self.denied = True
        elif title.startswith(WANTED):
            self._begin(title)

    def _outside(self, key: str, value: str) -> None:
        self._open, self._key = None, ""
        self.detailed |= key == "Control"
        self.fields.setdefault(key, value)
        if key == "Flags":
            if found := _FLAGS_NUMA.search(value):
                self.fields.setdefault("NUMA node", found[1])
            if found := _FLAGS_IOMMU.search(value):
                self.fields.setdefault("IOMMU group", found[1])

    @property
    def bare(self) -> bool:
        """Nothing but the first line and what -k adds to it."""
        return not (self.config or self.detailed or self.dead or self._inside or "Flags" in self.fields)

    def space(self) -> ConfigSpace:
        """Configuration space, from the dump where there is one, completed by the text."""
        if self.dead or self.head.answers is False:
            return config_space.dead()
        capabilities = tuple(
            Capability(title, {key: " ".join(parts) for key, parts in fields.items()})
            for title, fields in self.capabilities
        )
        text = lspci_verbose.decode(
            Text(self.fields, capabilities, self.denied, self.dead, self.detailed and not self.denied)
        )
        if len(self.config) < HEADER_SIZE:
            return text
        dump = config_space.decode(bytes(self.config), DENIED if self.denied else NOT_RECORDED)
        return dump if dump.answers is False else _merged(dump, text)


def _old_key(key: str, value: str) -> str:
    """pciutils before 3.0 printed "Link: Supported Speed ..." and "Link: Speed ..." for what are registers today."""
    if key == "Link":
        return "LnkCap" if value.startswith("Supported") else ("LnkSta" if value.startswith("Speed") else key)
    return "DevCap" if value.startswith("Supported") else ("DevCtl" if value.startswith("MaxPayload") else key)


def _merged(dump: ConfigSpace, text: ConfigSpace) -> ConfigSpace:
    """The dump, with what only the text knows: registers beyond the dump's end."""
    link = dump.link
    if link is not None and text.link is not None:
        link = LinkEnd(
            speed_gts=_filled(link.speed_gts, text.link.speed_gts),
            width=_filled(link.width, text.link.width),
            max_speed_gts=_filled(link.max_speed_gts, text.link.max_speed_gts),
            max_width=_filled(link.max_width, text.link.max_width),
            target_speed_gts=_filled(link.target_speed_gts, text.link.target_speed_gts),
        )
    return dump._replace(
        subsystem_vendor_id=_either(dump.subsystem_vendor_id, text.subsystem_vendor_id),
        subsystem_device_id=_either(dump.subsystem_device_id, text.subsystem_device_id),
        port_type=_filled(dump.port_type, text.port_type),
        slot_implemented=_either(dump.slot_implemented, text.slot_implemented),
        slot_number=_either(dump.slot_number, text.slot_number),
        present=_either(dump.present, text.present),
        link=link,
        payload_bytes=_filled(dump.payload_bytes, text.payload_bytes),
        acs=_filled(dump.acs, text.acs),
        aer=text.aer if dump.aer is not None and isinstance(dump.aer.correctable, Unknown) else dump.aer,
        power=_filled(dump.power, text.power),
        sriov=_either(dump.sriov, text.sriov),
    )


def _filled(dump: Reading[T], text: Reading[T]) -> Reading[T]:
    """A register's reading; the text's where the dump ends before it and the text has it."""
    return text if isinstance(dump, Unknown) and known(text) is not None else dump


def _either(first: T | None, second: T | None) -> T | None:
    return second if first is None else first
