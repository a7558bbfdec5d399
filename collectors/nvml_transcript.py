"""The transcript of NVML questions and answers: how a line is written and read back. Pure.

A line is one JSON object: `q` the question (a function of nvidia-ml-py), `gpu` NVML's index, `args` what else it was
given, and `r` the answer or `e` why there is none: NVML's error without NVML_ERROR_, or one of ours: DEADLINE (no
answer in time), CRASH ... (it ended the process), SKIPPED ... (not asked, since others like it hung or crashed).
Where a question occurs twice, the later answer counts: it came late, or a second worker asked again. Questions that
are no function of NVML: `begin` (which library), `openable` (minors of /dev/nvidia<minor> that this process may open),
`procfs` (the kernel driver's own list of GPUs), `procfs_minor`, `end` (whether all was asked).
"""

from __future__ import annotations

import json
from itertools import islice

from gpu_topo.model.address import normalise
from gpu_topo.model.reading import DENIED, EMPTY, FAILED, LOST, MALFORMED, NOT_RECORDED, TIMEOUT, Reading, Unknown
from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Key = tuple[str, tuple[Any, ...]]  # question and arguments

ALL, LOAD = "all", "load"  # kinds of batches
DEADLINE = "DEADLINE"
CRASH = "CRASH"
SKIPPED = "SKIPPED"
MAX_LINES = 200_000  # a recording may come from a stranger
MAX_GPUS = 1024

# "This machine has no such thing", which is no gap in what is known.
ABSENT_ERRORS = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})
# The ways in which NVML says that a link, a partition or a version of a structure does not exist.
NO_SUCH_INDEX = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"})


class Error(NamedTuple):
    """Why a question has no answer."""

    name: str


class Batch(NamedTuple):
    """One batch of a transcript that may hold several: further samples follow the first, full one."""

    load_only: bool
    lines: tuple[str, ...]


def line(
    question: str, gpu: int | None = None, args: str | Sequence[Any] = (), result: Any = None, error: str = ""
) -> str:
    """A line of the parent's own: what it found out without the worker, or what the worker never answered.

    args: a sequence, or JSON of one.
    """
    written: dict[str, Any] = {"q": question}
    if gpu is not None:
        written["gpu"] = gpu
    given = json.loads(args) if isinstance(args, str) else list(args)
    if given:
        written["args"] = given
    if error:
        written["e"] = error
    else:
        written["r"] = result
    return json.dumps(written)


def batches(lines: Iterable[str]) -> list[Batch]:
    """The batches of a recorded transcript, in order; each begins with a line `begin`."""
    found: list[tuple[bool, list[str]]] = []
    for text in islice(lines, MAX_LINES):
        if '"begin"' in text and (entry := _parse(text)) is not None and entry["q"] == "begin":
            found.append((entry.get("args") == [LOAD], []))
        if found:
            found[-1][1].append(text)
    return [Batch(load_only, tuple(own)) for load_only, own in found]


def why(error: str) -> str:
    """The reason, of the fixed list of gpu_topo.model.reading, that an error stands for."""
    if error in (DEADLINE, SKIPPED, "TIMEOUT") or error.startswith(("HELD", "BUSY")):
        return TIMEOUT
    if error in ("NO_PERMISSION", "PermissionError"):
        return DENIED
    if error == "GPU_IS_LOST":
        return LOST
    return MALFORMED if error.startswith("MALFORMED") else FAILED


