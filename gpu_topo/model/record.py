"""NamedTuple for the seventy small types of a scan, made in a tenth of the time.

collections.namedtuple compiles a constructor for every type, typing.NamedTuple every annotation too, and both modules
take longer to load than a machine takes to read. To a type checker this is typing's own. At run time it has the same
notation and the same methods; annotations are not looked at, and only records made `often` get a compiled constructor.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; typing itself would have to be loaded
if TYPE_CHECKING:
    from typing import NamedTuple, TypeVar

    T = TypeVar("T")

    def often(cls: type[T]) -> type[T]:
        """For a type of which every audit makes hundreds: its constructor is compiled at once."""
        return cls

else:
    from _collections import _tuplegetter  # what collections.namedtuple reads its fields with

    _new = tuple.__new__
    # How many instances a type makes without a constructor of its own: compiling one takes as long as making a hundred
    # of them, and most types of an audit have a dozen.
    _FEW = (True,) * 128
    _FIELDS = tuple(_tuplegetter(number, "") for number in range(64))

    class _Record(tuple):
        """What all named tuples share."""

        __slots__ = ()

        def __new__(cls, /, *args, **named):
            """The first instances of a type; a type that has more gets a constructor of its own."""
            if not next(cls._few, False):
                often(cls)
                return cls.__new__(cls, *args, **named)
            fields = cls._fields
            if named or len(args) < len(fields):
                defaults, left = cls._field_defaults, fields[len(args) :]
                try:
                    args += tuple([named.pop(field) if field in named else defaults[field] for field in left])
                except KeyError as error:
                    raise TypeError(f"{cls.__name__} lacks {error}") from None
            if named or len(args) > len(fields):
                raise TypeError(f"{cls.__name__} has {len(fields)} fields, got {len(args)} and {list(named)!r}")
            return _new(cls, args)

        @classmethod
        def _make(cls, values):
            made = _new(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = _new(self.__class__, map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{self.__class__.__name__}({values})"

        def __getnewargs__(self):
            return tuple(self)

    def _constructor(cls):
        fields = ", ".join(cls._fields)
        made = eval(f"lambda _cls, {fields}: _new(_cls, ({fields},))", {"_new": _new, "__name__": cls.__module__})
        made.__name__, made.__qualname__ = "__new__", f"{cls.__qualname__}.__new__"
        made.__defaults__ = tuple(cls._field_defaults.values())
        return made

    def often(cls):
        """For a type of which every audit makes hundreds: its constructor is compiled at once."""
        cls.__new__ = staticmethod(_constructor(cls))
        return cls

    class _Maker(type):
        """Turns the body of a class that derives from NamedTuple into a named tuple."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            body.update(zip(fields, _FIELDS, strict=False))
            body.update(__slots__=(), _fields=fields, __match_args__=fields, _field_defaults=defaults, _few=iter(_FEW))
            return type(name, (_Record,), body)

    class NamedTuple(metaclass=_Maker):
        """The base class to derive from."""


__all__ = ["NamedTuple", "often"]
