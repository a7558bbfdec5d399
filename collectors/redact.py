"""Makes a recording fit to be shown to strangers: what names the machine, its parts and its users is replaced.

Serial numbers, UUIDs, GUIDs, hardware and IP addresses, host names and mount points become placeholders, the same one
for the same value everywhere. Models, part numbers, firmware, board ids and everything that a rule looks at stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpu_topo.collectors.identity import Placeholders
from gpu_topo.source import Recording, Refusal, Replay
from gpu_topo.source.capture import save
from gpu_topo.source.recording import AT, READ, Reply

_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_SERIAL_FILE = re.compile(
    r"(?:.*serial.*|.*asset_tag|wwid|wwn|nguid|eui|subsysnqn|hostnqn|hostid|unique_id|phys_switch_id|phys_port_id)\Z"
)
_ROUTES = ("/proc/net/route", "/proc/net/ipv6_route")
_MOUNTS = ("/mountinfo", "/mounts")
_KFD_NUMBERS = re.compile(r"^(unique_id|hive_id) (\d+)$", re.MULTILINE)
_CPU_SERIAL = re.compile(r"^(Serial\s*: *)(\S+)$", re.MULTILINE)
_UDEV_VALUES = re.compile(r"^(E:ID_\w*(?:SERIAL|WWN|UUID|LABEL|_MAC)\w*=)(.+)$", re.MULTILINE)
_BUILDER = re.compile(r"\([^()\s@]+@[^()\s]+\)")
_KEPT_FOLDERS = frozenset(
    {"", "boot", "home", "mnt", "media", "srv", "data", "raid", "scratch", "var", "opt", "tmp", "usr"}
)
_SECRET_KEY = re.compile(r"serial|uuid|guid|hostname", re.IGNORECASE)
_SERIAL_CAPABILITY = 3  # PCI Express extended capability: Device Serial Number, made of a MAC address
_ROUTE_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{32})\Z")
_VPD_FIELDS = (0x90, 0x91)  # read-only and read-write data: keyword, length, value (PCI 3.0, appendix I)
_VPD_END = 0x78
_HEX_VALUE = re.compile(rb"[0-9a-fA-F-]{12,}\s*\Z")


def capture(
    recording: Recording | Replay, keep_identity: bool = False, version: str = "", packed: bool = False
) -> bytes:
    """The capture file of a recording, redacted unless keep_identity; gzipped where packed."""
    return save(recording if keep_identity else redact(recording), version, not keep_identity, packed)


def redact(recording: Recording | Replay) -> Replay:
    """The same answers without identities. Two runs over one recording give the same."""
    placeholders = Placeholders()
    for path in _HOST_FILES:
        said = recording.answers.get(path, {}).get(READ)
        if isinstance(said, bytes):
            placeholders.host(said.decode("utf-8", "replace"))
    answers = {
        placeholders.names(path): _redact_file(path, recording.answers[path], placeholders)
        for path in sorted(recording.answers)
    }
    transcripts = {
        name: tuple(_redact_line(line, placeholders) for line in recording.transcripts[name])
        for name in sorted(recording.transcripts)
    }
    return Replay(answers, transcripts, getattr(recording, "strict", True))


def _redact_file(path: str, asked: Mapping[str, Reply], placeholders: Placeholders) -> dict[str, Reply]:
    redacted = {question: _redact_reply(path, question, asked[question], placeholders) for question in sorted(asked)}
    if path.endswith("/config"):
        _blank_serial_capability(redacted)
    return redacted


def _redact_reply(path: str, question: str, reply: Reply, placeholders: Placeholders) -> Reply:
    if isinstance(reply, (Refusal, bool)):
        return reply
    if isinstance(reply, bytes):
        if path.endswith("/config"):
            return reply
        return _redact_vpd(reply) if path.endswith("/vpd") else _redact_bytes(path, reply, placeholders)
    if isinstance(reply, str):
        return placeholders.names(reply)
    return tuple(placeholders.names(name) for name in reply)


def _redact_bytes(path: str, data: bytes, placeholders: Placeholders) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    name = path.rpartition("/")[2]
    if path in _HOST_FILES:
        text = placeholders.hosts(text)
    elif _SERIAL_FILE.match(name):
        text = placeholders.word("serial", placeholders.plain(text))
    elif name == "node_desc":
        text = placeholders.word("node", text)
    elif path.endswith(_MOUNTS):
        text = _redact_mounts(text, path.endswith("/mountinfo"), placeholders)
    elif path in _ROUTES:
        text = _redact_routes(text, placeholders)
    else:
        text = _redact_text(path, text, placeholders)
    return text.encode("utf-8", "surrogateescape")


def _redact_text(path: str, text: str, placeholders: Placeholders) -> str:
    """A file of attributes or of lines."""
    if path.startswith(("/proc/", "/etc/", "/run/")):
        text = _BUILDER.sub("(builder@host)", placeholders.addresses(placeholders.hosts(text)))
        text = _CPU_SERIAL.sub(lambda m: m[1] + placeholders.hexadecimal("cpu", m[2]), text)
        text = _UDEV_VALUES.sub(lambda m: m[1] + placeholders.word("serial", m[2]), text)
    elif path.endswith("/properties"):
        text = _KFD_NUMBERS.sub(lambda m: f"{m[1]} {placeholders.decimal(m[1], m[2])}", text)
    return placeholders.plain(text)


def _redact_mounts(text: str, numbered: bool, placeholders: Placeholders) -> str:
    """Lines of mountinfo or mounts (proc(5)): devices and kinds stay, names of folders and servers do not."""
    lines = []
    for line in text.split("\n"):
        fields = line.split(" ")
        try:
            at = 4 if numbered else 1
            dash = fields.index("-", 6) if numbered else -1
            source = dash + 2 if numbered else 0
            kind = fields[dash + 1] if numbered else fields[2]
            fields[at] = _folder(fields[at], placeholders)
            if numbered and fields[3] != "/":
                fields[3] = _folder(fields[3], placeholders)
            fields[source] = _device(fields[source], kind, placeholders)
            # Options hold servers, users and paths; none of them tells anything about the machine's shape.
            fields[source + 1 if numbered else 3 :] = ["rw"] if numbered else ["rw", "0", "0"]
        except (ValueError, IndexError):
            fields = [placeholders.plain(line)] if not line.strip() else []  # the line at which a partial read ends
        lines.append(" ".join(fields))
    return "\n".join(lines)


def _folder(path: str, placeholders: Placeholders) -> str:
    """A mount point: its first folder where that is a usual one, the others by number."""
    parts = path.split("/")
    kept = 2 if len(parts) > 1 and parts[1] in _KEPT_FOLDERS else 1
    return "/".join([*parts[:kept], *(f"dir-{placeholders.number('dir', part)}" for part in parts[kept:] if part)])


def _device(source: str, kind: str, placeholders: Placeholders) -> str:
    """A block device as it is; a volume's name by number; of anything else only its kind."""
    if source.startswith("/dev/mapper/"):
        return f"/dev/mapper/volume-{placeholders.number('volume', source)}"
    return placeholders.plain(source) if source.startswith("/dev/") else kind


