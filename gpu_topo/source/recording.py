"""The reader is the recorder: Recording remembers each answer and each refusal, Replay gives exactly them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union

from gpu_topo.source.base import NOT_THERE, Answer, Dir, Names, Refusal, Source, Target

# What was asked of a path. A range of a file is AT and its offset and size: "at 256 4".
READ = "read"
LIST = "list"
LINK = "link"
REAL = "real"
DIR = "dir"
AT = "at"

Reply = Union[bytes, str, tuple[str, ...], bool, Refusal]  # True: the directory could be opened
Answers = Mapping[str, Mapping[str, Reply]]  # path as it was asked for -> question -> answer


class NeverRecorded(KeyError):
    """A replay was asked what its recording was never asked: a hole in the capture, not a fact of the machine."""

    def __str__(self) -> str:
        return f"never recorded: {self.args[0]}"


def _at(offset: int, size: int) -> str:
    return f"{AT} {offset} {size}"


def _below(path: str, name: str) -> str:
    return path if name == "." else f"{path}/{name}"


class RecordingDir:
    """A directory whose answers are remembered."""

    def __init__(self, recording: Recording, path: str, folder: Dir) -> None:
        self.path = path
        self._recording = recording
        self._folder = folder

    def read(self, name: str) -> Answer:
        answer = self._folder.read(name)
        self._recording.remember(_below(self.path, name), READ, answer)
        return answer

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        answer = self._folder.read_at(name, offset, size)
        self._recording.remember(_below(self.path, name), _at(offset, size), answer)
        return answer

    def list(self, name: str = ".") -> Names:
        answer = self._folder.list(name)
        self._recording.remember(_below(self.path, name), LIST, answer)
        return answer

    def link(self, name: str) -> Target:
        answer = self._folder.link(name)
        self._recording.remember(_below(self.path, name), LINK, answer)
        return answer

    def has(self, name: str) -> bool:
        return self.link(name) != NOT_THERE

    def dir(self, name: str, near: bool = False) -> RecordingDir | Refusal:
        folder = self._folder.dir(name, near)
        return self._recording.opened(_below(self.path, name), folder)

    def close(self) -> None:
        self._folder.close()

    def __enter__(self) -> RecordingDir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Recording:
    """Any source, with everything that was asked of it and every answer remembered. Of two answers to one question
    the first counts, as the scan that read it went on from there."""

    def __init__(self, source: Source) -> None:
        self.live = source.live
        self._source = source
        self.answers: dict[str, dict[str, Reply]] = {}
        self.transcripts: dict[str, list[str]] = {}

    def remember(self, path: str, question: str, reply: Reply) -> None:
        """Keep one answer."""
        self.answers.setdefault(path, {}).setdefault(question, reply)

    def dir(self, path: str) -> RecordingDir | Refusal:
        return self.opened(path, self._source.dir(path))

    def opened(self, path: str, folder: Dir | Refusal) -> RecordingDir | Refusal:
        """Keep whether a directory could be opened."""
        if isinstance(folder, Refusal):
            self.remember(path, DIR, folder)
            return folder
        self.remember(path, DIR, True)
        return RecordingDir(self, path, folder)

    def read(self, path: str) -> Answer:
        answer = self._source.read(path)
        self.remember(path, READ, answer)
        return answer

    def list(self, path: str) -> Names:
        answer = self._source.list(path)
        self.remember(path, LIST, answer)
        return answer

    def link(self, path: str) -> Target:
        answer = self._source.link(path)
        self.remember(path, LINK, answer)
        return answer

    def real(self, path: str) -> Target:
        answer = self._source.real(path)
        self.remember(path, REAL, answer)
        return answer

    def ask(self, name: str) -> Iterator[str] | None:
        lines = self._source.ask(name)
        self.transcripts.setdefault(name, [])
        return None if lines is None else self._overhear(name, lines)

    def _overhear(self, name: str, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.transcripts[name].append(line)
            yield line

    def heard(self, name: str, line: str) -> None:
        self.transcripts.setdefault(name, []).append(line)
        self._source.heard(name, line)


class ReplayDir:
    """A directory of a replay."""

    def __init__(self, replay: Replay, path: str) -> None:
        self.path = path
        self._replay = replay

    def read(self, name: str) -> Answer:
        return self._replay.read(_below(self.path, name))

    def read_at(self, name: str, offset: int, size: int) -> Answer:
        return self._replay.read_at(_below(self.path, name), offset, size)

    def list(self, name: str = ".") -> Names:
        return self._replay.list(_below(self.path, name))

    def link(self, name: str) -> Target:
        return self._replay.link(_below(self.path, name))

    def has(self, name: str) -> bool:
        return self.link(name) != NOT_THERE

    def dir(self, name: str, near: bool = False) -> ReplayDir | Refusal:
        return self._replay.dir(_below(self.path, name))

    def close(self) -> None:
        pass

    def __enter__(self) -> ReplayDir:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Replay:
    """What was recorded, and nothing else.

    strict: a question that was never asked raises NeverRecorded, so that a test finds the hole. Otherwise it is
    absent: a capture of an older version knows nothing of what this one reads besides.
    """

    live = False

    def __init__(
        self, answers: Answers, transcripts: Mapping[str, tuple[str, ...]] | None = None, strict: bool = True
    ) -> None:
        self.answers = answers
        self.transcripts = dict(transcripts or {})
        self.strict = strict

    def _find(self, path: str, question: str) -> Reply | None:
        reply = self.answers.get(path, {}).get(question)
        if reply is None and self.strict:
            raise NeverRecorded(f"{question} {path}")
        return reply

    def dir(self, path: str) -> ReplayDir | Refusal:
        if isinstance(self.answers.get(path, {}).get(LIST), tuple):
            return ReplayDir(self, path)  # what could be listed can be opened
        reply = self._find(path, DIR)
        if isinstance(reply, Refusal):
            return reply
        return ReplayDir(self, path) if reply else NOT_THERE

    def read(self, path: str) -> Answer:
        reply = self._find(path, READ)
        return reply if isinstance(reply, (bytes, Refusal)) else NOT_THERE

    def read_at(self, path: str, offset: int, size: int) -> Answer:
        """A range of a file, whether it was recorded as such or within the whole file."""
        recorded = self.answers.get(path, {})
        whole = recorded.get(READ)
        if _at(offset, size) not in recorded and isinstance(whole, bytes):
            return whole[offset : offset + size]
        reply = self._find(path, _at(offset, size))
        return reply if isinstance(reply, (bytes, Refusal)) else NOT_THERE

    def list(self, path: str) -> Names:
        reply = self._find(path, LIST)
        return reply if isinstance(reply, (tuple, Refusal)) and not isinstance(reply, bool) else NOT_THERE

    def link(self, path: str) -> Target:
        reply = self._find(path, LINK)
        return reply if isinstance(reply, (str, Refusal)) else NOT_THERE

    def real(self, path: str) -> Target:
        reply = self._find(path, REAL)
        return reply if isinstance(reply, (str, Refusal)) else NOT_THERE

    def ask(self, name: str) -> Iterator[str] | None:
        if self.strict and name not in self.transcripts:
            raise NeverRecorded(f"transcript {name}")
        return iter(self.transcripts.get(name, ()))

    def heard(self, name: str, line: str) -> None:
        pass
