"""Roles of ports: from peers, rates, routes and places, and from the configuration above all."""

from __future__ import annotations

import pytest

from gpu_topo.model.host import VIRTUAL_MACHINE, NetDevice, Platform
from gpu_topo.model.node import ACCELERATOR, NIC, Part
from gpu_topo.topology.adapters import fabric, nics
from gpu_topo.topology.roles import role, roles
from tests.build import device, eight_gpus, node, only
from tests.rdma_ports import (
    ELSEWHERE,
    FRONT,
    down,
    gpu_cards,
    hdr,
    in_order,
    port,
    roce,
    routed,
    two_ports,
    with_ports,
)


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


@pytest.mark.parametrize("netdevs", [FRONT, ELSEWHERE, ()])
@pytest.mark.parametrize("count", [4, 2])
def test_a_faster_ethernet_adapter_is_not_the_fabric_of_infiniband(count: int, netdevs: tuple[NetDevice, ...]) -> None:
    """Equal InfiniBand adapters for the GPUs, or for half of them, and one Ethernet port that runs at twice their rate:
    front end or storage, with the default route or without."""
    fast = roce("mlx5_9", rate_gbps=400.0, netdev="efront")
    found = roles(node(gpu_cards(4), ports=(*(hdr(n) for n in range(count)), fast), netdevs=netdevs))
    assert [found[f"mlx5_{n}/1"] for n in range(count)] == ["fabric"] * count
    assert found["mlx5_9/1"] == {FRONT: "management", ELSEWHERE: "storage", (): "unknown"}[netdevs]


def test_infiniband_beside_an_ethernet_fabric_serves_storage() -> None:
    """Eight RoCE adapters and one InfiniBand adapter that is twice as fast; two and an old one that is slower."""
    ports = [roce(f"mlx5_{n}", rate_gbps=200.0) for n in range(8)]
    found = roles(node(gpu_cards(8), ports=(*ports, port("mlx5_8"))))
    assert [found[f"mlx5_{n}/1"] for n in range(9)] == ["fabric"] * 8 + ["storage"]
    old = node(gpu_cards(4), ports=(*ports[:2], port("mlx4_0", rate_gbps=56.0)))
    assert in_order(old) == ["fabric", "fabric", "storage"]


def test_a_default_route_over_one_of_the_gpus_own_adapters_does_not_take_it_away() -> None:
    """IPoIB, or the third of eight equal Ethernet adapters: equal in board, rate and place."""
    machine = eight_gpus()
    ethernet = machine._replace(
        ports=tuple(p._replace(link_layer="Ethernet", transport="roce", netdev=f"eth{p.device}") for p in machine.ports)
    )
    assert set(roles(routed(machine, "ibs3")).values()) == {"fabric"}
    assert set(roles(routed(ethernet, "ethmlx5_3", "ethmlx5_4")).values()) == {"fabric"}
    far = node(gpu_cards(4), ports=tuple(hdr(n, netdev=f"ib{n}") for n in range(4)))
    assert set(roles(routed(far, "ib0")).values()) == {"fabric"}


def test_a_default_route_over_an_equal_adapter_that_the_fabric_can_do_without() -> None:
    """One more than the GPUs have, beside them or elsewhere, or one that runs at another rate, is the front end."""
    machine = eight_gpus()
    elsewhere = device("0000:01:00.0", NIC, above=("0000:00:01.0",))
    below = device("0000:19:00.0", NIC, above=("0000:10:01.0", "0000:11:00.0", "0000:12:05.0"))
    for extra in (elsewhere, below):
        found = roles(
            with_ports(
                machine._replace(devices={**machine.devices, extra.address: extra}),
                port("mlx5_8", address=extra.address, netdev="front"),
                netdevs=(NetDevice("front", default_route=True),),
            )
        )
        assert [found[f"mlx5_{n}/1"] for n in range(9)] == ["fabric"] * 8 + ["management"]
    five = node(gpu_cards(4), ports=tuple(hdr(n, netdev=f"ib{n}") for n in range(5)))
    assert in_order(routed(five, "ib4")) == ["fabric"] * 4 + ["management"]
    slow = node(gpu_cards(4), ports=(roce("mlx5_0"), roce("mlx5_1", rate_gbps=25.0)))
    assert in_order(routed(slow, "emlx5_1")) == ["fabric", "management"]
    # Where that one is missing, the route is no reason: four equal ones are left for four GPUs.
    lost = five._replace(ports=five.ports[1:])
    assert set(roles(routed(lost, "ib4")).values()) == {"fabric"}


