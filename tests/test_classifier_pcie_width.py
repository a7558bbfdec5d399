"""pcie-width-degraded and pcie-link-unexplained."""

from __future__ import annotations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.history import Policy
from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT, LinkEnd
from gpu_topo.source import Refusal
from tests import trees
from tests.nvlinks import GUEST, drivers
from tests.trees import (
    BLUEFIELD_BRIDGE,
    CHIPSET_DOWN,
    CHIPSET_UP,
    GEN1,
    GEN3,
    GEN4,
    GEN5,
    I350,
    Link,
    Machine,
    conclusions,
    findings,
    unassessed,
)

WIDTH, UNEXPLAINED, SLOT = "pcie-width-degraded", "pcie-link-unexplained", "pcie-slot-limited"


def below_root(most: Link = (GEN5, 16), **more: object) -> tuple[Machine, str]:
    machine = Machine(**more)  # type: ignore[arg-type]
    return machine, machine.root_port(machine.host(0x10), most)


# --- pcie-width-degraded ---------------------------------------------------------------------------------------


def test_gpu() -> None:
    """A GPU at x8 of x16: critical, half of its 63 GB/s lost, on the evidence of both ends of the link."""
    machine, port = below_root()
    gpu = machine.gpu(port, link=(GEN5, 8))
    (found,) = findings(machine.node(), WIDTH)
    assert (found.subject, found.severity, found.basis) == (gpu, "critical", "link-partners")
    assert found.lost_gbs == pytest.approx(31.5, rel=0.01)
    assert (found.observed["width"], found.expected["width"]) == (8, 16)
    assert found.related == (port,)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_width(width: int) -> None:
    """Whatever is missing is named."""
    machine, port = below_root((GEN4, 16))
    machine.gpu(port, link=(GEN4, width), most=(GEN4, 16))
    (found,) = findings(machine.node(), WIDTH)
    assert found.lost_gbs == pytest.approx((16 - width) * 1.969, rel=0.01)


def test_full_width() -> None:
    """All lanes are in use: nothing to say, not even when the speed is low."""
    machine, port = below_root()
    machine.gpu(port, link=(GEN1, 16))
    assert conclusions(machine.node(), WIDTH) == ([], [])


def test_severity_by_kind() -> None:
    """Critical for GPUs, accelerators, NVSwitches and fabric NICs; warning for NVMe and fast NICs; else info."""
    machine = Machine()
    host = machine.host(0x10)
    wide, narrow = (GEN4, 8), (GEN4, 2)

    def add(ids: trees.Ids, class_code: int, **more: object) -> str:
        return machine.function(machine.root_port(host, wide), ids, class_code, link=narrow, most=wide)

    expected = {
        machine.gpu(machine.root_port(host, wide), link=narrow, most=wide): "critical",
        add((0x1DA3, 0x1060), trees.ACCELERATOR_CLASS): "critical",
        add(trees.NVSWITCH, trees.NVSWITCH_CLASS): "critical",
        machine.nic(machine.root_port(host, wide), link=narrow, most=wide): "critical",
        machine.nic(
            machine.root_port(host, wide), (0x8086, 0x1563), narrow, wide, gbps=10, infiniband=False
        ): "warning",
        machine.nic(machine.root_port(host, wide), I350, narrow, wide, gbps=1, infiniband=False): "info",
        machine.nvme(machine.root_port(host, wide), link=narrow, most=wide): "warning",
        add((0x1000, 0x0097), 0x010700): "info",  # a host adapter
    }
    assert {f.subject: f.severity for f in findings(machine.node(), WIDTH)} == expected


def test_switch_uplink() -> None:
    """The uplink of a switch has no excuse: warning, and one finding although both ends show it."""
    machine, port = below_root()
    switch = machine.switch(port, link=(GEN5, 8))
    machine.gpu(machine.down(switch))
    (found,) = findings(machine.node(), WIDTH)
    assert (found.subject, found.severity) == (switch, "warning")


def test_inner_bridge_stands_for_its_card() -> None:
    """Behind an AMD card's own bridges the slot's link is the card's: critical, on the bridge that has the link."""
    machine, port = below_root((GEN4, 16))
    gpu = trees.navi(machine, port, slot_link=(GEN4, 4))
    (found,) = findings(machine.node(), WIDTH)
    upper = machine.parts[gpu].above.above  # type: ignore[union-attr]
    assert upper is not None
    assert (found.subject, found.severity) == (upper.address, "critical")
    assert "7900" in found.summary or "Navi" in found.summary


