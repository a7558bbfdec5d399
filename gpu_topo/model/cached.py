"""functools.cache and its like for modules that an audit loads: functools takes as long to load as thirty PCI functions
to read."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

LIMIT = 1 << 14  # answers; whatever a machine or a recording holds, memory has an end


class Answers(dict):  # type: ignore[type-arg]
    """What a pure function said, by what it was asked; asks it where there is no answer yet."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask

    def __missing__(self, asked: object) -> Any:
        answer = self.ask(asked)
        if len(self) >= LIMIT:
            self.clear()
        self[asked] = answer
        return answer


def cached(function: F) -> F:
    """Remember what a pure function of positional, hashable arguments said; after LIMIT answers it starts afresh."""
    if function.__code__.co_argcount == 1:
        return Answers(function).__getitem__  # type: ignore[return-value]  # a known answer runs no Python code
    answers = Answers(lambda arguments: function(*arguments))

    def ask(*arguments: object) -> object:
        return answers[arguments]

    return ask  # type: ignore[return-value]


def of_last(function: F) -> F:
    """Remember what a function said of the object (a Node) that it was last asked about, and of what was given beside
    it: rules and reports ask about one and the same again and again.

    Objects are told apart by identity. The question and its answer are kept in one tuple, so that a thread never gets
    the answer to another's question.
    """
    last: tuple[object, object, Any] = (None, None, None)
    alone = function.__code__.co_argcount == 1

    def ask(node: object, beside: object = (function.__defaults__ or (None,))[0], /) -> Any:
        nonlocal last
        about, with_, answer = last
        if about is not node or with_ is not beside:
            answer = function(node) if alone else function(node, beside)
            last = node, beside, answer
        return answer

    return ask  # type: ignore[return-value]
