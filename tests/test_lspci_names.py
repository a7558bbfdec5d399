"""The first line of a device in lspci output, in every form that it has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.collectors.readers.lspci_names import Identity, header, identify, names_virtual_function, vendor_of

from .test_config_space import dumps


def test_names_and_numbers() -> None:
    """-nn prints both: the numbers are ids, the rest is the name."""
    found = header("c1:00.0 Processing accelerators [1200]: AMD Aqua Vanjaram [Instinct MI300X] [1002:74a1] (rev 07)")
    assert found is not None
    assert (found.address, found.class_code, found.vendor_id, found.device_id) == (
        "0000:c1:00.0",
        0x120000,
        0x1002,
        0x74A1,
    )
    assert (found.name, found.revision, found.answers) == ("AMD Aqua Vanjaram [Instinct MI300X]", 7, None)


@pytest.mark.parametrize(
    ("what", "vendor", "device"),
    [
        ("NVIDIA Corporation Device 2330", 0x10DE, 0x2330),
        ("nVidia Corporation Unknown device 05e7", 0x10DE, 0x05E7),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 31", 0x1002, None),
        ("Advanced Micro Devices, Inc. [AMD] Device 149f", 0x1022, 0x149F),
        ("Red Hat, Inc. Virtio network device", 0x1AF4, None),
        ("Some Vendor Nobody Knows", None, None),
    ],
)
def test_what_a_name_tells(what: str, vendor: int | None, device: int | None) -> None:
    """Unnamed devices carry their number; a known vendor's name its id; anything else nothing."""
    assert identify(what) == Identity(vendor, device, what)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("Intel Corporation Device [8086:352a]", None),
        ("Advanced Micro Devices, Inc. [AMD] Device [1022:149f]", None),
        ("Broadcom / LSI Device [1000:00b3]", None),
        ("Huawei Technologies Co., Ltd. Device [19e5:3714]", None),
        ("Solidigm Device [025e:0001]", None),
        ("XenSource, Inc. Xen Platform Device [5853:0001]", "XenSource, Inc. Xen Platform Device"),
        ("Red Hat, Inc. Virtio network device [1af4:1000]", "Red Hat, Inc. Virtio network device"),
        (
            "Intel Corporation 5400 Chipset QuickData Technology Device [8086:65ff]",
            "Intel Corporation 5400 Chipset QuickData Technology Device",
        ),
    ],
)
def test_vendors_alone_are_no_names(what: str, name: str | None) -> None:
    """-nn prints "VENDOR Device [ids]" where its list has no name, and some names end in Device."""
    assert identify(what).name == name


def test_placeholders_and_names_of_the_list() -> None:
    """No name in pci.ids that ends in Device is taken for a placeholder."""
    path = Path("/usr/share/misc/pci.ids")
    if not path.exists():
        pytest.skip("needs pci.ids")
    vendor, count = "", 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("C "):
            break
        number, _, name = line.strip().partition("  ")
        if line[:1] not in ("", "#", "\t"):
            vendor = name
        elif line.startswith("\t") and line[1:2] != "\t" and name.endswith(" Device"):
            assert identify(f"{vendor} {name} [8086:{number}]").name == f"{vendor} {name}"
            count += 1
    assert count


@pytest.mark.parametrize("what", ["Device [1e36:0003]", "Device 1e36:0003", "1e36:0003"])
def test_numbers_without_a_name(what: str) -> None:
    """What pci.ids does not have at all is printed as two numbers, and "Device" is no name."""
    assert identify(what) == Identity(0x1E36, 0x0003, None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "00: de 10 30 23 06 00 10 00",
        "0000:01:00.0: BAR 1: assigned",
        "|   0  Tesla V100   On   | 00000000:01:00.0 Off |",
        "[    1.2] pci 0000:01:00.0: [10de:2330] type 00",
        "01:00.0",
        "12:30:45.1 something",
        "\tLnkSta:\tSpeed 8GT/s, Width x8",
        "zz:00.0 VGA compatible controller: x",
    ],
)
def test_other_lines_begin_no_device(line: str) -> None:
    """Kernel messages, tables, rows and times are no first lines."""
    assert header(line) is None


def test_revision_ff_is_no_answer() -> None:
    """ff is what a device that is gone reads as, and its prog-if with it."""
    found = header("04:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:1341] (rev ff) (prog-if ff)")
    assert found is not None
    assert (found.answers, found.revision, found.class_code, found.device_id) == (False, None, 0x030200, 0x1341)


def test_virtual_functions_by_name() -> None:
    """Vendors write "Virtual Function" or "VF"."""
    assert names_virtual_function("Intel Corporation Ethernet Virtual Function 700 Series")
    assert names_virtual_function("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X VF]")
    assert not names_virtual_function("Mellanox Technologies MT2910 Family [ConnectX-7]")
    assert not names_virtual_function(None)


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed")
def test_names_lead_to_the_ids_that_lspci_prints(corpus: Path, tmp_path: Path) -> None:
    """For every recorded function, what is learned from the name alone is what -nn says."""
    vendors = 0
    for _, dump in dumps(corpus):
        copy = tmp_path / "dump"
        copy.write_text(dump)
        named, numbered = (
            subprocess.run(["lspci", "-F", str(copy), *more], capture_output=True, text=True, check=True).stdout
            for more in ([], ["-n"])
        )
        for one, other in zip(named.splitlines(), numbered.splitlines(), strict=True):
            by_name, by_number = header(one), header(other)
            assert by_name is not None, one
            assert by_number is not None, other
            if by_number.vendor_id is None:  # a device that is gone
                continue
            assert (by_name.class_code or 0) >> 8 == (by_number.class_code or 0) >> 8, one
            assert by_name.vendor_id in (None, by_number.vendor_id), one
            assert by_name.device_id in (None, by_number.device_id), one
            vendors += by_name.vendor_id is not None
    assert vendors > 700


@given(st.text())
def test_any_text_is_looked_at_without_an_exception(text: str) -> None:
    """Nothing that is no first line is taken for one by accident of a crash."""
    header(text)
    header("01:00.0 " + text)
    identify(text)
    vendor_of(text)
