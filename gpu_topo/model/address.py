"""PCI addresses as the kernel writes them: 0000:65:00.0, with a domain of 4 to 8 hex digits."""

from __future__ import annotations

from gpu_topo.model.cached import cached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_HEX = frozenset("0123456789abcdefABCDEF")


def normalise(text: str) -> str | None:
    """The kernel's spelling of any address that lspci, NVML or a person writes; None where it is none.

    A missing domain is 0000, NVML's eight digits shrink to four where they fit.
    """
    place, _, function = text.strip().rpartition(".")
    numbers = place.split(":")
    if len(numbers) == 2:
        numbers.insert(0, "0")
    if len(numbers) != 3 or function not in tuple("01234567"):
        return None
    for digits, most in zip(numbers, (8, 2, 2), strict=True):
        if not 0 < len(digits) <= most or not _HEX.issuperset(digits):
            return None
    domain, bus, device = (int(digits, 16) for digits in numbers)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}" if device < 0x20 else None


_MASKS = frozenset("xX*#?_")


def is_masked(text: str) -> bool:
    """Whether this is an address whose digits somebody made unreadable: 00000000:XX:00.0, or 00:00.0, which no device
    but the host bridge has."""
    place, dot, function = text.strip().rpartition(".")
    numbers = place.split(":")
    if dot != "." or len(function) != 1 or len(numbers) not in (2, 3):
        return False
    if all(digits and not digits.strip("0") for digits in (*numbers, function)):
        return True
    digits = "".join(numbers) + function
    return not _MASKS.isdisjoint(digits) and all(numbers) and (_HEX | _MASKS).issuperset(digits)


def place_of(text: str) -> str | None:
    """As normalise; None of an address that was masked, too."""
    return None if is_masked(text) else normalise(text)


@cached
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


def pair_key(a: str, b: str) -> tuple[str, str]:
    """Two addresses or names in the order of addresses: what is known of a pair stands once."""
    return (a, b) if sort_key(a) <= sort_key(b) else (b, a)
