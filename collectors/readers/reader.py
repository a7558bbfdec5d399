"""What a reader of pasted text is, and how a line is cleaned before anyone looks at it."""

from __future__ import annotations

from gpu_topo.model.facts import Facts
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# CSI, OSC and two-byte escape sequences (ECMA-48), compiled where there is one; then every other control character but
# tab and newline.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])"
_CONTROLS = dict.fromkeys((*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)))
# What web pages, wikis and word processors put in the place of plain characters.
_PLAIN = {
    **dict.fromkeys((0x00A0, 0x2007, 0x202F, 0x2003, 0x2002, 0x2009), " "),
    **dict.fromkeys((0x200B, 0x2060, 0xFEFF, 0x00AD), None),
    **dict.fromkeys((0x2018, 0x2019), "'"),
    **dict.fromkeys((0x201C, 0x201D), '"'),
    **dict.fromkeys((0x2010, 0x2011), "-"),
}


class Reader(NamedTuple):
    """One kind of output that people paste.

    kind: its command, for messages ("lspci -vvv"). begins: whether a cleaned line can only be the first line of such
    an output (or of a device in it). read: the lines of one section and where they come from (file name) -> one Facts
    for each output in it, oldest first: several are samples of one machine over time. Never raises on bad text.
    """

    kind: str
    begins: Callable[[str], bool]
    read: Callable[[Sequence[str], str], list[Facts]]


def clean(text: str) -> str:
    """The text without terminal escape sequences and control characters (tabs and newlines stay), in plain spaces,
    quotation marks and hyphens."""
    if not text.isascii():
        text = text.translate(_PLAIN)
    if "\x1b" not in text and text.isprintable():
        return text
    if "\x1b" in text:
        import re

        text = re.sub(_ESCAPES, "", text)
    return text.translate(_CONTROLS)


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