def _redact_routes(text: str, placeholders: Placeholders) -> str:
    """Destinations and gateways, IPv4 in 8 and IPv6 in 32 hex digits (proc_pid_net(5)); masks stay."""
    lines = []
    for line in text.split("\n"):
        fields = re.split(r"(\s+)", line)  # the spaces between are fields too
        for column in (0, 4, 8) if len(fields[0]) == 32 else (2, 4):
            if column < len(fields) and _ROUTE_ADDRESS.match(fields[column]):
                fields[column] = placeholders.hexadecimal("route", fields[column])
        lines.append(placeholders.names("".join(fields)))
    return "\n".join(lines)


def _redact_line(line: str, placeholders: Placeholders) -> str:
    """A line of a transcript, JSON as a rule; the answer to a question for a serial number is one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return placeholders.plain(placeholders.hosts(line))
    if isinstance(record, dict) and "serial" in str(record.get("q", "")).lower() and isinstance(record.get("r"), str):
        record["r"] = placeholders.word("serial", record["r"])
    return placeholders.plain(placeholders.hosts(json.dumps(_redact_value(record, placeholders))))


def _redact_value(value: Any, placeholders: Placeholders) -> Any:
    """The same structure, with the texts under telling keys replaced."""
    if isinstance(value, dict):
        return {
            key: placeholders.word("serial", placeholders.plain(inner))
            if isinstance(inner, str) and _SECRET_KEY.search(key) and placeholders.plain(inner) == inner
            else _redact_value(inner, placeholders)
            for key, inner in value.items()
        }
    return [_redact_value(inner, placeholders) for inner in value] if isinstance(value, list) else value


# --- bytes ----------------------------------------------------------------------------------------------------------


def _redact_vpd(data: bytes) -> bytes:
    """Vital product data with serial numbers and what looks like an address or UUID blanked; lengths stay."""
    blanked = bytearray(data)
    at = 0
    while at + 3 <= len(data) and data[at] & 0x80 and data[at] != _VPD_END:
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "little")
        field = at + 3
        while data[at] in _VPD_FIELDS and field + 3 <= min(end, len(data)):
            start, stop = field + 3, min(field + 3 + data[field + 2], len(data))
            if data[field : field + 2] == b"SN" or _HEX_VALUE.match(data[start:stop]):
                blanked[start:stop] = b"X" * (stop - start)
            field = stop
        at = end
    return bytes(blanked)


def _blank_serial_capability(asked: dict[str, Reply]) -> None:
    """Zeros for the Device Serial Number in configuration space, in whatever pieces it was read."""
    pieces: dict[str, tuple[int, bytes]] = {}
    image: dict[int, int] = {}
    for question, reply in asked.items():
        if isinstance(reply, bytes):
            offset = int(question.split(" ")[1]) if question.startswith(AT) else 0
            pieces[question] = (offset, reply)
            image.update(enumerate(reply, offset))
    for secret in _serial_offsets(image):
        for question, (offset, reply) in pieces.items():
            at = secret - offset
            if 0 <= at < len(reply):
                reply = reply[:at] + b"\0" + reply[at + 1 :]
                pieces[question] = (offset, reply)
                asked[question] = reply


def _serial_offsets(image: dict[int, int]) -> list[int]:
    """Where the eight bytes of the serial number are; walks the extended capabilities as far as they were read."""
    at, seen = 0x100, set()
    while at >= 0x100 and at not in seen:
        seen.add(at)
        if any(at + i not in image for i in range(4)):
            break
        header = int.from_bytes(bytes(image[at + i] for i in range(4)), "little")
        if header & 0xFFFF == _SERIAL_CAPABILITY:
            return list(range(at + 4, at + 12))
        at = header >> 20 & 0xFFC
    return []
