"""Cuts a text into the outputs that it holds: of which tool and host each line is, whatever stands around it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.collectors.unpack import TooLate, Unreadable
from gpu_topo.model.record import NamedTuple

# XML runs to its closing tag, whatever its lines look like: root element -> the reader that knows it.
_XML_ROOTS = {"nvidia_smi_log": "nvidia_smi_xml", "system": "nccl_xml", "topology": "hwloc_xml"}

MAX_LINE = 1 << 14  # of a text that is no XML: what is longer is no output that a reader knows
_MAX_KEPT_LINES = 1_000_000  # in all sections together
_MAX_KEPT_TEXT = 128 << 20
_LINES_AT_ONCE = 4_000  # of a section, from one look at the clock to the next


class SeveralMachines(Exception):
    """A recording that holds the output of more machines than one; the message names it, and them."""


# A shell's or PowerShell's prompt with a command behind it: what follows is another output.
_PROMPT = re.compile(
    r"(?:\([\w.-]+\) ?)?"  # (conda environment)
    r"(?:\[?[\w.-]+@[\w.-]+(?:[: ][^#$%>]{0,200})?\]?[#$%>]|(?:PS )?[A-Za-z]:\\[^>]{0,200}>|sh-[\d.]+[#$]|[#$%>])"
    r" ?[\w./~-]"
)
_AT_HOST = re.compile(
    r"(?:\([\w.-]{1,40}\) ?)?\[?[\w.-]{1,64}@([\w.-]{1,64})(?:[: ][^#$%>]{0,200})?\]?[#$%>] ?(\S.{0,400})"
)
# Names that say nothing, and those that container runtimes make up.
_NO_HOST = re.compile(r"(?:localhost|host|hostname|server|machine|x+|ip|[\da-f]{12}|.*-[\da-z]{5})\Z", re.IGNORECASE)
# Behind these the prompt may be that of a container on the same machine.
_INSIDE = re.compile(
    r"\b(?:docker|podman|nerdctl|crictl|ctr|kubectl|oc|lxc|incus|machinectl|systemd-nspawn|enroot|apptainer|singularity"
    r"|chroot|distrobox|toolbox|hostname|hostnamectl|udocker|virsh|wsl)\b"
)
# nvidia-bug-report.sh's rule between sections and its headings, and the fences of Markdown.
_DIVIDER = re.compile(r"_{20,}|-{20,}\Z|={20,}\Z|\*\*\* (?:/|ls:)|```|~~~")
_XML_BEGIN = re.compile(r"<(nvidia_smi_log|system|topology)(?=\s*>|\s+version=)")
# How people quote and indent what they paste: the rest of the output is quoted in the same way.
_QUOTE = re.compile(r"[>| \t]{1,16}(?=[^\s>|])")
_MARKS = re.compile(r"(?:[>|#%] ?){1,8}(?=.)")  # of a mail or a comment: what is indented below it stays so
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#[xX][\dA-Fa-f]{1,4});")


_Known = Sequence[tuple[str, Callable[[str], bool]]]  # which reader knows a first line, by the names of their modules


class Section:
    """Lines of one kind of output."""

    def __init__(self, name: str, quote: str = "", closing: str = "", escaped: bool = False) -> None:
        self.name = name  # of the reader's module
        self.quote = quote  # what stands before each line
        self.closing = closing  # XML: the tag that ends it
        self.escaped = escaped  # XML: its tags were written as entities
        self.host = ""  # by the prompt before the command
        self.lines: list[str] = []


class _Prompts:
    """Whose the prompts are, where they name hosts."""

    def __init__(self) -> None:
        self.host = ""
        self._inside = False  # a command may have led into a container
        self._hosts: set[str] = set()  # those met before

    def see(self, line: str) -> None:
        match = _AT_HOST.match(line)
        if match is None:
            return
        host = match[1].partition(".")[0].lower()
        if _NO_HOST.match(host) or (self._inside and host not in self._hosts):
            self.host = ""
        else:
            self.host = host
            self._hosts.add(host)
        self._inside = self._inside or bool(_INSIDE.search(match[2]))


class InTime(list[str]):
    """The lines of a section, through which a reader goes only until the time is over; see unpack._Counted."""

    def __init__(self, lines: Iterable[str], ends: float) -> None:
        super().__init__(lines)
        self._ends = ends

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(super().__iter__(), 1):
            if number % _LINES_AT_ONCE == 0 and time.monotonic() > self._ends:
                raise TooLate("is not read to its end in time")
            yield line


def split(lines: Iterable[Line], every: dict[str, Reader], where: str = "") -> Iterator[Section]:
    """Cut a text into sections. One runs from a line that some reader knows as a first line to where another kind
    begins, or a prompt or a rule; the same kind goes on, since a reader tells its samples apart itself."""
    known = [(name, reader.begins) for name, reader in every.items() if name not in _XML_ROOTS.values()]
    section: Section | None = None
    kept_lines = kept_text = 0
    prompts = _Prompts()
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
        if "@" in line:
            prompts.see(line)
        if "<" in line and (root := _XML_BEGIN.search(line)):
            if section is not None:
                yield section
            section = Section(_XML_ROOTS[root[1]], closing=f"</{root[1]}>", escaped=escaped)
            section.host = prompts.host
            section.lines.append(line[root.start() :])
            kept_text += len(line)
            if section.closing in line:
                yield section
                section = None
            continue
        line = line[:MAX_LINE]
        if section is not None and section.quote:
            alike = line.startswith(section.quote)
            line = line.removeprefix(section.quote if alike else section.quote.rstrip())  # ">GPU0" below ">     GPU0"
        keeps = every[section.name].keeps if section is not None else None
        name, quote = (None, "") if keeps is not None and keeps(line) else _kind(line, known, section)
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
            section = Section(name, quote)
            section.host = prompts.host
            line = line.removeprefix(quote)  # already gone where the section before was quoted alike
        if section is not None:
            section.lines.append(line)
            kept_lines += 1
            kept_text += len(line)
            _refuse_if_much(kept_lines, kept_text)
    if section is not None:
        yield section


class Line(NamedTuple):
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


def by_host(lines: Iterable[str], known: dict[str, Reader]) -> Iterator[Line]:
    """The lines of a text and whose they are, where a tool that asks many hosts says so."""

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
        yield Line(host, line)


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


def _kind(line: str, known: _Known, section: Section | None) -> tuple[str | None, str]:
    """Which reader knows this line as a first line, and how it is quoted."""
    if not line or line.isspace():
        return None, ""
    if section is None and line[0] in ">|#%" and (marks := _MARKS.match(line)):
        quotes = [marks[0]]
        if "|" in marks[0][1:]:  # the last bar may be a table's own
            quotes.append(marks[0][: marks[0].rindex("|")])
        for quote in quotes:
            inner = line[len(quote) :]
            for name, begins in known:
                if begins(inner):
                    return name, quote
    for name, begins in known:
        if begins(line):
            return name, ""
    if section is None and line[0] in ">| \t" and (blanks := _QUOTE.match(line)):
        inner = line[blanks.end() :]
        for name, begins in known:
            if begins(inner):
                return name, blanks[0]
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
