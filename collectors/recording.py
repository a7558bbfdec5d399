"""What people have at hand becomes facts: opens a recording, tells by its content what it is, and dispatches.

Archives and captures become a Source, which the collectors read like a machine; everything else is text, split into
the outputs that it holds, each for the reader that knows its first line. Nothing here raises on bad input.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

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
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "nccl_xml",
    "hwloc_xml",
)

# XML runs to its closing tag, whatever its lines look like: root element -> the reader that knows it.
_XML_ROOTS = {"nvidia_smi_log": "nvidia_smi_xml", "system": "nccl_xml", "topology": "hwloc_xml"}

_LOOKED_FOR = (
    "looked for a capture, a tar archive with sys/, lspci, nvidia-smi (-q, topo -m, nvlink -s), ibstat, ibstatus, "
    "ibv_devinfo, NCCL or hwloc XML, nvidia-bug-report"
)

_HEAD = 1 << 14
# Bytes that no text of any encoding is full of: control characters but those of layout and of terminals.
_NO_TEXT = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\b\t\n\f\r\x1b")
_MAX_XML_LINE = 8 << 20  # XML may come without line breaks
_MAX_LINE = 1 << 14  # of any other text: what is longer is no output that a reader knows
_MAX_LINES = 4_000_000  # of a whole text; nvidia-bug-report.sh's longest have a quarter of that
_MAX_KEPT_LINES = 1_000_000  # in all sections together
_MOST_OUTPUTS = 1_000  # of one text: so many samples of a machine say what there is to say, the latest most of all
_MAX_KEPT_TEXT = 128 << 20
_LINES_AT_ONCE = 4_000  # of a section, from one look at the clock to the next


class SeveralMachines(Exception):
    """A recording that holds the output of more machines than one; the message names it, and them."""


class Input(NamedTuple):
    """What one name on the command line turned out to be.

    facts: of text, in order of appearance. source: of an archive or a capture, for the collectors. problem: one line
    for standard error that names the input; with facts or a source beside it, it is a remark.
    """

    name: str
    facts: tuple[Facts, ...] = ()
    source: Source | None = None
    problem: str | None = None


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
    facts, passed_over = _latest(_read_text(_lines(stream, encoding), shown, ends))
    if not facts:
        raise Unreadable(f"not understood: {_LOOKED_FOR}")
    if all(map(_says_nothing, facts)):
        raise Unreadable(f"not understood: {facts[0].source.detail or facts[0].source.name}")
    remark = f"{shown}: of {len(facts) + passed_over} outputs the last {len(facts)} are looked at"
    return Input(name, facts, problem=remark if passed_over else None)


def _latest(outputs: Iterator[Facts]) -> tuple[tuple[Facts, ...], int]:
    """The last _MOST_OUTPUTS of a text's outputs, and how many there were before them."""
    from collections import deque

    kept: deque[Facts] = deque(maxlen=_MOST_OUTPUTS)
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


# --- splitting a text into the outputs that it holds ----------------------------------------------------------------

# A shell's or PowerShell's prompt with a command behind it: what follows is another output.
_PROMPT = re.compile(
    r"(?:\([\w.-]+\) ?)?"  # (conda environment)
    r"(?:\[?[\w.-]+@[\w.-]+(?:[: ][^#$%>]{0,200})?\]?[#$%>]|(?:PS )?[A-Za-z]:\\[^>]{0,200}>|sh-[\d.]+[#$]|[#$%>])"
    r" ?[\w./~-]"
)
# nvidia-bug-report.sh's rule between sections and its headings, and the fences of Markdown.
_DIVIDER = re.compile(r"_{20,}|-{20,}\Z|={20,}\Z|\*\*\* (?:/|ls:)|```|~~~")
_XML_BEGIN = re.compile(r"<(nvidia_smi_log|system|topology)(?=\s*>|\s+version=)")
# How people quote and indent what they paste: the rest of the output is quoted in the same way.
_QUOTE = re.compile(r"[>| \t]{1,16}(?=[^\s>|])")
_MARKS = re.compile(r"(?:[>|#%] ?){1,8}(?=.)")  # of a mail or a comment: what is indented below it stays so
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#[xX][\dA-Fa-f]{1,4});")


