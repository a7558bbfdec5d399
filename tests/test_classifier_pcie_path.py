"""pcie-path-bottleneck and pcie-uplink-oversubscribed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.pci import DOWNSTREAM_PORT, UPSTREAM_PORT, LinkEnd
from tests import trees
from tests.nvlinks import GUEST
from tests.trees import CHIPSET_DOWN, CHIPSET_UP, GEN1, GEN3, GEN4, GEN5, I350, PLX8747, Link, Machine, findings

PATH, UPLINK = "pcie-path-bottleneck", "pcie-uplink-oversubscribed"


def below_switch(uplink: Link = (GEN3, 16), most: Link = (GEN3, 16), **more: object) -> tuple[Machine, str]:
    """A machine with one switch; returns the switch."""
    machine = Machine(**more)  # type: ignore[arg-type]
    return machine, machine.switch(machine.root_port(machine.host(0x10)), PLX8747, uplink, most=most)


# --- pcie-path-bottleneck --------------------------------------------------------------------------------------


def test_narrow_uplink() -> None:
    """A Gen4 x16 GPU behind a Gen3 x16 uplink: a warning on the GPU that names the link further up."""
    machine, switch = below_switch()
    gpu = machine.gpu(machine.down(switch), most=(GEN4, 16))
    (found,) = findings(machine.node(), PATH)
    assert (found.subject, found.severity, found.basis) == (gpu, "warning", "link-partners")
    assert found.related == (switch,)
    assert found.lost_gbs == pytest.approx(15.75, rel=0.01)
    assert machine.node().devices[gpu].bottleneck == switch


def test_who_is_asked() -> None:
    """GPUs, accelerators, NVMe and NICs of 10 Gb/s and more; a 1 Gb/s NIC and a host adapter do not care."""
    machine, switch = below_switch((GEN1, 1), (GEN1, 1))
    wanted = {
        machine.gpu(machine.down(switch)),
        machine.function(machine.down(switch), (0x1DA3, 0x1060), trees.ACCELERATOR_CLASS, link=(GEN4, 16)),
        machine.nvme(machine.down(switch)),
        machine.nic(machine.down(switch)),
        machine.nic(machine.down(switch), (0x8086, 0x1563), (GEN3, 4), gbps=10, infiniband=False),
    }
    machine.nic(machine.down(switch), I350, (GEN3, 4), gbps=1, infiniband=False)
    machine.function(machine.down(switch), (0x1000, 0x0097), 0x010700, link=(GEN3, 8))
    assert {f.subject for f in findings(machine.node(), PATH)} == wanted


def test_wide_uplink() -> None:
    """An uplink that is as wide as the device, or wider, is none."""
    machine, switch = below_switch((GEN5, 16), (GEN5, 16))
    machine.gpu(machine.down(switch))
    machine.nvme(machine.down(switch))
    assert findings(machine.node(), PATH) == []


def test_the_narrowest_of_several() -> None:
    """Of several narrow links the narrowest is named."""
    machine, outer = below_switch((GEN4, 8), (GEN4, 8))
    inner = machine.switch(machine.down(outer), PLX8747, (GEN3, 4), most=(GEN3, 4))
    machine.gpu(machine.down(inner))
    assert findings(machine.node(), PATH)[0].related == (inner,)


@pytest.mark.parametrize("card", [trees.navi, trees.dpu])
@pytest.mark.parametrize("slot", [(GEN3, 16), (GEN4, 8), (GEN4, 4)])
@pytest.mark.parametrize("fault", [False, True])
def test_the_slot_of_a_card_with_inner_bridges(card: Callable[..., str], slot: Link, fault: bool) -> None:
    """What the slot gives an AMD GPU or a DPU is the card's own link, told by the rules of links and slots alone."""
    machine = Machine()
    card(machine, machine.root_port(machine.host(0x10), (GEN5, 16) if fault else slot), slot)
    node = machine.node()
    assert findings(node, PATH) == []
    assert (findings(node, "pcie-slot-limited") == []) == fault


@pytest.mark.parametrize("card", [trees.navi, trees.dpu])
def test_above_a_card_with_inner_bridges(card: Callable[..., str]) -> None:
    """An uplink narrower than the card's slot is a bottleneck; the figure beside it is the slot's, no inner one."""
    machine, switch = below_switch((GEN3, 4), (GEN3, 4))
    device = card(machine, machine.down(switch), (GEN4, 8))
    (found,) = findings(machine.node(), PATH)
    assert (found.subject, found.related) == (device, (switch,))
    assert found.expected["gbs"] == pytest.approx(15.75, rel=0.01)


@pytest.mark.parametrize("card", [trees.navi, trees.dpu])
def test_a_card_as_narrow_as_its_uplink(card: Callable[..., str]) -> None:
    """In a x4 slot below a x8 uplink the card asks for no more than the uplink carries."""
    machine, switch = below_switch((GEN4, 8), (GEN4, 8))
    card(machine, machine.down(switch), (GEN4, 4))
    assert findings(machine.node(), PATH) == []


def test_idle_gpu_above_itself() -> None:
    """An idle GPU lowers the link of the switch that it alone hangs from: that is no bottleneck."""
    machine, switch = below_switch((GEN1, 16), (GEN4, 16))
    gpu = machine.gpu(machine.down(switch), trees.UNLISTED_GPU, (GEN1, 16), (GEN4, 16))
    idle = DriverGpu(gpu, 0, pstate=8, utilization=0, link=LinkEnd(GEN1, 16, GEN4, 16))
    assert findings(machine.node([idle]), PATH) == []
    assert findings(machine.node(), PATH) == []