def test_equal_adapters_elsewhere_do_not_complete_the_fabric() -> None:
    """Four more of the same board serve storage: without the routed one a GPU's place is empty."""
    machine = eight_gpus()
    extra = [device(f"0000:0{n}:00.0", NIC, above=(f"0000:00:0{n}.0",)) for n in range(1, 5)]
    machine = machine._replace(devices={**machine.devices, **{d.address: d for d in extra}})
    machine = with_ports(machine, *(port(f"mlx5_{n}", address=d.address) for n, d in enumerate(extra, 8)))
    found = roles(routed(machine, "ibs0"))
    assert [found[f"mlx5_{n}/1"] for n in range(12)] == ["fabric"] * 8 + ["storage"] * 4


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


@pytest.mark.parametrize(
    ("states", "unused"),
    [
        ("10 00 10 10", [1, 3, 5, 7]),  # the first port of the second card is down
        ("00 00 00 10", [1, 3, 5, 7]),  # of three
        ("11 10 11 11", []),  # a second port that its twins use
        ("11 10 10 10", [3, 5, 7]),  # one that a single card uses
        ("10 01 10 10", [1, 2, 5, 7]),  # the cable in the other socket
        ("11 00 11 11", []),
        ("10", [1]),
    ],
)
def test_second_ports_are_judged_by_their_twins(states: str, unused: list[int]) -> None:
    """The same port of the other cards tells whether a port that is down was ever cabled."""
    ports = two_ports(states)
    assert in_order(node(gpu_cards(8), ports=tuple(ports))) == [
        "unused" if n in unused else "fabric" for n in range(len(ports))
    ]


@pytest.mark.parametrize("state", ["DOWN", "INIT"])
def test_a_fabric_that_is_down_altogether_is_the_fabric(state: str) -> None:
    """What is up beside it did not take its place: beside their GPUs, or InfiniBand on root ports."""
    far = node(gpu_cards(4), ports=tuple(hdr(n) for n in range(4)))
    ethernet = eight_gpus()
    ethernet = ethernet._replace(
        ports=tuple(p._replace(link_layer="Ethernet", transport="roce") for p in ethernet.ports)
    )
    for machine in (eight_gpus(), far, ethernet):
        found = in_order(with_ports(down(machine, state), roce("mlx5_9"), netdevs=ELSEWHERE))
        assert (set(found[:-1]), found[-1]) == ({"fabric"}, "storage")


def test_adapters_that_were_never_cabled_are_unused() -> None:
    """One card of a single GPU, a card with two ports for two GPUs, fewer than the GPUs, Ethernet on root ports, some
    beside a part of the GPUs, a second kind beside a complete fabric, and the Ethernet half of cards whose first port
    is InfiniBand."""
    other = roce("mlx5_9")
    alone = node(gpu_cards(1), ports=(hdr(0, state="DOWN"), other))
    pair = node(gpu_cards(2), ports=(*two_ports("00"), other))
    few = node(gpu_cards(8), ports=(*two_ports("00 00"), other))
    ethernet = node(gpu_cards(2), ports=(*(roce(f"irdma{n}", board_id=None, state="DOWN") for n in range(2)), other))
    odd = down(only(eight_gpus(), *range(6)))
    second = node(gpu_cards(2), ports=(hdr(0, state="DOWN"), hdr(1, state="DOWN"), other, roce("mlx5_10")))
    for machine in (alone, pair, few, ethernet, odd, second):
        told = dict(zip((p.device for p in machine.ports), in_order(machine), strict=True))
        assert {told[p.device] for p in machine.ports if p.state == "DOWN"} == {"unused"}
        assert {told[p.device] for p in machine.ports if p.state == "ACTIVE"} in ({"fabric"}, set())
    half = two_ports("10 10 10 10")
    half = [p._replace(link_layer="Ethernet", transport="roce") if p.state == "DOWN" else p for p in half]
    assert in_order(node(gpu_cards(4), ports=tuple(half))) == ["fabric", "unused"] * 4


def test_ports_on_the_chip_of_an_accelerator_are_its_fabric() -> None:
    """Gaudi's are, whatever else there is: an adapter beside them serves storage, a second full set the GPUs too."""
    chips = [device(f"0000:{0x10 * n:02x}:00.0", ACCELERATOR, part=Part("Gaudi 3")) for n in range(1, 5)]
    own = [
        roce(f"hbl_{n}", address=chip.address, board_id=None, hca_type=None, netdev=None)._replace(port=number)
        for n, chip in enumerate(chips)
        for number in (1, 2)
    ]
    machine = node(chips, ports=(*own, port("mlx5_0")))
    assert in_order(machine) == ["fabric"] * 8 + ["storage"]
    assert [nic.integrated for nic in fabric(machine)] == [True] * 4
    full = roles(machine._replace(ports=(*own, *(port(f"mlx5_{n}") for n in range(4)))))
    assert full["hbl_3/2"] == "fabric"


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
