"""Standard input, output and error that are closed, full or silent, and paths that stand for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_topo.agent.errors import UserError
from gpu_topo.agent.output import columns, own_descriptor, write, write_atomically
from tests.commands import Run, gpu_topo, healthy, one_line

__all__ = ["gpu_topo", "healthy"]  # fixtures

ROOT = Path(__file__).resolve().parents[1]
PRINTING = (
    "--help",
    "--version",
    "inspect --help",
    "inspect --example --fail-on never",
    "matrix --example",
    "rules",
    "rules acs-blocks-p2p",
    "schema",
    "completion bash",
    "config show",
    "textfile --example --output /dev/stdout",
    "textfile --example --output /dev/fd/1",
    "capture - --root HEALTHY",
    "baseline save --root HEALTHY --file BASELINE",
)


def shell(words: str, healthy: Path) -> subprocess.CompletedProcess[str]:
    """A command of gpu-topo as a shell starts it, redirections included."""
    words = words.replace("HEALTHY", str(healthy)).replace("BASELINE", str(healthy.parent / "baseline.json"))
    line = f"{sys.executable} -m gpu_topo.agent {words}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, env=environment, check=False)


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("words", PRINTING)
def test_output_that_takes_nothing(words: str, redirection: str, healthy: Path) -> None:
    """Whatever a command prints: where it cannot, one line and exit status 3, never a traceback or a success."""
    ran = shell(f"{words} {redirection}", healthy)
    assert ran.returncode == 3, ran
    (line,) = ran.stderr.splitlines()
    assert line.startswith("gpu-topo: ")
    assert "cannot be written" in line


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("words", "status"), [("inspect --nonsense", 3), ("inspect /missing", 3), ("inspect /missing LSPCI", 0)]
)
def test_messages_that_nobody_can_read(words: str, status: int, redirection: str, healthy: Path) -> None:
    """A message that cannot be written is dropped: the exit status and the report are as ever."""
    lspci = healthy.parent / "lspci.txt"
    lspci.write_text("65:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:2330] (rev a1)\n")
    ran = shell(f"{words.replace('LSPCI', str(lspci))} {redirection}", healthy)
    assert (ran.returncode, bool(ran.stdout)) == (status, status == 0)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--help", 0),
        ("inspect --help", 0),
        ("inspect --example", 2),
        ("inspect --example --json", 2),
        ("inspect --example --fail-on never", 0),
        ("inspect --example --output /dev/stdout", 2),
        ("inspect --example --output /dev/fd/1", 2),
        ("textfile --example --output /dev/stdout", 0),
        ("capture - --root HEALTHY", 0),
        ("matrix --example", 0),
    ],
)
def test_a_reader_that_leaves(words: str, status: int, healthy: Path) -> None:
    """Whoever reads the report may leave (head, a pager, true): not a word, and the exit status is as ever."""
    words = words.replace("HEALTHY", str(healthy))
    near, far = os.pipe()
    os.close(near)  # gone before the first byte
    try:
        command = [sys.executable, "-m", "gpu_topo.agent", *words.split()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, stdout=far, stderr=subprocess.PIPE, timeout=60, env=environment, check=False)
    finally:
        os.close(far)
    assert (ran.returncode, ran.stderr) == (status, b"")


@pytest.mark.parametrize("redirection", ["", "2>/dev/full", "2>&-"])
def test_a_bug_is_a_traceback_and_no_verdict(redirection: str) -> None:
    """What this program did not think of exits as what could not be inspected, never as a warning about the machine."""
    code = "from gpu_topo.agent import cli; cli._dispatch = lambda words: 1 // 0; cli.entry()"
    command = f'{sys.executable} -c "{code}" {redirection}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "ZeroDivisionError" in ran.stderr or redirection


def test_a_broken_installation_is_no_verdict(tmp_path: Path) -> None:
    """So does a program that cannot even be loaded."""
    program = ROOT / "bin" / "gpu-topo"
    if not program.exists():
        pytest.skip("the program is not beside the tests")
    (tmp_path / "gpu_topo.py").write_text("import gpu_topo_lost")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(program), "inspect"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ran.returncode == 3
    assert "ModuleNotFoundError" in ran.stderr


@pytest.mark.parametrize("command", ["inspect", "matrix"])
def test_closed_input(command: str, healthy: Path) -> None:
    """Standard input that the caller closed is named in one line, and no file that is opened becomes it."""
    ran = shell(f"{command} - <&-", healthy)
    assert (ran.returncode, ran.stderr) == (3, "gpu-topo: standard input: is closed\n")
    assert shell(f"inspect --root {healthy} <&-", healthy).returncode == 0


@pytest.mark.parametrize("command", ["inspect", "matrix"])
def test_a_silent_pipe_ends_with_the_timeout(gpu_topo: Run, tmp_path: Path, command: str) -> None:
    """A FIFO that nobody writes to, or whose writer falls silent, is waited for until --timeout and named."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    begun = time.monotonic()
    assert one_line(ran := gpu_topo(command, fifo, "--timeout", "0.2"))
    assert f"{fifo}: nothing came in time" in ran.err
    held = os.open(fifo, os.O_RDWR)
    os.write(held, b"65:00.0 3D contr")
    assert one_line(gpu_topo(command, fifo, fifo, "--timeout", "0.2")._replace(err=ran.err))
    os.close(held)
    assert time.monotonic() - begun < 10


