"""pcie-device-lost: on the bus without an answer, or gone from it."""

from __future__ import annotations

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers import lspci
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import BARE_METAL, Platform
from gpu_topo.model.node import Node
from gpu_topo.source import Tree
from gpu_topo.source.tree import Entry
from gpu_topo.topology.baseline import document
from tests import trees
from tests.nvlinks import drivers
from tests.trees import DEVICES, Machine, conclusions, findings, one_gpu

LOST = "pcie-device-lost"


def dead(machine: Machine, address: str) -> None:
    """What sysfs shows of a function whose configuration reads all ones."""
    machine.files(
        address,
        current_link_speed=b"Unknown\n",
        current_link_width=b"63\n",
        max_link_speed=b"Unknown\n",
        max_link_width=b"255\n",
    )


MOBILE = (0x10DE, 0x1F91)  # a laptop's GPU


def hybrid(chassis: int | None = None) -> tuple[Machine, str]:
    """Integrated graphics beside a GPU that does not answer."""
    machine = Machine(platform=Platform(kind=BARE_METAL, arch="x86_64", chassis=chassis, numa_count=1))
    host = machine.host(0x00)
    trees.integrated_graphics(machine, host)
    gpu = machine.gpu(machine.root_port(host), MOBILE)
    dead(machine, gpu)
    return machine, gpu


def gpu_machine(config: bool = False, **more: object) -> tuple[Machine, str]:
    machine = Machine(config=config, **more)  # type: ignore[arg-type]
    return machine, machine.gpu(machine.root_port(machine.host(0x10)))


def test_gpu_that_no_longer_answers() -> None:
    """All ones although it is not suspended: critical."""
    machine, gpu = gpu_machine()
    dead(machine, gpu)
    (found,) = findings(machine.node(), LOST)
    assert (found.subject, found.severity) == (gpu, "critical")


def test_configuration_space() -> None:
    """As root the configuration space itself says so."""
    machine, gpu = gpu_machine(config=True)
    machine.files(gpu, config=b"\xff" * 64)
    assert [f.subject for f in findings(machine.node(), LOST)] == [gpu]


def test_other_devices() -> None:
    """A NIC or drive that is gone is as lost as a GPU."""
    machine = Machine()
    host = machine.host(0x10)
    nic, drive = machine.nic(machine.root_port(host)), machine.nvme(machine.root_port(host))
    for device in (nic, drive):
        dead(machine, device)
    assert {f.subject for f in findings(machine.node(), LOST)} == {nic, drive}


def test_links_of_the_lost_are_not_judged() -> None:
    """A lost device has no link that could be degraded, and its state is said once."""
    machine, gpu = gpu_machine()
    dead(machine, gpu)
    node = machine.node()
    for code in ("pcie-width-degraded", "pcie-speed-degraded", "pcie-slot-limited", "pcie-link-unexplained"):
        assert findings(node, code) == []


def test_answering() -> None:
    """A device that answers, whatever its link, is not lost."""
    machine, gpu = gpu_machine()
    machine.files(gpu, current_link_width=b"0\n", current_link_speed=b"Unknown\n")
    assert conclusions(machine.node(), LOST) == ([], [])


def test_suspended() -> None:
    """A suspended device is not asked, and so not lost."""
    machine, gpu = gpu_machine()
    dead(machine, gpu)
    machine.files(gpu, power__runtime_status=b"suspended\n")
    assert findings(machine.node(), LOST) == []


@pytest.mark.parametrize("chassis", [9, 10, 31])
def test_laptop(chassis: int) -> None:
    """A laptop's second GPU that is off looks the same: without its power state it is an open question."""
    machine, gpu = hybrid(chassis)
    found, (question,) = conclusions(machine.node(), LOST)
    assert found == []
    assert (question.subject, question.cause) == (gpu, "asleep")


@pytest.mark.parametrize("chassis", [None, 1, 2])
def test_hybrid_graphics(chassis: int | None) -> None:
    """Where nothing says what machine it is, a second GPU beside integrated graphics may be switched off."""
    machine, gpu = hybrid(chassis)
    found, (question,) = conclusions(machine.node(), LOST)
    assert found == []
    assert question.subject == gpu


