"""Several sources and samples become one Node: what wins, what completes, and what stays unknown."""

from __future__ import annotations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.classifier.driver import judge_lost
from gpu_topo.collectors.readers import lspci
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.finding import Unassessed
from gpu_topo.model.gpu import ACTIVE, INACTIVE, AcceleratorLink, DriverGpu, DriverState, NvLink
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import BARE_METAL, VIRTUAL_MACHINE, Platform
from gpu_topo.model.pci import Function, LinkEnd
from gpu_topo.model.reading import DENIED, NOT_RECORDED, Unknown, known
from tests.nvlinks import gpus_of, machine_with
from tests.trees import GEN1, GEN4, GEN5, Machine

GPU = "0000:65:00.0"


def pci(source: str = "lspci -vvv", structure_only: bool = False, **function: object) -> Facts:
    """One function from one source."""
    fields = {"vendor_id": 0x10DE, "device_id": 0x2330, "class_code": 0x030200, "parent": None, **function}
    return Facts(SourceStatus(source, OK), functions=(Function(GPU, **fields),), structure_only=structure_only)  # type: ignore[arg-type]


def driver(*gpus: DriverGpu, name: str = "nvidia-smi -q") -> Facts:
    return Facts(SourceStatus(name, OK), gpus=gpus)


def test_later_sample_wins() -> None:
    """The last of several outputs of one kind is the machine's state, and all are kept as samples."""
    idle, busy = LinkEnd(GEN1, 16, GEN5, 16), LinkEnd(GEN5, 16, GEN5, 16)
    node = assemble([pci(link=idle), pci(link=busy)])
    link = node.devices[GPU].link
    assert link is not None
    assert link.speed_gts == GEN5
    assert [sample.speed_gts for sample in node.gpus[0].samples] == [GEN1, GEN5]


def test_a_value_beats_an_unknown() -> None:
    """Sources complete each other, in whatever order they come."""
    denied = pci(numa_node=Unknown(DENIED, "numa_node"), link=LinkEnd(Unknown(DENIED, "LnkSta")))
    told = pci(numa_node=1, link=LinkEnd(GEN5, 16, GEN5, 16))
    for order in ([denied, told], [told, denied]):
        device = assemble(order).devices[GPU]
        assert device.function.numa_node == 1
        assert device.link is not None
        assert device.link.width == 16


def test_guesses_never_overrule() -> None:
    """Values that are maxima or guesses complete the picture and replace nothing that was read."""
    read = pci(link=LinkEnd(GEN5, 8, GEN5, 16))
    guess = pci("NCCL XML", link=LinkEnd(GEN5, 16), link_trusted=False)
    for order in ([read, guess], [guess, read]):
        link = assemble(order).devices[GPU].link
        assert link is not None
        assert (link.width, link.trusted) == (8, True)
    link = assemble([guess]).devices[GPU].link
    assert link is not None
    assert not link.trusted


def test_inventories_never_overrule() -> None:
    """A listing without link values adds what the others do not say, and changes nothing."""
    inventory = pci("lspci -nn", structure_only=True, name="GH100 [H100 SXM5 80GB]", parent=Unknown(NOT_RECORDED, "x"))
    full = pci(link=LinkEnd(GEN5, 16, GEN5, 16), parent=None)
    for order in ([inventory, full], [full, inventory]):
        device = assemble(order).devices[GPU]
        assert device.function.parent is None
        assert device.link is not None


def test_gone_stays_gone() -> None:
    """A device that one source found dead is dead, whatever an older listing says of its link."""
    node = assemble([pci(link=LinkEnd(GEN5, 16, GEN5, 16)), pci(answers=False)])
    assert node.devices[GPU].function.answers is False


# --- drivers' GPUs onto PCI ------------------------------------------------------------------------------------


def test_gpu_that_only_the_driver_knows() -> None:
    """A recording of nvidia-smi alone has its GPUs, with the link as the driver sees it."""
    gpu = DriverGpu(GPU, 0, "GPU-1", "NVIDIA H100 80GB HBM3", link=LinkEnd(GEN5, 16, GEN5, 16))
    node = assemble([driver(gpu)])
    device = node.devices[GPU]
    assert device.kind == "gpu"
    assert device.part is not None
    assert device.part.fabric_links == 18
    assert device.link is not None
    assert device.link.width == 16


