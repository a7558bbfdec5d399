"""topology/shape.py: one hash for the wiring of a node."""

from __future__ import annotations

import pytest

from gpu_topo.model.node import NIC, Node
from gpu_topo.topology.shape import DIGITS, shape
from tests import build


def test_equal_whatever_the_numbers() -> None:
    """Two nodes of one kind have one shape, whatever their bus numbers, serial numbers and names."""
    first = build.eight_gpus()
    second = build.eight_gpus(first_bus=0x18, serial="7")
    second = second._replace(platform=second.platform._replace(hostname="another"))
    assert shape(first) == shape(second)
    assert len(shape(first)) == DIGITS


def test_equal_while_idle() -> None:
    """What a link runs at does not count: an idle GPU slows its link down."""
    assert shape(build.eight_gpus()) == shape(build.eight_gpus(gpu_links={3: build.link(2.5, 16)}))


@pytest.mark.parametrize(
    "other",
    [
        build.eight_gpus(without_gpu=5),
        build.eight_gpus(nvlinks_active={2: 17}),
        build.eight_gpus(nic_rate_gbps=200.0),
        build.eight_gpus(gpu_links={0: build.link(16.0, 8, max_speed_gts=16.0, max_width=8)}),
    ],
    ids=["a GPU is missing", "an NVLink is missing", "slower ports", "a narrower slot"],
)
def test_different_when_something_is_missing(other: Node) -> None:
    """A missing device or link, slower ports and a narrower slot are another shape."""
    assert shape(build.eight_gpus()) != shape(other)


def test_virtual_functions_do_not_count() -> None:
    """Virtual functions beside their physical function leave the shape as it is."""
    node = build.eight_gpus()
    nic = next(device for device in node.devices.values() if device.kind == NIC)
    virtual = build.device("0000:15:00.1", NIC, virtual_function=True, physical_function=nic.address)
    assert shape(node) == shape(node._replace(devices={**node.devices, virtual.address: virtual}))


def test_empty_node() -> None:
    """A node of which nothing is known has a shape, too."""
    assert shape(Node())
