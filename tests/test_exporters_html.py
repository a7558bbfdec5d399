"""exporters/html.py: the self-contained page."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from gpu_topo.exporters.html import render
from gpu_topo.model.finding import Report
from gpu_topo.model.node import Node
from tests import build

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks that elements nest, and collects tags, ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if "href" in values else []
        assert not [name for name in values if name.startswith("on") or name == "src"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


MAKERS = [build.faulty_report, build.hostile_report, lambda: build.report(Node(), verdict="unknown")]


@pytest.mark.parametrize("make", MAKERS)
def test_self_contained(make: Callable[[], Report]) -> None:
    """The page nests well, runs no script, loads nothing, and links only into itself."""
    text = render(make())
    page = Page(text)
    assert not page.tags & {"script", "link", "img", "iframe", "image", "object", "embed", "base"}
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", text)


def test_whole_report() -> None:
    """Findings, tree, limits, matrix, ports and devices are on the page."""
    words = " ".join(Page(render(build.faulty_report())).words)
    for piece in (
        "GPU0 runs at Gen5 x8, both ends can do Gen5 x16",
        "31.5 of 63.0",
        "Reseat the card.",
        "PIX 63.0",
        "mlx5_7/1",
        "0000:13:00.0",
        "not cabled",
        "AER counters are not readable here",
    ):
        assert piece in words


def test_names_stay_text() -> None:
    """Nothing of a recording becomes an element, and no control character is left."""
    text = render(build.hostile_report())
    assert "<script" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_refresh() -> None:
    """The daemon's page reloads itself; a saved one does not."""
    assert 'http-equiv="refresh" content="15"' in render(build.report(Node()), refresh=15)
    assert "http-equiv" not in render(build.report(Node()))


def test_notes_alike_are_folded() -> None:
    """Of many notes of one kind a few are in sight and the others behind a fold; what is serious is all in sight."""
    many = [build.finding("pcie-uplink-oversubscribed", "info", f"0000:{i:02x}:00.0", remedy=("a",)) for i in range(9)]
    page = render(build.report(build.eight_gpus(), many))
    assert "and 6 more like this" in " ".join(Page(page).words)
    assert all(f"0000:{i:02x}:00.0" in page for i in range(9))
    serious = [finding._replace(severity="warning") for finding in many]
    assert "more like this" not in render(build.report(build.eight_gpus(), serious))
