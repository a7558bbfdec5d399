"""Roles of ports where adapters are missing, left over, of several kinds, or half known."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.model.host import NetDevice
from gpu_topo.model.node import GPU, NIC, Node, Part
from gpu_topo.model.structure import PIX
from gpu_topo.topology.adapters import fabric, nics
from gpu_topo.topology.ports import line_rate
from gpu_topo.topology.roles import roles
from tests.build import device, eight_gpus, node, only
from tests.rdma_ports import (
    ELSEWHERE,
    FRONT,
    down,
    gpu_cards,
    hdr,
    in_order,
    of,
    on_root_ports,
    port,
    roce,
    with_ports,
)


def test_one_adapter_for_two_gpus_is_a_fabric_that_is_down_too() -> None:
    """Four InfiniBand adapters beside eight GPUs: the front end did not take their place. Four others in use beside
    GPUs did."""
    half = only(eight_gpus(), 0, 2, 4, 6)
    front = roce("mlx5_9", netdev="efront")
    assert in_order(with_ports(down(half), front, netdevs=FRONT)) == ["fabric"] * 4 + ["management"]
    assert in_order(with_ports(down(half), front, netdevs=ELSEWHERE)) == ["fabric"] * 4 + ["storage"]
    live = eight_gpus()
    mixed = live._replace(
        ports=tuple(
            p._replace(state="DOWN", rate_gbps=10.0, board_id="MT_0000000223") if n % 2 else p
            for n, p in enumerate(live.ports)
        )
    )
    assert in_order(mixed) == ["fabric", "unused"] * 4


@pytest.mark.parametrize("rate", [25.0, 100.0])
def test_an_on_board_adapter_of_the_default_route_is_no_fabric(rate: float) -> None:
    """The only one with RDMA, or a bond of its two ports: management. InfiniBand, one for each GPU, or one without the
    route is the fabric."""
    machine = only(eight_gpus())
    lone = roce("mlx5_0", rate_gbps=rate, netdev="efront")
    assert in_order(with_ports(machine, lone, netdevs=FRONT)) == ["management"]
    assert in_order(with_ports(machine, lone, netdevs=ELSEWHERE)) == ["fabric"]
    assert in_order(with_ports(machine, hdr(0, netdev="efront"), netdevs=FRONT)) == ["fabric"]
    assert in_order(node(gpu_cards(1), ports=(lone,), netdevs=FRONT)) == ["fabric"]
    bond = [
        roce(f"mlx5_{n}", rate_gbps=rate, netdev=f"eth{n}", bond="bond0", address=f"0000:05:00.{n}") for n in (0, 1)
    ]
    assert in_order(with_ports(machine, *bond, netdevs=(NetDevice("bond0", default_route=True),))) == ["management"] * 2
    second = bond[1]._replace(bond=None, state="DOWN")
    one = with_ports(machine, bond[0]._replace(bond=None), second, netdevs=(NetDevice("eth0", default_route=True),))
    assert in_order(one) == ["management", "unused"]


def test_adapters_without_rdma_devices_beside_a_front_end_that_has_one() -> None:
    """Slingshot's show none: they are the fabric as without it. Another of the front end's maker would show one, and
    beside a fabric with RDMA devices they are none."""
    fast = [
        device(f"0000:{n:02x}:00.0", NIC, class_code=0x020000, part=Part("Cassini", port_max_gbps=200.0), vendor_id=v)
        for n, v in ((5, 0x17DB), (6, 0x17DB), (7, 0x15B3))
    ]
    on_board = device("0000:08:00.0", NIC, class_code=0x020000, vendor_id=0x15B3)
    machine = node([*gpu_cards(4), *fast, on_board], netdevs=FRONT)
    front = roce("mlx5_9", rate_gbps=25.0, netdev="efront", address="0000:08:00.0")
    assert [nic.role for nic in nics(machine._replace(ports=(front,)))] == ["fabric"] * 2 + ["unknown", "management"]
    both = machine._replace(ports=(front, *(hdr(n) for n in range(4))))
    assert [nic.address for nic in fabric(both) if not nic.ports] == []


def test_slower_boards_where_the_others_are_missing_are_fabric() -> None:
    """A replaced adapter, or the second half of a machine that is of another generation. Slower ones on switches that
    are complete, and the front end, are not."""
    machine = eight_gpus()

    def slower(*numbers: int, rate: float = 200.0) -> Node:
        return machine._replace(
            ports=tuple(
                p._replace(board_id="MT_0000000223", rate_gbps=rate) if n in numbers else p
                for n, p in enumerate(machine.ports)
            )
        )

    for numbers in ((5,), (4, 5, 6, 7), (0, 3)):
        assert set(roles(slower(*numbers)).values()) == {"fabric"}
    lost = eight_gpus()
    below = [device(f"0000:{b:02x}:00.0", NIC, above=lost.devices[f"0000:{b - 4:02x}:00.0"].path[:2]) for b in (25, 57)]
    extra = [hdr(8 + n, address=d.address) for n, d in enumerate(below)]
    lost = lost._replace(devices={**lost.devices, **{d.address: d for d in below}})
    found = in_order(with_ports(only(lost, 1, 2, 3, 4, 5, 6, 7), *extra))
    assert found == ["fabric"] * 7 + ["storage"] * 2
    ethernet = machine._replace(
        ports=tuple(
            p._replace(link_layer="Ethernet", transport="roce", netdev="efront" if n == 5 else f"e{n}")
            for n, p in enumerate(slower(5, rate=25.0).ports)
        )
    )
    assert of(ethernet, 5) == ["fabric"]
    assert of(ethernet._replace(netdevs=FRONT), 4, 5) == ["fabric", "management"]


@pytest.mark.parametrize("kept", [8, 7])
def test_storage_adapters_stay_so_when_one_of_the_fabric_is_missing(kept: int) -> None:
    """Two equal ones beside no GPU, as long as most GPUs have one beside them; where few have, place says nothing."""
    extra = [port(f"mlx5_{n}", hca_type=None) for n in (8, 9)]
    machine = on_root_ports(only(eight_gpus(), *range(kept)), *extra)
    assert in_order(machine) == ["fabric"] * kept + ["storage"] * 2
    assert in_order(on_root_ports(only(eight_gpus(), 0, 1), *extra)) == ["fabric"] * 4
    half = on_root_ports(only(eight_gpus(), 0, 2, 4, 6), *extra)  # one for two GPUs, by design
    assert in_order(half) == ["fabric"] * 4 + ["storage"] * 2


@pytest.mark.parametrize(("kept", "left"), [(6, 1), (6, 2), (5, 2)])
def test_as_many_as_are_missing_may_be_in_a_wrong_slot(kept: int, left: int) -> None:
    """Equal adapters beside no GPU, no more of them than GPUs without one: they were meant for these."""
    extra = [port(f"mlx5_{n}", hca_type=None) for n in range(8, 8 + left)]
    assert in_order(on_root_ports(only(eight_gpus(), *range(kept)), *extra)) == ["fabric"] * (kept + left)


def test_an_equal_adapter_of_unknown_place_may_be_anywhere() -> None:
    """It is not known to be beside no GPU."""
    machine = with_ports(only(eight_gpus(), *range(6)), port("mlx5_8", hca_type=None))
    assert set(in_order(machine)) == {"fabric"}


def test_dpus_beside_infiniband_are_not_the_fabric() -> None:
    """Four BlueField-3 at twice the rate on the switches of four InfiniBand adapters, for eight GPUs; also without a
    name. More of them than InfiniBand adapters, or nearer ones, are the fabric."""

    def mixed(dpus: tuple[int, ...], **fields: Any) -> Node:
        machine = eight_gpus()
        values: dict[str, Any] = {"link_layer": "Ethernet", "transport": "roce", "board_id": "MT_0000001069"}
        values |= {"hca_type": "MT41692"} | fields
        return machine._replace(
            ports=tuple(
                p._replace(**values) if n in dpus else p._replace(rate_gbps=200.0) for n, p in enumerate(machine.ports)
            ),
            netdevs=ELSEWHERE,
        )

    assert in_order(mixed((1, 3, 5, 7))) == ["fabric", "storage"] * 4
    assert in_order(mixed((1, 2, 3, 4, 5, 6, 7))) == ["storage"] + ["fabric"] * 7
    far = on_root_ports(only(mixed((1, 3, 5, 7)), 1, 3, 5, 7), *(hdr(n) for n in range(8, 12)))
    assert in_order(far) == ["fabric"] * 4 + ["storage"] * 4
    ethernet = mixed((1, 3, 5, 7), hca_type="MT4129")  # no DPU: the faster set
    assert in_order(ethernet) == ["storage", "fabric"] * 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"class_code": 0x020700}, "fabric"),
        ({"class_code": 0x020000}, "unknown"),
        ({"class_code": 0x020000, "part": Part("ConnectX-6 Dx", port_max_gbps=200.0)}, "fabric"),
        ({"class_code": 0x020000, "part": Part("I350", port_max_gbps=1.0)}, "unknown"),
    ],
)
def test_adapters_that_no_rdma_source_speaks_of(fields: dict[str, Any], expected: str) -> None:
    """A recording of lspci alone: InfiniBand by class, fast Ethernet by exact part."""
    (nic,) = nics(node([device("0000:05:00.0", NIC, **fields)]))
    assert nic.role == expected


def test_an_adapter_in_the_bond_of_the_default_route_is_the_front_end() -> None:
    """Its interface is a member, the route is the bond's; a bond without the route may be anything."""
    adapter = device("0000:05:00.0", NIC, class_code=0x020000)
    member = NetDevice("eth0", adapter.address, 100_000, master="bond0")
    for routed, expected in ((True, "management"), (False, "fabric")):
        (nic,) = nics(node([adapter], netdevs=(member, NetDevice("bond0", default_route=routed))))
        assert nic.role == expected