def test_functions_share_one_finding() -> None:
    """The functions of one card share a link, and a finding on the lowest one."""
    machine, port = below_root()
    gpu = machine.gpu(port, link=(GEN5, 8))
    machine.function(port, (0x10DE, 0x22BA), 0x040300, link=(GEN5, 8), most=(GEN5, 16), same_device=gpu)
    nic = machine.nic(machine.root_port("pci0000:10"), link=(GEN5, 4))
    machine.nic(machine.parts[nic].above.address, link=(GEN5, 4), same_device=nic)  # type: ignore[union-attr]
    assert [f.subject for f in findings(machine.node(), WIDTH)] == [gpu, nic]


def test_other_functions_have_no_link() -> None:
    """A second function that shows other link values than the first is no second link."""
    machine, port = below_root()
    gpu = machine.gpu(port)
    machine.function(port, (0x10DE, 0x22BA), 0x040300, link=(GEN1, 1), most=(GEN5, 16), same_device=gpu)
    assert findings(machine.node(), WIDTH) == []


def test_slot_limit_is_no_fault() -> None:
    """A card in a narrower slot runs at what the slot has."""
    machine, port = below_root((GEN5, 8))
    machine.gpu(port, link=(GEN5, 8), most=(GEN5, 16))
    assert findings(machine.node(), WIDTH) == []


def test_port_claims_less_than_it_runs() -> None:
    """A port's maximum is at least what it runs at, whatever it claims."""
    machine, port = below_root((GEN1, 1))
    machine.gpu(port, link=(GEN5, 16))
    assert findings(machine.node(), WIDTH) == []
    assert findings(machine.node(), SLOT) == []


def test_roles_of_the_operator() -> None:
    """A NIC whose ports the operator calls storage is no fabric NIC."""
    machine, port = below_root()
    nic = machine.nic(port, link=(GEN5, 8))
    name = machine.ports[0].device
    (found,) = findings(machine.node(), WIDTH, policy=Policy(roles={name: "storage"}))
    assert (found.subject, found.severity) == (nic, "warning")


def test_virtual_machine_registers() -> None:
    """In a guest the registers are emulated: nothing is concluded from them, for no device."""
    machine, port = below_root(platform=GUEST)
    gpu, nic = machine.gpu(port, link=(GEN1, 1)), machine.nic(machine.root_port("pci0000:10"), link=(GEN1, 1))
    found, open_questions = conclusions(machine.node(), WIDTH)
    assert found == []
    assert {(u.subject, u.cause) for u in open_questions} == {(gpu, "virtual-machine"), (nic, "virtual-machine")}


def seen_by_driver(machine: Machine, widths: list[int]) -> list[DriverGpu]:
    addresses = [a for a, part in machine.parts.items() if part.class_code == trees.GPU_CLASS]
    gpus = drivers(addresses, model="NVIDIA H100 80GB HBM3")
    return [g._replace(link=LinkEnd(GEN5, w, GEN5, 16)) for g, w in zip(gpus, widths, strict=True)]


def test_virtual_machine_peers() -> None:
    """In a guest NVML's width is judged against GPUs of the same model: warning."""
    machine = Machine(platform=GUEST)
    host = machine.host(0x10)
    gpus = [machine.gpu(machine.root_port(host)) for _ in range(4)]
    (found,) = findings(machine.node(seen_by_driver(machine, [16, 16, 8, 16])), WIDTH)
    assert (found.subject, found.severity, found.basis) == (gpus[2], "warning", "peers")
    assert findings(machine.node(seen_by_driver(machine, [8, 8, 8, 8])), WIDTH) == []


def test_suspended() -> None:
    """A suspended device is not read and not judged."""
    machine, port = below_root()
    gpu = machine.gpu(port, link=(GEN5, 8))
    machine.files(gpu, power__runtime_status=b"suspended\n")
    found, (question,) = conclusions(machine.node(), WIDTH)
    assert found == []
    assert (question.subject, question.cause) == (gpu, "asleep")


