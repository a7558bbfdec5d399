"""The PCIe collector, on synthetic trees for what may go wrong, and against lspci on every recorded tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, Facts
from gpu_topo.model.pci import Function
from gpu_topo.model.reading import ASLEEP, LOST, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.source import Live, LiveDir, Names, Recording, Refusal, Tree
from gpu_topo.topology.buses import place
from tests import trees
from tests.trees import DEVICES, GEN4, GEN5, Machine, refused

needs_lspci = pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci (pciutils) is not installed")


def by_address(facts: Facts) -> Mapping[str, Function]:
    return {function.address: function for function in facts.functions}


def one_gpu() -> tuple[Machine, str]:
    machine = Machine()
    return machine, machine.gpu(machine.root_port(machine.host(0x16)))


def why(reading: Reading[object]) -> str | None:
    return reading.why if isinstance(reading, Unknown) else None


# --- identity and place ----------------------------------------------------------------------------------------


def test_identity_comes_from_uevent() -> None:
    """Class, ids, subsystem and driver of a function are those of its uevent."""
    machine, gpu = one_gpu()
    machine.parts[gpu].subsystem = (0x10DE, 0x16C1)
    function = by_address(machine.facts())[gpu]
    assert (function.vendor_id, function.device_id, function.class_code) == (0x10DE, 0x2330, 0x030200)
    assert (function.subsystem_vendor_id, function.subsystem_device_id) == (0x10DE, 0x16C1)
    assert function.driver == "nvidia"
    assert not function.bridge


def test_identity_without_uevent() -> None:
    """A copy without uevent files is read from the single attributes and the driver link."""
    machine, gpu = one_gpu()
    machine.files(gpu, uevent=None)
    function = by_address(machine.facts())[gpu]
    assert (function.vendor_id, function.device_id, function.class_code) == (0x10DE, 0x2330, 0x030200)
    assert function.driver == "nvidia"


@pytest.mark.parametrize("domain", [0, 1, 0xFFFF, 0x10000, 0xABCDEF, 0xFEDCBA98])
def test_domains_of_four_to_eight_digits(domain: int) -> None:
    """A domain has as many hex digits as it needs, at least four, and its devices keep their place."""
    machine = Machine()
    port = machine.root_port(machine.host(0x01, domain=domain))
    gpu = machine.gpu(port)
    found = by_address(machine.facts())
    assert gpu.startswith(f"{domain:04x}:")
    assert found[gpu].parent == port
    assert found[port].parent is None
    assert found[gpu].host_bridge == f"pci{domain:04x}:01"


def test_several_root_buses() -> None:
    """Each root bus is its own: parents never lead across, and functions on it have none."""
    machine = Machine()
    gpus = [machine.gpu(machine.root_port(machine.host(bus))) for bus in (0x00, 0x40, 0x80, 0xC0)]
    found = by_address(machine.facts())
    assert [found[gpu].host_bridge for gpu in gpus] == ["pci0000:00", "pci0000:40", "pci0000:80", "pci0000:c0"]
    for gpu in gpus:
        parent = found[gpu].parent
        assert isinstance(parent, str)
        assert found[parent].parent is None
        assert found[parent].host_bridge == found[gpu].host_bridge


def test_root_bus_below_a_controller() -> None:
    """A host bridge that is itself a platform device (Arm, VMD) is found whatever is written before it."""
    entries = {
        f"{DEVICES}/10000:01:00.0": "../../../devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0",
        f"{DEVICES}/0004:01:00.0": "../../../devices/platform/14160000.pcie/pci0004:00/0004:00:00.0/0004:01:00.0",
    }
    folders = [
        "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0",
        "/sys/devices/platform/14160000.pcie/pci0004:00/0004:00:00.0/0004:01:00.0",
    ]
    found = by_address(trees.collect(Tree(entries, folders=folders)))
    assert (found["10000:01:00.0"].parent, found["10000:01:00.0"].host_bridge) == ("10000:00:02.0", "pci10000:00")
    assert (found["0004:01:00.0"].parent, found["0004:01:00.0"].host_bridge) == ("0004:00:00.0", "pci0004:00")
    assert found["10000:00:02.0"].parent is None


def test_flat_folders() -> None:
    """A copy whose links became folders holds the devices, and nothing of what is above them."""
    machine, gpu = one_gpu()
    flat = {}
    for path, entry in machine.entries().items():
        if path.startswith("/sys/devices/"):
            flat[f"{DEVICES}/{'/'.join(path.split('/')[-2:])}"] = entry
    function = by_address(trees.collect(Tree(flat)))[gpu]
    assert why(function.parent) == NOT_RECORDED
    assert function.link is not None
    assert function.link.width == 16


def test_bridge_that_is_named_and_not_held() -> None:
    """A bridge that the tree names and does not hold keeps its place above the others, without link values."""
    machine, gpu = one_gpu()
    port = known(by_address(machine.facts())[gpu].parent)
    kept = {path: entry for path, entry in machine.entries().items() if f"{DEVICES}/{port}" != path}
    found = by_address(trees.collect(Tree(kept)))
    assert port is not None
    assert found[gpu].parent == port
    assert found[port].bridge
    link = found[port].link
    assert link is not None
    assert why(link.max_width) == NOT_RECORDED


def test_slots() -> None:
    """A slot's label belongs to all functions of the device in it, and to no other."""
    machine, gpu = one_gpu()
    audio = machine.function(machine.parts[gpu].above.address, (0x10DE, 0x22A3), 0x040300, same_device=gpu)  # type: ignore[union-attr]
    machine.slot("GPU 3", gpu)
    found = by_address(machine.facts())
    assert {a for a, f in found.items() if f.slot == "GPU 3"} == {gpu, audio}
    assert all(f.slot is None for a, f in found.items() if a not in (gpu, audio))


