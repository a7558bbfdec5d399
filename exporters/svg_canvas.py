"""The pieces that the drawing is made of: text, boxes, lines, badges, and the SVG document around them.

Every string is cleaned and escaped here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape as escape_xml

from gpu_topo.exporters.words import clean
from gpu_topo.model.finding import INFO
from gpu_topo.model.record import NamedTuple

LETTER, BOLD_LETTER = 6.4, 7.0  # about the width of a letter at 11 px

STYLE = """
.gt{--bg:#fff;--panel:#f5f6f8;--line:#9aa3b0;--ink:#1c2430;--dim:#5d6878;--card:#fff;--edge:#cfd5de;
--gpu:#0b7a5f;--nic:#1f5fbf;--sto:#7a4bb5;--red:#c81e1e;--amber:#b45f06;--nv:#d8efe6;--nvline:#0b7a5f;
font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
@media (prefers-color-scheme:dark){.gt{--bg:#14181f;--panel:#1b212b;--line:#5d6878;--ink:#e6eaf0;--dim:#98a3b3;
--card:#232b37;--edge:#3a4554;--gpu:#35c295;--nic:#6ea3f5;--sto:#b792ea;--red:#ff6b63;--amber:#f0a845;--nv:#173a30;
--nvline:#35c295}}
.gt .bg{fill:var(--bg)}.gt .panel{fill:var(--panel);stroke:var(--edge)}.gt .cpu{fill:var(--card);stroke:var(--line)}
.gt .bar{fill:var(--card);stroke:var(--line)}.gt .card{fill:var(--card);stroke:var(--edge)}
.gt text{fill:var(--ink)}.gt .dim{fill:var(--dim)}.gt .b{font-weight:600}.gt .h{font-size:17px;font-weight:600}
.gt .l{stroke:var(--line);fill:none}.gt .far{stroke:var(--line);stroke-dasharray:4 4;fill:none}
.gt .gpu{fill:var(--gpu)}.gt .nic{fill:var(--nic)}.gt .sto{fill:var(--sto)}.gt .oth{fill:var(--line)}
.gt .nvl{stroke:var(--nvline);fill:none}.gt .nv{fill:var(--nv);stroke:var(--nvline)}
.gt .critical{stroke:var(--red)}.gt .warning{stroke:var(--amber)}
.gt text.critical,.gt .badge.critical{fill:var(--red);stroke:none}
.gt text.warning,.gt .badge.warning{fill:var(--amber);stroke:none}
.gt .card.critical,.gt .card.warning,.gt .bar.critical,.gt .bar.warning{stroke-width:2}
.gt .badge.info,.gt .badge.unknown{fill:var(--dim)}.gt .badge.ok{fill:var(--gpu)}.gt .in{fill:var(--bg);font-weight:700}
"""


class Mark(NamedTuple):
    """The worst severity and the numbers of the findings on one thing."""

    severity: str
    numbers: tuple[int, ...]

    @property
    def alarm(self) -> str:
        """The severity that colours what is drawn: none for what is only worth knowing."""
        return "" if self.severity == INFO else self.severity


class Canvas:
    """What was drawn so far; later pieces cover earlier ones. Lengths are pixels; links: badges lead to findings."""

    def __init__(self, links: bool = False) -> None:
        self.links = links
        self.parts: list[str] = []

    def text(self, x: float, y: float, content: str, style: str = "", anchor: str = "", room: float = 0) -> None:
        """One line of text, cut where it would not fit into `room` pixels."""
        content = clean(content)
        most = int(room / (BOLD_LETTER if "b" in style.split() else LETTER))
        if room and len(content) > most:
            content = content[: max(most - 1, 1)] + "…"
        attributes = (f' class="{style}"' if style else "") + (f' text-anchor="{anchor}"' if anchor else "")
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{attributes}>{escape_xml(content)}</text>')

    def rect(self, style: str, x: float, y: float, width: float, height: float, radius: int = 5) -> None:
        """A rounded box."""
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'
        )

    def line(self, style: str, x1: float, y1: float, x2: float, y2: float, width: float = 1.5) -> None:
        """A straight line."""
        self.parts.append(f'<path class="{style}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke-width="{width:g}"/>')

    def badge(self, x: float, y: float, mark: Mark) -> None:
        """The numbers of the findings that sit here."""
        shown = ",".join(str(number) for number in mark.numbers[:3])
        size = 14 + 6 * (len(shown) - 1)
        if self.links:
            self.parts.append(f'<a href="#finding-{mark.numbers[0]}">')
        self.rect(f"badge {mark.severity}", x - size, y - 7, size, 14, 7)
        self.text(x - size / 2, y + 4, shown, "in", "middle")
        if self.links:
            self.parts.append("</a>")

    @contextmanager
    def titled(self, title: str) -> Iterator[None]:
        """What is drawn meanwhile shows this title under the pointer."""
        self.parts.append(f"<g><title>{escape_xml(clean(title))}</title>")
        yield
        self.parts.append("</g>")


def document(width: float, height: float, title: str, *layers: Canvas) -> str:
    """The SVG document of these layers, the first one lowest."""
    title = escape_xml(clean(title))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="gt" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="bg" width="{width:g}" height="{height:g}"/>',
            *(part for layer in layers for part in layer.parts),
            "</svg>",
            "",
        ]
    )
