"""Placement: what is near each GPU, what leaves the node, and settings that are never guessed."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from gpu_topo.model.host import VIRTUAL_MACHINE, NetDevice, Port
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, OTHER, Device, Node, Part
from gpu_topo.model.reading import NOT_RECORDED, Unknown, known
from gpu_topo.model.structure import NODE as NODE_PATH
from gpu_topo.model.structure import PIX, UNKNOWN_PATH, Path
from gpu_topo.topology.nearness import Neighbourhood, rank
from gpu_topo.topology.paths import Router
from gpu_topo.topology.placement import placement
from tests import trees
from tests.build import changed, device, eight_gpus, link, node, only
from tests.trees import GEN5, Machine


def lines(machine: Node) -> dict[str, str]:
    """Line -> reason."""
    return {setting.line: setting.reason for setting in placement(machine).settings}


def line(machine: Node, word: str) -> str:
    return next(text for text in lines(machine) if word in text)


def test_each_gpu_has_its_node_processors_and_neighbours() -> None:
    """The adapters and the drive of its own switch, the widest first."""
    placed = placement(eight_gpus())
    first, last = placed.gpus[0], placed.gpus[-1]
    assert (first.numa_node, first.cpus, last.numa_node) == (0, "0-55,112-167", 1)
    assert [(near.name, near.kind) for near in first.nics or ()] == [("mlx5_0", "PIX"), ("mlx5_1", "PIX")]
    assert [near.name for near in first.storage or ()] == ["nvme0"]
    assert (placed.nic_to_gpu_ratio, placed.scale_out_gbs_per_gpu) == (1.0, 50.0)


def test_the_summary_says_what_the_node_is_good_for() -> None:
    """Tensor parallelism inside, GB/s per GPU outside, and the limit."""
    assert placement(eight_gpus()).summary == (
        "Tensor parallelism up to 8 inside NVLink (nvswitch); 50 GB/s per GPU and direction to other nodes over "
        "8 fabric adapters, limited by the line rate of the ports."
    )
    assert "4 adapters for 8 GPUs" in placement(only(eight_gpus(), 0, 2, 4, 6)).summary
    assert "ports that are down (mlx5_0)" in placement(changed(eight_gpus(), 0, state="DOWN")).summary


def test_a_pcie_link_may_be_narrower_than_its_port() -> None:
    """Gen4 x8 carries 15.75 of the port's 50 GB/s."""
    machine = eight_gpus()
    slow = link(16.0, 8, max_speed_gts=16.0, max_width=8)
    devices = {a: d._replace(link=slow) if d.kind == NIC else d for a, d in machine.devices.items()}
    placed = placement(machine._replace(devices=devices))
    assert placed.scale_out_gbs_per_gpu == pytest.approx(15.754, abs=0.001)
    assert "the PCIe links of mlx5_0" in placed.summary


def test_a_dpu_brings_what_its_slot_carries() -> None:
    """A 400 Gb/s DPU in a x8 slot shows x16 inside, and brings half of that to the GPU."""
    machine = Machine()
    machine.gpu(machine.root_port(machine.host(0x10)))
    trees.dpu(machine, machine.root_port(machine.host(0x20), (GEN5, 8)), (GEN5, 8))
    placed = placement(machine.node())
    assert placed.scale_out_gbs_per_gpu == pytest.approx(31.508)
    assert "limited by the PCIe links of mlx5_0" in placed.summary


def test_ports_on_the_chip_cross_no_pcie_link() -> None:
    """Most of Gaudi's ports join it with its neighbours: what leaves the node is known where the configuration says
    which do, and then the PCIe link does not limit it. NCCL does not drive them."""
    chips = [device(f"0000:{0x10 * n:02x}:00.0", ACCELERATOR, part=Part("Gaudi 3"), link=link()) for n in (1, 2)]
    ports = tuple(
        Port(f"hbl_{n}", number, chip.address, None, "Ethernet", "roce", "ACTIVE", rate_gbps=200.0)
        for n, chip in enumerate(chips)
        for number in range(1, 25)
    )
    machine = node(chips, ports=ports)
    placed = placement(machine)
    assert (placed.nic_to_gpu_ratio, placed.scale_out_gbs_per_gpu) == (1.0, None)
    assert "library of their own" in lines(machine)[line(machine, "NCCL_IB_HCA")]
    roles = {f"{p.device}/{p.port}": "fabric" if p.port > 21 else "unused" for p in ports}
    assert placement(machine, roles).scale_out_gbs_per_gpu == 75.0


