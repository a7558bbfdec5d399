"""Tar archives of a file tree, as people and hwloc-gather-topology make them, become a Tree; nothing else happens."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_topo.collectors import archive
from gpu_topo.collectors.archive import is_tar, read_tree
from gpu_topo.collectors.recording import read_inputs
from gpu_topo.collectors.unpack import Unreadable
from gpu_topo.source import Live, Refusal, Tree

DEVICE = "sys/devices/pci0000:00/0000:00:01.0"


def make(fill: Callable[[tarfile.TarFile], None], form: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as tar:
        fill(tar)
    return packed.getvalue()


def put(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def read(data: bytes) -> archive.Archive:
    return read_tree(io.BytesIO(data))


@pytest.mark.parametrize("prefix", ["", "./", "/", "host/", "a/b/c/", "./host-1/"])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_sys_at_any_depth(prefix: str, form: int) -> None:
    """Whatever stands before sys/, and in every tar format, the tree is the machine's."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "./", type=tarfile.DIRTYPE)
        put(tar, f"{prefix}{DEVICE}/vendor", b"0x10de\n")
        put(tar, f"{prefix}proc/version", b"Linux\n")
        put(tar, f"{prefix}sys/bus/pci/devices/0000:00:01.0", type=tarfile.SYMTYPE, linkname=f"../../../../{DEVICE}")

    data = make(fill, form)
    assert is_tar(data[:512])
    tree, skipped = read(data)
    assert skipped == {}
    assert tree.read("/sys/bus/pci/devices/0000:00:01.0/vendor") == b"0x10de\n"
    assert tree.real("/sys/bus/pci/devices/0000:00:01.0") == f"/{DEVICE}"
    assert tree.read("/proc/version") == b"Linux\n"


def test_same_as_the_unpacked_tree(corpus: Path, tmp_path: Path) -> None:
    """An archive answers every question as the directory does that tar unpacks it to."""
    path = corpus / "t01-nec-aurora-8ve-plx-mlx5" / "tree.tar.gz"
    subprocess.run(["tar", "-xzf", str(path), "-C", str(tmp_path)], check=True)
    (found,) = read_inputs([str(path)])
    tree, live = found.source, Live(str(tmp_path))
    assert isinstance(tree, Tree)
    compared = 0
    for file in sorted(tmp_path.rglob("*")):
        name = "/" + str(file.relative_to(tmp_path))
        assert tree.real(name) == live.real(name)
        assert tree.link(name) == live.link(name)
        assert tree.list(name) == live.list(name)
        if not file.is_dir() and not file.is_symlink():
            assert tree.read(name) == live.read(name)
            compared += 1
    assert compared > 500


def test_padding_of_attributes_is_removed() -> None:
    """tar fills an attribute up to the 4096 bytes that sysfs states for it; configuration space keeps its zeros."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, f"{DEVICE}/vendor", b"0x10de\n".ljust(4096, b"\0"))
        put(tar, f"{DEVICE}/config", b"\xde\x10".ljust(256, b"\0"))

    tree = read(make(fill)).tree
    assert tree.read(f"/{DEVICE}/vendor") == b"0x10de\n"
    assert tree.read(f"/{DEVICE}/config") == b"\xde\x10".ljust(256, b"\0")


def test_names_stay_inside() -> None:
    """Absolute names, `..` and links out of the tree lead to places inside it or nowhere."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "/sys/bus/a", b"1")
        put(tar, "../../../sys/bus/b", b"2")
        put(tar, "sys/bus/c", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        put(tar, "sys/bus/d", type=tarfile.SYMTYPE, linkname="../../../../../../etc/passwd")
        put(tar, "sys/bus/e", type=tarfile.LNKTYPE, linkname="/sys/bus/a")
        put(tar, "sys/bus/f", type=tarfile.LNKTYPE, linkname="/etc/passwd")
        put(tar, "sys/bus/g", type=tarfile.SYMTYPE, linkname="g")

    found = read(make(fill))
    tree = found.tree
    assert (tree.read("/sys/bus/a"), tree.read("/sys/bus/b"), tree.read("/sys/bus/e")) == (b"1", b"2", b"1")
    for name in "cdfg":
        assert isinstance(tree.read(f"/sys/bus/{name}"), Refusal)
    assert found.skipped == {"hard link to nothing": 1}


def test_odd_members_are_counted() -> None:
    """Device nodes, FIFOs and absurd names are left out and counted; the rest is read."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "sys/bus/x", b"1")
        put(tar, "dev/mem", type=tarfile.CHRTYPE)
        put(tar, "dev/fifo", type=tarfile.FIFOTYPE)
        put(tar, "sys/" + "a/" * 100 + "b", b"")
        put(tar, "sys/" + "a" * 2000, b"")

    found = read(make(fill))
    assert found.tree.read("/sys/bus/x") == b"1"
    assert found.skipped == {"device node, FIFO or socket": 2, "name too long or too deep": 2}


def test_a_remark_names_the_archive(tmp_path: Path) -> None:
    """What was left out is told beside the tree."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "sys/bus/x", b"1")
        put(tar, "p", type=tarfile.FIFOTYPE)

    path = tmp_path / "t.tar"
    path.write_bytes(make(fill))
    (found,) = read_inputs([str(path)])
    assert found.source is not None
    assert found.problem is not None
    assert found.problem.startswith(f"{path}: ")


def test_empty_folders_exist() -> None:
    """An empty directory is not an absent one: a machine without RDMA ports has the class all the same."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "sys/class/infiniband", type=tarfile.DIRTYPE)
        put(tar, "sys/class/net", type=tarfile.DIRTYPE)

    tree = read(make(fill)).tree
    assert tree.list("/sys/class/infiniband") == ()
    assert tree.list("/sys/class") == ("infiniband", "net")
    assert isinstance(tree.list("/sys/class/nvme"), Refusal)


def test_only_what_a_scan_may_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a whole support bundle neither count nor stay."""
    monkeypatch.setattr(archive, "MAX_TOTAL", 100)

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "bundle/var/log/messages", b"x" * 5000)
        put(tar, "bundle/sys/bus/x", b"1")

    tree = read(make(fill)).tree
    assert tree.read("/sys/bus/x") == b"1"
    assert isinstance(tree.read("/var/log/messages"), Refusal)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """gzip as people do it, bzip2 as hwloc-gather-topology does."""
    path = tmp_path / "host"
    path.write_bytes(pack(make(lambda tar: put(tar, "host/sys/bus/x", b"1"))))
    (found,) = read_inputs([str(path)])
    assert found.source is not None
    assert found.source.read("/sys/bus/x") == b"1"


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [("MAX_MEMBERS", 10, "members"), ("MAX_TOTAL", 100, "holds more than")],
)
def test_bombs(monkeypatch: pytest.MonkeyPatch, limit: str, value: int, words: str) -> None:
    """Too many members or bytes end the reading."""
    monkeypatch.setattr(archive, limit, value)

    def fill(tar: tarfile.TarFile) -> None:
        for number in range(50):
            put(tar, f"sys/bus/{number}", b"x" * 50)

    with pytest.raises(Unreadable, match=words):
        read(make(fill))


