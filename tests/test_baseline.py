"""A machine's shape is kept as a document and compared with the machine as it is later."""

from __future__ import annotations

import json

from gpu_topo.model.gpu import NvLink
from gpu_topo.model.host import Platform, Port
from gpu_topo.model.node import BRIDGE, GPU, NIC, STORAGE, Device, Gpu, Link, Node, Switch
from gpu_topo.model.pci import Function
from gpu_topo.topology import baseline


def device(address: str, kind: str = GPU, path: tuple[str, ...] = (), width: int = 16, speed: float = 16.0) -> Device:
    link = Link(speed_gts=speed, width=width, expected_speed_gts=16.0, expected_width=16)
    function = Function(address, vendor_id=0x10DE, device_id=0x2330, numa_node=0)
    return Device(address, kind, f"some {kind}", function, link=link, path=(*path, address))


def node(*devices: Device, ports: tuple[Port, ...] = (), gpus: tuple[Gpu, ...] = ()) -> Node:
    bridges = {
        step: Device(step, BRIDGE, "bridge", Function(step, bridge=True), path=found.path[: n + 1])
        for found in devices
        for n, step in enumerate(found.path[:-1])
    }
    found = {**bridges, **{d.address: d for d in devices}}
    return Node(Platform(numa_count=2), devices=found, ports=ports, gpus=gpus)


MACHINE = node(
    device("0000:65:00.0", path=("0000:64:01.0",)),
    device("0000:66:00.0", NIC, path=("0000:64:02.0",)),
    device("0000:67:00.0", STORAGE, path=("0000:64:03.0",)),
    ports=(Port("mlx5_0", 1, address="0000:66:00.0", state="ACTIVE", rate_gbps=400.0),),
    gpus=(Gpu("0000:65:00.0", nvlinks=tuple(NvLink(n, "active") for n in range(18))),),
)
SAVED = json.loads(json.dumps(baseline.document(MACHINE)))


