"""Files and trees that are no good: named in one line, never a traceback, and the others are still read."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import trees
from tests.commands import Run, gpu_topo, healthy, one_line, process, server

__all__ = ["gpu_topo", "healthy"]  # fixtures


# --- files -----------------------------------------------------------------------------------------------------------


def jpeg(folder: Path) -> Path:
    path = folder / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)) * 64 + b"\xff\xd9")
    return path


def empty(folder: Path) -> Path:
    path = folder / "empty.txt"
    path.touch()
    return path


def truncated(folder: Path) -> Path:
    path = folder / "cut.log.gz"
    path.write_bytes(gzip.compress(os.urandom(50_000))[:20_000])
    return path


def huge(folder: Path) -> Path:
    path = folder / "huge.img"
    with open(path, "wb") as out:
        out.truncate(2 << 30)
    return path


def bomb(folder: Path) -> Path:
    """A small archive that claims a file of gigabytes."""
    path = folder / "bomb.tar.gz"
    with gzip.open(path, "wb", 1) as out:
        info = tarfile.TarInfo("sys/bus/pci/devices/0000:00:00.0/config")
        info.size = 1 << 30
        out.write(info.tobuf())
        for _ in range(256):
            out.write(bytes(1 << 20))
    return path


def bare_names(folder: Path) -> Path:
    """A tree of empty folders: addresses, and nothing of what hangs there."""
    path = folder / "names.tar"
    with tarfile.open(path, "w") as out:
        for number in range(32):
            member = tarfile.TarInfo(f"sys/bus/pci/devices/0000:{number:02x}:00.0")
            member.type = tarfile.DIRTYPE
            out.addfile(member)
    return path


def many(folder: Path) -> Path:
    """An archive with a great many members."""
    path = folder / "members.tar"
    header = tarfile.TarInfo("x").tobuf()
    with open(path, "wb") as out:
        out.writelines(header for _ in range(200_000))
    return path


def foreign_capture(folder: Path) -> Path:
    path = folder / "capture.json"
    path.write_text('{"format": "gpu-topo/capture/99", "version": "9"}\n')
    return path


def prose(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("The node was fine yesterday.\n" * 100)
    return path


def folder_without_machine(folder: Path) -> Path:
    path = folder / "folder"
    path.mkdir()
    return path


def devices_only(folder: Path) -> Path:
    """An archive of which nothing can be used: a link to nowhere, a hard link to nothing, a device node."""
    path = folder / "nodes.tar"
    with tarfile.open(path, "w") as out:
        for name, kind in (("a", tarfile.SYMTYPE), ("b", tarfile.LNKTYPE), ("c", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(f"sys/bus/pci/devices/{name}")
            member.type, member.linkname = kind, "nowhere"
            out.addfile(member)
    return path


def noise(folder: Path) -> Path:
    path = folder / "noise"
    path.write_bytes(os.urandom(8 << 20))
    return path


BAD = (
    jpeg,
    empty,
    truncated,
    huge,
    bomb,
    bare_names,
    many,
    foreign_capture,
    prose,
    folder_without_machine,
    devices_only,
    noise,
)


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_bad_file(gpu_topo: Run, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """One line that names the file, no traceback, exit status 3; quickly, whatever its size."""
    path = make(tmp_path)
    begun = time.monotonic()
    ran = gpu_topo("inspect", path)
    assert ran.status == 3
    assert ran.out == ""
    assert path.name in ran.err
    assert "Traceback" not in ran.err
    # The file is named in one line, and one more says that nothing is left to inspect.
    assert len(ran.err.splitlines()) <= 2, ran.err
    assert all(line.startswith("gpu-topo") for line in ran.err.splitlines())
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_other_files_are_still_read(gpu_topo: Run, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """A file that is not understood is named; the others are read and reported."""
    good = tmp_path / "lspci.txt"
    good.write_text(LSPCI)
    bad = make(tmp_path)
    ran = gpu_topo("inspect", bad, good, "--json")
    assert ran.status in (0, 1, 2)
    assert [device["address"] for device in json.loads(ran.out)["devices"] if device["kind"] == "gpu"] == [
        "0000:65:00.0"
    ]
    assert bad.name in ran.err
    assert len(ran.err.splitlines()) == 1


LSPCI = """\
64:00.0 PCI bridge: Intel Corporation Sky Lake-E PCI Express Root Port A (rev 04) (prog-if 00 [Normal decode])
\tBus: primary=64, secondary=65, subordinate=65, sec-latency=0
\tCapabilities: [90] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #5, Speed 8GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)

65:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] (rev a1)
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)
"""


def test_an_archive_without_a_machine_says_what_was_looked_for(gpu_topo: Run, tmp_path: Path) -> None:
    """One line: what was left out, that nothing was found, and where it was looked for."""
    assert one_line(ran := gpu_topo("inspect", devices_only(tmp_path)))
    assert "1 (device node, FIFO or socket), 1 (hard link to nothing)" in ran.err
    assert "it holds no facts of a machine: looked for sys/bus/pci" in ran.err


def endless_prose(folder: Path) -> Path:
    path = folder / "prose.txt"
    path.write_text("hello world line\n" * 1_000_000)
    return path


def endless_output(folder: Path) -> Path:
    path = folder / "lspci.txt"
    path.write_text(LSPCI * 40_000)
    return path


def endless_members(folder: Path) -> Path:
    path = folder / "members.tar"
    header = tarfile.TarInfo("sys/bus/pci/x").tobuf()
    path.write_bytes(header * 100_000)
    return path


def endless_compressed(folder: Path) -> Path:
    path = folder / "prose.gz"
    path.write_bytes(gzip.compress(b"hello world line\n" * 1_000_000, 1))
    return path


@pytest.mark.parametrize("make", [endless_prose, endless_output, endless_members, endless_compressed])
def test_reading_ends_with_the_timeout(gpu_topo: Run, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """What is not read to its end in time is named with the time it had, and left out; a small one is still read."""
    path = make(tmp_path)
    good = tmp_path / "small.txt"
    good.write_text(LSPCI)
    assert one_line(ran := gpu_topo("inspect", path, "--timeout", "0.1"))
    assert ran.err.startswith(f"gpu-topo: {path}: not read to its end in 0.1 s and left out; --timeout SECONDS")
    both = gpu_topo("inspect", path, good, "--json", "--timeout", "0.1")
    assert (both.status, both.err) == (2, ran.err)
    assert json.loads(both.out)["verdict"] == "critical"


# --- trees, standard input, names ------------------------------------------------------------------------------------


def test_missing_file_and_root(gpu_topo: Run, tmp_path: Path) -> None:
    """What is not there is named."""
    for arguments in (("--root", tmp_path / "none"), (tmp_path / "none.txt",), ("--root", empty(tmp_path))):
        ran = gpu_topo("inspect", *arguments)
        assert ran.status == 3
        assert "none" in ran.err or "empty" in ran.err
        assert len(ran.err.splitlines()) <= 2


def test_a_root_without_permission(gpu_topo: Run, tmp_path: Path) -> None:
    """A tree that may not be read is no missing one."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        assert one_line(ran := gpu_topo("inspect", "--root", closed))
    finally:
        os.seteuid(user)
    assert ran.err == f"gpu-topo: {closed}: cannot be read: Permission denied\n"


def test_root_without_pci(gpu_topo: Run, tmp_path: Path) -> None:
    """A tree in which no source can be read could not be inspected."""
    (tmp_path / "sys").mkdir()
    assert one_line(gpu_topo("inspect", "--root", tmp_path))


def test_root_and_file(gpu_topo: Run, healthy: Path, tmp_path: Path) -> None:
    """A tree and recordings are two machines."""
    assert one_line(gpu_topo("inspect", "--root", healthy, jpeg(tmp_path)))


def test_standard_input() -> None:
    """- reads standard input; nothing on it is one line."""
    ran = process("inspect", "-", "--json", stdin=LSPCI.encode())
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["verdict"] == "critical"
    ran = process("inspect", "-", stdin=b"")
    assert ran.returncode == 3
    assert b"Traceback" not in ran.stderr


def test_names_of_files_do_not_reach_the_terminal(gpu_topo: Run, tmp_path: Path) -> None:
    """A file whose name holds escape sequences and line breaks is named in one harmless line."""
    path = tmp_path / "a\x1b[31m\nb"
    path.write_bytes(b"\xff\xd8\xff")
    ran = gpu_topo("inspect", path)
    assert ran.status == 3
    assert "\x1b" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_hostile_tree_gives_no_traceback(gpu_topo: Run, tmp_path: Path) -> None:
    """A tree of nonsense, FIFOs and links that lead in circles or out of it is read like any other."""
    root = server(8).write(tmp_path / "tree")
    devices = root / trees.DEVICES[1:]
    folder = root / "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0"
    os.mkfifo(folder / "aer_dev_correctable")
    (folder / "driver").unlink()
    (folder / "driver").symlink_to("/etc")
    (devices / "0000:ff:1f.7").symlink_to("0000:ff:1f.7")
    (devices / "\x1b[31m").symlink_to("../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0")
    (devices / "not an address").write_text("nonsense")
    begun = time.monotonic()
    ran = gpu_topo("inspect", "--root", root)
    assert ran.status in (1, 2)
    assert "\x1b" not in ran.out + ran.err
    assert time.monotonic() - begun < 10
