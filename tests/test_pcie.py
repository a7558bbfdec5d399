"""The PCIe collector on synthetic trees: identity and place, links, registers and errors of every function."""

from __future__ import annotations

import pytest

from gpu_topo.model.facts import OK, PARTIAL
from gpu_topo.model.reading import LOST, MALFORMED, NO_DATA, NOT_RECORDED, Unknown, known
from gpu_topo.source import Recording, Refusal, Tree
from tests import trees
from tests.trees import DEVICES, GEN1, GEN3, GEN4, GEN5, Machine, by_address, one_gpu, refused, why

# --- identity and place ----------------------------------------------------------------------------------------------


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


# --- values that are none --------------------------------------------------------------------------------------------


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
        (None, "not-recorded", False),
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


# --- configuration space ---------------------------------------------------------------------------------------------


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
    assert found[gpu].payload_bytes == 128


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


# --- errors ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("fatal", "reason"),
    [
        (b"", MALFORMED),
        (b"\xff\x00garbage\n", MALFORMED),
        (b"Undefined 0\nDLP x\nTOTAL_ERR_FATAL 3\n", MALFORMED),
        (b"Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 3\n", MALFORMED),
        (b"Undefined 0\nDLP 0\n", MALFORMED),  # cut off before the total
        (None, "not-recorded"),
    ],
)
def test_error_counters_that_make_no_sense(fatal: bytes | None, reason: str) -> None:
    """They are unknown and counted, and never zero errors."""
    machine, gpu = one_gpu()
    good = {f"aer_dev_{kind}": f"DLP 0\nTOTAL_ERR_{kind.upper()} 0\n".encode() for kind in ("correctable", "nonfatal")}
    machine.files(gpu, **good, aer_dev_fatal=fatal)
    facts = machine.facts()
    aer = by_address(facts)[gpu].aer
    assert aer is not None
    assert (aer.correctable, aer.nonfatal, why(aer.fatal)) == ({}, {}, reason)
    assert sum(facts.unread.values()) == (reason == MALFORMED)


def test_error_counters_of_which_one_kind_is_not_recorded() -> None:
    """Fatal errors count although the file of the correctable ones is not there."""
    machine, gpu = one_gpu()
    machine.files(gpu, aer_dev_fatal=b"DLP 3\nTOTAL_ERR_FATAL 3\n")
    aer = by_address(machine.facts())[gpu].aer
    assert aer is not None
    assert (why(aer.correctable), aer.fatal) == ("not-recorded", {"DLP": 3})


def test_a_width_without_a_speed() -> None:
    """A copy that lost the speeds still holds the lanes."""
    machine, gpu = one_gpu()
    machine.files(gpu, current_link_speed=None, max_link_speed=None, current_link_width=b"8\n")
    link = by_address(machine.facts())[gpu].link
    assert link is not None
    assert (link.width, link.max_width, why(link.speed_gts)) == (8, 16, "not-recorded")


@pytest.mark.parametrize(
    ("files", "power"),
    [
        ({"power__runtime_status": b"active\n", "current_link_width": b"63\n", "power_state": b"D3cold\n"}, "D3cold"),
        ({"power__runtime_status": b"unsupported\n", "power_state": b"D3cold\n"}, "D3cold"),
        ({"power__runtime_status": b"suspended\n", "power_state": b"D3hot\n"}, "suspended"),
        ({"power__runtime_status": b"active\n", "current_link_width": b"63\n", "power_state": b"D0\n"}, None),
        ({"power__runtime_status": b"active\n", "current_link_width": b"63\n", "power_state": None}, None),
    ],
)
def test_without_power_is_not_lost(files: dict[str, bytes | None], power: str | None) -> None:
    """What answers all ones has lost its power where the kernel says so, by whoever's hand; else it is lost."""
    machine, gpu = one_gpu()
    machine.files(gpu, **files)
    function = by_address(machine.facts())[gpu]
    assert function.power == power
    assert (function.answers if power is None else why(function.answers)) == (False if power is None else "asleep")


def test_no_error_counters() -> None:
    """A device without AER has none, which is not zero errors."""
    machine, gpu = one_gpu()
    assert by_address(machine.facts())[gpu].aer is None


@pytest.mark.parametrize(
    ("slot", "most", "said", "busy"),
    [
        ((GEN1, 16), (GEN4, 16), b"97\n", 97),
        ((GEN1, 16), (GEN4, 16), b"0\n", 0),
        ((GEN4, 16), (GEN4, 16), b"97\n", None),  # at full speed the load decides nothing, and nobody is asked
        ((GEN3, 16), (GEN3, 16), b"97\n", None),  # as fast as the slot can
        ((GEN1, 16), (GEN4, 16), b"255\n", None),
        ((GEN1, 16), (GEN4, 16), b"\xff", None),
        ((GEN1, 16), (GEN4, 16), None, None),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_load_of_amd_gpus(
    slot: trees.Link, most: trees.Link, said: bytes | None, busy: int | None, inner: bool
) -> None:
    """amdgpu tells how busy a GPU is; it is asked while the link of the card is slower than both ends can do."""
    machine = Machine()
    port = machine.root_port(machine.host(), most)
    gpu = trees.navi(machine, port, slot) if inner else machine.gpu(port, trees.MI300X, slot, (GEN4, 16))
    machine.files(gpu, gpu_busy_percent=said)
    tree = Recording(machine.tree())
    facts = trees.collect(tree)
    assert [(g.address, g.utilization) for g in facts.gpus] == ([] if busy is None else [(gpu, busy)])
    asked = any(path.endswith("gpu_busy_percent") for path in tree.answers)
    assert asked == (slot != most)


@pytest.mark.parametrize(("slow", "asked"), [(None, 0), (0, 3), (2, 3)])
def test_load_of_twins_at_full_speed(slow: int | None, asked: int) -> None:
    """Where one GPU is slower, its twins' load is read too, and that of other models is not; else nobody's."""
    machine = Machine()
    host = machine.host()
    twins = [
        machine.gpu(machine.root_port(host), trees.MI300X, (GEN3 if number == slow else GEN5, 16))
        for number in range(3)
    ]
    other = machine.gpu(machine.root_port(host), trees.RX_7900)
    for gpu in (*twins, other):
        machine.files(gpu, gpu_busy_percent=b"97\n")
    tree = Recording(machine.tree())
    facts = trees.collect(tree)
    assert {(g.address, g.utilization) for g in facts.gpus} == {(a, 97) for a in twins[:asked]}
    assert sum(path.endswith("gpu_busy_percent") for path in tree.answers) == asked


def test_nobody_elses_load_is_asked() -> None:
    """The attribute is amdgpu's alone, and a GPU that sleeps is not woken for it."""
    machine = Machine()
    host = machine.host()
    nvidia = machine.gpu(machine.root_port(host), link=(GEN1, 16))
    machine.files(nvidia, gpu_busy_percent=b"97\n")
    asleep = machine.gpu(machine.root_port(host), trees.MI300X, (GEN1, 16), (GEN4, 16))
    machine.files(asleep, gpu_busy_percent=b"97\n", power__runtime_status=b"suspended\n")
    assert trees.collect(machine.tree()).gpus == ()
