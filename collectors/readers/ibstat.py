"""Reads `ibstat`: the ports of every RDMA device, rates without lanes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.ib_rate import is_software, parse_rate, parse_state, port_state, transport
from gpu_topo.collectors.readers.ib_text import Block, begins, blocks, facts
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import Port

KIND = "ibstat"

_DEVICE = re.compile(r"\s*CA:? '([^'\s]{1,64})'\s*\Z")
_PORT = re.compile(r"\s*Port (\d{1,3}):\s*\Z")


def _port(block: Block) -> Port:
    device = block.device
    layer = block.text("link layer")
    hca_type = block.text("ca type")
    rate, lanes, speed = parse_rate(block.get("rate") or "")
    card, function = block.adapter()
    return Port(
        device=device,
        port=block.port,
        link_layer=layer,
        transport=transport(device, layer, hca_type=hca_type),
        state=port_state(block.get("state") or ""),
        phys_state=parse_state(block.get("physical state") or ""),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        sm_lid=block.number("sm lid"),
        firmware=block.text("firmware version"),
        hca_type=hca_type,
        software=is_software(device),
        card=card,
        card_function=function,
    )


def _begins(line: str) -> bool:
    return "CA" in line and bool(_DEVICE.match(line))


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every output is one sample, oldest first."""
    return facts(KIND, where, map(_port, blocks(lines, begins(_DEVICE, _PORT))))


READER = Reader(KIND, _begins, read)