# --- values that are none --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "counted"),
    [
        (b"2.5 GT/s PCIe\n", 2.5, False),
        (b"8 GT/s\n", 8.0, False),
        (b"64.0 GT/s PCIe\n", 64.0, False),
        (b"128.0 GT/s PCIe\n", 128.0, False),
        (b"Unknown\n", NO_DATA, False),
        (b"Unknown speed\n", NO_DATA, False),
        (b"", MALFORMED, True),
        (b"\n", MALFORMED, True),
        (b"fast\n", MALFORMED, True),
        (b"-8.0 GT/s PCIe\n", MALFORMED, True),
        (b"nan GT/s PCIe\n", MALFORMED, True),
        (b"1e99 GT/s PCIe\n", MALFORMED, True),
        (b"8.0\n", MALFORMED, True),
        (b"\xff\xfe\x00", MALFORMED, True),
    ],
)
def test_speeds(text: bytes, value: float | str, counted: bool) -> None:
    """A speed is GT/s, or unknown for a reason; what makes no sense is counted."""
    machine, gpu = one_gpu()
    machine.files(gpu, current_link_speed=text)
    facts = machine.facts()
    link = by_address(facts)[gpu].link
    assert link is not None
    speed = link.speed_gts
    assert (speed.why if isinstance(speed, Unknown) else speed) == value
    assert facts.unread == ({"malformed: current_link_speed": 1} if counted else {})
    assert facts.source.status == (PARTIAL if counted else OK)


@pytest.mark.parametrize(
    ("text", "value", "counted"),
    [
        (b"16\n", 16, False),
        (b"32\n", 32, False),
        (b"0\n", NO_DATA, False),
        (b"63\n", LOST, False),
        (b"255\n", LOST, False),
        (b"64\n", MALFORMED, True),
        (b"-1\n", MALFORMED, True),
        (b"x16\n", MALFORMED, True),
        (b"", MALFORMED, True),
        (b"16.0\n", MALFORMED, True),
        (b"9" * 5000, MALFORMED, True),
    ],
)
def test_widths(text: bytes, value: int | str, counted: bool) -> None:
    """A width is lanes; 0 is no link, 63 and 255 a device that is gone, and anything else is counted."""
    machine, gpu = one_gpu()
    machine.files(gpu, max_link_width=text)
    facts = machine.facts()
    link = by_address(facts)[gpu].link
    assert link is not None
    width = link.max_width
    assert (width.why if isinstance(width, Unknown) else width) == value
    assert facts.unread == ({"malformed: max_link_width": 1} if counted else {})


