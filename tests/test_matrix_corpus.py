"""The matrix agrees with every recorded `nvidia-smi topo -m`, cell by cell, where both sides can be known."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpu_topo.agent.inspect import conclude
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.exporters import matrix
from gpu_topo.model.facts import Facts

_KINDS = r"NV\d+|PIX|PXB|PHB|NODE|SYS|X"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def cells(text: str) -> dict[tuple[str, str], str]:
    """What the tool printed, by a simple reading of its own: names of rows and columns -> kind."""
    found: dict[tuple[str, str], str] = {}
    columns: list[str] = []
    for line in _ESCAPE.sub("", text).splitlines():
        words = line.split()
        if len(words) > 1 and re.fullmatch(r"GPU0", words[0]) and words[1] != "X":
            columns = [w for w in words if re.fullmatch(r"GPU\d+|NIC\d+|mlx5_\w+", w)]
        elif columns and words and words[0] in columns:
            kinds = [w for w in words[1:] if re.fullmatch(_KINDS, w)][: len(columns)]
            found.update({(words[0], column): kind for column, kind in zip(columns, kinds, strict=False)})
    return found


def ours(facts: list[Facts]) -> dict[tuple[str, str], str]:
    """The same from the product's own JSON matrix, by the names that it shows."""
    table = json.loads(matrix.render(conclude(facts).node, "json"))
    names = {place["address"]: place["name"] for place in table["devices"]}
    found = {}
    for path in table["paths"]:
        a, b = names[path["a"]], names[path["b"]]
        found[a, b] = found[b, a] = path["kind"]
    return found


def test_every_recorded_matrix(corpus: Path) -> None:
    """GPU-to-GPU cells of a matrix alone come out as they went in."""
    files = sorted(corpus.glob("*/nvidia-smi-topo-m.txt"))
    assert files
    for file in files:
        want = {pair: kind for pair, kind in cells(file.read_text()).items() if kind != "X"}
        got = ours([fact for entry in read_inputs([str(file)]) for fact in entry.facts])
        pairs = [pair for pair in want if all(name.startswith("GPU") for name in pair)]
        assert pairs, file
        assert {pair: got[pair] for pair in pairs} == {pair: want[pair] for pair in pairs}, file


def test_structure_says_the_same(corpus: Path) -> None:
    """Where a recording holds the PCI tree as well, the kinds worked out from it are those that the tool printed."""
    compared = 0
    for file in sorted(corpus.glob("*/nvidia-smi-topo-m.txt")):
        beside = [str(p) for p in sorted(file.parent.glob("lspci-*.txt"))]
        facts = [fact for entry in read_inputs(beside) for fact in entry.facts] if beside else []
        if not any(fact.functions for fact in facts):
            continue
        want, got = cells(file.read_text()), ours(facts)
        for pair, kind in want.items():
            if kind == "X" or kind.startswith("NV") or got.get(pair) in (None, "UNKNOWN"):
                continue
            assert got[pair] == kind, (file, pair)
            compared += 1
    assert compared