def test_silent_input_ends_with_the_timeout(healthy: Path) -> None:
    """So does standard input."""
    near, far = os.pipe()
    try:
        command = [sys.executable, "-m", "gpu_topo.agent", "inspect", "-", "--timeout", "0.2"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, stdin=near, capture_output=True, timeout=60, env=environment, check=False)
    finally:
        os.close(near)
        os.close(far)
    assert ran.returncode == 3
    assert ran.stderr.startswith(b"gpu-topo: standard input: nothing came in time")


def test_a_pipe_that_is_written_bit_by_bit_is_read(gpu_topo: Run, tmp_path: Path) -> None:
    """What comes in time is read, however slowly it comes."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def send() -> None:
        with open(fifo, "wb", buffering=0) as out:
            for piece in (b"65:00.0 3D controller [0302]: NVIDIA Corporation", b" Device [10de:2330] (rev a1)\n"):
                out.write(piece)

    writer = threading.Thread(target=send)
    writer.start()
    ran = gpu_topo("inspect", fifo, "--json")
    writer.join()
    assert '"0000:65:00.0"' in ran.out


def test_a_path_that_stands_for_a_stream_is_not_replaced(healthy: Path, tmp_path: Path) -> None:
    """--output /dev/fd/1 writes to where the shell redirected and makes no file of that name; a link stays a link."""
    assert [own_descriptor(path) for path in ("/dev/stdout", "/dev/stderr", "/dev/fd/12", "/dev/null")] == [
        1,
        2,
        12,
        None,
    ]
    for path in ("/dev/fd/1", "/proc/self/fd/1"):
        for words in (f"textfile --root {healthy} --output {path}", f"inspect --root {healthy} --output {path}"):
            file = tmp_path / "out"
            assert shell(f"{words} > {file}", healthy).returncode == 0
            assert file.stat().st_size > 100
    link, target = tmp_path / "link.prom", tmp_path / "target.prom"
    link.symlink_to(target)
    assert shell(f"textfile --root {healthy} --output {link}", healthy).returncode == 0
    assert link.is_symlink()
    assert target.read_text().startswith("# HELP")


def test_what_stands_beside_the_output_is_left_alone(healthy: Path, tmp_path: Path) -> None:
    """A file that is written whole first has another name: one that nobody can lay a link under beforehand, and that
    is gone again where the file cannot be put in its place."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    code = (
        "import os, sys; from gpu_topo.agent.output import write; path = sys.argv[1]\n"
        "for name in (f'{path}.{os.getpid()}.tmp', f'{os.path.dirname(path)}/.out.{os.getpid()}.new'):\n"
        "    os.symlink(sys.argv[2], name)\n"
        "write('report', path)"
    )
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", code, str(out), str(victim)], timeout=60, cwd=ROOT, check=True)
    assert (victim.read_text(), out.read_text()) == ("precious", "report")
    assert not out.is_symlink()
    assert len(os.listdir(tmp_path)) == 5  # healthy, the victim, two links and the report


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_nothing_is_left_behind(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the writing, the old file is as it was and there is no other."""
    (tmp_path / "out").write_text("old")

    def fail(fd: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((UserError, KeyboardInterrupt)):
        write("new", str(tmp_path / "out"))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out", "old")]


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be made in it all the same."""
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    write_atomically(str(tmp_path / "out"), b"new")
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.parametrize(("asked", "width"), [("100", 100), ("7", 40), ("9999", 250), ("0", 80), ("x", 80), ("", 80)])
def test_the_width_of_a_report(asked: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS, else the terminal's, else 80; within what can be read."""
    monkeypatch.setenv("COLUMNS", asked)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: (_ for _ in ()).throw(OSError()))
    assert columns() == width


def test_textfile_needs_a_name_that_is_read(gpu_topo: Run, healthy: Path, tmp_path: Path) -> None:
    """node_exporter reads *.prom only: another name is refused, with the one to take; nothing is written."""
    ran = gpu_topo("textfile", "--root", healthy, "--output", tmp_path / "metrics")
    assert one_line(ran)
    assert "metrics.prom" in ran.err
    assert not (tmp_path / "metrics").exists()
    for path in (tmp_path / "gpu-topo.prom", "-", "/dev/null"):
        assert gpu_topo("textfile", "--root", healthy, "--output", path).status == 0
