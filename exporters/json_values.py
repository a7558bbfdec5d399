"""JSON of plain values, letter for letter as the standard library's json writes them.

By the part of that library that is written in C: the rest of it, and the regular expressions that it brings, take as
long to load as a hundred PCI functions to read.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["encode", "string"]


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON")


try:
    from _json import encode_basestring_ascii as string  # a string in ASCII alone
    from _json import make_encoder

    # As json.encoder calls it: markers, default, encoder, indent, separators, sort_keys, skipkeys, allow_nan.
    _pieces: Callable[[object, int], Iterable[str]] = make_encoder(
        None, _refuse, string, None, ": ", ", ", False, False, False
    )
except (ImportError, TypeError):  # a Python without it, or with another
    from json import JSONEncoder
    from json.encoder import encode_basestring_ascii as string

    _library = JSONEncoder(allow_nan=False, default=_refuse)

    def _by_library(value: object, level: int) -> tuple[str, ...]:
        return (_library.encode(value),)

    _pieces = _by_library


def encode(value: object) -> str:
    """A value of dictionaries with text for keys, lists, tuples, text, numbers, truth and None.

    ValueError for what is no finite number, TypeError for any other kind of value.
    """
    return "".join(_pieces(value, 0))