_Known = Sequence[tuple[str, Callable[[str], bool]]]  # which reader knows a first line, by the names of their modules


class _Section:
    """Lines of one kind of output."""

    def __init__(self, name: str, quote: str = "", closing: str = "", escaped: bool = False) -> None:
        self.name = name  # of the reader's module
        self.quote = quote  # what stands before each line
        self.closing = closing  # XML: the tag that ends it
        self.escaped = escaped  # XML: its tags were written as entities
        self.lines: list[str] = []


class _InTime(list[str]):
    """The lines of a section, through which a reader goes only until the time is over; see unpack._Counted."""

    def __init__(self, lines: Iterable[str], ends: float) -> None:
        super().__init__(lines)
        self._ends = ends

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(super().__iter__(), 1):
            if number % _LINES_AT_ONCE == 0 and time.monotonic() > self._ends:
                raise TooLate("is not read to its end in time")
            yield line


def _read_text(lines: Iterable[str], where: str, ends: float) -> Iterator[Facts]:
    """The facts of every output in a text, in order of appearance."""
    known = readers()
    for section in _split(_by_host(lines, known), known, where):
        yield from known[section.name].read(_InTime(section.lines, ends), where)


def _split(lines: Iterable[_Line], every: dict[str, Reader], where: str = "") -> Iterator[_Section]:
    """Cut a text into sections. One runs from a line that some reader knows as a first line to where another kind
    begins, or a prompt or a rule; the same kind goes on, since a reader tells its samples apart itself."""
    known = [(name, reader.begins) for name, reader in every.items() if name not in _XML_ROOTS.values()]
    section: _Section | None = None
    kept_lines = kept_text = 0
    told = at = ""  # the host whose output was met, and the one whose lines these are
    for host, line in lines:
        if host != at:
            at = host
            if section is not None:
                yield section
                section = None
        if "&" in line and (section is None or section.escaped or not section.closing) and _ENTITY.search(line):
            line, escaped = _unescape(line), True
        else:
            escaped = False
        if section is not None and section.closing:
            if line[:1] != "<" and _ends(line):  # XML that was cut off
                yield section
                section = None
            else:
                section.lines.append(line)
                kept_lines += 1
                kept_text += len(line)
                if section.closing in line:
                    yield section
                    section = None
                _refuse_if_much(kept_lines, kept_text)
                continue
        if "<" in line and (root := _XML_BEGIN.search(line)):
            if section is not None:
                yield section
            section = _Section(_XML_ROOTS[root[1]], closing=f"</{root[1]}>", escaped=escaped)
            section.lines.append(line[root.start() :])
            kept_text += len(line)
            if section.closing in line:
                yield section
                section = None
            continue
        line = line[:_MAX_LINE]
        if section is not None and section.quote:
            alike = line.startswith(section.quote)
            line = line.removeprefix(section.quote if alike else section.quote.rstrip())  # ">GPU0" below ">     GPU0"
        name, quote = _kind(line, known, section)
        quote = quote or (section.quote if section is not None else "")
        if section is not None and (name not in (None, section.name) or (name is None and _ends(line))):
            yield section
            section = None
        if section is None and name is not None:
            if told and host and host != told:
                raise SeveralMachines(
                    f"{where}: these are two machines: output of {told} and of {host}; inspect them one at a time"
                )
            told = host or told
            section = _Section(name, quote)
            line = line.removeprefix(quote)  # already gone where the section before was quoted alike
        if section is not None:
            section.lines.append(line)
            kept_lines += 1
            kept_text += len(line)
            _refuse_if_much(kept_lines, kept_text)
    if section is not None:
        yield section


