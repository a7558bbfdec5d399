"""exporters/markdown.py: the report for a ticket."""

from __future__ import annotations

from markdown_it import MarkdownIt

from gpu_topo.exporters.markdown import code, escape, render
from gpu_topo.model.node import Node
from tests import build


def html(text: str) -> str:
    """The markdown as a GitHub-like renderer shows it; raw HTML is passed on, as an attacker would wish."""
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_whole_report() -> None:
    """Findings, tree, limits, what was not judged and what was accepted are there, and tables are tables."""
    shown = html(render(build.faulty_report()))
    for piece in (
        "<h2>CRITICAL: node7</h2>",
        "<code>pcie-width-degraded</code>",
        "31.5 GB/s in each direction",
        "<li>Reseat the card.</li>",
        "0000:13:00.0 GPU0",
        "<th>narrowest</th>",
        "<code>pcie-errors</code>",
        "not cabled (ops, until 2027-01-01)",
    ):
        assert piece in shown


def test_names_stay_text() -> None:
    """Nothing of a recording becomes markup: no element, no control character."""
    text = render(build.hostile_report())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>" not in html(text)


def test_escape() -> None:
    """What markdown would read as markup is escaped; an underscore inside a name is not."""
    assert escape("mlx5_0 *a* <b> _c_ |") == r"mlx5_0 \*a\* \<b\> \_c\_ \|"


def test_code_with_backticks() -> None:
    """Inline code holds a backtick without ending."""
    assert html(code("a`b")) == "<p><code>a`b</code></p>\n"
    assert html(code("`")) == "<p><code>`</code></p>\n"


def test_nothing_known() -> None:
    """A node of which nothing is known gives a report all the same."""
    assert render(build.report(Node(), verdict="unknown")).startswith("## UNKNOWN")
