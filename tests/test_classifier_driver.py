"""gpu-lost, gpu-driver-unresponsive and gpu-driver-missing."""

from __future__ import annotations

import pytest

from gpu_topo.model.facts import SourceStatus
from gpu_topo.model.gpu import DriverState
from gpu_topo.model.node import Node
from gpu_topo.model.reading import Unknown
from tests import trees
from tests.nvlinks import drivers, gpus_of, machine_with
from tests.trees import Machine, conclusions, findings, unassessed

LOST, UNRESPONSIVE, MISSING = "gpu-lost", "gpu-driver-unresponsive", "gpu-driver-missing"


def listing(count: int, listed: list[int], state: DriverState = DriverState("nvml", "ok")) -> tuple[Node, list[str]]:  # noqa: B008
    """A machine with so many GPUs, of which NVML lists these."""
    machine = machine_with(count)
    addresses = gpus_of(machine)
    gpus = [drivers(addresses)[number] for number in listed]
    return machine.node(gpus, driver=state, live=True), addresses


# --- gpu-lost --------------------------------------------------------------------------------------------------


def test_not_listed() -> None:
    """The driver is bound to the GPU, lists seven others, and not it: critical."""
    node, addresses = listing(8, [0, 1, 2, 3, 5, 6, 7])
    (found,) = findings(node, LOST)
    assert (found.subject, found.severity, found.basis) == (addresses[4], "critical", "peers")


def test_said_to_be_lost() -> None:
    """NVML itself says that a GPU is lost."""
    machine = machine_with(8)
    addresses = gpus_of(machine)
    gpus = drivers(addresses)
    gpus[2] = gpus[2]._replace(lost=True)
    assert [f.subject for f in findings(machine.node(gpus), LOST)] == [addresses[2]]


def test_all_listed() -> None:
    """A driver that lists all GPUs has lost none, nor has one that nobody asked."""
    assert conclusions(listing(8, list(range(8)))[0], LOST) == ([], [])
    assert conclusions(machine_with(8).node(), LOST) == ([], [])


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau", None])
def test_not_bound(driver: str | None) -> None:
    """A GPU that the NVIDIA driver is not bound to is not NVML's to list."""
    machine = machine_with(8)
    addresses = gpus_of(machine)
    machine.parts[addresses[4]].driver = driver
    gpus = [gpu for gpu in drivers(addresses) if gpu.address != addresses[4]]
    assert findings(machine.node(gpus, live=True), LOST) == []


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed", "absent"])
def test_driver_that_fails_as_a_whole(status: str) -> None:
    """When NVML as a whole fails, no GPU is called lost for not being listed; one that it names is."""
    node, _ = listing(8, [], DriverState("nvml", status))
    assert findings(node, LOST) == []
    machine = machine_with(8)
    addresses = gpus_of(machine)
    named = drivers(addresses)[2]._replace(lost=True)
    node = machine.node([named], driver=DriverState("nvml", status), live=True)
    assert [f.subject for f in findings(node, LOST)] == [addresses[2]]


@pytest.mark.parametrize(
    ("status", "source", "cause"), [("failed", "denied", "denied"), ("crashed", "partial", "driver")]
)
def test_a_driver_that_does_not_tell_of_every_gpu(status: str, source: str, cause: str) -> None:
    """NVML may not be asked, or crashed half-way: whether it has lost a GPU is an open question of the node."""
    node, _ = listing(2, [], DriverState("nvml", status, "nvmlInit: NO_PERMISSION"))
    node = node._replace(sources=(SourceStatus("nvml", source),))
    found, questions = conclusions(node, LOST)
    assert found == []
    assert [(u.subject, u.cause) for u in questions] == [("node", cause)]


def with_minors(openable: frozenset[int] | Unknown | None, lists_all: bool = True) -> tuple[Node, list[str]]:
    """NVML lists GPUs 0 and 1 of 4; the kernel driver tells the minor of each, and these nodes may be opened."""
    addresses = gpus_of(machine_with(4))
    minors = {address: number for number, address in enumerate(addresses)}
    state = DriverState("nvml", "ok", lists_all=lists_all, openable_minors=openable, minors=minors)
    return listing(4, [0, 1], state)


def test_container() -> None:
    """A container is shown its own GPUs: one whose device node is not there is an open question."""
    node, addresses = with_minors(frozenset({0, 1}))
    found, questions = conclusions(node, LOST)
    assert found == []
    assert [(u.subject, u.cause) for u in questions] == [(addresses[2], "denied"), (addresses[3], "denied")]