@pytest.mark.parametrize("chassis", [3, 7, 17, 23])
def test_desktop_with_integrated_graphics(chassis: int) -> None:
    """A desktop's or server's GPU is not switched off, integrated graphics or not."""
    machine, gpu = hybrid(chassis)
    assert [f.subject for f in findings(machine.node(), LOST)] == [gpu]


def test_data_centre_gpu_beside_integrated_graphics() -> None:
    """No laptop has a data-centre GPU."""
    machine = Machine()
    host = machine.host(0x00)
    trees.integrated_graphics(machine, host)
    gpu = machine.gpu(machine.root_port(host), trees.L40S)
    dead(machine, gpu)
    assert [f.subject for f in findings(machine.node(), LOST)] == [gpu]


def test_laptop_whose_driver_says_lost() -> None:
    """Where the driver itself calls the GPU lost, it is."""
    machine, gpu = hybrid(10)
    node = machine.node([g._replace(lost=True) for g in drivers([gpu])])
    assert [f.subject for f in findings(node, LOST)] == [gpu]


def test_server_with_management_display() -> None:
    """A server's management display makes no hybrid graphics of it."""
    machine, gpu = gpu_machine()
    trees.display(machine, "pci0000:10")
    dead(machine, gpu)
    assert [f.subject for f in findings(machine.node(), LOST)] == [gpu]


def test_gone_from_the_bus() -> None:
    """A device that was seen before and is gone is lost, on the ground of what was seen."""
    machine, gpu = gpu_machine()
    past = Past(seen_devices={gpu: "gpu", "0000:99:00.0": "nic"})
    (found,) = findings(machine.node(), LOST, past)
    assert (found.subject, found.severity, found.basis) == ("0000:99:00.0", "critical", "baseline")
    assert findings(machine.node(), LOST, past, Policy(exclude=frozenset({"0000:99:00.0"}))) == []


@pytest.mark.parametrize(
    ("seen", "words"), [("gpu", "the GPU"), ("storage", "the storage device"), ("NVIDIA L40S", "NVIDIA L40S")]
)
def test_what_is_gone_has_a_name(seen: str, words: str) -> None:
    """By its name where one was remembered, by the word for its kind where not; the baseline's name is as good."""
    machine, _ = gpu_machine()
    (found,) = findings(machine.node(), LOST, Past(seen_devices={"0000:99:00.0": seen}))
    assert found.summary == f"{words} at 0000:99:00.0 was there before and is gone from the bus"
    row = {"address": "0000:99:00.0", "kind": "gpu", "name": "NVIDIA L40S"}
    saved = document(machine.node())
    saved["devices"] = [*saved["devices"], row]
    (found,) = findings(machine.node(), LOST, Past(seen_devices={"0000:99:00.0": "gpu"}, baseline=saved))
    assert "NVIDIA L40S" in found.summary


def test_what_the_baseline_has_is_lost_too() -> None:
    """After a reboot the daemon has seen nothing yet, and an audit never has: the baseline knows the device."""
    before = Machine()
    host = before.host()
    before.gpu(before.root_port(host))
    gone = before.gpu(before.root_port(host))
    past = Past(baseline=document(before.node()))
    after = Machine()
    host = after.host()
    after.gpu(after.root_port(host))
    after.root_port(host)
    (finding,) = findings(after.node(), LOST, past)
    assert (finding.severity, finding.subject, finding.basis) == ("critical", gone, "baseline")
    assert findings(after.node(), LOST, past, Policy(exclude=frozenset({gone}))) == []
    assert findings(before.node(), LOST, past) == []


@pytest.mark.parametrize("extra", ["link", "folder", "garbage"])
def test_a_device_that_nobody_can_identify_is_unassessed(extra: str) -> None:
    """A dangling link, an empty folder, a class that makes no sense: the report must not say that all was judged."""
    machine, _ = one_gpu()
    lone = f"{DEVICES}/0000:99:00.0"
    entries: dict[str, Entry] = dict(machine.entries())
    if extra == "link":
        entries[lone] = "../../../devices/pci0000:98/0000:99:00.0"
    elif extra == "garbage":
        entries |= {f"{lone}/class": b"rubbish\n", f"{lone}/vendor": b"0x9999\n"}
    node = assemble([trees.collect(Tree(entries, folders=(lone,) if extra == "folder" else ()))])
    found, left = conclusions(node, LOST)
    assert found == []
    assert [(u.subject, u.cause) for u in left] == [("0000:99:00.0", "unreadable")]


