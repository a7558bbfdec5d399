"""Roles of ports: from peers, rates, routes and places, and from the configuration above all."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.model.host import VIRTUAL_MACHINE, NetDevice, Platform, Port
from gpu_topo.model.node import ACCELERATOR, BRIDGE, GPU, NIC, Device, Node, Part
from gpu_topo.model.structure import PIX
from gpu_topo.topology.adapters import fabric, nics
from gpu_topo.topology.ports import line_rate
from gpu_topo.topology.roles import role, roles
from tests.build import device, eight_gpus, link, node, only


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


def gpu_cards(count: int) -> list[Device]:
    """GPUs on root ports of their own, as NICs then are: nothing is beside anything."""
    return [device(f"0000:{0x80 + n:02x}:00.0", GPU, above=(f"0000:{0x60 + n:02x}:01.0",)) for n in range(count)]


def hdr(number: int, **fields: Any) -> Port:
    """An active HDR port of a ConnectX-6."""
    return port(f"mlx5_{number}", **({"rate_gbps": 200.0, "board_id": "MT_0000000223", "hca_type": "MT4123"} | fields))


def two_ports(states: str, **fields: Any) -> list[Port]:
    """Cards with two functions: "10 11" is one with its first port up and one with both up."""
    return [
        hdr(
            2 * number + function,
            address=f"0000:{0x11 + number:02x}:00.{function}",
            state="ACTIVE" if up == "1" else "DOWN",
            **fields,
        )
        for number, card in enumerate(states.split())
        for function, up in enumerate(card)
    ]


def in_order(machine: Node) -> list[str]:
    """The roles of the ports, in the order of the ports."""
    found = roles(machine)
    return [found[f"{p.device}/{p.port}"] for p in machine.ports]


FRONT = (NetDevice("efront", default_route=True),)
ELSEWHERE = (NetDevice("eno1", default_route=True),)


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


def routed(machine: Node, *names: str) -> Node:
    return machine._replace(netdevs=tuple(NetDevice(name, default_route=True) for name in names))


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


def down(machine: Node, state: str = "DOWN") -> Node:
    """All its ports without a link, the rate a placeholder."""
    return machine._replace(ports=tuple(p._replace(state=state, rate_gbps=10.0) for p in machine.ports))


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


def test_nvswitch_managers_are_down_as_a_rule() -> None:
    """From the host their ports look like ports that nobody cabled; an InfiniBand pair for storage is none of them."""
    managers = [port(f"mlx5_{n}", board_id="NVD0000000054", state="DOWN") for n in range(8, 12)]
    storage = [port(f"mlx5_{n}", board_id="MT_0000000834") for n in range(12, 14)]
    found = roles(blackwell(*storage, *managers))
    assert [found[f"mlx5_{n}/1"] for n in range(8, 14)] == ["nvswitch"] * 4 + ["storage"] * 2
    hopper = roles(with_ports(eight_gpus(), *managers))
    assert {hopper[f"mlx5_{n}/1"] for n in range(8, 12)} == {"unused"}


def on_root_ports(machine: Node, *ports: Port, width: int = 16) -> Node:
    """The machine with these ports on adapters of their own, each below a root port, beside no GPU."""
    devices: dict[str, Device] = dict(machine.devices)
    placed = []
    for number, found in enumerate(ports, len(devices)):
        root, own = f"0000:{number:02x}:1f.0", f"00e1:{number:02x}:00.0"
        devices[root] = device(root, BRIDGE)
        lanes = link(32.0, width, port=root, max_width=width)
        devices[own] = device(own, NIC, "ConnectX-7", above=(root,), link=lanes, vendor_id=0x15B3)
        placed.append(found._replace(address=own))
    return machine._replace(devices=devices, ports=(*machine.ports, *placed))


def of(machine: Node, *numbers: int) -> list[str]:
    """The roles of these mlx5 devices."""
    found = roles(machine)
    return [found[f"mlx5_{n}/1"] for n in numbers]


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
