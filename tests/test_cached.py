"""model/cached.py: pure functions are asked once."""

from __future__ import annotations

from gpu_topo.model import cached as module
from gpu_topo.model.cached import Answers, cached, of_last


def test_asked_once() -> None:
    """Equal arguments are asked about once, whatever their number; None is an answer too."""
    asked: list[object] = []

    @cached
    def none() -> None:
        asked.append("none")

    @cached
    def one(number: int) -> None:
        asked.append(number)

    @cached
    def two(first: int, second: int = 2) -> int:
        asked.append((first, second))
        return first + second

    for _ in range(2):
        assert none() is None
        assert one(1) is None
        assert (two(1), two(1, 3)) == (3, 4)
    assert asked == ["none", 1, (1, 2), (1, 3)]


def test_memory_has_an_end() -> None:
    """However many different things are asked, no more than LIMIT answers are kept, and all are right."""
    answers = Answers(str)
    assert all(answers[number] == str(number) for number in range(2 * module.LIMIT + 1))
    assert len(answers) <= module.LIMIT


def test_of_the_last_object() -> None:
    """The same objects are asked about once, equal ones again; what is given beside counts, its default too."""
    asked: list[tuple[object, ...]] = []

    @of_last
    def one(node: list[int]) -> int:
        asked.append((node,))
        return len(node)

    @of_last
    def two(node: list[int], beside: tuple[()] = ()) -> int:
        asked.append((node, beside))
        return len(node)

    first, equal = [1], [1]
    given: tuple[int, ...] = tuple(first)
    assert [one(first), one(first), one(equal), one(equal)] == [1, 1, 1, 1]
    assert len(asked) == 2
    assert [two(first), two(first, ()), two(first, given), two(first, given), two(equal, given)] == [1] * 5  # type: ignore[arg-type]
    assert asked[2:] == [(first, ()), (first, given), (equal, given)]