def test_names_without_addresses() -> None:
    """A tool that gives no addresses is matched by index where another gave both."""
    told = driver(DriverGpu(GPU, 0), DriverGpu("0000:66:00.0", 1))
    links = (NvLink(0, ACTIVE, remote="GPU0", remote_kind="gpu"),)
    nameless = driver(DriverGpu(None, 0), DriverGpu(None, 1, nvlinks=links), name="nvidia-smi nvlink -s")
    node = assemble([told, nameless])
    assert [gpu.address for gpu in node.gpus] == [GPU, "0000:66:00.0"]
    assert [link.remote for link in known(node.gpus[1].nvlinks) or ()] == [GPU]


def test_names_by_place() -> None:
    """Without an index in common, as many GPUs on PCI as names are matched in address order, else not at all."""
    machine = machine_with(2)
    addresses = gpus_of(machine)
    nameless = driver(DriverGpu(None, 0), DriverGpu(None, 1))
    assert [gpu.address for gpu in machine.node(more=[nameless]).gpus] == addresses
    three = driver(*(DriverGpu(None, number) for number in range(3)))
    node = machine.node(more=[three])
    assert [(gpu.address, gpu.ordinal) for gpu in node.gpus] == [(address, None) for address in addresses]


def test_a_gpu_that_does_not_tell_its_address_takes_the_place_that_is_left() -> None:
    """One call that hangs costs one GPU its address; it is no ninth device."""
    machine = machine_with(3)
    first, second, third = gpus_of(machine)
    told = driver(DriverGpu(first, 0), DriverGpu(None, 1, pstate=8), DriverGpu(third, 2))
    node = machine.node(more=[told])
    assert [gpu.address for gpu in node.gpus] == [first, second, third]
    assert node.gpus[1].pstate == 8


def test_masked_uuids_match_nobody() -> None:
    """UUIDs that were replaced by one and the same text do not make two GPUs one."""
    told = driver(DriverGpu(GPU, 0, "GPU-x"), DriverGpu("0000:66:00.0", 1, "GPU-x"))
    nameless = driver(DriverGpu(None, 1, "GPU-x", pstate=0), DriverGpu(None, 0, "GPU-x", pstate=8))
    assert [gpu.pstate for gpu in assemble([told, nameless]).gpus] == [8, 0]


def test_links_are_joined_link_by_link() -> None:
    """States, remote ends and error counts come from three calls of nvidia-smi."""
    states = driver(DriverGpu(GPU, 0, nvlinks=(NvLink(0, ACTIVE, gbs=26.562), NvLink(1, INACTIVE))))
    remotes = driver(DriverGpu(GPU, 0, nvlinks=(NvLink(0, remote_kind="nvswitch", remote="0000:c0:00.0"),)))
    errors = driver(DriverGpu(GPU, 0, nvlinks=(NvLink(1, errors={"replay": 3}),)))
    links = known(assemble([states, remotes, errors]).gpus[0].nvlinks) or ()
    assert [(link.state, link.remote_kind) for link in links] == [(ACTIVE, "nvswitch"), (INACTIVE, "unknown")]
    assert dict(links[1].errors) == {"replay": 3}


@pytest.mark.parametrize(
    ("pstate", "utilization", "busy"),
    [(0, 97, True), (8, 0, False), (0, 0, False), (8, None, False), (0, None, None), (None, None, None)],
)
def test_busy(pstate: int | None, utilization: int | None, busy: bool | None) -> None:
    """Busy is what utilisation says, else what a P-state proves; P0 proves nothing."""
    assert assemble([driver(DriverGpu(GPU, 0, pstate=pstate, utilization=utilization))]).gpus[0].busy is busy


# --- the link of two ends --------------------------------------------------------------------------------------


