"""Rates, states and transports of RDMA ports as the kernel and its tools spell them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.ib_rate import is_software, parse_rate, parse_state, port_state, transport


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400 Gb/sec (4X NDR)", (400, 4, "NDR")),
        ("100 Gb/sec (2X HDR)\n", (100, 2, "HDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, 1, "SDR")),
        ("40 Gb/sec (4X FDR10)", (40, 4, "FDR10")),
        ("10 Gb/sec (4X)", (10, 4, None)),
        ("10 Gb/sec", (10, None, None)),
        ("40", (40, None, None)),
        ("2.5", (2.5, None, None)),
        ("3.2 Tb/sec (8X QXDR)", (3200, 8, "QXDR")),
        ("25Gb/s", (25, None, None)),
        ("100 Mb/sec", (0.1, None, None)),
        ("0", (None, None, None)),
        ("N/A", (None, None, None)),
        ("", (None, None, None)),
        ("fast", (None, None, None)),
    ],
)
def test_rate(text: str, expected: tuple[float | None, int | None, str | None]) -> None:
    """Number and unit make Gb/s, lanes and speed come from the bracket, and nothing is guessed."""
    assert parse_rate(text) == expected


def test_every_rate_of_the_reference_table(shared: Path) -> None:
    """Each rate string of the reference table gives the table's rate, lanes and speed name."""
    with open(shared / "facts" / "infiniband_rates.csv", encoding="utf-8") as table:
        rows = [row for row in csv.DictReader(table) if row["context"] == "ib"]
    assert len(rows) > 30
    for row in rows:
        expected = (float(row["gbps_marketing"]), int(row["lanes"]), row["speed_name"])
        assert parse_rate(row["rate_string"]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4: ACTIVE", "ACTIVE"),
        ("5: LinkUp\n", "LinkUp"),
        ("7: Phy Test", "Phy Test"),
        ("LINK_UP (5)", "LINK_UP"),
        ("Active", "Active"),
        ("0: <unknown>", None),
        ("", None),
        ("4", None),
    ],
)
def test_state(text: str, expected: str | None) -> None:
    """The number before a state, or behind it in brackets, is dropped."""
    assert parse_state(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PORT_ACTIVE (4)", "ACTIVE"),
        ("PORT_ACTIVE_DEFER (5)", "ACTIVE_DEFER"),
        ("Active", "ACTIVE"),
        ("Initializing", "INIT"),
        ("2: INIT", "INIT"),
        ("Armed", "ARMED"),
        ("Down", "DOWN"),
        ("1: DOWN", "DOWN"),
        ("invalid state (9)", "INVALID_STATE"),
    ],
)
def test_port_state(text: str, expected: str) -> None:
    """All tools' words for a logical state become the kernel's."""
    assert port_state(text) == expected


def test_transport() -> None:
    """The layer decides between InfiniBand and RoCE, the node type finds iWARP, names find EFA and software."""
    assert transport("mlx5_0", "InfiniBand", "1: CA", "mlx5_core") == "infiniband"
    assert transport("mlx5_bond_0", "Ethernet", "1: CA") == "roce"
    assert transport("hfi1_0", "InfiniBand", "1: CA", "hfi1") == "infiniband"
    assert transport("irdma0", "Ethernet", "4: RNIC", "irdma") == "iwarp"
    assert transport("irdma0", "Ethernet", "1: CA", "irdma") == "roce"
    assert transport("irdma0", "Ethernet") is None
    assert transport("rocep1s0f0", "Ethernet") == "roce"
    assert transport("rdmap16s27", "Unspecified", "7: unspecified", "efa") == "efa"
    assert transport("rdmap16s27", None, vendor_id=0x1D0F) == "efa"
    assert transport("rxe_eth0", "Ethernet", "1: CA") == "software"
    assert transport("siw0", "Ethernet", "4: RNIC") == "software"
    assert transport("i40iw1", "Ethernet", hca_type="I40IW") == "iwarp"
    assert transport("mana_0", "Ethernet") == "roce"
    assert transport("odd0", None) is None
    assert is_software("rxe0")
    assert is_software("dev0", "rdma_rxe")
    assert not is_software("mlx5_0", "mlx5_core")


@given(st.text(), st.text(), st.text())
def test_any_text(device: str, layer: str, text: str) -> None:
    """No text makes a parser raise."""
    parse_rate(text)
    parse_state(text)
    port_state(text)
    transport(device, layer, text)
