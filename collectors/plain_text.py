"""How text from outside is cleaned before anyone looks at it: names, lines that were pasted, files of the machine."""

from __future__ import annotations

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
