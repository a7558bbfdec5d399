"""The small types of a scan: what collections.namedtuple makes of the same fields, with and without a constructor."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

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
