"""exporters/matrix.py: the device-by-device table."""

from __future__ import annotations

import csv
import io
import json

import pytest

from gpu_topo.exporters.matrix import FORMATS, render
from gpu_topo.model.node import GPU, NIC, Gpu, Node
from tests import build


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_text_is_aligned(width: int) -> None:
    """Columns stand under their names in every group of columns, no line is wider, and no device is lost."""
    node = build.eight_gpus()
    shown = render(node, "text", width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    groups = shown.split("\n\nGB/s")[0].split("\n\n")
    seen = []
    for group in groups:
        head, *rows = group.splitlines()
        assert len(rows) == 20
        for name in head.split():
            column = head.index(name)
            seen.append(name)
            assert all(row[column - 1] == " " and row[column] != " " for row in rows)
    assert len(seen) == 20


def test_cells() -> None:
    """A cell says the kind of the path and the GB/s of its narrowest link; the diagonal is X."""
    node = build.eight_gpus(gpu_links={0: build.link(32.0, 8)})
    rows = list(csv.reader(io.StringIO(render(node, "csv"))))
    table = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    assert table["GPU0"]["GPU0"] == "X"
    assert table["GPU0"]["GPU1"].startswith("NV18")
    assert table["GPU0"]["mlx5_0"] == "PIX 31.5"
    assert table["GPU1"]["mlx5_0"] == table["mlx5_0"]["GPU1"] == "PIX 63.0"
    assert table["GPU0"]["mlx5_7"].startswith("SYS")
    assert table["GPU2"]["mlx5_0"].startswith("NODE")


def test_json() -> None:
    """The JSON table names every device and holds each pair once."""
    document = json.loads(render(build.eight_gpus(), "json"))
    assert len(document["devices"]) == 20
    assert len(document["paths"]) == 20 * 19 // 2
    assert document["devices"][0] == {
        "name": "GPU0",
        "address": "0000:13:00.0",
        "kind": GPU,
        "model": "NVIDIA H100 SXM5 80GB",
        "numa_node": 0,
        "cpus": "0-55,112-167",
    }


@pytest.mark.parametrize("format", FORMATS)
def test_names_without_addresses(format: str) -> None:
    """A recording without addresses (topo -m alone) gives a table of its names, kinds without GB/s."""
    devices = [build.device("GPU0", GPU), build.device("GPU1", GPU), build.device("mlx5_0", NIC)]
    pairs = {("GPU0", "GPU1"): "NV4", ("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_0"): "SYS"}
    node = build.node(devices, gpus=(Gpu("GPU0", 0), Gpu("GPU1", 1)), stated_paths=pairs)
    shown = render(node, format)
    assert "NV4" in shown
    assert "PIX" in shown


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_known(format: str) -> None:
    """A node without any device gives an empty table of that format."""
    assert render(Node(), format)


def test_only_used_kinds_are_explained() -> None:
    """The legend explains the kinds that occur, and no others."""
    shown = render(build.eight_gpus())
    assert "NODE  different host bridges" in shown
    assert "PHB" not in shown


@pytest.mark.parametrize("format", FORMATS)
def test_controls_never_reach_the_terminal(format: str) -> None:
    """Names are printed with their control characters spelled out."""
    assert "\x1b" not in render(build.hostile_report().node, format)
