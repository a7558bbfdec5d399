"""What people have at hand becomes facts: opens a recording, tells by its content what it is, and dispatches.

Archives and captures become a Source, which the collectors read like a machine; everything else is text, split into
the outputs that it holds, each for the reader that knows its first line. Nothing here raises on bad input.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from gpu_topo.collectors.outputs import InTime, by_host, split
from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.collectors.unpack import MAX_BYTES, Awaited, TooLate, Unreadable, in_time, unpacked
from gpu_topo.model.facts import FAILED, Facts
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Source

# The readers in the order in which they are asked; where two know a line, the first one has it.
READERS = (
    "lspci",
    "lspci_tree",
    "nvidia_smi_query",
    "nvidia_smi_xml",
    "nvidia_smi_topo",
    "nvidia_smi_nvlink",
    "nvidia_smi_table",
    "nvidia_smi_csv",
    "rocm_smi",
    "amd_smi_topology",
    "amd_smi",
    "npu_smi",
    "npu_smi_topo",
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "nccl_xml",
    "hwloc_xml",
)

_LOOKED_FOR = (
    "looked for a capture, a tar archive with sys/, lspci, nvidia-smi (alone, -q, -L, --query-gpu, topo -m, "
    "nvlink -s), rocm-smi (--showtopo, --showbus), amd-smi (list, static, metric, topology, xgmi), npu-smi "
    "(info, -t topo), ibstat, ibstatus, ibv_devinfo, NCCL or hwloc XML, nvidia-bug-report"
)

_HEAD = 1 << 14
# Bytes that no text of any encoding is full of: control characters but those of layout and of terminals.
_NO_TEXT = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\b\t\n\f\r\x1b")
_MAX_XML_LINE = 8 << 20  # XML may come without line breaks
_MAX_LINES = 4_000_000  # of a whole text; nvidia-bug-report.sh's longest have a quarter of that
_MOST_OUTPUTS = 1_000  # of one text: so many samples of a machine say what there is to say, the latest most of all


class Input(NamedTuple):
    """What one name on the command line turned out to be.

    facts: of text, in order of appearance. source: of an archive or a capture, for the collectors. problem: one line
    for standard error that names the input; with facts or a source beside it, it is a remark. hosts: for each of the
    facts the host in the prompt before it, "" where none is.
    """

    name: str
    facts: tuple[Facts, ...] = ()
    source: Source | None = None
    problem: str | None = None
    hosts: tuple[str, ...] = ()


def readers() -> dict[str, Reader]:
    """Every reader by the name of its module, in the order of READERS. Imported here, so that a scan of the running
    machine never loads them."""
    from importlib import import_module

    found: dict[str, Reader] = {name: import_module(f"gpu_topo.collectors.readers.{name}").READER for name in READERS}
    return found


def read_inputs(names: Sequence[str], timeout: float = 10.0) -> list[Input]:
    """Every named recording, "-" for standard input; one that is not understood does not keep the others from it.

    timeout: seconds, in all, for reading and for what others have yet to write into pipes.
    """
    ends = time.monotonic() + timeout
    return [_read_input(name, ends, timeout) for name in names]


def too_late(shown: str, timeout: float) -> str:
    """What is wrong with a recording that took longer than there was time. Half of it would pass for a whole machine,
    or an old sample for the latest, so that nothing of it counts."""
    return f"{shown}: not read to its end in {timeout:g} s and left out; --timeout SECONDS gives it longer"


def _read_input(name: str, ends: float, timeout: float) -> Input:
    shown = "standard input" if name == "-" else clean(name).replace("\n", " ") or "''"
    try:
        if name == "-":
            if sys.stdin is None:
                raise Unreadable("is closed")
            return _understand(in_time(sys.stdin.buffer, ends), name, shown, ends)
        with open(name, "rb", buffering=0, opener=_open_at_once) as file:
            return _understand(in_time(file, ends), name, shown, ends)
    except TooLate:
        return Input(name, problem=too_late(shown, timeout))
    except Unreadable as error:
        return Input(name, problem=f"{shown}: {error}")
    except IsADirectoryError:
        tree = "DIR" if name == "-" else shown
        return Input(name, problem=f"{shown}: is a directory: give a copied file tree with --root {tree}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Input(name, problem=f"{shown}: cannot be read: {why}")


def _open_at_once(name: str, flags: int) -> int:
    """Opening a FIFO without a writer would wait for one."""
    return os.open(name, flags | os.O_NONBLOCK)


def _understand(file: BinaryIO | Awaited, name: str, shown: str, ends: float) -> Input:
    """Tell by the content what this is. Raises Unreadable where it is nothing that this program knows."""
    from gpu_topo.collectors.archive import is_tar
    from gpu_topo.source.capture import is_capture

    _refuse_if_huge(file)
    stream = unpacked(file, ends)
    head = stream.peek(_HEAD)[:_HEAD]
    if not head:
        raise Unreadable(f"is empty: {_LOOKED_FOR}")
    if is_tar(head[:512]):
        return _read_archive(stream, name, shown)
    if is_capture(head):
        return _read_capture(stream, name)
    encoding = _encoding(head)
    if encoding is None:
        raise Unreadable(f"not understood: it is binary data; {_LOOKED_FOR}")
    found, passed_over = _latest(_read_text(_lines(stream, encoding), shown, ends))
    facts = tuple(one for one, _ in found)
    if not facts:
        raise Unreadable(f"not understood: {_LOOKED_FOR}")
    if all(map(_says_nothing, facts)):
        raise Unreadable(f"not understood: {facts[0].source.detail or facts[0].source.name}")
    remark = f"{shown}: of {len(facts) + passed_over} outputs the last {len(facts)} are looked at"
    return Input(name, facts, problem=remark if passed_over else None, hosts=tuple(host for _, host in found))


def _latest(outputs: Iterator[tuple[Facts, str]]) -> tuple[tuple[tuple[Facts, str], ...], int]:
    """The last _MOST_OUTPUTS of a text's outputs, and how many there were before them."""
    from collections import deque

    kept: deque[tuple[Facts, str]] = deque(maxlen=_MOST_OUTPUTS)
    count = 0
    for output in outputs:
        kept.append(output)
        count += 1
    return tuple(kept), count - len(kept)


