"""Names of PCI devices from pci.ids and udev, names of PCI classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_topo.collectors import pci_names
from gpu_topo.collectors.pci_classes import class_code_of

LIST = """#
# a list
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c0  a board with its own name
\t2684  AD102 [GeForce RTX 4090]
15b3  Mellanox Technologies
\t1021  MT2910 \x1b[31mFamily [ConnectX-7]
# List of classes
C 02  Network controller
\t00  Ethernet controller
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "pci.ids"
    path.write_text(LIST, encoding="utf-8")
    return (str(tmp_path / "missing"), str(path))


def brute_force(path: Path) -> dict[tuple[int, int], str]:
    """Every name of a list, read line by line."""
    names: dict[tuple[int, int], str] = {}
    vendor, brand = 0, ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("C "):
            break
        if not line or line.startswith(("#", "\t\t")):
            continue
        if line.startswith("\t"):
            names[vendor, int(line[1:5], 16)] = f"{brand} {line[7:].strip()}"
        else:
            vendor, brand = int(line[:4], 16), line[6:].strip()
    return names


def test_every_name_of_the_installed_list_is_found() -> None:
    """What halving finds is what reading every line finds, for every device of the list."""
    path = next((Path(p) for p in pci_names.PATHS if Path(p).exists()), None)
    if path is None:
        pytest.skip("no pci.ids on this machine")
    expected = brute_force(path)
    assert pci_names.lookup(expected, (str(path),)) == expected


def test_a_device_of_another_vendor_is_not_found(small: tuple[str, ...]) -> None:
    """A device number counts below its own vendor only, and a class or subsystem line is no device."""
    assert pci_names.lookup([(0x10DE, 0x1021), (0x15B3, 0x2330), (0x10DE, 0x16C0), (0x000C, 0x0000)], small) == {}


def test_names_are_cleaned(small: tuple[str, ...]) -> None:
    """An escape sequence in the list never reaches a terminal."""
    assert pci_names.lookup([(0x15B3, 0x1021)], small) == {
        (0x15B3, 0x1021): "Mellanox Technologies MT2910 Family [ConnectX-7]"
    }


def test_the_first_list_that_is_there_is_used(small: tuple[str, ...]) -> None:
    """A missing or empty list is passed over."""
    empty = Path(small[1]).with_name("empty")
    empty.touch()
    names = pci_names.lookup([(0x10DE, 0x2684)], (small[0], str(empty), small[1]))
    assert names == {(0x10DE, 0x2684): "NVIDIA Corporation AD102 [GeForce RTX 4090]"}


def test_udev_names_what_it_knows() -> None:
    """Without a list the udev database's properties name the functions of this machine."""
    devices = [
        {"PCI_ID": "10DE:2330", "ID_VENDOR_FROM_DATABASE": "NVIDIA", "ID_MODEL_FROM_DATABASE": "H100"},
        {"PCI_ID": "10DE:22A3"},
        {"PCI_ID": "nonsense", "ID_MODEL_FROM_DATABASE": "x"},
        {"ID_MODEL_FROM_DATABASE": "x"},
    ]
    wanted = {0x10DE: [0x2330, 0x22A3]}
    assert pci_names.names_of(wanted, devices) == {(0x10DE, 0x2330): "NVIDIA H100"}


def test_lspci_agrees_with_class_names() -> None:
    """lspci prints the name that the table has, for every class that this machine has."""
    lspci = shutil.which("lspci")
    if lspci is None:
        pytest.skip("no lspci on this machine")
    out = subprocess.run([lspci, "-nn"], capture_output=True, text=True, check=False).stdout
    for line in out.splitlines():
        described = line.split(" ", 1)[1].split(": ", 1)[0]
        name, _, number = described.rpartition(" ")
        # Numbers without a name of their own (ffff) are printed below the name of their base class.
        if number != "[ffff]":
            assert class_code_of(name) in (int(number.strip("[]"), 16) << 8, None)  # None: newer than the table


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("3D controller", 0x030200),
        ("VGA compatible controller [0300]", 0x030000),
        ("Class 0302", 0x030200),
        ("0c06", 0x0C0600),
        ("Unassigned class [ff00]", 0xFF0000),
        ("USB Controller", 0x0C0300),
        ("Bridge", 0x068000),
        ("Mass storage controller", 0x018000),
        ("Generic system peripheral [0807]", 0x080700),
        ("Co-processor", 0x0B4000),
        ("no such class", None),
        ("", None),
    ],
)
def test_class_code_of(name: str, code: int | None) -> None:
    """Names of old and new editions, and numbers in their place, give the class code."""
    assert class_code_of(name) == code


def test_prog_if_is_the_lowest_byte() -> None:
    """The programming interface completes the code."""
    assert class_code_of("Non-Volatile memory controller", 2) == 0x010802
