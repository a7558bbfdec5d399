"""JSON of plain values, letter for letter as the standard library's json writes them.

That module, and the regular expressions that it brings, take as long to load as a hundred PCI functions to read.
"""

from __future__ import annotations

try:
    from _json import (
        encode_basestring_ascii as string,
    )  # the part of json that is written in C, a string in ASCII alone
except ImportError:  # a Python without it
    from json.encoder import encode_basestring_ascii as string


__all__ = ["encode", "string"]


def encode(value: object) -> str:
    """A value of dictionaries with text for keys, lists, tuples, text, numbers, truth and None.

    ValueError for what is no finite number, TypeError for any other kind of value.
    """
    if isinstance(value, str):
        return string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value - value != 0.0:
            raise ValueError(f"{value} is no number in JSON")
        return float.__repr__(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{string(key)}: {encode(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([encode(item) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON")
