"""The table of limits: what the ports of the nearest adapter carry."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.exporters import html, markdown, text
from gpu_topo.exporters.limits import Limit, limits
from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import GPU, NIC
from gpu_topo.topology.placement import placement
from tests.build import eight_gpus, report
from tests.test_nics import forgotten


def first(*ports: Port) -> Limit:
    """The row of GPU0 where its nearest adapter has these ports."""
    node = eight_gpus()
    node = node._replace(ports=(*ports, *node.ports[2:]))
    return limits(report(node), placement(node))[0]


def port(number: int = 1, **fields: Any) -> Port:
    """A port of the adapter that is nearest to GPU0."""
    return eight_gpus().ports[0]._replace(port=number, **fields)


@pytest.mark.parametrize(
    ("ports", "gbs"),
    [
        ((port(),), 50.0),
        ((port(1, rate_gbps=200.0), port(2, rate_gbps=200.0)), 50.0),
        ((port(1, state="DOWN", rate_gbps=10.0), port(2, rate_gbps=200.0)), 25.0),
        ((port(state="DOWN", rate_gbps=10.0),), None),
    ],
)
def test_the_ports_that_are_up_count_together(ports: tuple[Port, ...], gbs: float | None) -> None:
    """A port that is down prints a placeholder, which is no rate."""
    assert first(*ports).port_gbs == gbs


def test_ethernet_goes_by_its_interface() -> None:
    """The driver prints 40 Gb/s for Ethernet speeds that it does not know."""
    node = eight_gpus()
    ports = tuple(p._replace(link_layer="Ethernet", transport="roce", rate_gbps=40.0) for p in node.ports)
    netdevs = tuple(NetDevice(str(p.netdev), speed_mbps=200_000) for p in ports)
    node = node._replace(ports=ports, netdevs=netdevs)
    assert limits(report(node), placement(node))[0].port_gbs == 25.0


def test_a_nearest_adapter_that_is_not_known_is_no_missing_one() -> None:
    """The table says unknown, in every format: neither a far adapter nor none."""
    node = eight_gpus()
    ends = [a for a, d in node.devices.items() if d.kind in (GPU, NIC)]
    told = report(forgotten(node, *ends))
    row = limits(told, placement(told.node))[0]
    assert (row.nic, row.path_gbs, row.port_gbs, row.narrowest) == ("unknown", None, None, "")
    for render in (text.render, markdown.render, html.render):
        shown = render(told)
        assert "unknown" in shown
        assert "None" not in shown
