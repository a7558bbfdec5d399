"""Reads `ibv_devinfo`, and with `-v` rates and physical states too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.ib_rate import is_software, port_state, transport
from gpu_topo.collectors.readers.ib_text import Block, begins, blocks, facts
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import ABSENT, Facts, SourceStatus
from gpu_topo.model.host import Port
from gpu_topo.model.reading import known

KIND = "ibv_devinfo"

_DEVICE = re.compile(r"\s*hca_id:\s*(\S{1,64})\s*\Z")
_PORT = re.compile(r"\s*port:\s*(\d{1,3})\s*\Z")
_NONE = "No IB devices found"
_CODE = re.compile(r"\((\d{1,5})\)\Z")
_WIDTH = re.compile(r"(\d{1,3})X\b")
_LANE = re.compile(r"(\d{1,5}(?:\.\d{1,4})?) Gbps")
# enum ib_port_phys_state and enum ib_port_speed of the kernel's rdma/ib_verbs.h, in the words that sysfs prints.
_PHYS_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "Phy Test",
}
_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}
_MELLANOX = 0x02C9


def _code(value: str | None) -> int | None:
    match = _CODE.search(value or "")
    return int(match.group(1)) if match else None


def _rate(block: Block) -> tuple[float | None, int | None, str | None]:
    """Gb/s, lanes and speed name: `-v` prints the lanes and the rate of one of them."""
    width = _WIDTH.match(block.get("active_width") or "")
    lane = _LANE.match(block.get("active_speed") or "")
    lanes = int(width.group(1)) or None if width else None
    gbps = lanes * float(lane.group(1)) if lanes and lane else None
    return gbps or None, lanes, _SPEEDS.get(_code(block.get("active_speed")) or 0)


def _port(block: Block) -> Port:
    device = block.device
    layer = block.text("link_layer")
    vendor = known(block.number("vendor_id"))
    part = known(block.number("vendor_part_id"))
    rate, lanes, speed = _rate(block)
    card, function = block.adapter()
    return Port(
        device=device,
        port=block.port,
        link_layer=layer,
        transport=transport(device, layer, node_type=block.get("transport"), vendor_id=vendor),
        state=port_state(block.get("state") or ""),
        phys_state=_PHYS_STATES.get(_code(block.get("phys_state")) or 0),
        rate_gbps=rate,
        lanes=lanes,
        speed=speed,
        sm_lid=block.number("sm_lid"),
        mtu=block.number("active_mtu"),
        firmware=block.text("fw_ver"),
        board_id=block.text("board_id"),
        # What sysfs and ibstat print for the same part.
        hca_type=f"MT{part}" if vendor == _MELLANOX and part else None,
        software=is_software(device),
        card=card,
        card_function=function,
    )


def _begins(line: str) -> bool:
    return ("hca_id:" in line and bool(_DEVICE.match(line))) or line.strip() == _NONE


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every output is one sample, oldest first; "No IB devices found" is a sample without ports."""
    samples = facts(KIND, where, map(_port, blocks(lines, begins(_DEVICE, _PORT))))
    if not samples and any(line.strip() == _NONE for line in lines):
        samples.append(Facts(SourceStatus(f"{KIND} ({where})", ABSENT, _NONE)))
    return samples


READER = Reader(KIND, _begins, read)