def test_where_rdma_is_known_other_adapters_are_not_the_fabric() -> None:
    """An adapter without an RDMA device beside adapters that have one."""
    machine = eight_gpus()
    other = device("0000:05:00.0", NIC, part=Part("E810", port_max_gbps=100.0))
    machine = machine._replace(devices={**machine.devices, other.address: other})
    assert len(fabric(machine)) == 8


def test_adapters_that_topo_m_names() -> None:
    """nvidia-smi lists RDMA adapters without addresses; the ones beside GPUs are told by its own cells."""
    devices = [device(f"GPU{n}", GPU) for n in range(2)] + [device(f"mlx5_{n}", NIC) for n in range(3)]
    paths = {("GPU0", "mlx5_0"): PIX, ("GPU1", "mlx5_1"): PIX, ("GPU0", "mlx5_2"): "SYS", ("GPU1", "mlx5_2"): "SYS"}
    machine = node(devices, stated_paths=paths)
    assert [nic.address for nic in fabric(machine)] == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_the_interface_knows_the_rate_of_ethernet() -> None:
    """mlx5 prints 40 Gb/sec (4X QDR) for Ethernet speeds that it does not know."""
    machine = node(ports=(roce("mlx5_0", rate_gbps=40.0),), netdevs=(NetDevice("emlx5_0", speed_mbps=800_000),))
    assert line_rate(machine, machine.ports[0]) == 800