@pytest.mark.parametrize("ids", [trees.GH200, (0x10DE, 0x2941), (0x10DE, 0x31C2)], ids=["GH200", "GB200", "GB300"])
def test_chip_to_chip(ids: trees.Ids) -> None:
    """GPUs on C2C have a PCIe link that means nothing."""
    machine, port = below_root()
    gpu = machine.gpu(port, ids, link=(GEN1, 1))
    found, (question,) = conclusions(machine.node(), WIDTH)
    assert found == []
    assert (question.subject, question.cause) == (gpu, "not-applicable")


def test_chip_to_chip_by_the_driver() -> None:
    """A part that the catalogue does not know is on C2C where its driver says so."""
    machine, port = below_root()
    gpu = machine.gpu(port, trees.UNLISTED_GPU, link=(GEN1, 1))
    assert findings(machine.node(drivers([gpu], c2c=True)), WIDTH) == []
    assert findings(machine.node(drivers([gpu], c2c=False)), WIDTH) != []


def test_chipset_links() -> None:
    """AMD's chipset has a narrow uplink that both ends claim to do better: it is no fault."""
    machine, port = below_root((GEN4, 16))
    up = machine.bridge(port, CHIPSET_UP, "upstream-port", (GEN4, 8), link=(GEN4, 4))
    machine.nvme(machine.bridge(up, CHIPSET_DOWN, "downstream-port", (GEN4, 4)))
    assert conclusions(machine.node(), WIDTH) == ([], [])


def test_integrated_graphics() -> None:
    """Graphics in the processor have no link verdict, and are no open question."""
    machine = Machine()
    graphics = trees.integrated_graphics(machine, machine.host())
    machine.files(graphics, current_link_speed=b"2.5 GT/s PCIe\n", current_link_width=b"0\n")
    machine.files(graphics, max_link_speed=b"16.0 GT/s PCIe\n", max_link_width=b"16\n")
    for code in (WIDTH, UNEXPLAINED, SLOT):
        assert conclusions(machine.node(), code) == ([], [])


@pytest.mark.parametrize(
    ("width", "cause"),
    [(b"0\n", "unreadable"), (b"Unknown\n", "unreadable"), (trees.refused(), "denied"), (None, "not-recorded")],
)
def test_unknown_width(width: bytes | Refusal | None, cause: str) -> None:
    """A width that is not known is an open question with its reason, never a fault and never healthy."""
    machine, port = below_root()
    gpu = machine.gpu(port)
    machine.files(gpu, current_link_width=width)
    found, (question,) = conclusions(machine.node(), WIDTH)
    assert found == []
    assert (question.subject, question.cause) == (gpu, cause)


def test_virtual_functions() -> None:
    """A virtual function's link values mean nothing; in a guest that sees nothing else it is a device, unassessed."""
    machine, port = below_root()
    nic = machine.nic(port)
    virtual = machine.virtual(nic, number=1)
    machine.files(virtual, current_link_width=b"0\n", current_link_speed=b"Unknown\n")
    assert conclusions(machine.node(), WIDTH) == ([], [])


def test_no_link_at_all() -> None:
    """GPUs without link attributes are an open question."""
    machine, port = below_root()
    gpu = machine.gpu(port)
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    machine.files(gpu, **dict.fromkeys(names))
    assert gpu in {u.subject for u in unassessed(machine.node(), WIDTH)}


# --- pcie-link-unexplained -------------------------------------------------------------------------------------


def alone(**more: object) -> Machine:
    """A device whose port is not in the recording: someone pasted one device."""
    machine, port = below_root()
    add = machine.nic if more.pop("nic", False) else machine.gpu
    add(port, **more)  # type: ignore[arg-type]
    for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
        machine.files(port, **{name: None})
    return machine


@pytest.mark.parametrize("nic", [False, True])
def test_width_without_port(nic: bool) -> None:
    """Fewer lanes than the device has, the port unseen: a warning that does not know slot from fault."""
    machine = alone(nic=nic, link=(GEN5, 8))
    (found,) = findings(machine.node(), UNEXPLAINED)
    assert (found.severity, found.observed["width"], found.expected["max_width"]) == ("warning", 8, 16)
    assert findings(machine.node(), WIDTH) == []
    assert unassessed(machine.node(), WIDTH) != []


def test_never_above_the_width_rule() -> None:
    """A device whose missing lanes would be info is info here too."""
    machine = alone(nic=True, ids=I350, link=(GEN3, 1), most=(GEN3, 4), gbps=1, infiniband=False)
    assert [f.severity for f in findings(machine.node(), UNEXPLAINED)] == ["info"]


