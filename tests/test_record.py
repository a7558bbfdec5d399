"""The small types of a scan: what collections.namedtuple makes of the same fields, with and without a constructor."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from typing import Any

import pytest

from gpu_topo.model.facts import SourceStatus
from gpu_topo.model.pci import Function
from gpu_topo.model.record import NamedTuple

_MANY = 200  # more than a type makes before it gets a constructor of its own


class Both(NamedTuple):
    """A type with and without defaults."""

    first: int
    second: str = "b"
    third: float | None = None


def test_first_and_later_instances_are_the_same() -> None:
    """However many there were before: by position, by name, with defaults."""
    for _ in range(_MANY):
        assert Both(1) == (1, "b", None)
        assert Both(1, "c", 2.0) == (1, "c", 2.0)
        assert Both(1, third=2.0) == (1, "b", 2.0)
        assert Both(second="c", first=1) == (1, "c", None)
        assert Both._make((1, "c", None)) == Both(1, "c")
        assert Both(1)._replace(third=3.0).third == 3.0
    assert pickle.loads(pickle.dumps(Both(1))) == Both(1)
    assert repr(Both(1)) == "Both(first=1, second='b', third=None)"


def test_wrong_arguments_are_refused_at_any_time() -> None:
    """Too few, too many, unknown and doubled ones."""

    class Late(NamedTuple):
        first: int
        second: int = 2

    made: Any = Late
    for _ in range(_MANY):
        for positional, named in (((), {}), ((1, 2, 3), {}), ((1,), {"other": 1}), ((1,), {"first": 1})):
            with pytest.raises(TypeError):
                made(*positional, **named)
        assert made(1) == (1, 2)


class Sample(NamedTuple):
    """A type with everything that a type can have."""

    name: str
    number: int = 0
    tags: tuple[str, ...] = ()

    @property
    def loud(self) -> str:
        return self.name.upper()


Usual = namedtuple("Usual", ("name", "number", "tags"), defaults=(0, ()))


def test_it_is_a_tuple() -> None:
    """It unpacks, compares, hashes and is indexed as the tuple that it is, and cannot be changed."""
    sample: Any = Sample("a", 1)
    name, number, tags = sample
    assert (name, number, tags) == sample == ("a", 1, ())
    assert hash(sample) == hash(("a", 1, ()))
    assert sample[1] == sample.number == 1
    assert sample.loud == "A"
    assert not hasattr(sample, "__dict__")
    with pytest.raises(AttributeError):
        sample.name = "b"


def test_methods_of_a_named_tuple() -> None:
    """_replace, _asdict, _make, _fields, _field_defaults and the way it is printed."""
    sample, usual = Sample("a", 1), Usual("a", 1)
    kind: Any = Sample
    assert tuple(sample._replace(number=5)) == usual._replace(number=5)
    assert type(sample._replace(number=5)) is Sample
    assert sample._asdict() == usual._asdict()
    assert Sample._make(["b", 2, ()]) == Sample("b", 2)
    assert Sample._fields == Usual._fields == kind.__match_args__
    assert Sample._field_defaults == Usual._field_defaults
    assert repr(sample) == repr(usual).replace("Usual", "Sample")
    with pytest.raises(ValueError, match="other"):
        sample._replace(other=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Sample._make(["too few"])


def test_copies() -> None:
    """Facts travel: pickled before their type was ever called, and copied."""
    status = SourceStatus("pcie", "ok", "", 0.5)
    assert pickle.loads(pickle.dumps(status)) == status
    assert copy.copy(status) == copy.deepcopy(status) == status


def test_matching() -> None:
    """It can be taken apart by position."""
    match Sample("a", 3):
        case Sample(name, number):
            assert (name, number) == ("a", 3)


def test_many_fields() -> None:
    """The largest type has its fields in place."""
    function = Function("0000:65:00.0", **{field: number for number, field in enumerate(Function._fields[1:])})  # type: ignore[arg-type]
    assert [getattr(function, field) for field in Function._fields] == list(function)
