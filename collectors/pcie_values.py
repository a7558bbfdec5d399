"""What single sysfs attributes of a PCI function say: ids, speeds, widths and error counters."""

from __future__ import annotations

from gpu_topo.model.pci import Aer, Function, LinkEnd
from gpu_topo.model.reading import ASLEEP, LOST, MALFORMED, NO_DATA, NOT_RECORDED, Reading, Unknown, known
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Answer, Dir, Refusal, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_LANES = 63  # what a function that no longer answers shows: all bits set
_MOST_LANES = 32

_SPEEDS = {
    text.encode() + b"\n": value
    for value in (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
    for text in (f"{value} GT/s PCIe", f"{value:g} GT/s", f"{value} GT/s")
}
_unrecorded = Unknown(NOT_RECORDED, "the port is not in the recording")
UNRECORDED = LinkEnd(_unrecorded, _unrecorded, _unrecorded, _unrecorded)
ASLEEP_READING = Unknown(ASLEEP, "power/runtime_status")
ASLEEP_LINK = LinkEnd(ASLEEP_READING, ASLEEP_READING, ASLEEP_READING, ASLEEP_READING)
_lost = Unknown(LOST, "config")
LOST_LINK = LinkEnd(_lost, _lost, _lost, _lost)

_COR, _NONFATAL, _FATAL = "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"
_NO_COUNTS: Mapping[str, int] = {}
_NONE_COUNTED = (_NO_COUNTS, _NO_COUNTS, _NO_COUNTS)
_NO_ERRORS = Aer(*_NONE_COUNTED, sticky=False)


class Values:
    """Reads attributes; every one that cannot be read or makes no sense is counted in `unread`, none is fatal."""

    def __init__(self) -> None:
        self.unread: dict[str, int] = {}
        self._ends: dict[tuple[object, ...], LinkEnd] = {}

    def count(self, why: str, what: str) -> None:
        self.unread[f"{why}: {what}"] = self.unread.get(f"{why}: {what}", 0) + 1

    def id(self, folder: Dir, name: str) -> int | None:
        """A hexadecimal id, None where it is absent or makes no sense."""
        data = folder.read(name)
        if isinstance(data, Refusal):
            if data.why != NOT_THERE:
                self.count(data.why, name)
            return None
        value = number(data.decode("ascii", "replace").strip())
        if value is None:
            self.count(MALFORMED, name)
        return value

    def numa(self, folder: Dir) -> Reading[int]:
        """The NUMA node; -1 is no data."""
        data = folder.read("numa_node")
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, "numa_node")
            self.count(data.why, "numa_node")
            return Unknown(data.why, "numa_node")
        try:
            number = int(data)
        except ValueError:
            self.count(MALFORMED, "numa_node")
            return Unknown(MALFORMED, "numa_node")
        return number if number >= 0 else Unknown(NO_DATA, "numa_node is -1")

    def link(
        self, speed: Answer, width: Answer, max_speed: Answer, max_width: Answer, target: Reading[float]
    ) -> LinkEnd:
        """The link end that four attributes and the target speed describe; ends that read the same are one object."""
        key = speed, width, max_speed, max_width, target
        end = self._ends.get(key)
        if end is None:
            unread = sum(self.unread.values())
            end = LinkEnd(
                self.speed(speed, "current_link_speed"),
                self.width(width, "current_link_width"),
                self.speed(max_speed, "max_link_speed"),
                self.width(max_width, "max_link_width"),
                target,
            )
            if unread == sum(self.unread.values()):
                self._ends[key] = end  # else it counts each time
        return end

    def speed(self, data: Answer, name: str) -> Reading[float]:
        """'16.0 GT/s PCIe', '8 GT/s', '2.5 GT/s' in GT/s; 'Unknown' has no data."""
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, name)
            self.count(data.why, name)
            return Unknown(data.why, name)
        known = _SPEEDS.get(data)
        if known is not None:
            return known
        text = data.decode("ascii", "replace").strip()
        if text.lower().startswith("unknown"):
            return Unknown(NO_DATA, name)
        try:
            value = float(text.split(" ", 1)[0])
        except ValueError:
            value = 0.0
        if "GT/s" not in text or not 2.5 <= value <= 256:
            self.count(MALFORMED, name)
            return Unknown(MALFORMED, name)
        return value

    def width(self, data: Answer, name: str) -> Reading[int]:
        """Lanes; 0 means that no link is up, 63 and 255 that nothing answers."""
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, name)
            self.count(data.why, name)
            return Unknown(data.why, name)
        try:
            value = int(data)
        except ValueError:
            self.count(MALFORMED, name)
            return Unknown(MALFORMED, name)
        if 1 <= value <= _MOST_LANES:
            return value
        if value == 0:
            return Unknown(NO_DATA, f"{name} is 0")
        if value in (_NO_LANES, 255):
            return Unknown(LOST, f"{name} is {value}")
        self.count(MALFORMED, name)
        return Unknown(MALFORMED, f"{name} is {value}")

    def aer(self, folder: Dir) -> Aer | None:
        """The counters of Advanced Error Reporting, None where the kernel keeps none."""
        answers = folder.read(_COR), folder.read(_NONFATAL), folder.read(_FATAL)
        if absent(answers[0]) and absent(answers[1]) and absent(answers[2]):
            return None
        counts = self.errors(answers[0], _COR), self.errors(answers[1], _NONFATAL), self.errors(answers[2], _FATAL)
        return _NO_ERRORS if counts == _NONE_COUNTED else Aer(*counts, sticky=False)

    def errors(self, data: Answer, name: str) -> Reading[Mapping[str, int]]:
        """The errors of one kind that were counted at all, by name."""
        if isinstance(data, Refusal):
            if data.why == NOT_THERE:
                return Unknown(NOT_RECORDED, name)
            self.count(data.why, name)
            return Unknown(data.why, name)
        # The last line is the total: where it is 0, the twenty lines above it need no parsing.
        if data.endswith(b" 0\n") and b"\nTOTAL_ERR_" in data:
            return _NO_COUNTS
        counts: dict[str, int] = {}
        total: int | None = None
        for line in data.decode("ascii", "replace").splitlines():
            kind, _, number = line.strip().rpartition(" ")
            if not kind or not number.isdecimal():
                total = None
                break
            if kind.startswith("TOTAL_ERR"):
                total = int(number)
            elif int(number):
                counts[kind] = int(number)
        if total is None or (total and not counts):  # empty, cut off, or no numbers
            self.count(MALFORMED, name)
            return Unknown(MALFORMED, name)
        return counts


def gone(link: LinkEnd) -> bool:
    """Whether the attributes show a function that answers all ones: width 63 (or 255) is no width."""
    width = link.width
    return isinstance(width, Unknown) and width.why == LOST


def absent(answer: Answer | Target) -> bool:
    """Whether there is no such file."""
    return isinstance(answer, Refusal) and answer.why == NOT_THERE


def text(data: Answer) -> str | None:
    """The stripped text, None where it was refused."""
    return None if isinstance(data, Refusal) else data.decode("utf-8", "replace").strip()


def is_slowed(link: LinkEnd, port: Function | None) -> bool:
    """Whether a link is known to run slower than both of its ends can. port: the function above."""
    if port is None or port.link is None:
        return False
    speed, most, other = known(link.speed_gts), known(link.max_speed_gts), known(port.link.max_speed_gts)
    return speed is not None and most is not None and other is not None and speed < min(most, other)


def number(text: str | None) -> int | None:
    """A hexadecimal number, None where it is none."""
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None
