"""pcie-speed-degraded: every row of the table of what a GPU's load makes of a low speed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.history import Past
from gpu_topo.model.node import LinkSample, Node
from gpu_topo.model.pci import LinkEnd
from tests import trees
from tests.nvlinks import GUEST
from tests.trees import (
    CHIPSET_DOWN,
    CHIPSET_UP,
    GEN1,
    GEN3,
    GEN4,
    GEN5,
    PLX8747,
    Ids,
    Machine,
    conclusions,
    findings,
    unassessed,
)

SPEED = "pcie-speed-degraded"
UNLISTED = trees.UNLISTED_GPU

Load = tuple[int | None, int | None]  # P-state, utilisation in percent


def gpus(count: int = 1, ids: Ids = UNLISTED, speed: float = GEN1, config: bool = False) -> tuple[Machine, list[str]]:
    """GPUs that could do Gen4 and run at `speed`."""
    machine = Machine(config=config)
    host = machine.host(0x10)
    ports = [machine.root_port(host, (GEN4, 16)) for _ in range(count)]
    return machine, [machine.gpu(port, ids, link=(speed, 16), most=(GEN4, 16)) for port in ports]


def look(address: str, load: Load, speed: float = GEN1, number: int = 0) -> DriverGpu:
    """One look of NVML at a GPU."""
    return DriverGpu(
        address, number, f"GPU-{number}", pstate=load[0], utilization=load[1], link=LinkEnd(speed, 16, GEN4, 16)
    )


def judged(loads: Sequence[Load], ids: Ids = UNLISTED) -> tuple[str | None, str | None]:
    """The severity of the finding and the cause of the open question for a slow GPU under these loads."""
    machine, (gpu,) = gpus(ids=ids)
    node = machine.node([[look(gpu, load)] for load in loads])
    found, questions = conclusions(node, SPEED)
    return (found[0].severity if found else None), (questions[0].cause if questions else None)


# --- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "finding", "question"),
    [
        # utilisation above zero in two samples: degraded, but for P-states that only an idle GPU takes
        ([(0, 97), (0, 95)], "warning", None),
        ([(2, 1), (2, 1)], "warning", None),
        ([(None, 50), (None, 50)], "warning", None),
        ([(0, 90), (0, 0), (0, 90)], "warning", None),
        # one such sample in P0 to P2: information, with the command that confirms
        ([(0, 97)], "info", None),
        ([(2, 30)], "info", None),
        # P5 to P15 or zero utilisation: idle
        ([(8, 0)], None, None),
        ([(8, 3), (8, 4)], None, None),
        ([(5, None)], None, None),
        ([(15, None)], None, None),
        ([(0, 0)], None, None),
        ([(None, 0)], None, None),
        ([(8, 0), (8, 0)], None, None),
        # nothing, or P0 to P4 alone: unassessed
        ([], None, "load-unknown"),
        ([(0, None)], None, "load-unknown"),
        ([(4, None)], None, "load-unknown"),
        ([(None, None)], None, "load-unknown"),
        # busy once, and nothing that says how much: not sure enough
        ([(None, 40)], None, "load-unknown"),
        ([(3, 40)], None, "load-unknown"),
    ],
)
def test_table(loads: Sequence[Load], finding: str | None, question: str | None) -> None:
    """What is known of the load decides between degraded, idle and unassessed."""
    assert judged(loads) == (finding, question)


def test_evidence() -> None:
    """Busy in two samples: half the generations lost, on the evidence of both ends, with a command that shows it."""
    machine, (gpu,) = gpus(speed=GEN3)
    (found,) = findings(machine.node([[look(gpu, (0, 90), GEN3)]] * 2), SPEED)
    assert (found.subject, found.basis) == (gpu, "link-partners")
    assert found.lost_gbs == pytest.approx(15.75, rel=0.01)
    assert (found.observed["speed_gts"], found.expected["speed_gts"]) == (GEN3, GEN4)
    assert gpu in found.verify


def test_command_that_confirms() -> None:
    """One busy sample, and an open question, name the command that would tell."""
    machine, (gpu,) = gpus()
    (found,) = findings(machine.node([[look(gpu, (0, 97))]]), SPEED)
    assert "--samples" in found.remedy[0]
    assert "--samples" in unassessed(machine.node(), SPEED)[0].reason


@pytest.mark.parametrize("ids", [trees.A100_SXM, trees.H100, trees.H200])
@pytest.mark.parametrize("loads", [[], [(0, 0)], [(0, None)]])
def test_models_that_hold_their_speed(ids: Ids, loads: Sequence[Load]) -> None:
    """A100, H100 and H200 are known to hold their speed when idle: low is degraded, by the catalogue."""
    assert judged(loads, ids) == ("warning", None)


def test_models_that_do_not_hold_their_speed() -> None:
    """RTX 4090 are known to slow down when idle."""
    assert judged([(8, 0)], trees.RTX_4090) == (None, None)


def test_busy_twins() -> None:
    """This GPU is busy and slow, its twin of the same model is busy and at full speed: degraded, by its peers."""
    machine, (slow, fast) = gpus(2)
    port = machine.parts[fast].above
    assert port is not None
    machine.parts[fast].link = port.link = (GEN4, 16)
    node = machine.node([look(slow, (3, 60)), look(fast, (0, 60), GEN4, 1)])
    (found,) = findings(node, SPEED)
    assert (found.subject, found.severity, found.basis) == (slow, "warning", "peers")
    # An idle one beside a busy twin is idle.
    idle = machine.node([look(slow, (8, 0)), look(fast, (0, 60), GEN4, 1)])
    assert conclusions(idle, SPEED) == ([], [])


A100_80GB: Ids = (0x10DE, 0x20B2)  # of which no source says whether it holds its speed when idle


def idlers(loads: Sequence[tuple[Load, float]], ids: Ids = A100_80GB) -> Node:
    """GPUs of one model, each in a state and at a speed."""
    machine, addresses = gpus(len(loads), ids)
    for address, (_, speed) in zip(addresses, loads, strict=True):
        port = machine.parts[address].above
        assert port is not None
        machine.parts[address].link = port.link = (speed, 16)
    return machine.node(
        [look(a, load, speed, n) for n, (a, (load, speed)) in enumerate(zip(addresses, loads, strict=True))]
    )


IDLE: Load = (0, 0)


@pytest.mark.parametrize(
    ("loads", "ids", "question"),
    [
        ([(IDLE, GEN1), *[(IDLE, GEN4)] * 7], A100_80GB, "load-unknown"),
        ([(IDLE, GEN1), *[(IDLE, GEN4)] * 3], A100_80GB, "load-unknown"),
        ([(IDLE, GEN1), (IDLE, GEN1), *[(IDLE, GEN4)] * 6], A100_80GB, "load-unknown"),
        # no clear majority
        ([(IDLE, GEN1), *[(IDLE, GEN4)] * 2], A100_80GB, "load-unknown"),
        ([(IDLE, GEN1), (IDLE, GEN1), *[(IDLE, GEN4)] * 4], A100_80GB, "load-unknown"),
        # all alike, or alone: idle
        ([(IDLE, GEN1)] * 8, A100_80GB, None),
        ([(IDLE, GEN1)], A100_80GB, None),
        # in a P-state that lowers the link the twins are reason to ask, and no more
        ([((8, 0), GEN1), *[((8, 0), GEN4)] * 7], A100_80GB, "load-unknown"),
        ([((8, 0), GEN1), *[((8, 0), GEN4)] * 2], A100_80GB, None),
        # so are those of a model that is known to slow down when idle
        ([(IDLE, GEN1), *[(IDLE, GEN4)] * 7], trees.RTX_4090, "load-unknown"),
        # other states say nothing
        ([((8, 0), GEN1), *[((0, 97), GEN4)] * 7], A100_80GB, None),
        ([((8, 0), GEN1), *[(IDLE, GEN4)] * 7], A100_80GB, None),
        ([(IDLE, GEN1), *[((0, None), GEN4)] * 7], A100_80GB, None),
    ],
)
def test_idle_twins(loads: Sequence[tuple[Load, float]], ids: Ids, question: str | None) -> None:
    """Idleness hardly explains what twins in the very same state do not show: that is a question, and no finding."""
    slow = sum(speed == GEN1 for _, speed in loads)
    found, questions = conclusions(idlers(loads, ids), SPEED)
    assert found == []
    assert [u.cause for u in questions] == ([question] * slow if question else [])
    assert all("same-model GPUs in the same state" in u.reason for u in questions)


@pytest.mark.parametrize(("busy", "severity"), [((97, 97), "warning"), ((97, 0), None), ((0, 97), None)])
@pytest.mark.parametrize("inner", [False, True])
def test_busy_twins_of_amd(inner: bool, busy: tuple[int, int], severity: str | None) -> None:
    """amdgpu tells the load alone: how fast a busy twin runs the bus shows, at the slot of a card."""
    machine = Machine()
    host = machine.host(0x10)
    slow, *fast = [
        trees.navi(machine, machine.root_port(host, (GEN4, 16)), (speed, 16))
        if inner
        else machine.gpu(machine.root_port(host, (GEN4, 16)), trees.MI300X, (speed, 16), (GEN4, 16))
        for speed in (GEN1, GEN4, GEN4)
    ]
    machine.files(slow, gpu_busy_percent=f"{busy[0]}\n".encode())
    for twin in fast:
        machine.files(twin, gpu_busy_percent=f"{busy[1]}\n".encode())
    found = findings(machine.node(), SPEED)
    assert [(f.severity, f.basis) for f in found] == ([(severity, "peers")] if severity else [])


def test_idle_bridge_is_held_against_the_bridges_of_twins() -> None:
    """A slow slot behind which a GPU's own link is fast: so are the twins' slots, and all idle."""
    machine = Machine()
    host = machine.host(0x10)
    addresses = []
    for _ in range(4):
        up = machine.switch(machine.root_port(host, (GEN4, 16)), PLX8747, (GEN1, 16), most=(GEN4, 16))
        addresses.append(machine.gpu(machine.down(up, (GEN4, 16)), A100_80GB, (GEN4, 16), (GEN4, 16)))
    node = machine.node([look(a, IDLE, GEN4, n) for n, a in enumerate(addresses)])
    assert conclusions(node, SPEED) == ([], [])


def test_other_models_are_no_twins() -> None:
    """A busy card of another model says nothing."""
    machine, (slow,) = gpus()
    fast = machine.gpu(machine.root_port("pci0000:10", (GEN4, 16)), trees.L40S, most=(GEN4, 16))
    node = machine.node([look(slow, (3, 60)), look(fast, (0, 60), GEN4, 1)])
    assert findings(node, SPEED) == []


def test_full_speed_under_load() -> None:
    """A link is judged by its best sample: at full speed once, what is low at another time is idleness."""
    machine, (gpu,) = gpus()
    node = machine.node([[look(gpu, (8, 0), GEN1)], [look(gpu, (0, 98), GEN4)], [look(gpu, (8, 0), GEN1)]])
    assert conclusions(node, SPEED) == ([], [])


def test_slow_under_load_after_idle() -> None:
    """Idle first and slow in two busy samples: degraded."""
    assert judged([(8, 0), (0, 98), (0, 97)]) == ("warning", None)


def test_busy_before() -> None:
    """What the daemon saw in earlier scans counts as samples."""
    machine, (gpu,) = gpus()
    node = machine.node([[look(gpu, (0, 97))]])
    past = Past(samples={gpu: (LinkSample(GEN1, 16, 0, 95),)})
    assert [f.severity for f in findings(node, SPEED, past)] == ["warning"]
    fast = Past(samples={gpu: (LinkSample(GEN4, 16, 0, 95),)})
    assert findings(node, SPEED, fast) == []


# --- devices without an excuse ---------------------------------------------------------------------------------


def test_no_excuse() -> None:
    """NICs, NVMe and switch uplinks do not slow down when idle: warning."""
    machine = Machine()
    host = machine.host(0x10)
    nic = machine.nic(machine.root_port(host), link=(GEN4, 16))
    drive = machine.nvme(machine.root_port(host), link=(GEN3, 4))
    switch = machine.switch(machine.root_port(host), PLX8747, (GEN3, 16))
    for _ in range(2):
        machine.gpu(machine.down(switch))
    found = {f.subject: f.severity for f in findings(machine.node(), SPEED)}
    assert found == {nic: "warning", drive: "warning", switch: "warning"}


@pytest.mark.parametrize("config", [False, True])
def test_bridge_above_a_single_gpu(config: bool) -> None:
    """A switch that a single GPU hangs from slows down with it: it inherits the GPU's load."""
    machine = Machine(config=config)
    switch = machine.switch(machine.root_port(machine.host(0x10), (GEN4, 16)), PLX8747, (GEN1, 16), most=(GEN4, 16))
    gpu = machine.gpu(machine.down(switch, (GEN4, 16)), UNLISTED, (GEN1, 16), (GEN4, 16))
    assert findings(machine.node([[look(gpu, (8, 0))]]), SPEED) == []
    assert findings(machine.node(), SPEED) == []
    assert {u.subject for u in unassessed(machine.node(), SPEED)} == {switch, gpu}
    busy = machine.node([[look(gpu, (0, 97))], [look(gpu, (0, 97))]])
    assert {f.subject for f in findings(busy, SPEED)} == {switch, gpu}