@pytest.mark.parametrize(
    ("entry", "value", "counted"),
    [
        (b"1\n", 1, False),
        (b"-1\n", NO_DATA, False),
        (None, None, False),
        (b"one\n", MALFORMED, True),
        (refused(), "denied", True),
        (refused("failed", "EIO"), "failed", True),
    ],
)
def test_numa_node(entry: bytes | Refusal | None, value: int | str | None, counted: bool) -> None:
    """numa_node -1 is unknown and never node 0; a file that is missing is no fault."""
    machine, gpu = one_gpu()
    machine.files(gpu, numa_node=entry)
    facts = machine.facts()
    numa = by_address(facts)[gpu].numa_node
    assert (numa.why if isinstance(numa, Unknown) else numa) == value
    assert bool(facts.unread) == counted


@pytest.mark.parametrize("name", ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"])
@pytest.mark.parametrize(("reason", "error"), [("denied", "EACCES"), ("failed", "EIO"), ("failed", "EINVAL")])
def test_refused_attribute(name: str, reason: str, error: str) -> None:
    """One attribute that cannot be read is unknown with its reason and counted; the others are still there."""
    machine, gpu = one_gpu()
    machine.files(gpu, **{name: refused(reason, error)})
    facts = machine.facts()
    link = by_address(facts)[gpu].link
    assert link is not None
    unknown = [value for value in link if isinstance(value, Unknown)]
    assert unknown == [Unknown(reason, name)]
    assert facts.unread == {f"{reason}: {name}": 1}
    assert len(facts.functions) == 3


def test_no_link_attributes() -> None:
    """Conventional PCI and old kernels have no link attributes: nothing is said of a link, and nothing counted."""
    machine, gpu = one_gpu()
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    machine.files(gpu, **dict.fromkeys(names))
    facts = machine.facts()
    assert by_address(facts)[gpu].link is None
    assert facts.unread == {}


def test_maxima_alone() -> None:
    """A tree with maxima and without what runs now says so: never recorded, never zero."""
    machine, gpu = one_gpu()
    machine.files(gpu, current_link_speed=None, current_link_width=None)
    link = by_address(machine.facts())[gpu].link
    assert link is not None
    assert (why(link.speed_gts), why(link.width)) == (NOT_RECORDED, NOT_RECORDED)
    assert (link.max_speed_gts, link.max_width) == (GEN5, 16)


def test_lost_device() -> None:
    """A function that answers all ones is known to be lost, and none of its link values is believed."""
    machine, gpu = one_gpu()
    machine.files(gpu, current_link_width=b"63\n", max_link_width=b"63\n", max_link_speed=b"Unknown\n")
    function = by_address(machine.facts())[gpu]
    assert function.answers is False
    assert function.link is not None
    assert all(isinstance(value, Unknown) for value in function.link[:4])


def test_lost_by_configuration_space() -> None:
    """As root, configuration space that reads all ones says so too, whatever the kernel remembers of the link."""
    machine = Machine(config=True)
    gpu = machine.gpu(machine.root_port(machine.host()))
    machine.files(gpu, config=b"\xff" * 4096)
    assert by_address(machine.facts())[gpu].answers is False


# --- what must not be touched ----------------------------------------------------------------------------------


def asked(machine: Machine, exclude: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """The paths that a scan asks for, with the questions."""
    recording = Recording(machine.tree())
    trees.collect(recording, exclude)
    return {path: set(questions) for path, questions in recording.answers.items()}


def test_suspended_devices_are_left_asleep() -> None:
    """Of a runtime-suspended device nothing is read that would wake it: no link attribute, no configuration space."""
    machine = Machine(config=True)
    gpu = machine.gpu(machine.root_port(machine.host()))
    machine.files(gpu, power__runtime_status=b"suspended\n")
    function = by_address(machine.facts())[gpu]
    assert function.power == "suspended"
    assert why(function.answers) == ASLEEP
    assert function.link is not None
    assert {why(value) for value in function.link[:4]} == {ASLEEP}
    touched = {path.rsplit("/", 1)[1] for path in asked(machine) if path.startswith(f"{DEVICES}/{gpu}/")}
    waking = {name for name in touched if name == "config" or "link" in name or name.startswith("aer_")}
    assert waking == set()


def test_virtual_functions_are_never_opened() -> None:
    """A virtual function beside its physical function is known by its name alone."""
    machine = Machine()
    nic = machine.nic(machine.root_port(machine.host()))
    virtual = [machine.virtual(nic, number=n) for n in (1, 2, 3)]
    found = by_address(machine.facts())
    assert all(found[v].virtual_function and found[v].physical_function == nic for v in virtual)
    assert not found[nic].virtual_function
    for path, questions in asked(machine).items():
        for v in virtual:
            assert not path.startswith(f"{DEVICES}/{v}/"), path
            assert path != f"{DEVICES}/{v}" or questions == {"link"}


def test_virtual_function_in_a_guest() -> None:
    """A guest that sees only the virtual function has no physfn: the function is a device like any other."""
    machine = Machine()
    nic = machine.nic(machine.root_port(machine.host()), (0x15B3, 0x101E))
    assert not by_address(machine.facts())[nic].virtual_function


def test_excluded_devices_are_not_opened() -> None:
    """What the operator excludes is neither opened nor followed."""
    machine, gpu = one_gpu()
    other = machine.gpu(machine.root_port("pci0000:16"))
    assert gpu not in by_address(machine.facts(exclude=[gpu]))
    assert other in by_address(machine.facts(exclude=[gpu]))
    assert [path for path in asked(machine, exclude=(gpu,)) if gpu in path] == []


def test_storage_configuration_space_is_not_read() -> None:
    """Configuration space is expensive: a drive's holds nothing that a rule looks at."""
    machine = Machine(config=True)
    drive = machine.nvme(machine.root_port(machine.host()))
    assert f"{DEVICES}/{drive}/config" not in asked(machine)


# --- failures that must not spread -----------------------------------------------------------------------------


class Vanishing:
    """A tree whose devices go away between the listing and the reading."""

    live = False

    def __init__(self, tree: Tree, gone: str) -> None:
        self._tree, self._gone = tree, gone

    def __getattr__(self, name: str) -> object:
        return getattr(self._tree, name)

    def list(self, path: str) -> Names:
        names = self._tree.list(path)
        return (*names, self._gone) if path == DEVICES and not isinstance(names, Refusal) else names


def test_device_that_went_away() -> None:
    """A device that vanishes between listing and reading is not there, and is no fault."""
    machine, gpu = one_gpu()
    facts = trees.collect(Vanishing(machine.tree(), "0000:99:00.0"))  # type: ignore[arg-type]
    assert "0000:99:00.0" not in by_address(facts)
    assert gpu in by_address(facts)
    assert facts.unread == {}


@pytest.mark.parametrize(("entry", "status"), [(refused(), DENIED), (refused("failed", "EIO"), FAILED), (None, ABSENT)])
def test_no_devices_folder(entry: Refusal | None, status: str) -> None:
    """Without the folder of devices the source says why, in one line, and is empty."""
    facts = trees.collect(Tree({DEVICES: entry} if entry is not None else {}))
    assert facts.source.status == status
    assert DEVICES in facts.source.detail
    assert facts.functions == ()


def test_empty_machine() -> None:
    """A machine without PCI devices is read, and has none."""
    facts = trees.collect(Tree({}, folders=(DEVICES,)))
    assert (facts.source.status, facts.functions) == (OK, ())


def test_unreadable_device_folder() -> None:
    """A device whose folder may not be entered is still on the list."""
    machine, gpu = one_gpu()
    entries = machine.entries()
    folder = f"/sys/devices/{machine.parts[gpu].folder}"
    kept = {path: entry for path, entry in entries.items() if not path.startswith(folder + "/")}
    facts = trees.collect(Tree({**kept, folder: refused()}))
    assert gpu in by_address(facts)
    assert facts.unread == {"denied: device folder": 1}


def test_malformed_ids() -> None:
    """Ids that are no numbers are unknown, and counted."""
    machine, gpu = one_gpu()
    machine.files(gpu, uevent=b"PCI_CLASS=zz\nPCI_ID=:::\n\xff\xff=\n", vendor=b"0xzzzz\n", device=b"")
    facts = machine.facts()
    function = by_address(facts)[gpu]
    assert (function.vendor_id, function.device_id) == (None, None)
    assert facts.unread["malformed: vendor"] == 1


# --- configuration space ---------------------------------------------------------------------------------------


def test_registers_of_root() -> None:
    """With configuration space: port types, ACS and payload sizes."""
    machine = Machine(config=True)
    port = machine.root_port(machine.host(), acs=("SrcValid", "ReqRedir"))
    switch = machine.switch(port)
    down = machine.down(switch, acs=())
    gpu = machine.gpu(down, payload=(128, 256))
    found = by_address(machine.facts())
    assert [found[a].port_type for a in (port, switch, down, gpu)] == [
        "root-port",
        "upstream-port",
        "downstream-port",
        "endpoint",
    ]
    assert found[port].acs == frozenset({"SrcValid", "ReqRedir"})
    assert found[down].acs == frozenset()
    assert found[switch].acs is None
    assert (found[gpu].payload_bytes, found[gpu].max_payload_bytes) == (128, 256)


def test_without_root_only_the_header() -> None:
    """Without root the kernel ends config after 64 bytes: the registers are denied, everything else is read."""
    machine = Machine(config=True)
    port = machine.root_port(machine.host(), acs=("ReqRedir",))
    gpu = machine.gpu(port)
    for address in (port, gpu):
        machine.files(address, config=trees.config_of(machine.parts[address])[:64])
    found = by_address(machine.facts())
    assert why(found[port].acs) == "denied"
    assert found[gpu].answers is True
    link = found[gpu].link
    assert link is not None
    assert link.width == 16


def test_no_config_in_the_recording() -> None:
    """A recording without config says that it does not hold it: root would not help."""
    machine, gpu = one_gpu()
    port = known(by_address(machine.facts())[gpu].parent)
    assert port is not None
    assert why(by_address(machine.facts())[port].acs) == NOT_RECORDED


def test_one_config_that_fails_spoils_no_other() -> None:
    """A config that cannot be read, or is empty, costs its own function's registers only."""
    machine = Machine(config=True)
    host = machine.host()
    first = machine.gpu(machine.root_port(host))
    second = machine.gpu(machine.root_port(host, acs=("ReqRedir",)))
    port = machine.parts[second].above
    assert port is not None
    for broken in (refused("failed", "EIO"), b"", b"\x00\x01"):
        machine.files(first, config=broken)
        assert by_address(machine.facts())[port.address].acs == frozenset({"ReqRedir"})


# --- errors ----------------------------------------------------------------------------------------------------

_COUNTS = b"RxErr 3\nBadTLP 0\nBadDLLP 12\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\n"


def test_error_counters() -> None:
    """AER counters are read by name; zeros and the total are left out."""
    machine, gpu = one_gpu()
    machine.files(
        gpu,
        aer_dev_correctable=_COUNTS + b"TOTAL_ERR_COR 15\n",
        aer_dev_nonfatal=b"DLP 0\nTOTAL_ERR_NONFATAL 0\n",
        aer_dev_fatal=refused("failed", "EIO"),
    )
    aer = by_address(machine.facts())[gpu].aer
    assert aer is not None
    assert (aer.correctable, aer.nonfatal, aer.sticky) == ({"RxErr": 3, "BadDLLP": 12}, {}, False)
    assert why(aer.fatal) == "failed"


def test_no_error_counters() -> None:
    """A device without AER has none, which is not zero errors."""
    machine, gpu = one_gpu()
    assert by_address(machine.facts())[gpu].aer is None


# --- lspci as a witness ----------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What lspci says of one function."""

    width: int | None
    speed: float | None
    most_width: int | None
    bridges: tuple[str, ...]  # above it, root first
    acs: frozenset[str] | None


def lspci(root: Path, *flags: str) -> str:
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={root}/sys/bus/pci", "-D", "-n", *flags]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    return run.stdout


def ask_lspci(root: Path) -> dict[str, Said]:
    """Every function with link and bridges above, by the simplest reading of lspci's own words."""
    above: dict[str, tuple[str, ...]] = {}
    for line in lspci(root, "-PP").splitlines():
        domain, _, rest = line.split(" ", 1)[0].partition(":")
        steps = [f"{domain}:{step}" for step in rest.split("/")]
        above[steps[-1]] = tuple(steps[:-1])
    found = {}
    for block in lspci(root, "-vvv").split("\n\n"):
        address = block.split(" ", 1)[0].strip()
        status = re.search(r"LnkSta:\s*Speed ([\d.]+)GT/s.*?, Width x(\d+)", block)
        capability = re.search(r"LnkCap:.*?Width x(\d+)", block)
        control = re.search(r"ACSCtl:\s*(.*)", block)
        if not address:
            continue
        # Without configuration space lspci cannot know which bus a bridge leads to.
        found[address] = Said(
            int(status[2]) if status else None,
            float(status[1]) if status else None,
            int(capability[1]) if capability else None,
            above.get(address, ()),
            frozenset(re.findall(r"(\w+)\+", control[1])) if control else None,
        )
    return found


def recorded_trees(corpus: Path) -> Iterator[Path]:
    yield from sorted((*corpus.glob("*/tree.tar.gz"), *corpus.glob("*/sysfs-rebuilt.tar.gz")))


def compare(root: Path, functions: Mapping[str, Function]) -> tuple[int, list[str]]:
    """How many values agree, and which do not."""
    agree, differ = 0, []
    listed = ask_lspci(root)
    for address, said in listed.items():
        function = functions.get(address)
        if function is None:
            differ.append(f"{address} is not there")
            continue
        link = function.link
        # A bridge that the recording names and does not hold is nothing that lspci could know.
        above = tuple(step for step in bridges_above(functions, address) if step in listed)
        ours: dict[str, object] = {"above": above} if said.bridges else {}
        theirs: dict[str, object] = {"above": said.bridges}
        if link is not None and function.answers is not False:
            ours |= {"width": known(link.width), "speed": known(link.speed_gts), "most": known(link.max_width)}
            theirs |= {"width": said.width or None, "speed": said.speed, "most": said.most_width or None}
        if isinstance(function.acs, frozenset) and function.answers is not False:
            ours["acs"], theirs["acs"] = function.acs, said.acs
        for what, value in ours.items():
            if value is None or theirs[what] is None:
                continue
            agree += value == theirs[what]
            if value != theirs[what]:
                differ.append(f"{address} {what}: {value}, lspci says {theirs[what]}")
    return agree, differ


def bridges_above(functions: Mapping[str, Function], address: str) -> tuple[str, ...]:
    steps: list[str] = []
    parent = known(functions[address].parent)
    while parent is not None:
        steps.insert(0, parent)
        parent = known(functions[parent].parent)
    return tuple(steps)


@needs_lspci
def test_lspci_agrees_on_a_synthetic_node(tmp_path: Path) -> None:
    """On a tree of switches, sockets and conventional bridges lspci finds the same links and bridges."""
    machine = Machine(config=True, numa=2)
    for bus, numa in ((0x00, 0), (0x40, 1), (0x80, 1)):
        host = machine.host(bus, numa=numa)
        switch = machine.switch(machine.root_port(host))
        machine.gpu(machine.down(switch), link=(GEN4, 8))
        inner = machine.switch(machine.down(switch))
        machine.nic(machine.down(inner))
        machine.nvme(machine.down(inner), link=(GEN4, 2))
        trees.display(machine, host)
    root = machine.write(tmp_path)
    agree, differ = compare(root, by_address(trees.collect(Live(str(root)))))
    assert differ == []
    assert agree > 60


@needs_lspci
@pytest.mark.slow
def test_lspci_agrees_on_every_recorded_tree(corpus: Path, tmp_path: Path) -> None:
    """Width, speed, ACS and bridges above of every function with configuration space are those that lspci reads."""
    agree, differ = 0, []
    for path in recorded_trees(corpus):
        root = tmp_path / path.parent.name
        with tarfile.open(path) as tar:
            tar.extractall(root, filter="tar")
        functions = {f.address: f for f in place(trees.collect(Live(str(root))).functions)}
        same, other = compare(root, functions)
        agree += same
        differ += [f"{path.parent.name} {what}" for what in other]
    assert "\n".join(differ) == ""
    assert agree > 700


def test_live_trees_answer_like_trees_in_memory(tmp_path: Path) -> None:
    """A tree on disk gives the same facts as the same tree in memory."""
    machine = Machine(config=True)
    switch = machine.switch(machine.root_port(machine.host()))
    machine.nic(machine.down(switch))
    machine.slot("7", machine.gpu(machine.down(switch)))
    root = machine.write(tmp_path)
    assert trees.collect(Live(str(root))).functions == machine.facts().functions


def test_every_descriptor_is_given_back(tmp_path: Path) -> None:
    """A scan closes every folder that it opens."""
    machine = Machine(config=True)
    machine.gpu(machine.root_port(machine.host()))
    live = Live(str(machine.write(tmp_path)))
    opened: list[LiveDir] = []
    folder_of = live.dir

    def watching(path: str) -> LiveDir | Refusal:
        folder = folder_of(path)
        if isinstance(folder, LiveDir):
            opened.append(folder)
        return folder

    live.dir = watching  # type: ignore[method-assign]
    trees.collect(live)
    assert opened
    assert all(folder._fd < 0 and folder._word_fd < 0 for folder in opened)