def test_expected_link() -> None:
    """Per field the minimum of both ends, GB/s after line encoding."""
    machine = Machine()
    port = machine.root_port(machine.host(), (GEN4, 16))
    gpu = machine.gpu(port, link=(GEN4, 8), most=(GEN5, 16))
    link = machine.node().devices[gpu].link
    assert link is not None
    assert (link.expected_speed_gts, link.expected_width) == (GEN4, 16)
    assert link.gbs == pytest.approx(15.75, rel=0.001)
    assert link.expected_gbs == pytest.approx(31.5, rel=0.001)
    assert (link.port, link.port_max_speed_gts, link.port_max_width) == (port, GEN4, 16)


@pytest.mark.parametrize(
    ("speed", "gbs"), [(2.5, 4.0), (5.0, 8.0), (8.0, 15.75), (16.0, 31.5), (32.0, 63.0), (64.0, 118)]
)
def test_bandwidth(speed: float, gbs: float) -> None:
    """GB/s of sixteen lanes as INTERFACE has them."""
    link = assemble([pci(link=LinkEnd(speed, 16, speed, 16))]).devices[GPU].link
    assert link is not None
    assert link.gbs == pytest.approx(gbs, rel=0.001)


# --- the platform ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modes", "kind"),
    [
        (["None", "None"], BARE_METAL),
        (["Host VGPU", "None"], BARE_METAL),
        (["Pass-Through", "Pass-Through"], VIRTUAL_MACHINE),
        (["VGPU"], VIRTUAL_MACHINE),
        (["N/A"], "unknown"),
        ([], "unknown"),
    ],
)
def test_platform_of_the_driver(modes: list[str], kind: str) -> None:
    """Where nothing else tells, the driver's virtualization mode does."""
    gpus = [DriverGpu(f"0000:{n:02x}:00.0", n, virtualization=mode) for n, mode in enumerate(modes)]
    assert assemble([driver(*gpus)]).platform.kind == kind


def test_platform_of_the_devices() -> None:
    """A hypervisor's own devices tell that this is a guest; what the machine says of itself goes before."""
    machine = Machine(platform=Platform())
    machine.function(machine.host(), (0x1AF4, 0x1041), 0x020000, port_type=None)
    machine.function("pci0000:00", (0x1B36, 0x000D), 0x0C0330, port_type=None)
    assert machine.node().platform.kind == VIRTUAL_MACHINE
    machine.platform = Platform(kind=BARE_METAL)
    assert machine.node().platform.kind == BARE_METAL


def test_guests_links_are_hidden() -> None:
    """In a guest every link is marked as hidden, with the reason."""
    machine = machine_with(1, platform=Platform(kind=VIRTUAL_MACHINE))
    assert set(machine.node().hidden_links) == set(machine.parts)
    assert machine_with(1).node().hidden_links == {}


def test_empty() -> None:
    """Nothing read is a Node without anything."""
    node = assemble([])
    assert (dict(node.devices), node.gpus, node.ports) == ({}, (), ())


def test_a_gpu_without_an_address_is_no_further_device() -> None:
    """Where the bus lists GPUs, one whose driver cannot say its address is one of them: lost, but not one more."""
    machine = Machine()
    host = machine.host()
    addresses = [machine.gpu(machine.root_port(host)) for _ in range(3)]
    drivers = [DriverGpu(addresses[0], ordinal=0), DriverGpu(None, ordinal=1, lost=True)]
    node = machine.node(drivers)
    assert [d.address for d in node.devices.values() if d.kind == "gpu"] == addresses
    assert [gpu.address for gpu in node.gpus if gpu.lost] == ["GPU1"]


def bus(*names: str) -> Facts:
    """The lines of lspci for H100s and the like."""
    lines = [f"{0x18 + n:02x}:00.0 3D controller: {name} (rev a1)" for n, name in enumerate(names)]
    (found,) = lspci.read(lines, "t")
    return found


H100 = "NVIDIA Corporation GH100 [H100 SXM5 80GB]"


def nvml(*gpus: DriverGpu) -> Facts:
    return Facts(SourceStatus("nvidia-smi", OK), gpus=gpus, driver=DriverState("nvml", "ok"))