def test_card_with_inner_bridges() -> None:
    """An idle AMD card lowers the link of its slot, two bridges up."""
    machine = Machine()
    gpu = trees.navi(machine, machine.root_port(machine.host(0x10), (GEN4, 16)), slot_link=(GEN1, 16))
    node = machine.node()
    assert findings(node, SPEED) == []
    upper = machine.parts[gpu].above.above  # type: ignore[union-attr]
    assert upper is not None
    assert [u.subject for u in unassessed(node, SPEED)] == [upper.address]
    assert unassessed(node, SPEED)[0].cause == "load-unknown"


def test_both_ends_show_low() -> None:
    """A low link is one finding, on the lower end; the port above it is not blamed."""
    machine = Machine(config=True)
    nic = machine.nic(machine.root_port(machine.host(0x10)), link=(GEN3, 16))
    assert [f.subject for f in findings(machine.node(), SPEED)] == [nic]


def test_functions_of_one_device() -> None:
    """Two functions share one link and one finding, on the lowest."""
    machine = Machine()
    port = machine.root_port(machine.host(0x10))
    nic = machine.nic(port, link=(GEN3, 16))
    machine.nic(port, link=(GEN3, 16), same_device=nic)
    assert [f.subject for f in findings(machine.node(), SPEED)] == [nic]


