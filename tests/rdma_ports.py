"""RDMA ports and machines with them, for the tests of roles."""

from __future__ import annotations

from typing import Any

from gpu_topo.model.host import NetDevice, Port
from gpu_topo.model.node import BRIDGE, GPU, NIC, Device, Node, Part
from gpu_topo.topology.roles import roles
from tests.build import device, eight_gpus, link


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


def routed(machine: Node, *names: str) -> Node:
    return machine._replace(netdevs=tuple(NetDevice(name, default_route=True) for name in names))


def down(machine: Node, state: str = "DOWN") -> Node:
    """All its ports without a link, the rate a placeholder."""
    return machine._replace(ports=tuple(p._replace(state=state, rate_gbps=10.0) for p in machine.ports))


B200 = Part("B200", "Blackwell", "SXM6", "datacenter", fabric="nvlink", fabric_attach="NVSwitch")


def blackwell(*ports: Port) -> Node:
    machine = eight_gpus()
    devices: dict[str, Device] = {a: d._replace(part=B200) if d.kind == GPU else d for a, d in machine.devices.items()}
    return with_ports(machine._replace(devices=devices), *ports)


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
