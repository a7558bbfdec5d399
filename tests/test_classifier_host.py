"""numa-unknown and payload-size-mismatch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_topo.model.host import BARE_METAL, NumaNode, Platform
from gpu_topo.model.node import BRIDGE, NIC, Node
from gpu_topo.model.reading import DENIED, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.topology.paths import path
from tests import trees
from tests.build import eight_gpus
from tests.nvlinks import GUEST
from tests.trees import Machine, conclusions, findings

NUMA, PAYLOAD = "numa-unknown", "payload-size-mismatch"


@pytest.mark.parametrize(("count", "fires"), [(1, False), (2, True), (8, True), (None, False)])
def test_numa_nodes(count: int | None, fires: bool) -> None:
    """numa_node -1 is worth knowing only where the machine has more than one node."""
    machine = Machine(platform=Platform(kind=BARE_METAL, numa_count=count))
    host = machine.host(0x10, numa=None)
    gpu, nic = machine.gpu(machine.root_port(host)), machine.nic(machine.root_port(host))
    found = findings(machine.node(), NUMA)
    assert [(f.subject, f.severity) for f in found] == ([("node", "info")] if fires else [])
    if fires:
        assert set(found[0].related) == {gpu, nic}


def test_known_numa_nodes() -> None:
    """A device whose node is known, itself or by a bridge above, is nothing to mention."""
    machine = Machine(numa=2)
    gpu = machine.gpu(machine.root_port(machine.host(0x10, numa=1)))
    assert findings(machine.node(), NUMA) == []
    machine.files(gpu, numa_node=b"-1\n")
    assert findings(machine.node(), NUMA) == []


def test_memory_is_no_place() -> None:
    """Memory of GPUs and of CXL shows as NUMA nodes without processors: beside them one node is still the only one."""
    nodes = (NumaNode(0, "0-63"), NumaNode(1), NumaNode(2))
    machine = Machine(platform=Platform(kind=BARE_METAL, numa=nodes, numa_count=1))
    ends = [machine.gpu(machine.root_port(machine.host(bus, numa=None))) for bus in (0x10, 0x40)]
    node = machine.node()
    assert findings(node, NUMA) == []
    assert path(node, *ends).kind == "NODE"


def test_devices_that_nobody_places() -> None:
    """Drives and management displays without a node are not mentioned."""
    machine = Machine(numa=2)
    host = machine.host(0x10, numa=None)
    machine.nvme(machine.root_port(host))
    trees.display(machine, host)
    assert findings(machine.node(), NUMA) == []


def recorded(machine: Node, numa: Mapping[str, Reading[int]]) -> Node:
    """The node as a recording shows it that does not say how many NUMA nodes there are, with these readings."""
    devices = {
        a: d._replace(function=d.function._replace(numa_node=numa[a])) if a in numa else d
        for a, d in machine.devices.items()
    }
    return machine._replace(devices=devices, platform=Platform(kind=BARE_METAL))


LEFT_OUT = Unknown(NOT_RECORDED, "lspci: NUMA node")


def test_a_line_that_lspci_does_not_print() -> None:
    """Where other GPUs tell their NUMA nodes, one that does not is an open question: lspci prints none for -1."""
    machine = eight_gpus()
    gpu = machine.devices[machine.gpus[1].address]
    found, left = conclusions(recorded(machine, {gpu.address: LEFT_OUT}), NUMA)
    assert found == []
    assert [(u.subject, u.cause) for u in left] == [(gpu.address, "not-recorded")]
    assert gpu.path[-2] in left[0].reason
    # A whole path without a line is one too.
    _, left = conclusions(recorded(machine, dict.fromkeys(gpu.path, LEFT_OUT)), NUMA)
    assert [u.subject for u in left] == [gpu.address]
    assert "above it" not in left[0].reason


def test_a_recording_that_says_minus_one() -> None:
    """Two NUMA nodes occur, and the firmware gives this GPU none: information, though nobody counted the nodes."""
    machine = eight_gpus()
    gpu = machine.devices[machine.gpus[1].address]
    (found,) = findings(recorded(machine, dict.fromkeys(gpu.path, Unknown(NO_DATA, "NUMA node"))), NUMA)
    assert (found.severity, found.related) == ("info", (gpu.address,))


def test_a_recording_with_one_numa_node_or_without_any() -> None:
    """That there are several must be seen, and a source that tells it of no device of a kind told nothing."""
    machine = eight_gpus()
    first = machine.gpus[0].address
    one = dict.fromkeys(machine.devices, 0) | {first: LEFT_OUT}
    assert conclusions(recorded(machine, one), NUMA) == ([], [])
    assert conclusions(recorded(machine, dict.fromkeys(machine.devices, LEFT_OUT)), NUMA) == ([], [])
    nics = dict.fromkeys((a for a, d in machine.devices.items() if d.kind in (NIC, BRIDGE)), LEFT_OUT)
    assert conclusions(recorded(machine, nics), NUMA) == ([], [])


def test_a_numa_node_that_could_not_be_read() -> None:
    """The firmware is not to blame for it."""
    machine = eight_gpus()
    gpu = machine.devices[machine.gpus[1].address]
    found, left = conclusions(recorded(machine, dict.fromkeys(gpu.path, Unknown(DENIED, "numa_node"))), NUMA)
    assert (found, [(u.subject, u.cause) for u in left]) == ([], [(gpu.address, "denied")])


def test_a_numa_node_that_only_the_bridge_knows() -> None:
    """The firmware gives a GPU none, and the bridge above it one: no finding, and a reason for the null."""
    machine = Machine(numa=2)
    gpu = machine.gpu(machine.root_port(machine.host(0x10)))
    machine.files(gpu, numa_node=b"-1\n")
    found, left = conclusions(machine.node(), NUMA)
    assert (found, [(u.subject, u.cause) for u in left]) == ([], [(gpu, "unreadable")])


def test_no_numa_node_in_the_copy() -> None:
    """Files that are not there are not recorded: nobody knows what the firmware said."""
    machine = Machine(numa=2)
    gpu = machine.gpu(machine.root_port(machine.host(0x10)))
    for address in machine.parts:
        machine.files(address, numa_node=None)
    found, left = conclusions(machine.node(), NUMA)
    assert (found, [(u.subject, u.cause) for u in left]) == ([], [(gpu, "not-recorded")])


def with_payloads(device: int, port: int, **more: object) -> tuple[Machine, str, str]:
    machine = Machine(config=True, **more)  # type: ignore[arg-type]
    above = machine.root_port(machine.host(0x10), payload=(port, 512))
    return machine, above, machine.gpu(above, payload=(device, 512))


@pytest.mark.parametrize(("device", "port", "fires"), [(256, 256, False), (128, 256, True), (512, 256, True)])
def test_payload(device: int, port: int, fires: bool) -> None:
    """Different payload sizes in use on the two ends of a path are information."""
    machine, above, gpu = with_payloads(device, port)
    found = findings(machine.node(), PAYLOAD)
    assert [(f.subject, f.severity, f.related) for f in found] == ([(gpu, "info", (above,))] if fires else [])


def test_payload_further_up() -> None:
    """The first bridge that differs is named."""
    machine = Machine(config=True)
    switch = machine.switch(machine.root_port(machine.host(0x10), payload=(128, 512)), payload=(256, 512))
    gpu = machine.gpu(machine.down(switch, payload=(256, 512)), payload=(256, 512))
    (found,) = findings(machine.node(), PAYLOAD)
    assert found.subject == gpu
    assert machine.parts[found.related[0]].payload == (128, 512)


def test_payload_not_readable() -> None:
    """Without configuration space, and in a guest, nothing is said, and why."""
    machine, _, _ = with_payloads(128, 256)
    machine.config = False
    found, left = conclusions(machine.node(), PAYLOAD)
    assert (found, [u.cause for u in left]) == ([], ["not-recorded"])
    machine, _, _ = with_payloads(128, 256, platform=GUEST)
    found, left = conclusions(machine.node(), PAYLOAD)
    assert (found, [u.cause for u in left]) == ([], ["virtual-machine"])


def test_payload_needs_root() -> None:
    """What root would add is said once: without it the kernel ends configuration space after 64 bytes."""
    machine, _, _ = with_payloads(128, 256)
    for address in machine.parts:
        machine.files(address, config=trees.config_of(machine.parts[address])[:64])
    found, left = conclusions(machine.node(), PAYLOAD)
    assert found == []
    assert [(item.subject, item.cause) for item in left] == [("node", "denied")]
    assert "root" in left[0].reason
