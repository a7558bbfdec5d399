"""JSON of plain values, letter for letter as the standard library's json writes them.

That module, and the regular expressions that it brings, take as long to load as a hundred PCI functions to read.
"""

from __future__ import annotations

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


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


def string(text: str) -> str:
    """A string in ASCII alone."""
    if text.isascii() and text.isprintable():
        if '"' in text or "\\" in text:
            text = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'
    return '"' + "".join([_ESCAPES.get(c) or (c if " " <= c <= "~" else _unicode(c)) for c in text]) + '"'


def _unicode(character: str) -> str:
    """The character's code in UTF-16: beyond the basic plane, JSON takes two escapes."""
    digits = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join([f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4)])
