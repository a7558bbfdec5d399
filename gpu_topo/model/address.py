"""PCI addresses as the kernel writes them: 0000:65:00.0, with a domain of 4 to 8 hex digits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_ADDRESS = r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.([0-7])\Z"


def normalise(text: str) -> str | None:
    """The kernel's spelling of any address that lspci, NVML or a person writes; None where it is none.

    A missing domain is 0000, NVML's eight digits shrink to four where they fit.
    """
    match = re.match(_ADDRESS, text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


@lru_cache(maxsize=1 << 14)
def sort_key(address: str) -> tuple[int, int, int, str]:
    """Orders addresses by domain, bus, device and function; names that are no addresses come last, in their order."""
    parts = address.split(":")
    try:
        return int(parts[0], 16), int(parts[1], 16), int(parts[2][:2], 16), parts[2][2:]
    except (ValueError, IndexError):
        digits = "".join(c for c in address if c.isdigit())
        return 1 << 32, int(digits or "0"), 0, address


def in_order(addresses: Iterable[str]) -> list[str]:
    """The addresses sorted by sort_key. As the kernel writes them they sort as text, at a tenth of the cost."""
    listed = list(addresses)
    plain = all(len(a) == 12 and a[4] == ":" and a[7] == ":" and a[10] == "." for a in listed)
    return sorted(listed) if plain else sorted(listed, key=sort_key)


def domain_and_bus(address: str) -> tuple[int, int]:
    """The domain and bus number; ValueError for a name that is no address."""
    domain, bus, _ = address.split(":")
    return int(domain, 16), int(bus, 16)


def slot_of(address: str) -> str:
    """The address without its function: the functions of one device share it."""
    return address.rsplit(".", 1)[0]
