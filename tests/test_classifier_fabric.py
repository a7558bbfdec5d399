"""nvswitch-missing and fabric-not-ready."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu, Fabric
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import BARE_METAL, Platform
from gpu_topo.model.node import Node
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import Unknown
from tests import trees
from tests.nvlinks import GUEST, READY, direct, drivers, gpus_of, machine_with
from tests.trees import Ids, conclusions, findings, unassessed

MISSING, NOT_READY = "nvswitch-missing", "fabric-not-ready"


# --- nvswitch-missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "gpus", "expected"),
    [(trees.H100, 8, 4), (trees.H100, 7, 4), (trees.A100_SXM, 8, 6), (trees.H800_SXM, 8, 4)],
)
def test_fewer_than_the_board_has(ids: Ids, gpus: int, expected: int) -> None:
    """Fewer NVSwitches on the bus than the board of this GPU model has: critical, by the catalogue."""
    for seen in range(expected + 1):
        found = findings(machine_with(gpus, ids, nvswitches=seen).node(), MISSING)
        if seen == expected:
            assert found == []
        else:
            assert [(f.severity, f.basis) for f in found] == [("critical", "catalogue")]
            assert (found[0].observed["nvswitches"], found[0].expected["nvswitches"]) == (seen, expected)


@pytest.mark.parametrize(
    ("ids", "gpus"),
    [
        (trees.H100, 4),  # four-GPU boards are wired directly
        (trees.A100_SXM, 4),
        (trees.A100_PCIE, 8),
        (trees.B200, 8),  # not on PCI
        (trees.GH200, 1),
        (trees.V100_SXM2, 8),
    ],
)
def test_boards_without(ids: Ids, gpus: int) -> None:
    """Boards whose NVSwitches are not on PCI, and those without any, miss none."""
    assert findings(machine_with(gpus, ids).node(), MISSING) == []


def test_guest() -> None:
    """A guest may be shown some NVSwitches, or none: an open question."""
    machine = machine_with(8, platform=GUEST)
    found, (question,) = conclusions(machine.node(), MISSING)
    assert found == []
    assert question.cause == "virtual-machine"


def test_recording_of_gpus_alone() -> None:
    """Where the recording lists GPUs and nothing else, nothing is missing."""
    gpus = tuple(
        DriverGpu(f"0000:{n:02x}:00.0", n, vendor_id=0x10DE, device_id=0x2330, model="NVIDIA H100 80GB HBM3")
        for n in range(8)
    )
    node = assemble([Facts(SourceStatus("nvidia-smi -q", OK), gpus=gpus)])
    found, (question,) = conclusions(node, MISSING)
    assert found == []
    assert question.cause == "not-recorded"


H100_NAME, UNLISTED_NAME = "NVIDIA Corporation GH100 [H100 SXM5 80GB]", "NVIDIA Corporation GX100 [X100 SXM8]"


@pytest.mark.parametrize(("name", "finds"), [(H100_NAME, True), (UNLISTED_NAME, False)])
def test_a_recording_of_names(name: str, finds: bool) -> None:
    """lspci -vvv without numbers: the board of this name decides, and what none is known of is an open question."""
    host = Function("0000:00:00.0", 0x8086, None, 0x060000, name="Intel Corporation Host bridge")
    gpus = [Function(f"0000:{n:02x}:00.0", 0x10DE, None, 0x030200, name=name) for n in range(16, 24)]
    chip = "NVIDIA Corporation GH100 [H100 NVSwitch]"
    chips = [Function(f"0000:{n:02x}:00.0", 0x10DE, None, 0x068000, name=chip) for n in range(32, 35)]
    node = assemble([Facts(SourceStatus("lspci -vvv", OK), functions=(host, *gpus, *chips))])
    found, questions = conclusions(node, MISSING)
    assert [(f.observed["nvswitches"], f.expected["nvswitches"]) for f in found] == ([(3, 4)] if finds else [])
    assert [u.subject for u in questions] == ([] if finds else ["node"])


# --- fabric-not-ready ------------------------------------------------------------------------------------------


def node_with(
    fabric: Fabric | Unknown | None, *, uptime: float | None = 86_400.0, guest: bool = False, ids: Ids = trees.H100
) -> Node:
    """An eight-GPU NVSwitch machine of which GPU 3 says this of its fabric."""
    platform = Platform(kind=GUEST.kind if guest else BARE_METAL, arch="x86_64", numa_count=2, uptime_seconds=uptime)
    machine = machine_with(8, ids, nvswitches=4, platform=platform)
    gpus = [gpu._replace(fabric=READY) for gpu in drivers(gpus_of(machine))]
    gpus[3] = gpus[3]._replace(fabric=fabric)
    return machine.node(gpus)


@pytest.mark.parametrize(
    ("state", "status", "health", "severity"),
    [
        ("Completed", "Success", {}, None),
        ("Completed", "Success", {"Summary": "Healthy", "Bandwidth": "Full"}, None),
        ("Completed", "Success", {"Summary": "Not Supported", "Bandwidth": "Not Supported"}, None),
        ("Completed", "Success", {"Bandwidth": "N/A", "Route Recovery in progress": "False"}, None),
        ("Completed", "Success", {"Summary": "Unhealthy", "Bandwidth": "Degraded"}, "critical"),
        ("Completed", "Success", {"Summary": "Unhealthy"}, "critical"),
        ("Completed", "Success", {"Bandwidth": "Degraded"}, "critical"),
        ("Completed", "Success", {"Route Unhealthy": "True"}, "critical"),
        ("Completed", "Insufficient Resources", {}, "critical"),
        ("Completed", "NVML_ERROR_SYSTEM_NOT_READY", {}, "critical"),
        ("In Progress", "N/A", {}, "warning"),
        ("In Progress", None, {}, "warning"),
        ("Not Started", "N/A", {}, "warning"),
        ("Not Supported", "N/A", {}, None),
        ("N/A", "N/A", {}, None),
        (None, None, {}, None),
    ],
)
def test_states(state: str | None, status: str | None, health: Mapping[str, str], severity: str | None) -> None:
    """Completed with a failure or unhealthy is critical; open after the grace a warning; not supported is no fault."""
    node = node_with(Fabric(state, status, health=health))
    found = findings(node, NOT_READY)
    assert [(f.subject, f.severity) for f in found] == ([(node.gpus[3].address, severity)] if severity else [])


@pytest.mark.parametrize(("uptime", "fires"), [(60.0, False), (899.0, False), (901.0, True), (None, True)])
def test_grace_after_boot(uptime: float | None, fires: bool) -> None:
    """Registration takes its time after boot."""
    node = node_with(Fabric("In Progress"), uptime=uptime)
    assert bool(findings(node, NOT_READY)) == fires
    # What has failed has failed, at whatever time.
    assert findings(node_with(Fabric("Completed", "Insufficient Resources"), uptime=uptime), NOT_READY) != []


def test_grace_of_the_operator() -> None:
    """The grace is the operator's to choose, and the daemon knows the uptime itself."""
    node = node_with(Fabric("In Progress"), uptime=1000.0)
    assert findings(node, NOT_READY, policy=Policy(boot_grace_seconds=3600)) == []
    assert findings(node, NOT_READY, Past(uptime_seconds=10.0)) == []


