"""firmware-mismatch, roce-mtu-small, gpudirect-missing."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_topo.classifier.port_settings import judge_firmware, judge_gpudirect, judge_mtu
from gpu_topo.model.finding import Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import NetDevice
from gpu_topo.model.node import Node
from gpu_topo.model.reading import DENIED, Unknown
from tests.build import changed, eight_gpus


def test_one_board_with_another_firmware() -> None:
    """The odd one is named; other boards have other firmware by nature."""
    machine = changed(eight_gpus(), 2, firmware="28.39.0001")
    (found,) = judge_firmware(machine, Past(), Policy())
    assert isinstance(found, Finding)
    assert (found.severity, found.subject, found.expected) == ("info", "mlx5_2/1", {"firmware": "28.40.1000"})
    assert list(judge_firmware(changed(machine, 2, board_id="MT_0000000884"), Past(), Policy())) == []
    assert list(judge_firmware(changed(machine, 2, board_id=None), Past(), Policy())) == []
    assert list(judge_firmware(eight_gpus(), Past(), Policy())) == []


def over_ethernet(frame: int | None, **fields: Any) -> Node:
    machine = eight_gpus()
    ports = tuple(p._replace(link_layer="Ethernet", transport="roce", **fields) for p in machine.ports[:1])
    return machine._replace(ports=ports, netdevs=(NetDevice(str(ports[0].netdev), mtu=frame),))


@pytest.mark.parametrize(
    ("frame", "packet", "count"), [(1500, None, 1), (9000, None, 0), (4200, 4096, 0), (None, 1024, 1), (None, 4096, 0)]
)
def test_small_frames_on_roce(frame: int | None, packet: int | None, count: int) -> None:
    """The interface's MTU decides, else the active MTU that ibv_devinfo prints."""
    assert len(list(judge_mtu(over_ethernet(frame, mtu=packet), Past(), Policy()))) == count


def test_mtu_elsewhere_is_not_judged() -> None:
    """InfiniBand, management ports and ports that are down."""
    assert list(judge_mtu(eight_gpus(), Past(), Policy())) == []
    assert list(judge_mtu(over_ethernet(1500), Past(), Policy(roles={"mlx5_0": "management"}))) == []
    assert list(judge_mtu(over_ethernet(1500, state="DOWN"), Past(), Policy())) == []


def test_an_unknown_mtu_is_unassessed() -> None:
    """Neither source tells."""
    (told,) = judge_mtu(over_ethernet(None), Past(), Policy())
    assert isinstance(told, Unassessed)


def host(modules: Any, dmabuf: Any = None) -> Node:
    machine = eight_gpus()
    return machine._replace(platform=machine.platform._replace(modules=modules, dmabuf=dmabuf))


def gpudirect(machine: Node) -> list[Finding | Unassessed]:
    return list(judge_gpudirect(machine, Past(), Policy()))


def test_neither_way_to_gpu_memory() -> None:
    """The driver is loaded, the peer memory module is not, and there is no dma-buf."""
    (found,) = gpudirect(host(frozenset({"nvidia", "mlx5_ib"}), False))
    assert isinstance(found, Finding)
    assert (found.severity, found.subject) == ("info", "node")


@pytest.mark.parametrize(
    ("modules", "dmabuf"),
    [
        (frozenset({"nvidia", "nvidia_peermem"}), False),
        (frozenset({"nvidia", "nv_peer_mem"}), None),
        (frozenset({"nvidia"}), True),
        (frozenset({"nouveau"}), None),
    ],
)
def test_one_way_is_enough(modules: frozenset[str], dmabuf: bool | None) -> None:
    """Either module or dma-buf; and nothing to say without the driver."""
    assert gpudirect(host(modules, dmabuf)) == []


@pytest.mark.parametrize(
    ("modules", "cause"),
    [(None, "not-recorded"), (Unknown(DENIED, "/sys/module"), "denied"), (frozenset({"nvidia"}), "not-recorded")],
)
def test_what_is_not_known_is_unassessed(modules: Any, cause: str) -> None:
    """A recording without modules, or a driver of unknown ability."""
    (told,) = gpudirect(host(modules))
    assert isinstance(told, Unassessed)
    assert told.cause == cause


def test_without_a_fabric_there_is_nothing_to_reach() -> None:
    """No adapter, no GPUDirect; and EFA brings its own."""
    machine = host(frozenset({"nvidia"}), False)
    assert gpudirect(machine._replace(ports=(), devices={})) == []
    efa = tuple(p._replace(transport="efa") for p in machine.ports)
    assert gpudirect(machine._replace(ports=efa)) == []