def test_speed_without_port() -> None:
    """A lower speed of a NIC is information; a GPU's follows its load and is no finding."""
    assert [f.severity for f in findings(alone(nic=True, link=(GEN4, 16)).node(), UNEXPLAINED)] == ["info"]
    assert findings(alone(link=(GEN1, 16)).node(), UNEXPLAINED) == []


def test_explained() -> None:
    """With the port known the other rules judge; at its own maximum a device is right whatever the port."""
    machine, port = below_root()
    machine.gpu(port, link=(GEN5, 8))
    assert findings(machine.node(), UNEXPLAINED) == []
    assert findings(alone().node(), UNEXPLAINED) == []


def test_which_end_is_not_known() -> None:
    """An open question names the end whose capability is missing; at the most of the other end nothing is open."""
    machine, port = below_root((GEN4, 16))
    gpu = machine.gpu(port, link=(GEN4, 8), most=(GEN4, 16))
    machine.files(gpu, max_link_width=None)
    (told,) = unassessed(machine.node(), WIDTH)
    assert "device itself" in told.reason and "port" not in told.reason
    machine.files(port, max_link_width=None, current_link_width=None)
    (told,) = unassessed(machine.node(), WIDTH)
    assert "device and the port" in told.reason
    machine.files(gpu, max_link_width=b"16\n")
    (told,) = unassessed(machine.node(), WIDTH)
    assert "port above" in told.reason and "device" not in told.reason


def test_as_wide_as_its_port() -> None:
    """A link with all lanes of its port is right, whatever the device could do."""
    machine, port = below_root((GEN4, 16))
    machine.files(machine.gpu(port, link=(GEN4, 16), most=(GEN4, 16)), max_link_width=None)
    assert conclusions(machine.node(), WIDTH) == ([], [])


def test_lanes_are_not_charged_with_the_speed() -> None:
    """What missing lanes cost is told at the speed that both ends can do: a lower one may be idleness, and what is
    lost by a real one is added up by its own rule."""
    machine, port = below_root((GEN4, 16))
    machine.gpu(port, link=(GEN1, 8), most=(GEN4, 16))
    (found,) = findings(machine.node(), WIDTH)
    assert found.lost_gbs == pytest.approx(15.75, rel=0.01)
    assert found.observed["gbs"] == pytest.approx(2.0)
    machine, port = below_root((GEN4, 4))
    machine.nvme(port, link=(GEN3, 2))
    losses = [findings(machine.node(), code)[0].lost_gbs or 0.0 for code in (WIDTH, "pcie-speed-degraded")]
    assert sum(losses) == pytest.approx(7.877 - 1.969, abs=0.02)


@pytest.mark.parametrize("below", ["gpu gpu", "nic gpu", "nvme nvme", "nic nvme"])
def test_slot_of_a_card_that_several_devices_share(below: str) -> None:
    """A bridge inside a card (ConnectX-8, BlueField) with several devices below is the uplink of them all."""
    machine, port = below_root()
    bridge = machine.bridge(port, BLUEFIELD_BRIDGE, UPSTREAM_PORT, (GEN5, 16), link=(GEN5, 4))
    for kind in below.split():
        down = machine.bridge(bridge, BLUEFIELD_BRIDGE, DOWNSTREAM_PORT, (GEN5, 16))
        if kind == "gpu":
            machine.gpu(down)
        elif kind == "nic":
            machine.nic(down)
        else:
            machine.nvme(down)
    (found,) = [f for f in findings(machine.node(), WIDTH) if f.subject == bridge]
    assert found.severity == "warning"


@pytest.mark.parametrize(("ids", "fires"), [(trees.A100_SXM, True), (trees.L40S, False)])
def test_modules_of_which_only_the_driver_tells_a_width(ids: trees.Ids, fires: bool) -> None:
    """A module has no slot of its own, so that its twins tell what it should run at; slots of cards differ."""
    views = [
        DriverGpu(f"0000:{n:02x}:00.0", n, vendor_id=ids[0], device_id=ids[1], link=LinkEnd(16.0, 8 if n == 6 else 16))
        for n in range(1, 9)
    ]
    node = assemble([Facts(SourceStatus("nvidia-smi", OK), gpus=tuple(views))])
    assert [(f.subject, f.severity) for f in findings(node, WIDTH)] == ([("0000:06:00.0", "warning")] if fires else [])