def test_idle_gpu_does_not_hide_a_bottleneck() -> None:
    """A GPU that idles at Gen1 still has a bottleneck in the Gen3 uplink that it shares."""
    machine, switch = below_switch((GEN3, 8), (GEN3, 8))
    gpus = [machine.gpu(machine.down(switch), trees.UNLISTED_GPU, (GEN1, 16), (GEN4, 16)) for _ in range(2)]
    assert {f.subject for f in findings(machine.node(), PATH)} == set(gpus)


def test_chipset() -> None:
    """The chipset's own uplink is not judged; what hangs below it knows what it was bought for."""
    machine = Machine()
    up = machine.bridge(machine.root_port(machine.host(0x10)), CHIPSET_UP, "upstream-port", (GEN3, 2))
    machine.nvme(machine.bridge(up, CHIPSET_DOWN, "downstream-port", (GEN4, 4)))
    assert findings(machine.node(), PATH) == []


def test_virtual_machine() -> None:
    """In a guest the links are emulated."""
    machine, switch = below_switch((GEN1, 1), (GEN1, 1), platform=GUEST)
    machine.gpu(machine.down(switch))
    assert findings(machine.node(), PATH) == []
    assert findings(machine.node(), UPLINK) == []


def test_once_a_device() -> None:
    """Two functions of a NIC are one device and one finding; virtual functions are none."""
    machine, switch = below_switch((GEN3, 4), (GEN3, 4))
    port = machine.down(switch)
    nic = machine.nic(port)
    machine.nic(port, same_device=nic)
    machine.virtual(nic, number=2)
    assert [f.subject for f in findings(machine.node(), PATH)] == [nic]


# --- pcie-uplink-oversubscribed --------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "ratio"), [(2, 2.0), (4, 4.0), (8, 8.0)])
def test_ratio(count: int, ratio: float) -> None:
    """Several GPUs on one uplink: information with the ratio, on the switch."""
    machine, switch = below_switch((GEN4, 16), (GEN4, 16))
    gpus = [machine.gpu(machine.down(switch), most=(GEN4, 16)) for _ in range(count)]
    (found,) = findings(machine.node(), UPLINK)
    assert (found.subject, found.severity) == (switch, "info")
    assert found.observed["ratio"] == ratio
    assert set(found.related) == set(gpus)


def test_one_to_one() -> None:
    """A GPU on an uplink of its own, with the switch's management function, is not oversubscribed."""
    machine, switch = below_switch((GEN5, 16), (GEN5, 16))
    machine.gpu(machine.down(switch))
    machine.function(machine.down(switch), (0x1000, 0x00B2), 0x010700, link=(GEN4, 1))
    assert findings(machine.node(), UPLINK) == []


def test_idle_uplink() -> None:
    """The ratio is of what links can carry: neither idle GPUs nor an idle uplink change it."""
    machine, switch = below_switch((GEN1, 16), (GEN4, 16))
    for _ in range(2):
        machine.gpu(machine.down(switch), link=(GEN1, 16), most=(GEN4, 16))
    assert findings(machine.node(), UPLINK)[0].observed["ratio"] == 2.0


def test_unknown_uplink() -> None:
    """Without the uplink's own values there is no ratio."""
    machine, switch = below_switch()
    machine.gpu(machine.down(switch))
    machine.files(switch, current_link_width=b"0\n", max_link_width=b"0\n")
    assert findings(machine.node(), UPLINK) == []


def test_degraded_uplink() -> None:
    """The ratio is of what the uplink can carry; what it carries as it runs is said beside it."""
    machine, switch = below_switch((GEN4, 8), (GEN4, 16))
    for _ in range(2):
        machine.gpu(machine.down(switch), most=(GEN4, 16))
    (found,) = findings(machine.node(), UPLINK)
    assert "an uplink of 31.5 GB/s at best, 15.8 GB/s as it runs" in found.summary
    machine.files(switch, current_link_width=b"16\n")
    assert "as it runs" not in findings(machine.node(), UPLINK)[0].summary


def test_nic_whose_line_rate_fits_the_narrow_link() -> None:
    """10 Gb/s behind a Gen3 x4 uplink lose nothing: information. 400 Gb/s lose what does not fit, not what the card's
    own link could carry."""
    for gbps, severity, lost in ((10.0, "info", None), (400.0, "warning", 50.0 - 15.75)):
        machine, switch = below_switch()
        nic = machine.nic(machine.down(switch), gbps=gbps)
        (found,) = findings(machine.node(), PATH)
        assert (found.subject, found.severity) == (nic, severity)
        assert found.lost_gbs == (None if lost is None else pytest.approx(lost, abs=0.02))


def test_lowest_function_stands_for_its_device() -> None:
    """Also where function 0 is not visible."""
    machine, switch = below_switch()
    first = machine.gpu(machine.down(switch), most=(GEN4, 16))
    second = machine.gpu(machine.down(switch), most=(GEN4, 16), same_device=first)
    del machine.parts[first]
    assert [f.subject for f in findings(machine.node(), PATH)] == [second]


def test_thunderbolt_tunnels_are_no_links() -> None:
    """A tunnel shows 2.5 GT/s x4 whatever it carries: neither a bottleneck nor a switch."""
    machine = Machine()
    controller: trees.Ids = (0x8086, 0x15EF)
    up = machine.bridge(machine.root_port(machine.host(0x10), (GEN1, 4)), controller, UPSTREAM_PORT, (GEN1, 4))
    machine.gpu(machine.bridge(up, controller, DOWNSTREAM_PORT, (GEN3, 4)), link=(GEN3, 4), most=(GEN4, 16))
    node = machine.node()
    assert node.switches == {}
    assert findings(node, PATH) + findings(node, UPLINK) == []
