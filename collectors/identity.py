"""What names a machine or its parts in text, and the placeholders that take its place: one value, one placeholder.

Kept is what says something about the shape: zeros (not set), the prefix of an InfiniBand GID (which subnet), the kind
of an identifier and its length.
"""

from __future__ import annotations

import re

_UUID = re.compile(r"\b[0-9a-fA-F]{8}([-_])[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}\b")
_GID = re.compile(r"(?<![0-9a-fA-F:])((?:[0-9a-fA-F]{4}:){4})((?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4})(?![0-9a-fA-F:])")
_GUID = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![0-9a-fA-F:])")
_INFINIBAND = re.compile(
    r"(?<![0-9a-fA-F:])((?:[0-9a-fA-F]{2}:){12})((?:[0-9a-fA-F]{2}:){7}[0-9a-fA-F]{2})(?![0-9a-fA-F:])"
)
_MAC = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![0-9a-fA-F:])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_BY_ADDRESS = re.compile(r"\b(enx|wlx|wwx|ibx|iwx|rocex|opax)([0-9a-f]{12}(?:[0-9a-f]{4})?)\b")
_CONTAINER = re.compile(r"\b[0-9a-f]{64}\b")
_WORD = re.compile(r"[\w.-]+\Z")

_NO_VALUE = frozenset({"(none)", "none", "n/a", "unknown", "not specified", "default string"})

# Prefixes of GIDs that say which kind of network, and not whose.
_COMMON_PREFIX = re.compile(r"(?:fe80|fec0|0000)", re.IGNORECASE)
_MAPPED_IPV4 = re.compile(r"0000:ffff:([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\Z")


class Placeholders:
    """Replaces identities in text. Numbers run in the order of first appearance, so equal input gives equal output."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._hosts: list[tuple[re.Pattern[str], str]] = []

    def number(self, kind: str, value: str) -> int:
        """The number of this value among those of its kind, from 1."""
        key = (kind, value.lower())
        if key not in self._numbers:
            self._numbers[key] = 1 + sum(other == kind for other, _ in self._numbers)
        return self._numbers[key]

    def word(self, kind: str, value: str) -> str:
        """A placeholder for a whole value, such as a serial number; what is no value stays."""
        text = value.strip()
        if not text.strip("0 .:-") or text.lower() in _NO_VALUE:
            return value
        return value.replace(text, f"{kind}-{self.number(kind, text)}")

    def host(self, name: str) -> None:
        """From now on this host name, and its first part, is replaced wherever it stands as a word, with the user
        before it (alice@node17)."""
        full = name.strip()
        if not _WORD.match(full) or full in ("localhost", "(none)"):
            return
        for text in dict.fromkeys((full, full.partition(".")[0])):
            pattern = re.compile(rf"(?:(?<![\w.-])[\w.-]+@|(?<![\w-])){re.escape(text)}(?![\w-])", re.IGNORECASE)
            self._hosts.append((pattern, f"host-{self.number('host', full.partition('.')[0])}"))

    def hosts(self, text: str) -> str:
        """The text without the host names that are known."""
        for pattern, placeholder in self._hosts:
            text = pattern.sub(placeholder, text)
        return text

    def names(self, text: str) -> str:
        """A path or name without hardware addresses in it (enx001122334455)."""
        return _BY_ADDRESS.sub(lambda m: m[1] + f"{self.number('mac', m[2]):x}".rjust(len(m[2]), "0"), text)

    def plain(self, text: str) -> str:
        """Any text without UUIDs, GUIDs, GIDs, hardware addresses and ids of containers."""
        if ":" in text:
            text = _GID.sub(lambda m: self._gid(m[1], m[2]), text)
            text = _INFINIBAND.sub(lambda m: m[1] + self._colons("guid", m[2], 2), text)
            text = _GUID.sub(lambda m: self._colons("guid", m[0], 4), text)
            text = _MAC.sub(lambda m: self._mac(m[0]), text)
        text = _UUID.sub(self._uuid, text)
        text = _CONTAINER.sub(lambda m: f"{self.number('container', m[0]):064x}", text)
        return self.names(text)

    def addresses(self, text: str) -> str:
        """The text without IPv4 addresses. Not for every text: versions of firmware look the same."""
        return _IPV4.sub(lambda m: self.ipv4(m[0]), text)

    def ipv4(self, text: str) -> str:
        """An address of the range that is set aside for benchmarks (RFC 2544); loopback and 0.0.0.0 stay."""
        if text.startswith(("127.", "0.", "255.")):
            return text
        number = self.number("ip", text) % 65536
        return f"198.18.{number >> 8}.{number & 255}"

    def hexadecimal(self, kind: str, digits: str) -> str:
        """As many digits; zeros stay."""
        return f"{self.number(kind, digits):x}".rjust(len(digits), "0") if digits.strip("0") else digits

    def decimal(self, kind: str, digits: str) -> str:
        """A small number instead of a large one; zero stays."""
        return str(self.number(kind, digits)) if digits.strip("0") else digits

    def _uuid(self, match: re.Match[str]) -> str:
        digits = match[0].replace("-", "").replace("_", "")
        if not digits.strip("0"):
            return match[0]
        fresh = f"{self.number('uuid', digits):032x}"
        return match[1].join((fresh[:8], fresh[8:12], fresh[12:16], fresh[16:20], fresh[20:]))

    def _colons(self, kind: str, value: str, group: int) -> str:
        digits = self.hexadecimal(kind, value.replace(":", ""))
        return ":".join(digits[at : at + group] for at in range(0, len(digits), group))

    def _mac(self, value: str) -> str:
        if value.lower() == "ff:ff:ff:ff:ff:ff":
            return value
        return self._colons("mac", value, 2)

    def _gid(self, prefix: str, interface: str) -> str:
        mapped = _MAPPED_IPV4.match(interface)
        if mapped:  # RoCE over IPv4
            octets = bytes.fromhex(mapped[1] + mapped[2])
            fresh = [int(part) for part in self.ipv4(".".join(map(str, octets))).split(".")]
            return f"{prefix}0000:ffff:{fresh[0]:02x}{fresh[1]:02x}:{fresh[2]:02x}{fresh[3]:02x}"
        if not _COMMON_PREFIX.match(prefix):
            prefix = self._colons("network", prefix.rstrip(":"), 4) + ":"
        return prefix + self._colons("guid", interface, 4)
