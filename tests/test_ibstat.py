"""ibstat: a recorded machine, its shorter forms, and ports that are down."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.readers.ibstat import READER, read
from gpu_topo.model.host import Port
from gpu_topo.model.reading import known

ONE = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 59
\t\tSM lid: 10
\t\tCapability mask: 0x2651e848
\t\tLink layer: InfiniBand
"""


def ports(text: str) -> tuple[Port, ...]:
    (sample,) = read(text.splitlines(), "test")
    return sample.ports


def test_recording(corpus: Path) -> None:
    """Nine cards: rates, layers, states and firmware as a search of the text finds them and the corpus expects."""
    text = (corpus / "i01-cori-gpu-ibstat" / "ibstat.txt").read_text(encoding="utf-8")
    found = ports(text)
    assert [port.device for port in found] == re.findall(r"CA '(\w+)'", text)
    assert [port.rate_gbps for port in found] == [float(rate) for rate in re.findall(r"Rate: (\d+)", text)]
    assert [port.link_layer for port in found] == re.findall(r"Link layer: (\w+)", text)
    assert [port.firmware for port in found] == re.findall(r"Firmware version: (\S+)", text)
    assert [port.hca_type for port in found] == re.findall(r"CA type: (\S+)", text)
    named = {f"{port.device}/{port.port}": port._asdict() for port in found}
    for case in json.loads((corpus / "expect" / "i01-cori-gpu-ibstat.json").read_text(encoding="utf-8")):
        for name, wanted in case.get("ports", {}).items():
            for field, value in wanted.items():
                assert named[name][field] == value


def test_lanes_are_not_told() -> None:
    """ibstat prints no lanes and no speed name; nothing is guessed from the rate."""
    (port,) = ports(ONE)
    assert (port.rate_gbps, port.lanes, port.speed) == (400, None, None)
    assert port.transport == "infiniband"


def test_fdr10() -> None:
    """The one speed that ibstat names, since its rate is QDR's."""
    (port,) = ports(ONE.replace("400", "40 (FDR10)"))
    assert (port.rate_gbps, port.speed) == (40, "FDR10")


def test_down() -> None:
    """A port that is down keeps the rate that is printed, and its state in the kernel's words."""
    (port,) = ports(ONE.replace("Active", "Down").replace("LinkUp", "Disabled").replace("400", "10"))
    assert (port.state, port.phys_state, port.rate_gbps) == ("DOWN", "Disabled", 10)
    (port,) = ports(ONE.replace("Active", "Initializing"))
    assert port.state == "INIT"


def test_one_port_form() -> None:
    """`ibstat mlx5_0 1` prints without indentation."""
    text = "CA: 'mlx5_0'\nPort 1:\nState: Active\nPhysical state: LinkUp\nRate: 2.5\nLink layer: Ethernet\n"
    (port,) = ports(text)
    assert (port.device, port.rate_gbps, port.transport) == ("mlx5_0", 2.5, "roce")
    assert READER.begins("CA: 'mlx5_0'")


def test_two_ports_of_a_card() -> None:
    """The card's firmware holds for each of its ports."""
    second = ONE[ONE.index("\tPort 1") :].replace("Port 1", "Port 2").replace("Active", "Down")
    found = ports(ONE + second)
    assert [(port.port, port.state, port.firmware) for port in found] == [
        (1, "ACTIVE", "28.39.1002"),
        (2, "DOWN", "28.39.1002"),
    ]


def test_samples() -> None:
    """The same output twice is two samples, oldest first."""
    first, second = read((ONE + ONE.replace("Active", "Down")).splitlines(), "test")
    assert (first.ports[0].state, second.ports[0].state) == ("ACTIVE", "DOWN")


def test_what_follows() -> None:
    """Another tool's fields behind a prompt are not the port's."""
    (port,) = ports(ONE.replace("\t\tRate: 400\n", "") + "[root@node ~]# other\nRate: 10\n")
    assert port.rate_gbps is None


def test_software() -> None:
    """Soft-RoCE is told by its name."""
    (port,) = ports(ONE.replace("mlx5_0", "rxe0").replace("InfiniBand", "Ethernet"))
    assert port.software
    assert port.transport == "software"


@given(st.text(alphabet="CA 'mlx5_0':\nPort 1Rate\tState0xNaA", max_size=300))
def test_any_text(text: str) -> None:
    """No text makes the reader raise."""
    read((ONE + text).splitlines(), "test")
    read(text.splitlines(), "test")
    READER.begins(text)


def test_much_text() -> None:
    """Long lines and many ports of one card take time in proportion."""
    read(["CA 'a'", *[f"\tfield {n}: 1" for n in range(20_000)], *["\tPort 1:"] * 20_000, " " * 500_000], "test")


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 40", [40.0]),
        ("CA 'mlx5_0'\n\tPort 1:\n\t\tRate: 400\n\t\tSM lid: 1\nCA 'mlx5_1'\n\tPort 1:\n\t\tRate: 40", [400.0, None]),
        ("CA 'mlx5_0'\n\tPort 1:\n\t\tRate: 400\nCA 'mlx5_1'\n\tPort 1:\n\t\tRate: 40\n", [400.0, 40.0]),  # grep
    ],
)
def test_a_rate_at_which_the_text_is_cut_off(text: str, rates: list[float | None]) -> None:
    """40 may be the beginning of 400, where other ports say more than their rate."""
    (sample,) = read(text.splitlines(), "t")
    assert [known(port.rate_gbps) for port in sample.ports] == rates