def test_what_is_not_known_is_left_out() -> None:
    """An unknown rate gives no figure; a machine without GPUs no advice."""
    placed = placement(changed(eight_gpus(), 0, rate_gbps=None))
    assert placed.scale_out_gbs_per_gpu is None
    assert "not known" in placed.summary
    assert placement(node()).summary == ""
    bare = placement(only(eight_gpus()))
    assert (bare.nic_to_gpu_ratio, bare.scale_out_gbs_per_gpu) == (None, None)


def test_an_inventory_without_classes_may_hold_more_adapters() -> None:
    """One by its name and seven functions of which nothing is known: no ratio, and the sentence says so."""
    machine = only(eight_gpus())
    known_one = device("0000:01:00.0", NIC, above=("0000:00:01.0",), part=Part("ConnectX-6 Dx", port_max_gbps=200.0))
    others = [device(f"0000:0{n}:00.0", OTHER, above=(f"0000:00:0{n}.0",)) for n in range(2, 9)]
    devices = {**machine.devices, **{d.address: d for d in (known_one, *others)}}
    placed = placement(machine._replace(devices=devices, sources=machine.sources[:1]))
    assert placed.nic_to_gpu_ratio is None
    assert "at least 1 fabric adapter for 8 GPUs" in placed.summary


def test_a_guest_has_no_nearest() -> None:
    """Paths that a hypervisor hides are not ranked: what is nearest is unknown, and not nothing."""
    machine = eight_gpus()
    devices = {
        a: d._replace(path=(a,), function=d.function._replace(numa_node=None)) for a, d in machine.devices.items()
    }
    platform = machine.platform._replace(kind=VIRTUAL_MACHINE)
    placed = placement(machine._replace(devices=devices, platform=platform, switches={}))
    assert {(row.nics, row.storage) for row in placed.gpus} == {(None, None)}
    assert {row.numa_node for row in placed.gpus} == {None}


def test_adapters_are_named_exactly() -> None:
    """Only ports that are up, and mlx5_1 must not mean mlx5_10."""
    machine = changed(eight_gpus(), 3, state="DOWN")
    text = line(machine, "NCCL_IB_HCA")
    assert text.startswith('export NCCL_IB_HCA="=mlx5_0:1,')
    assert "mlx5_3" not in text
    assert "1 more are down" in lines(machine)[text]


def test_bootstrap_follows_the_default_route() -> None:
    """The bond and not its members; left out where no route is known."""
    machine = eight_gpus()
    assert "NCCL_SOCKET_IFNAME is left out" in line(machine, "NCCL_SOCKET_IFNAME")
    routed = machine._replace(
        netdevs=(NetDevice("bond0", default_route=True), NetDevice("eth0", master="bond0", default_route=True))
    )
    assert line(routed, "NCCL_SOCKET_IFNAME") == 'export NCCL_SOCKET_IFNAME="=bond0"'


def test_hostile_names_do_not_reach_a_shell() -> None:
    """A recording may name an interface anything."""
    machine = changed(eight_gpus(), 0, device='mlx5_0";reboot;"')
    machine = machine._replace(netdevs=(NetDevice("$(reboot)", default_route=True),))
    assert not any("reboot" in text for text in lines(machine))


def test_efa_needs_no_such_variable() -> None:
    """libfabric finds EFA devices itself."""
    machine = eight_gpus()
    machine = machine._replace(ports=tuple(p._replace(transport="efa") for p in machine.ports))
    text = line(machine, "NCCL_IB_HCA")
    assert text.startswith("#")
    assert "libfabric" in lines(machine)[text]


def test_gpus_are_ordered_by_island_and_node() -> None:
    """The driver's own numbers; left out where it gave none or where they are no NVIDIA GPUs."""
    machine = eight_gpus()
    assert line(machine, "CUDA_VISIBLE_DEVICES") == "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
    unnumbered = machine._replace(gpus=tuple(g._replace(ordinal=None) for g in machine.gpus))
    assert line(unnumbered, "CUDA_VISIBLE_DEVICES").startswith("#")
    other = machine._replace(gpus=tuple(g._replace(vendor_id=0x1002) for g in machine.gpus))
    assert line(other, "CUDA_VISIBLE_DEVICES").startswith("#")


def test_each_rank_is_bound_to_its_node() -> None:
    """One line for each GPU; none on a machine with one NUMA node, or where a GPU's node is not known."""
    machine = eight_gpus()
    bound = [text for text in lines(machine) if text.startswith("numactl")]
    assert bound[0] == "numactl --cpunodebind=0 --membind=0 COMMAND  # local rank 0"
    assert bound[7] == "numactl --cpunodebind=1 --membind=1 COMMAND  # local rank 7"
    single = machine._replace(platform=machine.platform._replace(numa=None, numa_count=1))
    assert "nothing to bind" in lines(single)[line(single, "numactl")]
    devices = {a: d._replace(function=d.function._replace(numa_node=None)) for a, d in machine.devices.items()}
    assert "not known" in lines(machine._replace(devices=devices))[line(machine._replace(devices=devices), "numactl")]


