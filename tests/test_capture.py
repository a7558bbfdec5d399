"""The capture file: what is saved comes back, and a stranger's cannot harm."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_topo.source import Recording, Refusal, Replay, Tree
from gpu_topo.source import capture as module
from gpu_topo.source.capture import FORMAT, BadCapture, is_capture, load, save
from gpu_topo.source.recording import Reply

HEADER = json.dumps({"format": FORMAT}).encode() + b"\n"

PATHS = st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1), min_size=1).map(
    lambda p: "/" + "/".join(p)
)
REFUSALS = st.builds(Refusal, st.sampled_from(["absent", "denied", "failed"]), st.sampled_from(["", "EIO", "EACCES"]))
NAMES = st.text(st.characters(exclude_categories=["Cs"]))
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "read": st.binary() | REFUSALS,
        "at 256 4": st.binary(max_size=4) | REFUSALS,
        "list": st.lists(NAMES).map(tuple) | REFUSALS,
        "link": NAMES | REFUSALS,
        "real": NAMES | REFUSALS,
        "dir": st.just(True) | REFUSALS,
    },
)


@given(st.dictionaries(PATHS, ASKED), st.dictionaries(NAMES, st.lists(NAMES).map(tuple)), st.booleans())
def test_what_is_saved_comes_back(
    answers: dict[str, dict[str, Reply]], transcripts: dict[str, tuple[str, ...]], packed: bool
) -> None:
    """Every answer, refusal and line of a transcript survives the file, gzipped or not."""
    again = load(save(Replay(answers, transcripts), packed=packed))
    assert again.answers == answers
    assert again.transcripts == transcripts


def test_file_is_sorted_and_the_same_every_time() -> None:
    """Equal recordings give equal files, whatever the order of the questions, gzipped too."""
    tree = Tree({"/sys/a": b"1", "/sys/b": b"2"})
    first, second = Recording(tree), Recording(tree)
    first.read("/sys/a"), first.read("/sys/b"), first.list("/sys")
    second.list("/sys"), second.read("/sys/b"), second.read("/sys/a")
    assert save(first) == save(second)
    assert save(first, packed=True) == save(second, packed=True)
    paths = [json.loads(line)["path"] for line in save(first).splitlines()[1:]]
    assert paths == sorted(paths)


def test_text_is_readable_and_bytes_are_not_bent() -> None:
    """Attributes stay legible in the file; configuration space does not lose a bit."""
    recording = Recording(Tree({"/sys/vendor": b"0x10de\n", "/sys/config": bytes(range(256))}))
    recording.read("/sys/vendor")
    recording.read("/sys/config")
    data = save(recording)
    assert b'"read": "0x10de\\n"' in data
    assert load(data).read("/sys/config") == bytes(range(256))


def test_a_range_of_a_recorded_file() -> None:
    """A range that was not asked for itself is part of the whole file, where that was recorded."""
    replay = Replay({"/sys": {"dir": True}, "/sys/config": {"read": b"abcdef"}})
    folder = replay.dir("/sys")
    assert not isinstance(folder, Refusal)
    assert folder.read_at("config", 2, 2) == b"cd"


def test_told_by_its_first_line() -> None:
    """A capture is known by its format, of whatever number; other JSON is not one."""
    assert is_capture(HEADER)
    assert is_capture(b'{"format": "gpu-topo/capture/9"}')
    assert not is_capture(b'{"schema": "gpu-topo/report/1"}')
    assert not is_capture(b"lspci gpu-topo/capture/")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}\n",
        b'{"format": 7}\n',
        b'{"format": "gpu-topo/capture/2"}\n',
        b'{"format": "\\u001b[31m"}\n',
        HEADER + b"7\n",
        HEADER + b'{"path": "/x", "read": "y"',
        HEADER + b'{"path": "x", "read": "y"}\n',
        HEADER + b'{"path": 7}\n',
        HEADER + b'{"path": "/' + b"x" * 5000 + b'"}\n',
        HEADER + b'{"path": "/x", "read": ["y"]}\n',
        HEADER + b'{"path": "/x", "read": {"base64": "%%%"}}\n',
        HEADER + b'{"path": "/x", "read": {"refused": "by me"}}\n',
        HEADER + b'{"path": "/x", "list": {"base64": "eA=="}}\n',
        HEADER + b'{"path": "/x", "list": [1]}\n',
        HEADER + b'{"path": "/x", "dir": 1}\n',
        HEADER + b'{"path": "/x", "exec": "rm"}\n',
        HEADER + b'{"transcript": "nvml", "line": 7}\n',
        HEADER + b"[" * 100_000 + b"\n",
        HEADER + b"\xff\xfe\n",
        b"\x1f\x8bnonsense",
        gzip.compress(HEADER)[:-9],
    ],
)
def test_what_is_no_capture(data: bytes) -> None:
    """Damage of every kind is one printable line, never another exception."""
    with pytest.raises(BadCapture) as caught:
        load(data)
    assert str(caught.value).isprintable()


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that unpacks to more than the limit, or has an endless line, is refused."""
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    with pytest.raises(BadCapture, match="more than"):
        load(gzip.compress(HEADER + b" \n" * 100_000))
    monkeypatch.setattr(module, "_MAX_LINE", 100)
    with pytest.raises(BadCapture, match="longer than"):
        load(HEADER + b'{"path": "/x", "read": "' + b"y" * 500 + b'"}\n')


@given(st.binary(max_size=200))
def test_random_bytes(tail: bytes) -> None:
    """Whatever follows the header, nothing but BadCapture is raised."""
    try:
        load(HEADER + tail)
    except BadCapture:
        pass