def kinds(changed: Node, exclude: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [(found.kind, found.subject) for found in baseline.differences(changed, SAVED, exclude)]


def test_a_machine_does_not_differ_from_itself() -> None:
    """The document survives JSON, and a machine compared with its own document shows no difference."""
    assert baseline.document(MACHINE) == SAVED
    assert kinds(MACHINE) == []


def test_no_baseline_says_nothing() -> None:
    """Where nothing was saved, nothing differs."""
    assert baseline.differences(MACHINE, {}) == ()
    assert baseline.differences(MACHINE, {"schema": baseline.SCHEMA, "accepted": []}) == ()


def test_counts_use_the_names_of_expect() -> None:
    """The counts carry the names that --expect uses, zeros included."""
    assert SAVED["counts"] == {"gpus": 1, "accelerators": 0, "nics": 1, "nvswitches": 0, "storage": 1}


def test_virtual_functions_count_only_without_their_physical_function() -> None:
    """A virtual function is no device beside its physical function, and serves as one in a guest that sees only it."""
    physical = device("0000:66:00.0", NIC)
    virtual = device("0000:66:00.1", NIC)
    virtual = virtual._replace(
        function=virtual.function._replace(virtual_function=True, physical_function=physical.address)
    )
    assert baseline.counts(node(physical, virtual))["nics"] == 1
    assert baseline.counts(node(virtual))["nics"] == 1


def test_bus_numbers_may_move() -> None:
    """A card added elsewhere shifts bus numbers: that is no difference, since places do not hold them."""
    shifted = node(
        device("0000:75:00.0", path=("0000:64:01.0",)),
        device("0000:76:00.0", NIC, path=("0000:64:02.0",)),
        device("0000:77:00.0", STORAGE, path=("0000:64:03.0",)),
    )
    assert kinds(shifted) == []


def test_missing_and_new_devices_are_told() -> None:
    """A device that is gone is missing at its old address; one that came is new at its own."""
    changed = node(
        device("0000:65:00.0", path=("0000:64:01.0",)),
        device("0000:66:00.0", NIC, path=("0000:64:02.0",)),
        device("0000:68:00.0", GPU, path=("0000:64:04.0",)),
    )
    assert kinds(changed) == [("missing", "0000:67:00.0"), ("new", "0000:68:00.0")]


def test_a_device_in_another_slot_moved() -> None:
    """The same part at another place has moved; it is neither missing nor new."""
    changed = node(
        device("0000:65:00.0", path=("0000:64:01.0",)),
        device("0000:69:00.0", NIC, path=("0000:64:05.0",)),
        device("0000:67:00.0", STORAGE, path=("0000:64:03.0",)),
    )
    assert kinds(changed) == [("moved", "0000:69:00.0")]


def test_an_idle_gpus_speed_is_no_difference_but_a_nics_is() -> None:
    """A GPU's link slows down when idle; a NIC's does not."""
    slow = node(
        device("0000:65:00.0", path=("0000:64:01.0",), speed=2.5),
        device("0000:66:00.0", NIC, path=("0000:64:02.0",), speed=8.0),
        device("0000:67:00.0", STORAGE, path=("0000:64:03.0",), width=8),
    )
    assert kinds(slow) == [("link", "0000:66:00.0"), ("link", "0000:67:00.0")]
    summary = baseline.differences(slow, SAVED)[1].summary
    assert summary == "the link of some storage was Gen4 x16 and is Gen4 x8 (can do Gen4 x16)"


def test_links_that_mean_nothing_are_not_compared() -> None:
    """Emulated or sleeping links are kept as null and not compared."""
    hidden = MACHINE._replace(hidden_links={"0000:66:00.0": "virtual machine"})
    assert baseline.document(hidden)["devices"][1]["link"] is None
    assert kinds(hidden) == []


def test_another_part_in_the_same_place_is_a_replacement() -> None:
    """Other ids at the same place: another card was put there."""
    other = device("0000:66:00.0", NIC, path=("0000:64:02.0",))
    other = other._replace(function=other.function._replace(device_id=0x1021))
    changed = MACHINE._replace(devices={**MACHINE.devices, other.address: other})
    assert kinds(changed) == [("replaced", "0000:66:00.0")]


def test_fewer_nvlinks_are_a_difference() -> None:
    """A GPU that has fewer active NVLinks than it had differs."""
    links = tuple(NvLink(n, "active" if n else "inactive") for n in range(18))
    assert kinds(MACHINE._replace(gpus=(Gpu("0000:65:00.0", nvlinks=links),))) == [("nvlinks", "0000:65:00.0")]


def test_nvlinks_of_unknown_state_are_no_difference() -> None:
    """A state that could not be read is not an inactive link."""
    links = tuple(NvLink(n) for n in range(18))
    assert kinds(MACHINE._replace(gpus=(Gpu("0000:65:00.0", nvlinks=links),))) == []


def test_a_port_that_went_down_differs_once() -> None:
    """A port that was ACTIVE and is DOWN is one difference; its placeholder rate is none."""
    changed = MACHINE._replace(ports=(Port("mlx5_0", 1, address="0000:66:00.0", state="DOWN", rate_gbps=10.0),))
    assert kinds(changed) == [("port", "mlx5_0/1")]


def test_a_renamed_port_is_the_same_port() -> None:
    """udev may name an RDMA device otherwise: its place tells that it is the same."""
    changed = MACHINE._replace(ports=(Port("ibp102s0", 1, address="0000:66:00.0", state="ACTIVE", rate_gbps=400.0),))
    assert kinds(changed) == []


def test_excluded_devices_are_not_missing() -> None:
    """What is excluded is not read, so its absence says nothing."""
    changed = node(*(d for d in MACHINE.devices.values() if d.kind in (GPU, NIC)))
    assert kinds(changed, frozenset({"0000:67:00.0"})) == []


def test_sources_that_said_nothing_are_no_difference() -> None:
    """Where no device and no port could be read, nothing can be said of them."""
    assert kinds(Node()) == []


def test_a_switch_that_lost_a_port_differs() -> None:
    """A PCIe switch with another number of ports is a difference."""
    switch = Switch("0000:70:00.0", "PEX", ("0000:70:00.0", "0000:71:00.0"))
    saved = baseline.document(MACHINE._replace(switches={switch.id: switch}))
    smaller = MACHINE._replace(switches={switch.id: switch._replace(ports=switch.ports[:1])})
    assert [d.kind for d in baseline.differences(smaller, saved)] == ["switch"]


def test_a_document_edited_by_hand_does_not_break_the_comparison() -> None:
    """Rows that are no rows are left out; nothing raises."""
    assert baseline.differences(MACHINE, {"devices": [1, None], "ports": "x", "gpus": {}, "links": 3, "switches": [""]})