# --- staying quiet ---------------------------------------------------------------------------------------------


def quiet(node: Node) -> bool:
    return findings(node, SPEED) == []


def test_slot_limit() -> None:
    """A Gen5 NIC in a Gen4 slot runs as fast as the slot."""
    machine = Machine()
    machine.nic(machine.root_port(machine.host(0x10), (GEN4, 16)), link=(GEN4, 16), most=(GEN5, 16))
    assert conclusions(machine.node(), SPEED) == ([], [])


def test_virtual_machine() -> None:
    """In a guest the registers are emulated."""
    machine = Machine(platform=GUEST)
    host = machine.host(0x10)
    nic, gpu = (
        machine.nic(machine.root_port(host), link=(GEN1, 1)),
        machine.gpu(machine.root_port(host), link=(GEN1, 1)),
    )
    node = machine.node([[look(gpu, (0, 97))], [look(gpu, (0, 97))]])
    assert quiet(node)
    assert {(u.subject, u.cause) for u in unassessed(node, SPEED)} == {
        (nic, "virtual-machine"),
        (gpu, "virtual-machine"),
    }


def test_suspended() -> None:
    """A suspended device is an open question."""
    machine, (gpu,) = gpus()
    machine.files(gpu, power__runtime_status=b"suspended\n")
    assert quiet(machine.node())
    assert [(u.subject, u.cause) for u in unassessed(machine.node(), SPEED)] == [(gpu, "asleep")]