def test_devices_of_other_kinds_are_identified() -> None:
    """An audio function or a sensor is nobody's question, whatever else could not be read."""
    machine, gpu = one_gpu()
    machine.files(gpu, current_link_width=b"rubbish\n")
    trees.display(machine, machine.host(0x20))
    assert conclusions(machine.node(), LOST) == ([], [])


def listed(*lines: str) -> Node:
    """The node of lines of lspci."""
    return assemble(lspci.read([clean(line) for line in lines], "t"))


AUDIO = "01:00.1 Audio device: NVIDIA Corporation GP107GL High Definition Audio Controller (rev ff)"
SERVER = "3b:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev a1)"


@pytest.mark.parametrize(
    "gpu",
    [
        "NVIDIA Corporation GP107M [GeForce GTX 1050 Ti Mobile]",
        "NVIDIA Corporation GF119M [Quadro NVS 4200M]",
        "NVIDIA Corporation TU106GLM [Quadro RTX 3000 Mobile / Max-Q]",
        "NVIDIA Corporation GA104 [GeForce RTX 3080 Laptop GPU]",
        "Advanced Micro Devices, Inc. [AMD/ATI] Mars [Radeon HD 8670A/8670M/8750M]",
    ],
)
def test_a_gpu_built_for_laptops(gpu: str) -> None:
    """Its name says that it may be switched off, also where nothing of the machine is in the paste."""
    found, (question,) = conclusions(listed(f"01:00.0 3D controller: {gpu} (rev ff)", AUDIO), LOST)
    assert found == []
    assert question.subject == "0000:01:00.0"


@pytest.mark.parametrize("gpu", ["GA102 [GeForce RTX 3090]", "GM200 [GeForce GTX TITAN X]", "GA100 [A100 PCIe 80GB]"])
def test_a_gpu_that_is_not_built_for_laptops(gpu: str) -> None:
    """The GPU is lost; that its sound is too goes without saying."""
    found = findings(listed(f"01:00.0 VGA compatible controller: NVIDIA Corporation {gpu} (rev ff)", AUDIO), LOST)
    assert [f.subject for f in found] == ["0000:01:00.0"]


def test_sound_of_a_gpu() -> None:
    """It sleeps beside a GPU that answers; where the GPU is not in the paste, nobody knows."""
    gpu = "01:00.0 VGA compatible controller: NVIDIA Corporation GP107 [GeForce GTX 1050 Ti] (rev a1)"
    assert conclusions(listed(gpu, AUDIO), LOST) == ([], [])
    found, (question,) = conclusions(listed(AUDIO, SERVER), LOST)
    assert found == []
    assert question.subject == "0000:01:00.1"


def test_other_functions_are_lost() -> None:
    """The second port of an adapter is no sound of a GPU."""
    lines = [f"3c:00.{n} Ethernet controller: Intel Corporation Ethernet Controller E810-C (rev {r})" for n, r in
             ((0, "02"), (1, "ff"))]  # fmt: skip
    assert [f.subject for f in findings(listed(SERVER, *lines), LOST)] == ["0000:3c:00.1"]


@pytest.mark.parametrize("name", ["Phoenix3", "Carrizo", "Strix Halo [Radeon Graphics / Radeon 8060S Graphics]"])
def test_graphics_inside_processors_by_their_names(name: str) -> None:
    """Lists of names of other ages than the catalogue spell them otherwise."""
    node = listed(
        f"06:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] {name} (rev b3)",
        "01:00.0 3D controller: NVIDIA Corporation GA107 [GeForce RTX 3050] (rev ff)",
    )
    assert node.devices["0000:06:00.0"].integrated
    found, (question,) = conclusions(node, LOST)
    assert found == []
    assert question.subject == "0000:01:00.0"


@pytest.mark.parametrize("name", ["Navi 31 [Radeon RX 7900 XT/7900 XTX]", "Ellesmere [Radeon RX 470/480]"])
def test_cards_are_not_inside_processors(name: str) -> None:
    """A card stays one."""
    node = listed(f"06:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] {name} (rev b3)")
    assert not node.devices["0000:06:00.0"].integrated
