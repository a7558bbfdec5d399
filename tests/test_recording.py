"""Recordings are told by their content, split into the outputs they hold, and refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_topo.collectors import outputs, recording
from gpu_topo.collectors.recording import READERS, Input, read_inputs, readers
from gpu_topo.model.facts import Facts
from gpu_topo.source import Replay, Tree

LSPCI = """\
00:00.0 Host bridge [0600]: Intel Corporation Device [8086:2020] (rev 04)
65:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200
\t\tLink layer: InfiniBand
"""
NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64">
    <pci busid="0000:65:00.0" class="0x030200" vendor="0x10de" device="0x20f1"><gpu dev="0" sm="80"/></pci>
  </cpu>
</system>
"""


def one(path: Path | str) -> Input:
    (found,) = read_inputs([str(path)])
    return found


def write(folder: Path, data: bytes | str, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def kinds(found: Input) -> list[str]:
    """The names of the sources without the file's."""
    return [facts.source.name.partition(" (")[0] for facts in found.facts]


def content(found: Sequence[Facts]) -> list[Facts]:
    """The facts without where they came from."""
    return [facts._replace(source=facts.source._replace(name="", seconds=0.0)) for facts in found]


# --- what is understood ---------------------------------------------------------------------------------------------


class _Packed(NamedTuple):
    name: str
    pack: Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "packed",
    [
        _Packed("plain", bytes),
        _Packed("gzip", gzip.compress),
        _Packed("gzip in gzip", lambda data: gzip.compress(gzip.compress(data))),
        _Packed("bzip2", bz2.compress),
        _Packed("xz", lzma.compress),
        _Packed("CRLF", lambda data: data.replace(b"\n", b"\r\n")),
        _Packed("UTF-16", lambda data: data.decode().encode("utf-16")),
        _Packed("UTF-16LE without a mark", lambda data: data.decode().encode("utf-16-le")),
        _Packed("UTF-16BE without a mark", lambda data: data.decode().encode("utf-16-be")),
        _Packed("UTF-8 with a byte order mark", lambda data: b"\xef\xbb\xbf" + data),
        _Packed("members", lambda data: b"".join(gzip.compress(line + b"\n") for line in data.splitlines())),
        _Packed("padded", lambda data: gzip.compress(data) + bytes(512)),
        _Packed("coloured", lambda data: data.replace(b"65:00.0", b"\x1b[31m65:00.0\x1b[0m")),
    ],
    ids=lambda packed: str(packed.name),
)
def test_encodings(tmp_path: Path, packed: _Packed) -> None:
    """However it is packed or encoded, a recording says the same."""
    found = one(write(tmp_path, packed.pack(LSPCI.encode())))
    assert found.problem is None
    assert [f.address for facts in found.facts for f in facts.functions] == ["0000:00:00.0", "0000:65:00.0"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is standard input, and its facts say so."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(IBSTAT.encode()))))
    (found,) = read_inputs(["-"])
    assert kinds(found) == ["ibstat"]
    assert "standard input" in found.facts[0].source.name


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """Process substitution hands over a pipe, which has no size and cannot be read twice."""
    reading, writing = os.pipe()
    os.write(writing, LSPCI.encode())
    os.close(writing)
    try:
        found = one(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert kinds(found) == ["lspci -nn"]


def test_outputs_one_after_the_other(tmp_path: Path) -> None:
    """Prompts, prose, fences and XML between outputs: each goes to its reader, in order."""
    text = (
        f"Hello, this node is slow.\n\n```\nroot@gpu01:~# lspci -nn\n{LSPCI}root@gpu01:~# ibstat\n{IBSTAT}```\n"
        f"and what NCCL thinks:\n{NCCL}\n[me@gpu01 ~]$ ibstat\n{IBSTAT}Regards\n"
    )
    found = one(write(tmp_path, text))
    assert kinds(found) == ["lspci -nn", "ibstat", "NCCL topology XML", "ibstat"]
    alone = [one(write(tmp_path, part)).facts[0] for part in (LSPCI, IBSTAT, NCCL, IBSTAT)]
    assert content(found.facts) == content(alone)


@pytest.mark.parametrize("quote", ["> ", "    ", "\t", "| "])
def test_quoted_and_indented(tmp_path: Path, quote: str) -> None:
    """What is quoted in an e-mail or indented in a ticket is read like the original."""
    quoted = "".join(f"{quote}{line}\n" for line in IBSTAT.splitlines())
    found = one(write(tmp_path, f"Somebody wrote:\n\n{quoted}\nYes.\n"))
    assert content(found.facts) == content(one(write(tmp_path, IBSTAT)).facts)


def test_xml_that_was_cut_off_does_not_swallow_the_rest(tmp_path: Path) -> None:
    """The output after a half XML document is still found."""
    found = one(write(tmp_path, f"{NCCL[:120]}\nroot@gpu01:~# ibstat\n{IBSTAT}"))
    assert kinds(found) == ["NCCL topology XML", "ibstat"]


def test_each_recording_of_the_corpus_is_understood(corpus: Path) -> None:
    """Every input that an expectation names becomes facts or a source, without a remark."""
    names = sorted(
        path
        for pattern in ("c*", "d*", "h*", "i*", "k*", "l*", "m*", "n*", "p*", "t*", "x*")
        for path in corpus.glob(f"{pattern}/*")
        if path.name.split(".")[0] not in ("kernel-messages", "lspci-acsctl", "numactl-hardware")
    )
    for found in read_inputs([str(path) for path in names]):
        assert found.problem is None, found.name
        assert bool(found.facts) != bool(found.source), found.name


# --- nvidia-bug-report ----------------------------------------------------------------------------------------------

_RULE = "____________________________________________\n\n"
_JOURNAL = "Sep 01 12:00:00 gpu01 kernel: pci 0000:65:00.0: [10de:2204] type 00 class 0x030000\n"


def bug_report(outputs: Sequence[tuple[str, str]]) -> bytes:
    """A log as nvidia-bug-report.sh writes it: each section compressed for itself, logs and binary data between."""
    parts = [
        f"{_RULE}Start of NVIDIA bug report log file.  Please include.\n\nDate: x\nuname: Linux gpu01 6.8.0\n",
        f"{_RULE}*** /proc/cmdline\n*** ls: -r--r--r-- 1 root root 0 /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=UUID=1\n",
        f"{_RULE}*** /var/log/kern.log\n" + _JOURNAL * 200,
    ]
    for command, output in outputs:
        parts.append(f"{_RULE}{command}\n\n{output}\n")
        parts.append(f'{_RULE}*** /proc/driver/nvidia/./params\n*** ls: -r--r--r-- 1 root root 0\nRmMsg: ""\n')
    noise = random.Random(1).randbytes(3000).hex()
    parts.append(f'{_RULE}base64 "/tmp/crash"\n\n' + "\n".join(noise[i : i + 76] for i in range(0, len(noise), 76)))
    return b"".join(gzip.compress(part.encode(errors="replace")) for part in parts) + gzip.compress(b"\x80\xff\x00\n")


@pytest.mark.parametrize(
    ("folder", "outputs"),
    [
        (
            "m02-3xa6000-plx-one-unreachable",
            [
                ("/usr/bin/lspci -nnDvvvxxxx", "lspci-nnDvvvxxxx.txt"),
                ("/usr/bin/nvidia-smi --query", "nvidia-smi-query.txt"),
            ],
        ),
        (
            "m14-8xrtx5000-plx",
            [
                ('/usr/bin/lspci -d "10de:*" -v -xxx', "lspci-d10de-v-xxx.txt"),
                ('/usr/bin/lspci -d "10b5:*" -v -xxx', "lspci-d10b5-v-xxx.txt"),
                ("/usr/bin/lspci -t", "lspci-t.txt"),
                ("/usr/bin/lspci -nn", "lspci-nn.txt"),
                ("/usr/bin/nvidia-smi --query", "nvidia-smi-query.txt"),
            ],
        ),
        (
            "m08-2xa6000-threadripper-healthy",
            [
                ("/usr/bin/lspci -nnDvvvxxxx", "lspci-nnDvvvxxxx.txt"),
                ("/usr/bin/nvidia-smi --query", "nvidia-smi-query.txt"),
            ],
        ),
    ],
    ids=["new script", "old script", "with nvlink"],
)
def test_bug_report(corpus: Path, tmp_path: Path, folder: str, outputs: list[tuple[str, str]]) -> None:
    """A bug report gives the same facts as the outputs in it, each read alone."""
    texts = [(command, (corpus / folder / name).read_text(errors="replace")) for command, name in outputs]
    found = one(write(tmp_path, bug_report(texts), "nvidia-bug-report.log.gz"))
    assert found.problem is None
    alone = [facts for _, text in texts for facts in one(write(tmp_path, text)).facts]
    assert content(found.facts) == content(alone)


# --- what is refused ------------------------------------------------------------------------------------------------


def _tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00" + random.Random(2).randbytes(4000)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (b"\n\n \n", "not understood"),
        (JPEG, "not understood"),
        (random.Random(3).randbytes(100_000), "not understood"),
        (bytes(100_000), "not understood"),
        (b"Dear all, the GPUs are slow.\n" * 100, "lspci"),
        (gzip.compress(LSPCI.encode())[:-12], "cut off"),
        (gzip.compress(LSPCI.encode() * 50)[:60], "cut off"),
        (gzip.compress(LSPCI.encode())[:-8] + b"\0\0\0\0\0\0\0\0", "damaged"),
        (b"\x1f\x8b\x08garbage that is no gzip at all", "damaged"),
        (bz2.compress(LSPCI.encode())[:-10], "cut off"),
        (lzma.compress(LSPCI.encode())[:-10], "cut off"),
        (gzip.compress(gzip.compress(gzip.compress(LSPCI.encode()))), "times over"),
        (b"PK\x03\x04" + bytes(50), "zip"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd"),
        (b'{"format": "gpu-topo/capture/99"}\n', "gpu-topo/capture/99"),
        (b'{"format": "gpu-topo/capture/1"}\n{"path": "/x", "read": 7}\n', "damaged"),
        (b'{"format": "gpu-topo/capture/1"}\n' + b"[" * 100_000, "damaged"),
        (b'{"schema": "gpu-topo/report/1"}\n', "not understood"),
        (_tar([("etc/passwd", b"x")]), "sys/"),
        (_tar([("a/sys/bus/x", b"x"), ("b/sys/bus/x", b"x")]), "several machines"),
        (_tar([("sys/bus/pci/x", b"x" * 3000)])[:1500], "tar archive"),
        (b'<topology version="2.0"><object type="Machine">', "not well-formed"),
    ],
)
def test_what_is_not_understood(tmp_path: Path, data: bytes, words: str) -> None:
    """One line names the file and what is wrong with it, or what was looked for; nothing is raised."""
    path = write(tmp_path, data)
    found = one(path)
    assert not found.facts
    assert found.source is None
    assert found.problem is not None
    assert found.problem.startswith(f"{path}: ")
    assert "\n" not in found.problem
    assert found.problem.isprintable()
    assert words in found.problem


def test_missing_folder_and_unreadable(tmp_path: Path) -> None:
    """A missing file, a folder and a file without permission are each named; the others are still read."""
    secret = write(tmp_path, LSPCI, "secret")
    secret.chmod(0)
    good = write(tmp_path, LSPCI, "good")
    missing, folder, denied, fine = read_inputs([str(tmp_path / "none"), str(tmp_path), str(secret), str(good)])
    assert missing.problem is not None
    assert "No such file" in missing.problem
    assert folder.problem is not None
    assert "--root" in folder.problem
    assert denied.problem is not None or os.geteuid() == 0
    assert fine.facts


def test_a_name_with_escape_sequences(tmp_path: Path) -> None:
    """A file's name cannot speak to the terminal."""
    found = one(write(tmp_path, b"", "a\x1b[31m\nb"))
    assert found.problem is not None
    assert found.problem.isprintable()


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """Two gigabytes are refused by their size, at once."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    started = time.perf_counter()
    found = one(path)
    assert found.problem is not None
    assert "too large" in found.problem
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("line", [b"x\n", LSPCI.splitlines()[1].encode() + b"\n"], ids=["prose", "output"])
def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    """What unpacks to more than the limit is refused when the limit is reached."""
    monkeypatch.setattr("gpu_topo.collectors.unpack.MAX_BYTES", 1 << 20)
    found = one(write(tmp_path, gzip.compress(line * ((2 << 20) // len(line)))))
    assert found.problem is not None
    assert "holds more than" in found.problem
    assert not found.facts


def test_more_output_than_any_machine_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are kept for a reader are bounded in number."""
    monkeypatch.setattr(outputs, "_MAX_KEPT_LINES", 1000)
    found = one(write(tmp_path, LSPCI + "\tx\n" * 2000))
    assert found.problem is not None
    assert "more output" in found.problem


def test_archives_and_captures_become_sources(tmp_path: Path) -> None:
    """A tree in a tar archive and a capture are read like a machine, not here."""
    archive = one(write(tmp_path, gzip.compress(_tar([("host/sys/bus/pci/devices/x", b"1")]))))
    assert isinstance(archive.source, Tree)
    capture = one(write(tmp_path, b'{"format": "gpu-topo/capture/1"}\n{"path": "/proc/version", "read": "Linux"}\n'))
    assert isinstance(capture.source, Replay)
    assert capture.source.read("/proc/version") == b"Linux"


def test_registry_is_complete() -> None:
    """Every module that exports a READER is in the registry, and every entry is such a module."""
    folder = Path(recording.__file__).parent / "readers"
    exporting = {path.stem for path in folder.glob("*.py") if "\nREADER = " in path.read_text()}
    assert exporting == set(READERS)
    assert list(readers()) == list(READERS)


def test_endless_samples_are_bounded(tmp_path: Path) -> None:
    """Of a log with thousands of outputs the latest thousand are looked at, and one line says so."""
    log = tmp_path / "log.txt"
    log.write_text("GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n" * 1500)
    (found,) = read_inputs([str(log)])
    assert len(found.facts) == 1000
    assert found.problem == f"{log}: of 1500 outputs the last 1000 are looked at"
