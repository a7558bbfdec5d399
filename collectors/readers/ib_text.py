"""What ibstat, ibstatus and ibv_devinfo have in common: devices, their ports, and "name: value" below both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.host import Port
from gpu_topo.model.reading import MALFORMED, Reading, Unknown
from gpu_topo.model.record import NamedTuple

_NUMBER = re.compile(r"(0x[0-9a-fA-F]{1,16}|\d{1,20})\b")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{16}|(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4})\Z")
_FUNCTIONS = 8  # of one adapter; virtual functions have GUIDs of their own
_TEXT_LIMIT = 120  # longer than any value that these tools print


class Block(NamedTuple):
    """One port: its device, its number, its fields and those of its device, names in lower case."""

    device: str
    port: int
    fields: dict[str, str]
    of_device: dict[str, str]

    def get(self, name: str) -> str | None:
        """A field of the port, else of its device."""
        value = self.fields.get(name)
        return self.of_device.get(name) if value is None else value

    def text(self, name: str) -> str | None:
        """A field, None where it is absent, empty or says that it is not known."""
        value = self.get(name)
        return value if value and value.lower() not in ("unknown", "n/a") else None

    def adapter(self) -> tuple[str | None, int | None]:
        """The GUID of the adapter that this device is a function of, and which one; None where GUIDs do not tell."""
        of_system = _guid(self.get("system image guid") or self.get("sys_image_guid"))
        own = _guid(self.get("node guid") or self.get("node_guid"))
        if not of_system or not own or not 0 <= own - of_system < _FUNCTIONS:
            return None, None
        return f"{of_system:016x}", own - of_system

    def number(self, name: str) -> Reading[int]:
        """The number that a field begins with, decimal or hexadecimal; None where the field is absent."""
        value = self.get(name)
        if value is None:
            return None
        match = _NUMBER.match(value)
        if not match:
            return Unknown(MALFORMED, f"{name}: {value[:40]}")
        return int(match.group(1), 16 if value.startswith("0x") else 10)


def _guid(text: str | None) -> int | None:
    match = _GUID.match(text or "")
    return int(match.group(1).replace(":", ""), 16) if match else None


# What a line begins: a device (name, None), a port of the current device (None, number), both, or nothing.
Begin = Callable[[str], "tuple[str | None, int | None] | None"]


def begins(device: re.Pattern[str], port: re.Pattern[str]) -> Begin:
    """For outputs in which devices and ports begin on lines of their own: the patterns catch a name and a number."""

    def begin(line: str) -> tuple[str | None, int | None] | None:
        if found := device.match(line):
            return found[1], None
        found = port.match(line)
        return (None, int(found[1])) if found else None

    return begin


def blocks(lines: Sequence[str], begin: Begin) -> list[Block]:
    """Every port in the lines, in order. A line that is no field and not indented ends a device: a prompt, prose."""
    found: list[Block] = []
    device: str | None = None
    of_device: dict[str, str] = {}
    fields: dict[str, str] | None = None
    for line in lines:
        started = begin(line)
        if started:
            name, port = started
            if name is not None:
                device, of_device = name, {}
                fields = of_device
            if port is not None and device is not None:
                fields = {}
                found.append(Block(device, port, fields, of_device))
            continue
        text = line.strip()
        name, colon, value = text.partition(":")
        is_field = bool(colon) and (not value or value[0].isspace())
        if is_field and fields is not None:
            fields.setdefault(name.strip().lower(), value.strip()[:_TEXT_LIMIT])
        elif text and not is_field and not line[:1].isspace():
            device, fields = None, None
    if found and fields is found[-1].fields:
        _end(found)
    return found


def _end(found: Sequence[Block]) -> None:
    """The text is over, and it may have been cut off anywhere: where more follows the rate of other ports, 40 may be
    the beginning of 400. A rate with its unit is whole."""
    *others, last = ([*block.fields] for block in found)
    ends_alike = all(names[-1:] == ["rate"] for names in others)
    if last[-1:] == ["rate"] and not ends_alike and found[-1].fields["rate"].isdecimal():
        del found[-1].fields["rate"]


def facts(kind: str, where: str, ports: Iterable[Port]) -> list[Facts]:
    """One sample of the machine for each time that a port comes again, oldest first."""
    samples: list[dict[tuple[str, int], Port]] = []
    for port in ports:
        key = (port.device, port.port)
        if not samples or key in samples[-1]:
            samples.append({})
        samples[-1][key] = port
    samples = [_without_doubtful_cards(sample) for sample in samples]
    return [Facts(SourceStatus(f"{kind} ({where})", OK), ports=tuple(sample.values())) for sample in samples]


def _without_doubtful_cards(sample: dict[tuple[str, int], Port]) -> dict[tuple[str, int], Port]:
    """No two devices are the same function of a card: where some say so, GUIDs were replaced before pasting."""
    owners: dict[tuple[str | None, int | None], set[str]] = {}
    for port in sample.values():
        owners.setdefault((port.card, port.card_function), set()).add(port.device)
    return {
        key: port if len(owners[port.card, port.card_function]) == 1 else port._replace(card=None, card_function=None)
        for key, port in sample.items()
    }
