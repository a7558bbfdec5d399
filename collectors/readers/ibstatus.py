"""Reads `ibstatus`: the ports of every RDMA device in the kernel's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.ib_rate import is_software, parse_rate, parse_state, port_state, transport
from gpu_topo.collectors.readers.ib_text import Block, blocks, facts
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import Facts
from gpu_topo.model.host import Port

KIND = "ibstatus"

_PORT = re.compile(r"\s*Infiniband device '([^'\s]{1,64})' port (\d{1,3}) status:\s*\Z", re.IGNORECASE)


def _begin(line: str) -> tuple[str | None, int | None] | None:
    match = _PORT.match(line)
    return (match.group(1), int(match.group(2))) if match else None


def _port(block: Block) -> Port:
    device = block.device
    layer = block.text("link_layer")
    rate, lanes, speed = parse_rate(block.get("rate") or "")
    gid = block.text("default gid") or ""
    return Port(
        device=device,
        port=block.port,
        link_layer=layer,
        transport=transport(device, layer),
        state=port_state(block.get("state") or ""),
        phys_state=parse_state(block.get("phys state") or ""),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        sm_lid=block.number("sm lid"),
        # The upper half of an InfiniBand GID is the subnet's.
        subnet_prefix=":".join(gid.split(":")[:4]) if layer == "InfiniBand" and gid.count(":") == 7 else None,
        software=is_software(device),
    )


def _begins(line: str) -> bool:
    return "nfiniband device" in line and bool(_PORT.match(line))


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every output is one sample, oldest first."""
    return facts(KIND, where, map(_port, blocks(lines, _begin)))


READER = Reader(KIND, _begins, read)
