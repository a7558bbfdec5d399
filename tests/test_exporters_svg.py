"""exporters/svg.py: the drawing of the node."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations

import pytest
from defusedxml.ElementTree import fromstring

from gpu_topo.exporters.svg import render
from gpu_topo.model.address import sort_key
from gpu_topo.model.finding import Report
from gpu_topo.model.node import GPU, NIC, STORAGE, Device, Gpu, Node, Switch
from tests import build


def texts(drawing: str) -> list[str]:
    """Every piece of text of the drawing; parsing it proves that it is well-formed."""
    return [element.text or "" for element in fromstring(drawing).iter() if element.tag.endswith("text")]


def large() -> Report:
    """Sixteen GPUs and twenty NICs: two halves of eight switches, and cards that hang from the CPU."""
    devices: list[Device] = []
    switches: dict[str, Switch] = {}
    for group in range(8):
        top = f"0000:{group * 16 + 1:02x}:00.0"
        root = f"0000:{group * 16:02x}:01.0"
        numa = group // 4
        devices.append(build.device(root, "bridge", numa_node=numa))
        devices.append(build.device(top, "bridge", above=(root,), switch=top, numa_node=numa))
        switches[top] = Switch(top, "PEX9797", (top,), build.link())
        for i, kind in enumerate((GPU, GPU, NIC, NIC)):
            address = f"0000:{group * 16 + 2 + i:02x}:00.0"
            devices.append(
                build.device(address, kind, above=(root, top), switch=top, link=build.link(), numa_node=numa)
            )
    devices += [build.device(f"0000:f{i}:00.0", NIC, numa_node=0) for i in range(4)]
    devices += [build.device(f"0000:e{i}:00.0", STORAGE, numa_node=1) for i in range(9)]
    gpus = tuple(Gpu(device.address, nvlinks=build.nvlinks(6, 6)) for device in devices if device.kind == GPU)
    return build.report(build.node(devices, gpus=gpus, switches=switches))


def names_only() -> Report:
    """What `topo -m` alone tells: names, kinds of paths, no tree."""
    devices = [build.device(f"GPU{i}", GPU) for i in range(4)]
    return build.report(build.node(devices, gpus=tuple(Gpu(f"GPU{i}", i) for i in range(4))), verdict="unknown")


MAKERS = [
    build.faulty_report,
    build.hostile_report,
    large,
    names_only,
    lambda: build.report(Node(), verdict="unknown"),
]


@pytest.mark.parametrize("make", MAKERS)
def test_well_formed_and_deterministic(make: Callable[[], Report]) -> None:
    """The drawing is XML whatever the names are, the same each time, and needs nothing from outside."""
    first = render(make())
    assert texts(first)
    assert first == render(make())
    outside = first.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\(|@import|<script|<image|<foreignObject", outside)


def test_every_device_is_drawn() -> None:
    """Each GPU, NIC and storage device has its card, each switch its bar, each NUMA node its box."""
    found = texts(render(build.faulty_report()))
    for name in [f"GPU{i}" for i in range(8)] + [f"mlx5_{i}" for i in range(8)] + [f"nvme{i}" for i in range(4)]:
        assert found.count(name) == 1
    assert found.count("PEX890xx") == 4
    assert "NUMA node 0" in found
    assert "NUMA node 1" in found
    cards = [text for text in texts(render(large())) if re.fullmatch(r"(GPU|NIC|STO)\d+", text)]
    assert len(cards) == len(set(cards)) == 16 + 20 + 9


def test_degraded_links_carry_their_numbers() -> None:
    """A degraded PCIe link and a missing NVLink are marked in the finding's colour, with the figures."""
    drawing = render(build.faulty_report())
    assert re.search(r'class="critical"[^>]*>31\.5 of 63\.0 GB/s<', drawing)
    assert re.search(r'class="warning"[^>]*>15\.8 of 63\.0 GB/s<', drawing)
    assert re.search(r'class="critical"[^>]*>17 of 18<', drawing)


def test_idle_is_not_red() -> None:
    """A link that is slow without a finding is shown, and not as a fault."""
    drawing = render(build.report(build.eight_gpus(gpu_links={0: build.link(2.5, 16)})))
    assert "Gen1 x16" in drawing
    assert not re.search(r'class="[^"]*(critical|warning)', drawing.partition("</style>")[2])


def test_badges_lead_to_the_page() -> None:
    """Inside a page badges are links to the findings; alone they are not."""
    assert 'href="#finding-1"' in render(build.faulty_report(), links=True)
    assert "href" not in render(build.faulty_report())


def test_cards_do_not_overlap() -> None:
    """No two cards share a spot, in a large node either."""
    cards = re.findall(
        r'<rect class="card[^"]*" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', render(large())
    )
    boxes = [tuple(float(number) for number in card) for card in cards]
    for i, (x, y, width, height) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = abs(x - other[0]) >= width or abs(y - other[1]) >= height
            assert apart


def _joined(report: Report) -> Report:
    """The report with one NVLink island of all its GPUs."""
    gpus = sorted((gpu.address for gpu in report.node.gpus), key=sort_key)
    return report._replace(node=report.node._replace(stated_paths=dict.fromkeys(combinations(gpus, 2), "NV18")))


def test_numa_nodes_stand_below_each_other_where_a_page_ends() -> None:
    """A wide node has a line for each NUMA node, so that all of it can be seen; a narrow one has them side by side."""

    def places(report: Report) -> set[str]:
        return set(re.findall(r'<rect class="panel" x="([\d.]+)"', render(report)))

    assert len(places(large())) == 1
    few = [build.device(f"0000:{i}1:00.0", GPU, numa_node=i // 2) for i in range(4)]
    assert len(places(build.report(build.node(few)))) == 2


def test_an_island_of_several_lines_is_joined() -> None:
    """It has one band a line with the same words, and a line from band to band."""
    drawing = render(_joined(large()))
    assert texts(drawing).count("NVLink through NVSwitches, 150 GB/s") == 2
    bands = [int(y) for y in re.findall(r'<rect class="nv" x="[\d.]+" y="([\d.]+)"', drawing)]
    down = re.findall(r'<path class="nvl" d="M([\d.]+) ([\d.]+)L\1 ([\d.]+)"', drawing)
    assert [(int(start), int(stop)) for _, start, stop in down] == [(bands[0] + 12, bands[1] + 12)]


def test_a_slow_gpu_does_not_speak_for_its_island() -> None:
    """The band tells what its GPUs have, and what the slowest of them."""
    assert "NVLink through 4 NVSwitches, 450 GB/s, the slowest GPU 425" in texts(render(build.faulty_report()))