def test_one_enormous_member_is_cut() -> None:
    """No file of a scan is larger than a MiB; more of a member is not kept."""
    tree = read(make(lambda tar: put(tar, "sys/bus/x", b"x" * (3 << 20)))).tree
    content = tree.read("/sys/bus/x")
    assert isinstance(content, bytes)
    assert len(content) == 1 << 20


def test_headers_that_lie() -> None:
    """Absurd sizes in headers are damage, not a reason to reserve memory."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "sys/bus/x", b"1")

    data = bytearray(make(fill, tarfile.GNU_FORMAT))

    def with_header(kind: bytes, size: bytes) -> bytes:
        header = bytearray(data[:512])
        header[156:157] = kind
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        return bytes(header) + bytes(data)

    for kind in (b"x", b"g", b"L", b"K"):
        with pytest.raises(Unreadable):
            read(with_header(kind, b"77777777777\0"))
    with pytest.raises(Unreadable):
        read(with_header(b"0", b"\xff" * 12))


def test_no_tar_is_mistaken() -> None:
    """Text and zeros are no archive; the old format without a magic word is one."""
    assert not is_tar(bytes(512))
    assert not is_tar(b"lspci -vvv\n" * 60)
    old = bytearray(make(lambda tar: put(tar, "sys/bus/x", b"1"), tarfile.USTAR_FORMAT)[:512])
    old[257:265] = bytes(8)
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    assert is_tar(bytes(old))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_damaged_archives(form: int) -> None:
    """Whatever bytes of an archive are changed or cut, it is a tree or it is refused; nothing else is raised."""

    def fill(tar: tarfile.TarFile) -> None:
        put(tar, "host/sys/" + "long/" * 50 + "name", b"x" * 700)
        put(tar, f"host/{DEVICE}/vendor", b"0x10de\n")
        put(tar, "host/sys/bus/link", type=tarfile.SYMTYPE, linkname="x" * 150)
        put(tar, "host/sys/bus/hard", type=tarfile.LNKTYPE, linkname=f"host/{DEVICE}/vendor")

    whole = make(fill, form)
    chance = random.Random(11)
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        if chance.random() < 0.5:  # a valid checksum lets the damage through
            for at in range(0, len(data) - 511, 512):
                block = data[at : at + 512]
                block[148:156] = b" " * 8
                if block[257:262] == b"ustar":
                    data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
        try:
            found = read(bytes(data))
        except Unreadable:
            continue
        found.tree.read(f"/{DEVICE}/vendor")


def test_many_machines_are_told_at_once() -> None:
    """Tens of thousands of trees in one archive take no longer to refuse than to read."""
    header = tarfile.TarInfo("node/sys/bus/x").tobuf()
    names = (tarfile.TarInfo(f"a{number}/sys/bus/x").tobuf() for number in range(20_000))
    begun = time.monotonic()
    with pytest.raises(Unreadable, match="several machines"):
        read(header + b"".join(names))
    assert time.monotonic() - begun < 10