def test_lost_inside_a_job() -> None:
    """A GPU whose device node may be opened and that NVML does not list is lost, in a job as anywhere."""
    node, addresses = with_minors(frozenset({0, 1, 2}), lists_all=False)
    found, questions = conclusions(node, LOST)
    assert [f.subject for f in found] == [addresses[2]]
    assert [u.subject for u in questions] == [addresses[3]]


@pytest.mark.parametrize("openable", [None, Unknown("denied", "/dev")])
def test_container_whose_device_nodes_are_not_known(openable: Unknown | None) -> None:
    """Where it is not known what may be opened, a job that is shown some GPUs only has lost none."""
    node, _ = with_minors(openable, lists_all=False)
    assert findings(node, LOST) == []


# --- gpu-driver-unresponsive -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "severity"),
    [("timeout", "critical"), ("failed", "warning"), ("crashed", "warning"), ("ok", None), ("absent", None)],
)
def test_driver_state(status: str, severity: str | None) -> None:
    """A call that passed its deadline is critical; a library that fails to start a warning; none is no fault."""
    node, _ = listing(2, [], DriverState("nvml", status, "nvmlInit_v2: Driver/library version mismatch"))
    found = findings(node, UNRESPONSIVE)
    assert [(f.subject, f.severity) for f in found] == ([("node", severity)] if severity else [])
    if severity:
        assert "mismatch" in found[0].summary


def test_a_driver_that_was_not_asked_is_not_blamed() -> None:
    """Another run was asking, there was no time, or no process to ask in: an open question, no fault of the driver."""
    node, _ = listing(2, [], DriverState("nvml", "unasked", "another gpu-topo was asking NVML all the time"))
    found, questions = conclusions(node, UNRESPONSIVE)
    assert found == []
    assert [(u.subject, u.cause) for u in questions] == [("node", "timeout")]
    assert "another gpu-topo was asking" in questions[0].reason


# --- gpu-driver-missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", [None, "nouveau", "simpledrm"])
def test_no_compute_driver(driver: str | None) -> None:
    """No driver, or another one: information, on that GPU."""
    machine = machine_with(2)
    gpu = gpus_of(machine)[0]
    machine.parts[gpu].driver = driver
    found = findings(machine.node(live=True), MISSING)
    assert [(f.subject, f.severity) for f in found] == [(gpu, "info")]


@pytest.mark.parametrize(("ids", "module"), [(trees.L40S, "nvidia"), (trees.RX_7900, "amdgpu")])
def test_words_for_a_missing_driver(ids: trees.Ids, module: str) -> None:
    """What is missing and how to load it are of the GPU's own vendor."""
    machine = Machine()
    gpu = machine.gpu(machine.root_port(machine.host()), ids, driver=None)
    (found,) = findings(machine.node(live=True), MISSING)
    assert f"at {gpu} has no driver; {module}" in found.summary
    assert any(step.endswith(f"modprobe {module}") for step in found.remedy)
    assert f"{ids[0]:04x}:" in found.verify
    machine.parts[gpu].driver = "vfio-none"
    (found,) = findings(machine.node(live=True), MISSING)
    assert f"is bound to vfio-none, not to {module}" in found.summary


def test_driver_without_library() -> None:
    """The kernel driver runs and its library is not here, as in a container: information, once."""
    node, _ = listing(8, [], DriverState("nvml", "absent"))
    assert [(f.subject, f.severity) for f in findings(node, MISSING)] == [("node", "info")]


def test_library_that_was_not_asked() -> None:
    """A recording in which nobody asked NVML misses no library."""
    assert conclusions(machine_with(2).node(), MISSING) == ([], [])


def test_passed_through() -> None:
    """Bound to vfio-pci a GPU belongs to a guest: an open question."""
    machine = machine_with(2)
    gpu = gpus_of(machine)[0]
    machine.parts[gpu].driver = "vfio-pci"
    found, (question,) = conclusions(machine.node(live=True), MISSING)
    assert found == []
    assert (question.subject, question.cause) == (gpu, "passthrough")


def test_recording_without_drivers() -> None:
    """A recording that names no driver at all says nothing of drivers."""
    machine = machine_with(2)
    for part in machine.parts.values():
        part.driver = None
    assert findings(machine.node(), MISSING) == []


def test_other_devices() -> None:
    """Management displays, integrated graphics and Intel's GPUs have the drivers that they have."""
    machine = Machine()
    host = machine.host(0)
    trees.integrated_graphics(machine, host)
    trees.display(machine, host)
    machine.gpu(machine.root_port(host), trees.MI300X)
    machine.gpu(machine.root_port(host), trees.H100)
    assert findings(machine.node(live=True), MISSING) == []
    assert unassessed(machine.node(live=True), MISSING) == []