@pytest.mark.parametrize("count", [1, 3, 7])
def test_gpus_by_number_are_among_those_on_the_bus(count: int) -> None:
    """No GPU counts twice, and that the driver lists fewer is said where the recording does not name its driver."""
    node = assemble([bus(*[H100] * 8), nvml(*(DriverGpu(None, number) for number in range(count)))])
    assert [gpu.address for gpu in node.gpus] == list(node.devices)
    (left,) = judge_lost(node, Past(), Policy())
    assert isinstance(left, Unassessed)
    assert f"tell of {count} GPUs and 8 are on the bus" in left.reason


def test_as_many_by_number_as_on_the_bus() -> None:
    """Are these, in the order of addresses."""
    node = assemble([bus(*[H100] * 8), nvml(*(DriverGpu(None, number) for number in range(8)))])
    assert [gpu.ordinal for gpu in node.gpus] == list(range(8))
    assert list(judge_lost(node, Past(), Policy())) == []


def test_faults_of_gpus_that_are_known_by_number() -> None:
    """A link that is down is told of, with the GPUs that it is compared with; where all are up, they are the bus's."""
    up = tuple(NvLink(n, ACTIVE) for n in range(18))
    down = (NvLink(0, INACTIVE), *up[1:])
    well = assemble([bus(*[H100] * 8), nvml(*(DriverGpu(None, n, nvlinks=up) for n in range(7)))])
    assert len(well.gpus) == 8
    assert all(isinstance(gpu.nvlinks, Unknown) for gpu in well.gpus)
    ill = assemble([bus(*[H100] * 8), nvml(*(DriverGpu(None, n, nvlinks=down if n == 2 else up) for n in range(7)))])
    assert known(next(gpu for gpu in ill.gpus if gpu.address == "GPU2").nvlinks) == down


def test_a_gpu_that_the_drivers_list_lacks() -> None:
    """Of a recording that does not name drivers it may be lost, or have another driver."""
    listed = nvml(*(DriverGpu(f"0000:{0x18 + n:02x}:00.0", n) for n in range(3)))
    (left,) = judge_lost(assemble([bus(*[H100] * 4), listed]), Past(), Policy())
    assert isinstance(left, Unassessed)
    assert (left.subject, left.cause) == ("0000:1b:00.0", "not-recorded")
    some = listed._replace(driver=DriverState("nvml", "ok", lists_all=False))
    assert list(judge_lost(assemble([bus(*[H100] * 4), some]), Past(), Policy())) == [left]


def test_amds_gpus_by_number_and_by_address() -> None:
    """rocm-smi numbers them, amd-smi topology gives addresses: as many of each are the same."""
    by_number = Facts(
        SourceStatus("rocm-smi", OK),
        gpus=tuple(DriverGpu(None, n, vendor_id=0x1002) for n in range(4)),
        accelerator_links=(AcceleratorLink("xGMI", "GPU0", "GPU1"),),
    )
    places = [f"0000:{n:02x}:00.0" for n in (1, 2, 3, 4)]
    by_place = Facts(
        SourceStatus("amd-smi topology", OK),
        gpus=tuple(DriverGpu(address, vendor_id=0x1002) for address in places),
        accelerator_links=(AcceleratorLink("xGMI", places[0], places[1]),),
    )
    for order in ([by_number, by_place], [by_place, by_number]):
        node = assemble(order)
        assert [gpu.address for gpu in node.gpus] == places == list(node.devices)
        assert [(link.a, link.b) for link in node.accelerator_links] == [(places[0], places[1])]
    fewer = assemble([by_number, by_place._replace(gpus=by_place.gpus[:2])])
    assert len(fewer.gpus) == 6


@pytest.mark.parametrize("mask", ["0000:00:00.0", "0000:01:00.0"])
def test_addresses_that_were_masked(mask: str) -> None:
    """Several GPUs at one address are several, by their numbers; a GPU alone at an address is there."""
    node = assemble([nvml(*(DriverGpu(mask, number) for number in range(4)))])
    assert [gpu.address for gpu in node.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [gpu.address for gpu in assemble([nvml(DriverGpu("0000:01:00.0", 0))]).gpus] == ["0000:01:00.0"]
