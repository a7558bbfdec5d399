"""XML from strangers: no document type, no entities, nothing fetched, bounded in depth and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_topo.collectors.plain_text import clean

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_DEPTH = 128  # hwloc nests bridges inside packages inside groups: some 25
MAX_ELEMENTS = 500_000


class BadXml(Exception):
    """A document that cannot be used; the message says why."""


def parse(lines: Sequence[str]) -> Element:
    """The root element of a document that begins with it (what stands before is cut off); raises BadXml."""
    from xml.etree.ElementTree import Element, ParseError, TreeBuilder

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser

    class Builder(TreeBuilder):
        """Counts as it builds, so that a hostile document ends early."""

        depth = elements = 0

        def start(self, tag: str, attrs: dict[str, str], /) -> Element:
            self.depth += 1
            self.elements += 1
            if self.depth > MAX_DEPTH or self.elements > MAX_ELEMENTS:
                raise BadXml("nested too deep or too long")
            return super().start(tag, {name: _printable(value) for name, value in attrs.items()})

        def end(self, tag: str, /) -> Element:
            self.depth -= 1
            return super().end(tag)

    parser = DefusedXMLParser(target=Builder(), forbid_dtd=True, forbid_entities=True, forbid_external=True)
    try:
        for line in lines:
            parser.feed(line + "\n")
        root = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise BadXml(str(error).partition("\n")[0] or type(error).__name__) from error
    if not isinstance(root, Element):
        raise BadXml("no element in it")
    return root


def _printable(value: str) -> str:
    """A character reference (&#x9b;) can bring back the control characters that a cleaned line no longer has."""
    return value if value.isprintable() else clean(value).replace("\n", " ").replace("\t", " ")
