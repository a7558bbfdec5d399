"""What the PCIe collector must not touch, and failures of one device that must not spread to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_topo.collectors import pcie
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, TIMEOUT
from gpu_topo.model.reading import ASLEEP, known
from gpu_topo.source import Live, LiveDir, Names, Recording, Refusal, Tree
from tests import trees
from tests.trees import DEVICES, Machine, by_address, one_gpu, refused, why

# --- what must not be touched ----------------------------------------------------------------------------------------


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


def test_parts_of_a_processor_are_not_asked_for_a_link() -> None:
    """A processor's hundreds of system peripherals sit on root buses, where no link is above them, though kernels have
    files for one ("Unknown"): only what they are is read. The same class in a slot has a link like everything there."""
    machine = Machine()
    host = machine.host()
    files: dict[str, Any] = {"current_link_speed": b"Unknown\n", "current_link_width": b"0\n"}
    for class_code in (0x088000, 0x080700, 0x110100):
        part = machine.function(host, (0x8086, 0x3259), class_code, port_type=None)
        machine.files(part, **files)
        assert by_address(machine.facts())[part].link is None
        assert {path.rsplit("/", 1)[1] for path in asked(machine) if path.startswith(f"{DEVICES}/{part}/")} <= {
            "uevent",
            "numa_node",
        }
    card = machine.function(machine.root_port(host), (0x10EE, 0x903F), 0x088000, link=(16.0, 8))
    link = by_address(machine.facts())[card].link
    assert link is not None
    assert known(link.width) == 8


# --- failures that must not spread -----------------------------------------------------------------------------------


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


def test_device_whose_link_leads_nowhere() -> None:
    """A copy that lost a device's folder still lists the device: it is on the bus, and nothing is known of it."""
    machine, _ = one_gpu()
    entries = {**machine.entries(), f"{DEVICES}/0000:99:00.0": "../../../devices/pci0000:98/0000:98:01.0/0000:99:00.0"}
    facts = trees.collect(Tree(entries))
    found = by_address(facts)["0000:99:00.0"]
    assert (found.vendor_id, found.class_code, found.link) == (None, None, None)
    assert facts.unread == {"not-recorded: device folder": 1}
    assert facts.source.status == PARTIAL


@pytest.mark.parametrize("name", ["not-an-address", "0000:99:00", "0000:99:99.9", "0000:99:00.0 (copy)", ".DS_Store"])
@pytest.mark.parametrize("content", [{}, {"vendor": b"0x10de\n"}, {"class": b"0x030200\n"}, None])
def test_names_that_are_no_addresses(name: str, content: dict[str, bytes] | None) -> None:
    """What else lies in the folder of devices is counted as malformed, and is no device: a folder, or a loose file."""
    machine, _ = one_gpu()
    before = by_address(machine.facts())
    extra: dict[str, bytes] = {f"{DEVICES}/{name}/{file}": data for file, data in (content or {}).items()}
    if content is None:
        extra = {f"{DEVICES}/{name}": b"text"}
    folders = (f"{DEVICES}/{name}",) if content == {} else ()
    facts = trees.collect(Tree({**machine.entries(), **extra}, folders=folders))
    assert by_address(facts) == before
    assert facts.unread == {"malformed: device name": 1}


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


# --- time ------------------------------------------------------------------------------------------------------------


def test_what_was_read_before_the_deadline_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that takes too long is told as far as it was read, bridges before what is below them, and marked so."""
    machine = Machine()
    gpus = [machine.gpu(machine.root_port(machine.host())) for _ in range(40)]
    every = machine.facts()
    looks = iter([False, False, False, True])
    monkeypatch.setattr(pcie, "too_late", lambda context: next(looks))
    facts = machine.facts()
    assert 0 < len(facts.functions) < len(every.functions)
    assert facts.functions == every.functions[: len(facts.functions)]
    assert facts.source.status == TIMEOUT
    assert facts.source.detail == (
        f"the deadline came before everything was read: {len(facts.functions)} of {len(every.functions)} functions"
    )
    assert gpus[-1] not in by_address(facts)


def test_past_the_deadline_nothing_is_read() -> None:
    """An answer that nobody waits for any more is not worth a read."""
    machine = Machine()
    machine.gpu(machine.root_port(machine.host()))
    recording = Recording(machine.tree())
    assert pcie.collect(recording, Context(0.0)).functions == ()
    assert not [path for path in recording.answers if path.startswith(f"{DEVICES}/")]
