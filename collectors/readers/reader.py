"""What a reader of pasted text is, and what readers share."""

from __future__ import annotations

from gpu_topo.model.facts import Facts
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Reader(NamedTuple):
    """One kind of output that people paste.

    kind: its command, for messages ("lspci -vvv"). begins: whether a cleaned line can only be the first line of such
    an output (or of a device in it). read: the lines of one section and where they come from (file name) -> one Facts
    for each output in it, oldest first: several are samples of one machine over time. Never raises on bad text.
    keeps: whether a line inside such an output is part of it, although another reader may know it as a first line.
    """

    kind: str
    begins: Callable[[str], bool]
    read: Callable[[Sequence[str], str], list[Facts]]
    keeps: Callable[[str], bool] | None = None


def documents(lines: Sequence[str], begins: Callable[[str], bool], end: str) -> Iterator[list[str]]:
    """The XML documents in a section, each from its first line to its closing tag; one that is cut off has no end."""
    document: list[str] = []
    for line in lines:
        if document or begins(line):
            document.append(line)
        if document and end in line:
            yield document
            document = []
    if document:
        yield document
