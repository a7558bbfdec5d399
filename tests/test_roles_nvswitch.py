"""Roles of ports: the adapters through which HGX B200 and B300 boards manage their NVSwitches."""

from __future__ import annotations

import pytest

from gpu_topo.model.host import VIRTUAL_MACHINE, Platform
from gpu_topo.topology.roles import roles
from tests.build import eight_gpus, only
from tests.rdma_ports import (
    blackwell,
    of,
    on_root_ports,
    port,
    with_ports,
)


def test_nvswitch_managers_by_product_data() -> None:
    """What the board says of itself decides."""
    machine = blackwell(port("mlx5_8", management=True, state="DOWN"))
    assert roles(machine)["mlx5_8/1"] == "nvswitch"


def test_nvswitch_managers_by_shape_where_product_data_needs_root() -> None:
    """Four ConnectX-7 of a board type of their own, beside no GPU, on a Blackwell board."""
    managers = [port(f"mlx5_{n}", board_id="NVD0000000054") for n in range(8, 12)]
    assert {roles(blackwell(*managers))[f"mlx5_{n}/1"] for n in range(8, 12)} == {"nvswitch"}
    hopper = with_ports(eight_gpus(), *managers)
    assert {roles(hopper)[f"mlx5_{n}/1"] for n in range(8, 12)} == {"storage"}


def test_nvswitch_managers_are_down_as_a_rule() -> None:
    """From the host their ports look like ports that nobody cabled; an InfiniBand pair for storage is none of them."""
    managers = [port(f"mlx5_{n}", board_id="NVD0000000054", state="DOWN") for n in range(8, 12)]
    storage = [port(f"mlx5_{n}", board_id="MT_0000000834") for n in range(12, 14)]
    found = roles(blackwell(*storage, *managers))
    assert [found[f"mlx5_{n}/1"] for n in range(8, 14)] == ["nvswitch"] * 4 + ["storage"] * 2
    hopper = roles(with_ports(eight_gpus(), *managers))
    assert {hopper[f"mlx5_{n}/1"] for n in range(8, 12)} == {"unused"}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_storage_adapters_of_a_blackwell_board_are_no_nvswitch_managers(count: int) -> None:
    """A few ConnectX-7 of another board beside no GPU are all that is known of them; as little in a guest. A board of
    NVIDIA's own that is sold as an adapter says no more."""
    for board in ("MT_0000000834", "NVD0000000079", None):
        pair = [port(f"mlx5_{n}", board_id=board) for n in range(8, 8 + count)]
        assert of(on_root_ports(blackwell(), *pair), *range(8, 8 + count)) == ["storage"] * count
        assert of(blackwell(*pair), *range(8, 8 + count)) == ["storage"] * count
    guest = blackwell(*(port(f"mlx5_{n}", board_id="MT_0000000834") for n in range(8, 8 + count)))
    assert of(guest._replace(platform=Platform(kind=VIRTUAL_MACHINE)), 8, 9) == ["storage"] * 2


@pytest.mark.parametrize("state", ["DOWN", "ACTIVE"])
def test_nvswitch_managers_beside_a_fabric_of_as_few_adapters(state: str) -> None:
    """Their board, or a function built for two lanes, tells them from storage adapters, how many adapters there are."""
    few = only(blackwell(), 0, 1)
    for board in ("NVD0000000054", "MT_0000009999"):
        managers = [port(f"mlx5_{n}", board_id=board, state=state) for n in range(8, 12)]
        storage = [port(f"mlx5_{n}", board_id="MT_0000000834") for n in range(12, 16)]
        machine = on_root_ports(on_root_ports(few, *managers, width=2), *storage)
        assert of(machine, 0, 1) == ["fabric"] * 2
        assert of(machine, *range(8, 16)) == ["nvswitch"] * 4 + ["storage"] * 4


def test_what_may_be_an_nvswitch_manager_is_neither() -> None:
    """A board of NVIDIA's own with as many lanes as an adapter, or in a guest; without lanes it is enough. Where more
    than a board has would be managers, none is."""
    managers = [port(f"mlx5_{n}", board_id="NVD0000000054") for n in range(8, 12)]
    assert of(on_root_ports(blackwell(), *managers), 8, 11) == ["unknown"] * 2
    guest = blackwell(*managers)._replace(platform=Platform(kind=VIRTUAL_MACHINE))
    assert of(guest, 8, 11) == ["unknown"] * 2
    assert of(blackwell(*managers), 8, 11) == ["nvswitch"] * 2
    more = [port(f"mlx5_{n}", board_id="NVD0000000055") for n in range(12, 15)]
    assert of(on_root_ports(blackwell(), *managers, *more, width=2), 8, 12) == ["unknown"] * 2
