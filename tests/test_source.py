"""The door to the machine: a live tree, a tree in memory, a recording and its replay answer alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_topo.model.reading import DENIED, FAILED
from gpu_topo.source import (
    ABSENT,
    NOT_THERE,
    Dir,
    Live,
    NeverRecorded,
    Recording,
    Refusal,
    Replay,
    Source,
    Tree,
    is_readable_tree,
)

DEVICE = "/sys/devices/pci0000:00/0000:00:01.0"
ENTRY = "/sys/bus/pci/devices/0000:00:01.0"
LINKS = {
    "0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0",
    "0000:00:02.0": "../../../devices/pci0000:00/0000:00:02.0",
    "1": "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0",
    "gone": "../../../devices/pci0000:00/0000:00:09.0",
    "chain": "0000:00:01.0",
}


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A small machine as a file tree."""
    root = tmp_path / "root"
    (root / DEVICE[1:]).mkdir(parents=True)
    (root / DEVICE[1:] / "vendor").write_bytes(b"0x10de\n")
    (root / DEVICE[1:] / "config").write_bytes(bytes(range(256)))
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for name, target in LINKS.items():
        (root / ENTRY[1:]).with_name(name).symlink_to(target)
    for name in ("0000:00:02.0", "0000:00:01.0/0000:01:00.0"):
        (root / "sys/devices/pci0000:00" / name).mkdir()
        (root / "sys/devices/pci0000:00" / name / "vendor").write_bytes(name.encode())
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "sys/out").symlink_to("/etc")
    (root / "sys/loop").symlink_to("loop")
    return root


def in_memory() -> Tree:
    """The same machine in memory."""
    return Tree(
        {
            f"{DEVICE}/vendor": b"0x10de\n",
            f"{DEVICE}/config": bytes(range(256)),
            **{f"/sys/bus/pci/devices/{name}": target for name, target in LINKS.items()},
            "/sys/devices/pci0000:00/0000:00:02.0/vendor": b"0000:00:02.0",
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/vendor": b"0000:00:01.0/0000:01:00.0",
            "/sys/out": "/etc",
            "/sys/loop": "loop",
        },
        folders=["/sys/class/infiniband"],
    )


Asking = Callable[[Source], object]


def _of_dir(question: Callable[..., object], path: str = ENTRY) -> Asking:
    def ask(source: Source) -> object:
        folder = source.dir(path)
        if isinstance(folder, Refusal):
            return folder
        with folder:
            return question(folder)

    return ask


def _of_links(question: Callable[..., object], *names: str, near: bool = False) -> Asking:
    """A question to the directory that the last of these links leads to, after all of them."""

    def ask(folder: Dir) -> object:
        found: Dir | Refusal = NOT_THERE
        for name in names:
            found = folder.dir(name, near=near)
        return found if isinstance(found, Refusal) else question(found)

    return _of_dir(ask, ENTRY.rpartition("/")[0])