@pytest.mark.parametrize("ids", [trees.A100_PCIE, trees.L40S, trees.GH200])
def test_off_nvswitch_boards(ids: Ids) -> None:
    """Without NVSwitches nobody registers, and open registration means nothing."""
    machine = machine_with(1, ids)
    node = machine.node([gpu._replace(fabric=Fabric("Not Started")) for gpu in drivers(gpus_of(machine))])
    assert conclusions(node, NOT_READY) == ([], [])


@pytest.mark.parametrize(("ids", "fires"), [((0x10DE, 0x2941), True), ((0x10DE, 0x31C2), True), (trees.GH200, False)])
def test_superchips_of_a_rack(ids: Ids, fires: bool) -> None:
    """Superchips that are wired to the switches of a rack register with its fabric; others need none."""
    machine = machine_with(4, ids)
    node = machine.node(drivers(gpus_of(machine), fabric=Fabric("In Progress", None)))
    assert [f.severity for f in findings(node, NOT_READY)] == (["warning"] * 4 if fires else [])


def test_guest_in_shared_nvswitch_mode() -> None:
    """In a guest registration may stay open by design: an open question."""
    node = node_with(Fabric("In Progress"), guest=True)
    assert findings(node, NOT_READY) == []
    assert [u.cause for u in unassessed(node, NOT_READY)] == ["virtual-machine"]


def test_mig() -> None:
    """A GPU under MIG is not judged."""
    machine = machine_with(8, nvswitches=4)
    gpus = [gpu._replace(fabric=Fabric("Not Started"), mig=True) for gpu in drivers(gpus_of(machine))]
    assert findings(machine.node(gpus), NOT_READY) == []


@pytest.mark.parametrize("fabric", [None, Unknown("denied", "nvmlDeviceGetGpuFabricInfoV")])
def test_not_known(fabric: Unknown | None) -> None:
    """On a board with a fabric a state that nobody told is an open question; A100 have no state to tell."""
    node = node_with(fabric)
    assert [u.subject for u in unassessed(node, NOT_READY)] == [node.gpus[3].address]
    assert unassessed(node_with(None, ids=trees.A100_SXM), NOT_READY) == []


def test_passed_through() -> None:
    """What is bound to vfio-pci only the guest's driver can ask: nothing that one could run here would tell."""
    machine = machine_with(8, nvswitches=4)
    for address in gpus_of(machine):
        machine.parts[address].driver = "vfio-pci"
    told = unassessed(machine.node(), NOT_READY)
    assert len(told) == 8
    assert {u.cause for u in told} == {"passthrough"}
    assert not any("nvidia-smi" in u.reason for u in told)


@pytest.mark.parametrize("state", [None, "In Progress", "Not Started"])
def test_boards_that_are_joined_directly_have_no_fabric(state: str | None) -> None:
    """All links of a board of four lead to GPUs: there is no switch that they could register with."""
    machine = machine_with(4)
    gpus = gpus_of(machine)
    links = direct(dict.fromkeys(combinations(range(4), 2), 6), gpus, total=18, version=4)
    more = {} if state is None else {"fabric": Fabric(state, "Success")}
    assert conclusions(machine.node(drivers(gpus, links, **more)), "fabric-not-ready") == ([], [])
