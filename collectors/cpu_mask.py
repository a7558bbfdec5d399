"""CPU and node masks as the kernel, NCCL and hwloc write them, and the list format that people read."""

from __future__ import annotations

_MAX_WORDS = 1024  # 32,768 CPUs, four times what Linux can be built for


def to_bits(mask: str) -> tuple[int, ...] | None:
    """The set bits of "00000000,0000ffff" or "0x1,,0xff" (an empty word is zero), lowest first; None where it is no
    mask, or an endless one as hwloc writes it (0xf...f)."""
    words = mask.strip().split(",")
    value = 0
    if not mask.strip() or len(words) > _MAX_WORDS:
        return None
    for word in words:
        digits = word.strip().removeprefix("0x") or "0"
        if len(digits) > 8 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            return None
        value = value << 32 | int(digits, 16)
    return tuple(bit for bit in range(value.bit_length()) if value >> bit & 1)


def to_list(mask: str) -> str | None:
    """A mask in the kernel's list format (0-55,112-167), "" for no bit; None as to_bits."""
    bits = to_bits(mask)
    if bits is None:
        return None
    ranges: list[list[int]] = []
    for bit in bits:
        if ranges and ranges[-1][1] == bit - 1:
            ranges[-1][1] = bit
        else:
            ranges.append([bit, bit])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)