def _says_nothing(facts: Facts) -> bool:
    """Whether an output was found and nothing could be made of it. A driver's failure is a fact."""
    empty = not (facts.functions or facts.gpus or facts.peers or facts.ports or facts.driver)
    return empty and facts.source.status == FAILED


def _refuse_if_huge(file: BinaryIO | Awaited) -> None:
    """A file that states its size need not be read to know that it is too much."""
    try:
        size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError, AttributeError):  # standard input that is no file
        return
    if size > MAX_BYTES:
        raise Unreadable(f"is too large ({size >> 20} MiB; at most {MAX_BYTES >> 20} MiB are read): {_LOOKED_FOR}")


def _read_archive(stream: BinaryIO, name: str, shown: str) -> Input:
    from gpu_topo.collectors.archive import left_out, read_tree

    archive = read_tree(stream)
    if not archive.skipped:
        return Input(name, source=archive.tree)
    return Input(name, source=archive.tree, problem=f"{shown}: {left_out(archive.skipped)}")


def _read_capture(stream: BinaryIO, name: str) -> Input:
    from gpu_topo.source.capture import MAX_BYTES as MOST
    from gpu_topo.source.capture import BadCapture, load

    try:
        # Not strict: what an older version did not record is absent, not a mistake of whoever replays it.
        return Input(name, source=load(stream.read(MOST + 1), strict=False))
    except BadCapture as error:
        raise Unreadable(str(error)) from error


def _encoding(head: bytes) -> str | None:
    """How a text is encoded (PowerShell writes UTF-16), None where it is none."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if head.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    # Without its mark: every other byte of a text in Latin letters is zero.
    half = len(head) // 2
    first, second = head[::2].count(0), head[1::2].count(0)
    if half and max(first, second) * 10 > half * 7 and min(first, second) * 20 < half:
        return "utf-16-le" if second > first else "utf-16-be"
    # Logs hold a stray zero now and then; pictures and programs are full of them, noise has a tenth.
    return None if (len(head) - len(head.translate(None, _NO_TEXT))) * 20 > len(head) else "utf-8"


def _lines(stream: BinaryIO, encoding: str) -> Iterator[str]:
    """The lines of a text without their ends; CR LF and a lone CR end one too."""
    import io

    text = io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline=None)
    count = 0
    try:
        while line := text.readline(_MAX_XML_LINE):
            count += 1
            if count > _MAX_LINES:
                raise Unreadable(f"has more than {_MAX_LINES:,} lines")
            yield line[:-1] if line.endswith("\n") else line
    finally:
        text.detach()


def _read_text(lines: Iterable[str], where: str, ends: float) -> Iterator[tuple[Facts, str]]:
    """The facts of every output in a text, in order of appearance, and the host in the prompt before it."""
    known = readers()
    for section in split(by_host(lines, known), known, where):
        for facts in known[section.name].read(InTime(section.lines, ends), where):
            yield facts, section.host
