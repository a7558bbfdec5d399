"""What the HTTP server and the pages say to each other: requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_topo.model.reading import EMPTY
from gpu_topo.model.record import NamedTuple


class Request(NamedTuple):
    """A request without a body. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = EMPTY


class Response(NamedTuple):
    """An answer; body may be shared by many."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Done = Callable[[Response], None]
# Answers by calling back, at once or later from any thread through the loop.
Respond = Callable[[Request, Done], None]