class _Line(NamedTuple):
    """A cleaned line without the prefix that a tool for many hosts set before it."""

    host: str  # "" where nothing says whose it is
    text: str


# pdsh, clush and srun -l write the host before each line, ansible and `pdsh | dshbak` above each host's output.
_PREFIX = re.compile(r" {0,8}([A-Za-z\d][\w.-]{0,63}):(?: |\Z)")
_ANSIBLE = re.compile(
    r"([A-Za-z\d][\w.-]{0,63}) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE!)(?: \| rc=-?\d+ >>| => ?\{)\s*\Z"
)
_RULE = re.compile(r"-{15,16}\Z")  # clush -b has 15, dshbak 16
_HEADING = re.compile(r"[A-Za-z\d][\w.,\[\]-]{0,199}(?: \(\d+\))?\Z")
_LOOK_AHEAD = 200  # lines by which to tell whether they have prefixes


def _by_host(lines: Iterable[str], known: dict[str, Reader]) -> Iterator[_Line]:
    """The lines of a text and whose they are, where a tool that asks many hosts says so."""
    from itertools import chain, islice

    rest = iter(lines)
    head = [clean(line) for line in islice(rest, _LOOK_AHEAD)]
    hosts = _prefixes(head, known)
    host = heading = ""
    ruled = False  # whether the line before was a rule
    for line in chain(head, map(clean, rest)):
        if hosts and (match := _PREFIX.match(line)):
            text = line[match.end() :]
            if match[1] in hosts or _begins(text, known):
                hosts.add(match[1])
                host, line = match[1], text
        elif " | " in line and (match := _ANSIBLE.match(line)):
            host, line = match[1], ""
        elif heading and _RULE.match(line):
            host = heading
        # A heading stands between two rules.
        if ruled and _HEADING.match(line):
            heading = line
        else:
            ruled, heading = line[:1] == "-" and bool(_RULE.match(line)), ""
        yield _Line(host, line)


def _prefixes(head: Sequence[str], known: dict[str, Reader]) -> set[str]:
    """The hosts by whose names nearly all lines begin, so that what follows is output; none where it is one as it
    stands."""
    written = [line for line in head if line.strip()]
    matches = [match for line in written if (match := _PREFIX.match(line))]
    if len(matches) * 10 < len(written) * 8:
        return set()
    found: set[str] = set()
    for match in matches:
        if match[1] not in found and _begins(match.string[match.end() :], known):
            found.add(match[1])
    return set() if any(_begins(line, known) for line in written) else found


def _begins(line: str, known: dict[str, Reader]) -> bool:
    """Whether some reader knows this line as a first line."""
    return bool(line) and any(reader.begins(line) for reader in known.values())


def _kind(line: str, known: _Known, section: _Section | None) -> tuple[str | None, str]:
    """Which reader knows this line as a first line, and how it is quoted."""
    if not line or line.isspace():
        return None, ""
    if section is None and line[0] in ">|#%" and (marks := _MARKS.match(line)):
        inner = line[marks.end() :]
        for name, begins in known:
            if begins(inner):
                return name, marks[0]
    for name, begins in known:
        if begins(line):
            return name, ""
    if section is None and line[0] in ">| \t" and (quote := _QUOTE.match(line)):
        inner = line[quote.end() :]
        for name, begins in known:
            if begins(inner):
                return name, quote[0]
    return None, ""


def _unescape(line: str) -> str:
    """A line of a web page's source as the page shows it."""
    import html

    return clean(html.unescape(line))


def _ends(line: str) -> bool:
    return bool(_DIVIDER.match(line) or _PROMPT.match(line))


def _refuse_if_much(lines: int, text: int) -> None:
    if lines > _MAX_KEPT_LINES or text > _MAX_KEPT_TEXT:
        raise Unreadable("holds more output than any one machine prints")