def test_chip_to_chip() -> None:
    """The PCIe link of a GPU on C2C means nothing."""
    machine, _ = gpus(ids=trees.GH200)
    assert quiet(machine.node())
    assert unassessed(machine.node(), SPEED)[0].cause == "not-applicable"


def test_chipset() -> None:
    """A link inside a chipset is not judged."""
    machine = Machine()
    port = machine.root_port(machine.host(0x10), (GEN5, 4))
    machine.bridge(port, CHIPSET_UP, "upstream-port", (GEN5, 4), link=(GEN4, 4))
    assert conclusions(machine.node(), SPEED) == ([], [])


def test_chipset_port_of_a_device() -> None:
    """A device below a chipset is judged like any other."""
    machine = Machine()
    up = machine.bridge(machine.root_port(machine.host(0x10)), CHIPSET_UP, "upstream-port", (GEN4, 4))
    drive = machine.nvme(machine.bridge(up, CHIPSET_DOWN, "downstream-port", (GEN4, 4)), link=(GEN3, 4))
    assert [f.subject for f in findings(machine.node(), SPEED)] == [drive]


def without_port(link: tuple[float, int], nic: bool = False) -> tuple[Machine, str]:
    machine = Machine()
    port = machine.root_port(machine.host(0x10))
    add = machine.nic if nic else machine.gpu
    device = add(port, link=link, most=(GEN4, 16))
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    machine.files(port, **dict.fromkeys(names))
    return machine, device


