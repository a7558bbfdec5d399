"""The daemon's way to read the machine says the same as a fresh look, for a fraction of the cost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_topo.source import Answer, Live, Refusal
from gpu_topo.source.kept import Journal, Kept, raise_limit

DEVICES = "sys/bus/pci/devices"
GPU = "0000:17:00.0"
FILES = {
    "uevent": "DRIVER=nvidia\nPCI_ID=10DE:2330\n",
    "vendor": "0x10de\n",
    "current_link_speed": "32.0 GT/s PCIe\n",
    "max_link_speed": "32.0 GT/s PCIe\n",
    "config": "\x00" * 64,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for address in (GPU, "0000:18:00.0"):
        folder = tmp_path / DEVICES / address
        folder.mkdir(parents=True)
        for name, text in FILES.items():
            (folder / name).write_text(text)
    return tmp_path


@pytest.fixture
def kept(tree: Path) -> Iterator[Kept]:
    source = Kept(str(tree))
    source.begin()
    yield source
    source.close()


def read(source: Live, name: str, address: str = GPU) -> Answer:
    folder = source.dir(f"/{DEVICES}/{address}")
    if isinstance(folder, Refusal):
        return folder
    with folder:
        return folder.read(name)


def test_what_changes_is_read_again_and_what_cannot_is_not(kept: Kept, tree: Path) -> None:
    """A link's speed is fresh at every look; what the link could do is read once."""
    folder = tree / DEVICES / GPU
    assert read(kept, "current_link_speed") == b"32.0 GT/s PCIe\n"
    assert read(kept, "max_link_speed") == b"32.0 GT/s PCIe\n"
    (folder / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    (folder / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    kept.begin()
    assert read(kept, "current_link_speed") == b"2.5 GT/s PCIe\n"
    assert read(kept, "max_link_speed") == b"32.0 GT/s PCIe\n"
    kept.forget()
    kept.begin()
    assert read(kept, "max_link_speed") == b"16.0 GT/s PCIe\n"


def test_a_replaced_file_is_noticed(kept: Kept, tree: Path) -> None:
    """A copied tree's file that was renamed over is read anew, not through the old descriptor."""
    assert read(kept, "current_link_speed") == b"32.0 GT/s PCIe\n"
    new = tree / "new"
    new.write_text("8.0 GT/s PCIe\n")
    os.replace(new, tree / DEVICES / GPU / "current_link_speed")
    assert read(kept, "current_link_speed") == b"8.0 GT/s PCIe\n"


def test_a_device_that_goes_is_gone(kept: Kept, tree: Path) -> None:
    """A removed device answers absent, even in the middle of a scan, and its descriptors are given back."""
    read(kept, "uevent")
    read(kept, "current_link_speed")
    before = kept.left
    shutil.rmtree(tree / DEVICES / GPU)
    answer = read(kept, "uevent")
    assert isinstance(answer, Refusal)
    assert answer.why == "absent"
    kept.begin()
    assert isinstance(kept.dir(f"/{DEVICES}/{GPU}"), Refusal)
    assert kept.left == before + 3


def test_a_device_that_comes_is_seen(kept: Kept, tree: Path) -> None:
    """A new device is in the listing and read; so is another one in an old one's place."""
    read(kept, "max_link_speed")
    shutil.copytree(tree / DEVICES / GPU, tree / DEVICES / "0000:19:00.0")
    kept.begin()
    assert kept.list(f"/{DEVICES}") == (GPU, "0000:18:00.0", "0000:19:00.0")
    assert read(kept, "vendor", "0000:19:00.0") == b"0x10de\n"
    shutil.rmtree(tree / DEVICES / GPU)
    shutil.copytree(tree / DEVICES / "0000:19:00.0", tree / DEVICES / GPU)
    (tree / DEVICES / GPU / "max_link_speed").write_text("64.0 GT/s PCIe\n")
    kept.begin()
    assert read(kept, "max_link_speed") == b"64.0 GT/s PCIe\n"


def test_another_driver_makes_everything_be_read_again(kept: Kept, tree: Path) -> None:
    """A uevent that reads otherwise means another driver: what was absent may be there now."""
    read(kept, "uevent")
    assert isinstance(read(kept, "numa_node"), Refusal)
    was = os.stat(tree / DEVICES / GPU)
    (tree / DEVICES / GPU / "numa_node").write_text("1\n")
    os.utime(tree / DEVICES / GPU, ns=(was.st_atime_ns, was.st_mtime_ns))  # sysfs shows no sign at its folder
    assert isinstance(read(kept, "numa_node"), Refusal)
    (tree / DEVICES / GPU / "uevent").write_text("DRIVER=vfio-pci\nPCI_ID=10DE:2330\n")
    read(kept, "uevent")
    assert read(kept, "numa_node") == b"1\n"


def test_configuration_space_is_read_once(kept: Kept, tree: Path) -> None:
    """No configuration space is read in the steady state: it is expensive on real hardware."""
    folder = kept.dir(f"/{DEVICES}/{GPU}")
    assert not isinstance(folder, Refusal)
    assert folder.read_at("config", 16, 4) == bytes(4)
    folder.close()
    (tree / DEVICES / GPU / "config").write_bytes(b"\xff" * 64)
    assert folder.read_at("config", 16, 4) == bytes(4)


def test_everything_is_read_again_after_ten_minutes(tree: Path) -> None:
    """What no event tells of is found in time all the same."""
    now = [0.0]
    source = Kept(str(tree), clock=lambda: now[0])
    source.begin()
    assert read(source, "max_link_speed") == b"32.0 GT/s PCIe\n"
    (tree / DEVICES / GPU / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    now[0] = 599.0
    source.begin()
    assert read(source, "max_link_speed") == b"32.0 GT/s PCIe\n"
    now[0] = 602.0
    source.begin()
    assert read(source, "max_link_speed") == b"16.0 GT/s PCIe\n"
    source.close()


def test_descriptors_are_bounded_and_given_back(tree: Path) -> None:
    """With few descriptors left files are opened and closed as ever; at the end all are given back."""
    before = len(os.listdir("/proc/self/fd"))
    source = Kept(str(tree), most=3)
    source.begin()
    for _ in range(3):
        for address in (GPU, "0000:18:00.0"):
            for name, text in FILES.items():
                assert read(source, name, address) == text.encode()
    assert len(os.listdir("/proc/self/fd")) == before + 3
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert source.left == 3


def test_a_thousand_hotplug_rounds_leak_nothing(tree: Path) -> None:
    """Removing and adding a device again and again costs no descriptor."""
    source = Kept(str(tree))
    before = len(os.listdir("/proc/self/fd"))
    moved = tree / "away"
    for _ in range(1000):
        source.begin()
        read(source, "uevent")
        read(source, "current_link_speed")
        os.rename(tree / DEVICES / GPU, moved)
        read(source, "current_link_speed")
        source.begin()
        assert isinstance(read(source, "uevent"), Refusal)
        os.rename(moved, tree / DEVICES / GPU)
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_this_machine_reads_the_same_both_ways() -> None:
    """On the machine that runs the tests, cold and warm, every attribute of every PCI function agrees with Live."""
    live, source = Live(), Kept()
    names = live.list(f"/{DEVICES}")
    if isinstance(names, Refusal) or not names:
        pytest.skip("this machine shows no PCI functions")
    steady = ("uevent", "vendor", "class", "numa_node", "max_link_speed", "max_link_width", "local_cpulist")
    for _ in range(3):
        source.begin()
        for address in names:
            assert source.link(f"/{DEVICES}/{address}") == live.link(f"/{DEVICES}/{address}")
            for name in steady:
                assert read(source, name, address) == read(live, name, address)
    source.close()


def test_the_limit_of_descriptors_is_raised() -> None:
    """A process may open more files than the usual soft limit of 1,024, where the machine lets it."""
    assert raise_limit() >= 256


def test_a_journal_tells_whether_anything_changed(kept: Kept, tree: Path) -> None:
    """What was noted compares the same until a file, a listing or a folder is otherwise; a reopened one never does."""
    folder = tree / DEVICES / GPU

    def noted() -> Journal:
        with kept.journal() as journal:
            kept.list(f"/{DEVICES}")
            for name in ("uevent", "current_link_speed", "max_link_speed", "none"):
                read(kept, name)
        return journal

    journal = noted()
    assert kept.unchanged(journal)
    (folder / "max_link_speed").write_text("8.0 GT/s PCIe\n")  # static: not looked at
    assert kept.unchanged(journal)
    (folder / "current_link_speed").write_text("8.0 GT/s PCIe\n")
    assert not kept.unchanged(journal)
    journal = noted()
    assert kept.unchanged(journal)
    shutil.copytree(folder, tree / DEVICES / "0000:19:00.0")
    assert not kept.unchanged(journal)
    journal = noted()
    kept.forget()
    kept.begin()
    assert not kept.unchanged(journal)
    journal = noted()
    shutil.rmtree(folder)
    assert not kept.unchanged(journal)


def test_without_descriptors_nothing_is_taken_for_the_same(tree: Path) -> None:
    """Where no descriptor is left to keep, a journal says that all has to be read again."""
    source = Kept(str(tree), most=0)
    source.begin()
    with source.journal() as journal:
        read(source, "uevent")
    assert not source.unchanged(journal)
    source.close()
