"""Roles of ports: from peers, rates, routes and places, and from the configuration above all."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.model.host import VIRTUAL_MACHINE, NetDevice, Platform, Port
from gpu_topo.model.node import GPU, NIC, Device, Node, Part
from gpu_topo.model.structure import PIX
from gpu_topo.topology.adapters import fabric, nics
from gpu_topo.topology.ports import line_rate
from gpu_topo.topology.roles import role, roles
from tests.build import device, eight_gpus, node


def port(name: str = "mlx5_0", **fields: Any) -> Port:
    """An active NDR port of a ConnectX-7."""
    values: dict[str, Any] = {
        "link_layer": "InfiniBand",
        "transport": "infiniband",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbps": 400.0,
        "board_id": "MT_0000000838",
        "hca_type": "MT4129",
    }
    return Port(name, 1, **(values | fields))


def roce(name: str, **fields: Any) -> Port:
    """An active RoCE port."""
    values: dict[str, Any] = {
        "link_layer": "Ethernet",
        "transport": "roce",
        "rate_gbps": 100.0,
        "board_id": "MT_0000000359",
        "hca_type": "MT4125",
        "netdev": f"e{name}",
    }
    return port(name, **(values | fields))


def with_ports(machine: Node, *ports: Port, **fields: Any) -> Node:
    return machine._replace(ports=(*machine.ports, *ports), **fields)


def test_equal_ports_beside_gpus_are_the_fabric() -> None:
    """Eight NDR ports, one on each GPU's switch."""
    assert set(roles(eight_gpus()).values()) == {"fabric"}


def test_the_configuration_decides() -> None:
    """A role can be given by port, device, interface, bond or address."""
    machine = eight_gpus()
    first = machine.ports[0]
    for name in ("mlx5_0/1", "mlx5_0", str(first.netdev), str(first.address)):
        assert role(machine, first, {name: "storage"}) == "storage"
    assert role(machine, machine.ports[1], {"mlx5_0": "storage"}) == "fabric"


def test_other_boards_serve_storage_or_management() -> None:
    """A RoCE card beside an InfiniBand fabric: management where the default route goes, else storage."""
    machine = with_ports(
        eight_gpus(),
        roce("mlx5_8"),
        roce("mlx5_9"),
        netdevs=(NetDevice("emlx5_8", default_route=True), NetDevice("emlx5_9")),
    )
    found = roles(machine)
    assert (found["mlx5_8/1"], found["mlx5_9/1"], found["mlx5_0/1"]) == ("management", "storage", "fabric")


def test_without_a_routing_table_nobody_knows() -> None:
    """A fast Ethernet port beside the fabric is of unknown use where no routes are recorded."""
    assert roles(with_ports(eight_gpus(), roce("mlx5_8")))["mlx5_8/1"] == "unknown"


def test_a_default_route_on_a_bond_reaches_its_member() -> None:
    """The port's interface is a member, the route is the bond's."""
    machine = with_ports(
        eight_gpus(),
        roce("mlx5_bond_0", bond="bond0", netdev="eth0"),
        netdevs=(NetDevice("bond0", default_route=True), NetDevice("eth0", master="bond0")),
    )
    assert roles(machine)["mlx5_bond_0/1"] == "management"


def test_the_only_adapter_is_the_fabric_whatever_it_carries() -> None:
    """A machine with one RoCE adapter trains over it, default route or not."""
    machine = node(ports=(roce("mlx5_0"),), netdevs=(NetDevice("emlx5_0", default_route=True),))
    assert roles(machine) == {"mlx5_0/1": "fabric"}


def test_slow_ethernet_is_no_fabric() -> None:
    """On-board ports that speak RDMA at 10 Gb/s carry no training traffic; InfiniBand does at any rate."""
    assert roles(node(ports=(roce("irdma0", rate_gbps=10.0),))) == {"irdma0/1": "unknown"}
    assert roles(node(ports=(port("qib0", rate_gbps=10.0),))) == {"qib0/1": "fabric"}


def test_a_port_that_is_down_beside_its_twins_stays_fabric() -> None:
    """It is the fabric's port that is down. Where no port of its board is up, it is unused."""
    machine = eight_gpus()
    down = machine._replace(ports=(machine.ports[0]._replace(state="DOWN"), *machine.ports[1:]))
    assert roles(down)["mlx5_0/1"] == "fabric"
    alone = with_ports(machine, roce("mlx5_8", state="DOWN"))
    assert roles(alone)["mlx5_8/1"] == "unused"


def test_the_second_port_of_a_card_that_was_never_cabled_is_unused() -> None:
    """Two-port cards are often cabled once."""
    cards = [f"0000:{bus:02x}:00" for bus in (0x15, 0x35)]
    ports = [
        port(f"mlx5_{n}", address=f"{card}.{n % 2}", state="DOWN" if n % 2 else "ACTIVE")
        for n, card in enumerate((cards[0], cards[0], cards[1], cards[1]))
    ]
    assert list(roles(node(ports=tuple(ports))).values()) == ["fabric", "unused", "fabric", "unused"]


def test_what_is_left_over_near_a_full_set_serves_storage() -> None:
    """Ten equal adapters of which eight sit beside the eight GPUs."""
    machine = eight_gpus()
    far = {f"mlx5_{n}": f"0000:0{n}:00.0" for n in (8, 9)}
    extra = [device(address, NIC, above=(f"0000:00:0{n}.0",)) for n, address in enumerate(far.values(), 1)]
    machine = machine._replace(devices={**machine.devices, **{d.address: d for d in extra}})
    found = roles(with_ports(machine, *(port(name, address=address) for name, address in far.items())))
    assert [found[f"mlx5_{n}/1"] for n in range(10)] == ["fabric"] * 8 + ["storage"] * 2


def test_a_guest_hides_places_and_all_equal_ports_are_fabric() -> None:
    """In a virtual machine nearness says nothing."""
    machine = eight_gpus()
    machine = with_ports(machine, port("mlx5_8"), platform=Platform(kind=VIRTUAL_MACHINE))
    assert roles(machine)["mlx5_8/1"] == "fabric"


def test_software_and_spare_virtual_functions_are_no_adapters() -> None:
    """rxe, and a virtual function whose physical function is there too."""
    machine = eight_gpus()
    physical = str(machine.ports[0].address)
    machine = with_ports(
        machine,
        port("rxe0", software=True, transport="software"),
        port("mlx5_20", virtual_function=True, physical_function=physical),
    )
    assert roles(machine)["rxe0/1"] == roles(machine)["mlx5_20/1"] == "unknown"
    assert len(fabric(machine)) == 8


def test_a_lone_virtual_function_serves_as_the_device() -> None:
    """A guest that sees only the virtual function has it as its adapter."""
    vf = device("0000:05:00.0", NIC, virtual_function=True)
    machine = node([vf], ports=(port("mlx5_0", address="0000:05:00.0", virtual_function=True),))
    assert [nic.role for nic in nics(machine)] == ["fabric"]


B200 = Part("B200", "Blackwell", "SXM6", "datacenter", fabric="nvlink", fabric_attach="NVSwitch")


def blackwell(*ports: Port) -> Node:
    machine = eight_gpus()
    devices: dict[str, Device] = {a: d._replace(part=B200) if d.kind == GPU else d for a, d in machine.devices.items()}
    return with_ports(machine._replace(devices=devices), *ports)


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