QUESTIONS: dict[str, Asking] = {
    "read": lambda source: source.read(f"{DEVICE}/vendor"),
    "read through a link": lambda source: source.read(f"{ENTRY}/vendor"),
    "read nothing": lambda source: source.read(f"{DEVICE}/none"),
    "read a folder": lambda source: source.read(DEVICE),
    "read outside": lambda source: source.read("/sys/out/passwd"),
    "list": lambda source: source.list(DEVICE),
    "list through a link": lambda source: source.list(ENTRY),
    "list an empty folder": lambda source: source.list("/sys/class/infiniband"),
    "list nothing": lambda source: source.list("/sys/class/nvme"),
    "list a file": lambda source: source.list(f"{DEVICE}/vendor"),
    "list the top": lambda source: source.list("/"),
    "link": lambda source: source.link(ENTRY),
    "link of a file": lambda source: source.link(f"{DEVICE}/vendor"),
    "link of nothing": lambda source: source.link("/sys/none"),
    "real": lambda source: source.real(ENTRY),
    "real of the top": lambda source: source.real("/"),
    "dir of nothing": lambda source: source.dir("/sys/none"),
    "dir of a file": lambda source: source.dir(f"{DEVICE}/vendor"),
    "dir read": _of_dir(lambda folder: folder.read("vendor")),
    "dir read upwards": _of_dir(lambda folder: folder.read("../0000:00:01.0/vendor")),
    "dir read at": _of_dir(lambda folder: folder.read_at("config", 64, 4)),
    "dir read at the end": _of_dir(lambda folder: folder.read_at("config", 254, 4)),
    "dir read at nothing": _of_dir(lambda folder: folder.read_at("none", 0, 4)),
    "dir list": _of_dir(lambda folder: folder.list()),
    "dir list nothing": _of_dir(lambda folder: folder.list("none")),
    "dir link": _of_dir(lambda folder: folder.link("vendor")),
    "dir path": _of_dir(lambda folder: folder.path),
    "dir has": _of_dir(lambda folder: [folder.has(name) for name in ("vendor", "none")]),
    "dir of a link": _of_links(lambda folder: (folder.path, folder.read("vendor")), "0000:00:01.0"),
    "dir of two links": _of_links(lambda folder: folder.read("vendor"), "0000:00:02.0", "0000:00:01.0"),
    "dir of a link nearby": _of_links(
        lambda folder: (folder.path, folder.read("vendor")), "0000:00:01.0", "0000:00:02.0", near=True
    ),
    "dir of a link not nearby": _of_links(lambda folder: folder.read("vendor"), "0000:00:01.0", "1", near=True),
    "dir of a link to nowhere": _of_links(lambda folder: folder.path, "gone"),
    "dir of a link to a link": _of_links(lambda folder: folder.read("vendor"), "chain"),
    "dir of no link": _of_dir(lambda folder: folder.dir("none")),
    "dir in a dir": _of_dir(lambda folder: folder.dir("0000:00:01.0").read("vendor"), "/sys/devices/pci0000:00"),
    "transcript": lambda source: list(source.ask("nvml") or ()),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_all_sources_answer_alike(on_disk: Path, question: Asking) -> None:
    """A copied tree, the same in memory, a recording of it and its replay give one answer."""
    expected = question(Live(str(on_disk)))
    assert question(in_memory()) == expected
    recording = Recording(Live(str(on_disk)))
    assert question(recording) == expected
    replay = Replay(recording.answers, {name: tuple(lines) for name, lines in recording.transcripts.items()})
    assert question(replay) == expected


@pytest.mark.parametrize(
    "before", ["../../../devices/pci0000:00/0000:00:01.0", "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"]
)
@pytest.mark.parametrize(
    "target",
    [
        "/etc",
        "../../..",
        "../../../../..",
        "../../../../../..",
        "../../../devices/pci0000:00/0000:00:01.0/../../../../../outside",
        "../../../devices/pci0000:00/0000:00:01.0/../../../../../outside/folder",
        "../../../devices/pci0000:00/0000:00:01.0/away",
        "../../../devices/pci0000:00/0000:00:01.0/away/folder",
        "../../../devices/pci0000:00/0000:00:01.0/away/folder/deeper",
        "../../../devices/pci0000:00/../pci0000:00/0000:00:02.0",
        "../../../devices/pci0000:00//0000:00:02.0/",
        "../../../devices/pci0000:00/0000:00:01.0/.",
    ],
)
def test_no_link_leads_out_of_a_copy(on_disk: Path, before: str, target: str) -> None:
    """Whatever a hostile copy's links say, and whichever directory was opened before, what is opened lies inside."""
    (on_disk.parent / "outside/folder/deeper").mkdir(parents=True)
    (on_disk / DEVICE[1:] / "away").symlink_to(on_disk.parent / "outside")
    entries = on_disk / "sys/bus/pci/devices"
    (entries / "before").symlink_to(before)
    (entries / "hostile").symlink_to(target)
    real = (entries / "hostile").resolve()
    folder = Live(str(on_disk)).dir("/sys/bus/pci/devices")
    assert not isinstance(folder, Refusal)
    with folder:
        assert not isinstance(folder.dir("before"), Refusal)
        found = folder.dir("hostile")
        if real.is_relative_to(on_disk):
            assert not isinstance(found, Refusal)
            assert os.readlink(f"/proc/self/fd/{found._fd}") == str(real)
        else:
            assert found == NOT_THERE


def test_a_folder_of_links_gives_its_descriptors_back(on_disk: Path) -> None:
    """What a directory keeps open on the way to its links is closed with it."""
    before = os.listdir("/proc/self/fd")
    folder = Live(str(on_disk)).dir("/sys/bus/pci/devices")
    assert not isinstance(folder, Refusal)
    with folder:
        for name in LINKS:
            found = folder.dir(name)
            if not isinstance(found, Refusal):
                found.close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_denied_is_told_from_absent(on_disk: Path) -> None:
    """A file without permission is denied, not absent."""
    (on_disk / DEVICE[1:] / "vendor").chmod(0)
    assert Live(str(on_disk)).read(f"{DEVICE}/vendor") == Refusal(DENIED, "EACCES")


def test_a_fifo_does_not_stop_the_audit(on_disk: Path) -> None:
    """A FIFO in a copied tree is no file to be read, and is refused at once."""
    os.mkfifo(on_disk / DEVICE[1:] / "fifo")
    assert Live(str(on_disk)).read(f"{DEVICE}/fifo") == Refusal(FAILED, "ESPIPE")


def test_a_link_loop_ends() -> None:
    """A link to itself is a failure, as the kernel has it."""
    assert in_memory().read("/sys/loop") == Refusal(FAILED, "ELOOP")


def test_refusals_in_a_tree_are_kept() -> None:
    """A refusal in place of an entry is the answer."""
    tree = Tree({"/sys/secret": Refusal(DENIED, "EACCES")})
    assert tree.read("/sys/secret") == Refusal(DENIED, "EACCES")


def test_replay_raises_on_what_nobody_recorded() -> None:
    """A question that the recording was never asked is a hole in it, and found."""
    recording = Recording(in_memory())
    recording.read(f"{DEVICE}/vendor")
    replay = Replay(recording.answers)
    with pytest.raises(NeverRecorded, match="never recorded: read /sys/none"):
        replay.read("/sys/none")
    with pytest.raises(NeverRecorded):
        replay.list(f"{DEVICE}/vendor")
    with pytest.raises(NeverRecorded):
        replay.dir(DEVICE)
    with pytest.raises(NeverRecorded):
        replay.ask("nvml")


def test_lenient_replay_calls_it_absent() -> None:
    """For a capture of an older version, what it did not record is absent."""
    replay = Replay({}, strict=False)
    for answer in (replay.read("/x"), replay.list("/x"), replay.link("/x"), replay.real("/x"), replay.dir("/x")):
        assert isinstance(answer, Refusal)
        assert answer.why == ABSENT
    assert list(replay.ask("nvml") or ()) == []


def test_first_answer_counts() -> None:
    """Of two answers to one question the recording keeps the first."""
    recording = Recording(in_memory())
    recording.remember("/x", "read", b"1")
    recording.remember("/x", "read", b"2")
    assert Replay(recording.answers).read("/x") == b"1"


def test_transcripts_are_heard_and_overheard() -> None:
    """Lines that a collector reports are kept, and so are those that another recording tells."""
    recording = Recording(Live("/"))
    assert recording.ask("nvml") is None, "the running machine must be asked"
    recording.heard("nvml", "one")
    recording.heard("nvml", "two")
    again = Recording(Replay(recording.answers, {"nvml": tuple(recording.transcripts["nvml"])}))
    assert list(again.ask("nvml") or ()) == ["one", "two"]
    assert again.transcripts == {"nvml": ["one", "two"]}


def test_a_tree_is_told_by_sys_or_proc(on_disk: Path, tmp_path: Path) -> None:
    """A directory is a machine's root when it holds sys/ or proc/."""
    assert is_readable_tree(str(on_disk))
    assert not is_readable_tree(str(tmp_path / "none"))
    assert not is_readable_tree(str(on_disk / "sys"))