def is_int(value: object) -> bool:
    """Whether JSON had a whole number here; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _parse(text: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("q"), str):
        return None
    gpu = entry.get("gpu")
    return entry if gpu is None or (is_int(gpu) and 0 <= gpu < MAX_GPUS) else None


def _frozen(args: Any) -> tuple[Any, ...]:
    """Arguments as a key: a list of numbers, or of pairs of numbers."""
    if not isinstance(args, list):
        return ()
    return tuple(tuple(item) if isinstance(item, list) else item for item in args)


class Transcript:
    """The answers of one batch, by GPU, question and arguments."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.answers: dict[int | None, dict[Key, Any]] = {}
        for text in lines:
            entry = _parse(text)
            if entry is None:
                continue
            error = entry.get("e")
            try:
                own = self.answers.setdefault(entry.get("gpu"), {})
                own[entry["q"], _frozen(entry.get("args"))] = Error(error) if isinstance(error, str) else entry.get("r")
            except TypeError:
                continue  # arguments that no question of ours has
        self.load_only = self.asked("begin", None, LOAD)
        self.begin = self.get("begin", None, LOAD if self.load_only else ALL)
        self.end = self.get("end")

    def asked(self, question: str, gpu: int | None = None, *args: object) -> bool:
        """Whether a question was asked, with or without an answer."""
        return (question, args) in self.answers.get(gpu, EMPTY)

    def get(self, question: str, gpu: int | None = None, *args: object) -> Any:
        """The answer as it was written, an Error, or None where the question was not asked."""
        return self.answers.get(gpu, EMPTY).get((question, args))

    def integer(self, question: str, gpu: int | None = None, *args: object) -> int | None:
        """The answer where it is a whole number, else None."""
        answer = self.get(question, gpu, *args)
        return answer if isinstance(answer, int) and not isinstance(answer, bool) else None

    def reading(self, question: str, gpu: int | None = None, *args: object) -> Reading[Any]:
        """The answer, None where there is no such thing here, or why it is unknown."""
        if not self.asked(question, gpu, *args):
            return self.unasked(question, gpu)
        answer = self.get(question, gpu, *args)
        if isinstance(answer, Error):
            return None if answer.name in ABSENT_ERRORS else Unknown(why(answer.name), question)
        return answer

    def unasked(self, question: str, gpu: int | None = None) -> Unknown | None:
        """Why there is no answer to a question that was not asked.

        None in a short batch, which leaves what the full one said; else what had to come before it failed, or asking
        was cut off.
        """
        if self.load_only:
            return None
        for before, own in (("nvmlInit", None), ("nvmlDeviceGetHandleByIndex", gpu), ("nvmlDeviceGetPciInfo", gpu)):
            refused = self.get(before, own)
            if isinstance(refused, Error):
                return Unknown(why(refused.name), before)
        return Unknown(why(self.end.name) if isinstance(self.end, Error) else NOT_RECORDED, question)

    def number(self, question: str, gpu: int | None = None, *args: object) -> Reading[int]:
        """A whole number; anything else in its place is malformed."""
        answer = self.reading(question, gpu, *args)
        if answer is None or isinstance(answer, Unknown):
            return answer
        value = self.integer(question, gpu, *args)
        return Unknown(MALFORMED, question) if value is None else value

    def text(self, question: str, gpu: int | None = None) -> Reading[str]:
        """A string; anything else in its place is malformed."""
        answer = self.reading(question, gpu)
        if answer is None or isinstance(answer, (Unknown, str)):
            return answer
        return Unknown(MALFORMED, question)

    def gpus(self) -> list[int]:
        """Every index that anything was asked about."""
        return sorted(gpu for gpu in self.answers if gpu is not None)

    def errors(self) -> Iterator[tuple[str, int | None, str]]:
        """Question, GPU and error of every question without an answer."""
        for gpu, own in self.answers.items():
            for (question, _), answer in own.items():
                if isinstance(answer, Error):
                    yield question, gpu, answer.name

    def fields(self, gpu: int) -> dict[tuple[int, int], Any]:
        """Field values of one GPU by (field, scope); an Error where one field had none."""
        values: dict[tuple[int, int], Any] = {}
        for (question, args), answer in self.answers.get(gpu, EMPTY).items():
            if question != "nvmlDeviceGetFieldValues":
                continue
            for at, field in enumerate(args):
                if not (isinstance(field, tuple) and len(field) == 2):
                    continue
                value = answer
                if isinstance(answer, list):
                    value = answer[at] if at < len(answer) else None
                    value = Error(value) if isinstance(value, str) else value
                values[field] = value
        return values


class Place(NamedTuple):
    """Where a PCI function is and what it is, as NVML packs it."""

    address: str | None = None
    ids: int | None = None  # device << 16 | vendor

    @classmethod
    def of(cls, answer: object) -> Place:
        """From an answer of nvmlDeviceGetPciInfo or nvmlDeviceGetNvLinkRemotePciInfo.

        All zeros and all ones stand for an other end that is not on PCI or not shown, and are no address.
        """
        if not (isinstance(answer, list) and len(answer) == 3 and isinstance(answer[0], str)):
            return cls()
        address = normalise(answer[0])
        return cls(None if address == "0000:00:00.0" else address, answer[1] if is_int(answer[1]) else None)


def entries(said: Mapping[Key, Any], question: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Arguments and answer of each time that a question was asked."""
    return ((args, answer) for (asked, args), answer in said.items() if asked == question)
