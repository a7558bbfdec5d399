"""ibv_devinfo with and without -v: RoCE, InfiniBand, iWARP, EFA and software devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.readers.ibv_devinfo import READER, read
from gpu_topo.model.host import Port

SHORT = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.41.1000
\tnode_guid:\t\t\t0000:0000:0000:0001
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\tboard_id:\t\t\tMT_0000000834
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t7
\t\t\tport_lid:\t\t9
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet
"""
VERBOSE = (
    SHORT.replace("\tphys_port_cnt", "\tdevice_cap_flags:\t\t0x21361c36\n\t\t\t\t\tBAD_PKEY_CNTR\n\tphys_port_cnt")
    + """\t\t\tport_cap_flags:\t\t0xa259e848
\t\t\tactive_width:\t\t2X (16)
\t\t\tactive_speed:\t\t50.0 Gbps (64)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0000:00ff:fe00:0001, RoCE v1
\t\t\tGID[  1]:\t\tfe80::ff:fe00:1, RoCE v2

"""
)


def one(text: str) -> Port:
    (sample,) = read(text.splitlines(), "test")
    (port,) = sample.ports
    return port


def test_recording(corpus: Path) -> None:
    """Four ports that are down: state, board and firmware, and no rate, since none is printed."""
    lines = (corpus / "m23-4xrtx6000ada-esc8000" / "ibv_devinfo.txt").read_text(encoding="utf-8").splitlines()
    (sample,) = read(lines, "m23")
    assert [port.device for port in sample.ports] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert {port.state for port in sample.ports} == {"DOWN"}
    assert {port.transport for port in sample.ports} == {"roce"}
    assert {port.board_id for port in sample.ports} == {"MT_0000000834"}
    assert [port.firmware for port in sample.ports] == ["28.41.1000"] * 2 + ["28.43.2566"] * 2
    assert {(port.rate_gbps, port.lanes, port.speed, port.phys_state) for port in sample.ports} == {(None,) * 4}
    assert sum(READER.begins(line) for line in lines) == 4


def test_short() -> None:
    """Without -v: what is printed, and nothing of rates and GIDs."""
    port = one(SHORT)
    assert (port.state, port.mtu, port.sm_lid) == ("ACTIVE", 1024, 7)
    assert port.hca_type == "MT4129"
    assert (port.rate_gbps, port.phys_state) == (None, None)


def test_verbose() -> None:
    """With -v: lanes times the rate of a lane, the state of the link, the RoCE versions."""
    port = one(VERBOSE)
    assert (port.rate_gbps, port.lanes, port.speed) == (100, 2, "HDR")
    assert port.phys_state == "LinkUp"


@pytest.mark.parametrize(
    ("width", "speed", "rate"),
    [
        ("4X (2)", "100.0 Gbps (128)", 400),
        ("4X (2)", "14.0 Gbps (16)", 56),
        ("1X (1)", "2.5 Gbps (1)", 2.5),
        ("4X (2)", "200.0 Gbps (256)", 800),
        ("8X (4)", "400.0 Gbps (512)", 3200),
        ("invalid width (0)", "25.0 Gbps (32)", None),
        ("4X (2)", "invalid speed (0)", None),
    ],
)
def test_rates(width: str, speed: str, rate: float | None) -> None:
    """Rates of every generation, a later one included, and none of a width or speed that the tool does not know."""
    text = VERBOSE.replace("2X (16)", width).replace("50.0 Gbps (64)", speed)
    assert one(text).rate_gbps == rate


def test_transports() -> None:
    """The transport line and the vendor tell iWARP and EFA; the name tells software."""
    assert one(SHORT.replace("Ethernet", "InfiniBand")).transport == "infiniband"
    assert one(SHORT.replace("InfiniBand (0)", "iWARP (1)")).transport == "iwarp"
    efa = SHORT.replace("mlx5_0", "rdmap0s6").replace("0x02c9", "0x1d0f").replace("InfiniBand (0)", "unspecified (4)")
    assert one(efa.replace("Ethernet", "Unspecified")).transport == "efa"
    assert one(efa).hca_type is None
    assert one(SHORT.replace("mlx5_0", "siw0").replace("InfiniBand (0)", "iWARP (1)")).transport == "software"


def test_none_found() -> None:
    """ "No IB devices found" is an answer."""
    (sample,) = read(["No IB devices found"], "test")
    assert READER.begins("No IB devices found")
    assert sample.source.status == "absent"
    assert sample.ports == ()


@given(st.text(alphabet="hca_id:\t port 1()Xx0GID[]\nactive_speed", max_size=300))
def test_any_text(text: str) -> None:
    """No text makes the reader raise."""
    read((VERBOSE + text).splitlines(), "test")
    read(text.splitlines(), "test")
    READER.begins(text)