# --- the nearest, against asking for every pair


def random_machine(chance: random.Random, forgotten: float = 0.0) -> Node:
    """GPUs and adapters below switches, on root ports of their own, on one or two host bridges and NUMA nodes.
    forgotten: how likely a device's bridges, and how likely its NUMA node, are not recorded."""
    devices: list[Device] = []
    bus = 1
    for socket in range(chance.choice((1, 2))):
        for number in range(chance.randint(1, 4)):
            root = f"0000:{bus:02x}:01.0"
            place: dict[str, Any] = {"numa_node": socket, "host_bridge": f"pci0000:{bus:02x}"}
            devices.append(device(root, "bridge", **place))
            above: tuple[str, ...] = (root,)
            if chance.random() < 0.6:
                top = f"0000:{bus + 1:02x}:00.0"
                devices.append(device(top, "bridge", above=above, port_type="upstream-port", **place))
                above = (root, top)
            for slot in range(chance.randint(0, 4) if len(above) > 1 else 1):
                below = above
                if len(above) > 1:
                    port = f"0000:{bus + 2:02x}:{slot:02x}.0"
                    devices.append(device(port, "bridge", above=above, port_type="downstream-port", **place))
                    below = (*above, port)
                kind = chance.choice((GPU, NIC))
                told = dict(place)
                if forgotten and chance.random() < forgotten:
                    told["numa_node"] = None
                end = device(f"0000:{bus + 3 + slot:02x}:00.0", kind, above=below, link=link(), **told)
                if forgotten and chance.random() < forgotten:
                    cut = end.function._replace(parent=Unknown(NOT_RECORDED, "the bridge above"), host_bridge=None)
                    end = end._replace(path=(end.address,), function=cut)
                devices.append(end)
            bus += 0x10 + number
    return node(devices)


@pytest.mark.parametrize("seed", range(60))
def test_the_nearest_is_the_nearest_of_all(seed: int) -> None:
    """Looking at a GPU's surroundings finds what asking for every pair finds."""
    machine = random_machine(random.Random(seed))
    gpus = [a for a, d in machine.devices.items() if d.kind == GPU]
    adapters = [a for a, d in machine.devices.items() if d.kind == NIC]
    router = Router(machine)
    around = Neighbourhood(router, adapters)
    for gpu in gpus:
        every = [router.path(gpu, nic) for nic in adapters]
        kinds = [path for path in every if path.kind != UNKNOWN_PATH]
        best = min((rank(path.kind) for path in kinds), default=None)
        wanted = {path.b for path in kinds if rank(path.kind) == best}
        assert {path.b for path in around.nearest(gpu).paths} == wanted
        assert around.nearest(gpu).hidden is None


@pytest.mark.parametrize("seed", range(60))
def test_nothing_of_unknown_place_may_be_nearer(seed: int) -> None:
    """Where bridges and NUMA nodes are not recorded, the nearest is stated only if no adapter in doubt could be nearer:
    of a whole tree only NODE and SYS can be in doubt, and nothing is nearer than PIX."""
    machine = random_machine(random.Random(seed), 0.3)
    machine = machine._replace(platform=machine.platform._replace(numa_count=2))
    adapters = [a for a, d in machine.devices.items() if d.kind == NIC]
    router = Router(machine)
    around = Neighbourhood(router, adapters)
    whole = {a for a, d in machine.devices.items() if d.function.parent is None or len(d.path) > 1}
    for gpu in (a for a, d in machine.devices.items() if d.kind == GPU):
        every = [router.path(gpu, nic) for nic in adapters]
        best = min((rank(path.kind) for path in every if path.kind != UNKNOWN_PATH), default=rank(UNKNOWN_PATH))
        at_best = {nic: rank(NODE_PATH) if {gpu, nic} <= whole else rank(PIX) for nic in adapters}
        doubtful = {path.b for path in every if path.kind == UNKNOWN_PATH and at_best[path.b] < best}
        hidden = around.nearest(gpu).hidden
        assert (hidden is not None) == bool(doubtful)
        assert hidden is None or hidden in doubtful


def test_the_work_does_not_grow_with_every_pair() -> None:
    """A GPU with an adapter on its own switch asks for no path to the others."""
    machine = eight_gpus()
    asked: list[tuple[str, str]] = []

    class Counting(Router):
        def path(self, a: str, b: str) -> Path:
            asked.append((a, b))
            return super().path(a, b)

    adapters = [str(known(port.address)) for port in machine.ports]
    around = Neighbourhood(Counting(machine), adapters)
    for gpu in machine.gpus:
        around.nearest(gpu.address)
    assert len(asked) == 16 < len(list(product(machine.gpus, adapters)))