def test_port_not_recorded() -> None:
    """With the port unseen a low speed is an open question, and a device at its own maximum is right."""
    machine, gpu = without_port((GEN1, 16))
    assert quiet(machine.node())
    assert [u.subject for u in unassessed(machine.node(), SPEED)] == [gpu]
    machine, nic = without_port((GEN3, 16), nic=True)
    assert quiet(machine.node())
    assert [u.subject for u in unassessed(machine.node(), SPEED)] == [nic]
    machine, _ = without_port((GEN4, 16))
    assert conclusions(machine.node(), SPEED) == ([], [])


def test_unknown_speed() -> None:
    """A speed that the kernel does not know is an open question."""
    machine, (gpu,) = gpus()
    machine.files(gpu, current_link_speed=b"Unknown\n")
    assert quiet(machine.node())
    assert [(u.subject, u.cause) for u in unassessed(machine.node(), SPEED)] == [(gpu, "unreadable")]


def test_target_speed_is_evidence() -> None:
    """As root, the speed that the port was told to aim at is shown beside the fault."""
    machine = Machine(config=True)
    machine.nic(machine.root_port(machine.host(0x10)), link=(GEN3, 16))
    (found,) = findings(machine.node(), SPEED)
    assert found.observed["target_speed_gts"] == GEN5


@pytest.mark.parametrize(
    ("ids", "said", "unsaid"),
    [
        (UNLISTED, "nvidia-smi", "gpu_busy_percent"),
        (trees.RX_7900, "gpu_busy_percent", "nvidia-smi"),
        ((0x8086, 0x56C0), "current_link_speed", "nvidia-smi"),
    ],
)
def test_command_for_the_load(ids: Ids, said: str, unsaid: str) -> None:
    """How to see load and speed together depends on whose GPU it is."""
    machine, (gpu,) = gpus(ids=ids)
    (told,) = unassessed(machine.node(), SPEED)
    assert told.cause == "load-unknown"
    assert said in told.reason and unsaid not in told.reason
    assert said == "nvidia-smi" or gpu in told.reason


def test_load_of_a_card_with_inner_bridges() -> None:
    """An AMD card's load is the GPU's, and the speed to look at is that of the link in its slot."""
    machine = Machine()
    gpu = trees.navi(machine, machine.root_port(machine.host(0x10), (GEN4, 16)), slot_link=(GEN1, 16))
    (told,) = unassessed(machine.node(), SPEED)
    assert f"{gpu}/gpu_busy_percent" in told.reason
    assert f"{told.subject}/current_link_speed" in told.reason


def test_one_busy_look_is_not_called_unknown() -> None:
    """A GPU that worked in the only look is an open question still, and the reason says so."""
    machine, (gpu,) = gpus()
    (told,) = unassessed(machine.node([look(gpu, (None, 97))]), SPEED)
    assert "not known" not in told.reason
    assert "one sample" in told.reason


def test_which_end_is_not_known() -> None:
    """With the device's own maximum missing, that is what the reason says, and the port's speed is enough."""
    machine, (gpu,) = gpus()
    machine.files(gpu, max_link_speed=None)
    (told,) = unassessed(machine.node(), SPEED)
    assert "device itself" in told.reason
    machine.files(gpu, current_link_speed=b"16.0 GT/s PCIe\n")
    assert conclusions(machine.node(), SPEED) == ([], [])


@pytest.mark.parametrize(
    ("before", "now", "severity", "question"),
    [
        (None, 0, None, None),  # it idles
        (None, 97, None, "load-unknown"),  # one look is too little
        (97, 97, "warning", None),
        (97, 0, None, None),
    ],
)
def test_load_that_amdgpu_tells(before: int | None, now: int, severity: str | None, question: str | None) -> None:
    """gpu_busy_percent is a look at the load like any other; it speaks for the link of the card's slot."""
    machine = Machine()
    gpu = trees.navi(machine, machine.root_port(machine.host(0x10), (GEN4, 16)), slot_link=(GEN1, 16))
    machine.files(gpu, gpu_busy_percent=f"{now}\n".encode())
    earlier = (LinkSample(None, None, utilization=before),)
    past = Past(samples={gpu: earlier} if before is not None else {})
    found, questions = conclusions(machine.node(), SPEED, past)
    assert [f.severity for f in found] == ([severity] if severity else [])
    assert [u.cause for u in questions] == ([question] if question else [])
    assert machine.node().gpus[0].busy == (now > 0)
