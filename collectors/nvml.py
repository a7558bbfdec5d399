"""What the NVIDIA driver says of its GPUs, through NVML in a worker process that may hang without hanging the audit.

The worker (nvml_worker/) streams one line per question and one per answer, so the gaps are the deadlines: a
question that is overdue is written down as such and the worker goes on without it. What it answered is the
transcript, which is also the recording; nvml_facts.py turns it into facts. While a worker hangs it holds a lock,
an abstract socket name, so that no later run adds another; it is left behind and ends when its call returns.
"""

from __future__ import annotations

import os
import sys
import time

from gpu_topo.collectors.nvml_driver import UNSEARCHED_DIRS, missing, no_driver, openable_minors
from gpu_topo.model.facts import ABSENT, Facts, SourceStatus
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Live

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gpu_topo.collectors.context import Context
    from gpu_topo.source import Source

    Hear = Callable[[str], None]

NAME = "nvml"
PATIENCE = 2.0  # seconds that one question may take
MAX_RESTARTS = 2  # of a worker whose library crashed

# Starting the library and taking the first handle initialise every GPU where no persistence daemon keeps them up,
# which takes seconds on a healthy machine: what part of the remaining time they may use.
_SHARE = {"nvmlInit": 1.0, "nvmlDeviceGetCount": 0.5, "nvmlDeviceGetHandleByIndex": 0.5}


def collect(source: Source, context: Context, load_only: bool = False) -> Facts:
    """Everything NVML tells of this machine, or what a recording says that it told.

    load_only: P-state, utilisation and the PCIe link of now, for one more sample. In a recording it gives the first
    sample; replayed() has them all.
    """
    transcript = source.ask(NAME)
    recorded = None if transcript is None else tuple(transcript)
    if recorded == ():  # a copy of a machine's files: what reads transcripts need not be loaded
        return Facts(SourceStatus(NAME, ABSENT, "not recorded"))
    began = time.monotonic()
    # Most machines have no such driver, and this source itself remembers nothing: what transcripts take stays unloaded.
    if type(source) is Live and (why := missing(os.environ)[1]):
        return no_driver(why, time.monotonic() - began)
    from gpu_topo.collectors import nvml_facts, nvml_transcript

    if recorded is not None:
        batches = [batch for batch in nvml_transcript.batches(recorded) if batch.load_only == load_only]
        lines = batches[0].lines if batches else ()
        return nvml_facts.read(lines, _bound(source) if lines else frozenset(), 0.0)
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        source.heard(NAME, line)

    ask(context.deadline, load_only, hear)
    return nvml_facts.read(heard, _bound(source), time.monotonic() - began)


def collect_load(source: Source, context: Context) -> Facts:
    """One more sample of load and link speed."""
    return collect(source, context, load_only=True)


def replayed(source: Source) -> list[Facts]:
    """The further samples that a recording holds, oldest first; none for a live machine."""
    recorded = source.ask(NAME)
    if recorded is None:
        return []
    from gpu_topo.collectors import nvml_facts, nvml_transcript

    batches = nvml_transcript.batches(recorded)
    return [nvml_facts.read(batch.lines, _bound(source), 0.0) for batch in batches if batch.load_only]


def _bound(source: Source) -> frozenset[str]:
    """Addresses of the functions that the nvidia kernel driver is bound to."""
    names = source.list("/sys/bus/pci/drivers/nvidia")
    # A Refusal is a tuple of words, none of which holds the colons of an address.
    return frozenset(name for name in names if name.count(":") == 2)


# --- asking -------------------------------------------------------------------------------------------------------


def ask(deadline: float, load_only: bool, hear: Hear) -> None:
    """Ask one batch of questions until `deadline` (time.monotonic()); every line of the transcript goes to `hear`."""
    from gpu_topo.collectors import nvml_transcript

    args = [nvml_transcript.LOAD if load_only else nvml_transcript.ALL]
    library, why = missing(os.environ)
    if why:
        hear(nvml_transcript.line("begin", args=args, error=why))
        return
    hear(nvml_transcript.line("begin", args=args, result=library))
    hear(nvml_transcript.line("openable", result=openable_minors()))
    patience = min(PATIENCE, max(0.0, deadline - time.monotonic()) / 5)
    skip: list[list[object]] = []
    ended = ""
    for _ in range(MAX_RESTARTS + 1):
        lock = _lock(library, deadline)
        if isinstance(lock, str):
            ended = lock
            break
        try:
            worker = _spawn(library, load_only, skip, lock)
        except OSError as error:
            ended = f"the worker process could not be started: {error.strerror}"
            break
        finally:
            if lock is not None:
                lock.close()
        ended, pending = _listen(worker, deadline, patience, hear)
        if not ended.startswith("CRASH") or pending is None or pending.name == "nvmlInit":
            break
        # The same function again, on another GPU: it crashes on all of them.
        again = any(name == pending.name for name, _, _ in skip)
        skip.append([pending.name, pending.gpu, ended])
        if again:
            skip.append([pending.name, "*", f"{nvml_transcript.SKIPPED} after {ended}"])
    hear(nvml_transcript.line("end", error=ended) if ended else nvml_transcript.line("end", result=True))


class _Worker(NamedTuple):
    pid: int
    channel: int  # descriptor of this side of the socket pair


class _Pending(NamedTuple):
    """A question that was asked and not answered yet."""

    name: str
    gpu: int | None
    args: str  # JSON


_left: set[int] = set()  # workers that were left inside a call, to be reaped when they end


def _spawn(library: str, load_only: bool, skip: list[list[object]], lock: socket.socket | None) -> _Worker:
    """Start the worker: no site, no signals of the terminal, nothing inherited but its channel and the lock."""
    import fcntl
    import json
    import socket

    here, there = socket.socketpair()
    # Above the numbers that they get in the worker, so that no duplication overwrites another.
    channel = fcntl.fcntl(there.fileno(), fcntl.F_DUPFD_CLOEXEC, 16)
    kept = [channel]
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        # The library's chatter must reach neither the report nor the terminal.
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
        (os.POSIX_SPAWN_DUP2, channel, 3),
    ]
    if lock is not None:
        kept.append(fcntl.fcntl(lock.fileno(), fcntl.F_DUPFD_CLOEXEC, 16))
        actions.append((os.POSIX_SPAWN_DUP2, kept[1], 4))
    setting = json.dumps({"load_only": load_only, "skip": skip, "lock": lock is not None})
    # As a package by its own name and not as a script, so that its byte code is cached.
    paths = [path for path in sys.path if path] + [os.path.dirname(os.path.abspath(__file__))]
    code = f"import sys; sys.path += {paths!r}; from nvml_worker.worker import main; main(sys.argv[1])"
    command = [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else []), "-c", code, setting]
    environment = dict(os.environ)
    if os.path.dirname(library) in UNSEARCHED_DIRS:
        folders = (environment.get("LD_LIBRARY_PATH", ""), os.path.dirname(library))
        environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    try:
        pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsigmask=())
    except BaseException:
        here.close()
        raise
    finally:
        there.close()
        for descriptor in kept:
            os.close(descriptor)
    return _Worker(pid, here.detach())


def _listen(worker: _Worker, deadline: float, patience: float, hear: Hear) -> tuple[str, _Pending | None]:
    """Hear the worker out: why it ended ("" for a complete batch) and the question that it did not answer."""
    import select

    from gpu_topo.collectors import nvml_transcript

    poll = select.poll()
    poll.register(worker.channel, select.POLLIN)
    pending: _Pending | None = None
    number = 0  # of the question that is being asked
    hung = False
    overdue_at = deadline
    rest = b""
    try:
        while True:
            now = time.monotonic()
            if not poll.poll(max(0.0, min(deadline, overdue_at) - now) * 1000):
                if pending is not None:
                    hear(nvml_transcript.line(pending.name, pending.gpu, pending.args, error="DEADLINE"))
                if time.monotonic() >= deadline or pending is None:
                    _left.add(worker.pid)
                    return "DEADLINE", pending
                hung = True
                os.write(worker.channel, b"next %d\n" % number)
                pending, overdue_at = None, deadline
                continue
            try:
                data = os.read(worker.channel, 1 << 16)
            except OSError:
                data = b""
            if not data:
                crash = _crash(worker.pid)
                if pending is not None:
                    hear(nvml_transcript.line(pending.name, pending.gpu, pending.args, error=crash))
                return crash, pending
            *lines, rest = (rest + data).split(b"\n")
            now = time.monotonic()
            for line in lines:
                if line.startswith(b"?"):
                    name, gpu, args = line[1:].decode().split(" ", 2)
                    pending = _Pending(name, None if gpu == "-" else int(gpu), args)
                    number += 1
                    overdue_at = now + max(patience, _SHARE.get(name, 0.0) * (deadline - now))
                elif line == b".":
                    _reap(worker.pid, 0.0 if hung else 0.2)
                    return "", None
                else:
                    hear(line.decode())
                    pending, overdue_at = None, deadline
            # Let some answers gather: waking up for each would cost more than the answers.
            time.sleep(0.001)
    finally:
        os.close(worker.channel)
        for pid in tuple(_left):
            _reap(pid, 0.0)


def _reap(pid: int, seconds: float) -> int | None:
    """The wait status of a worker that has ended; None where it has not within `seconds`, so that it is left."""
    until = time.monotonic() + seconds
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # someone else in this process collects all children
            ended, status = pid, 0
        if ended:
            _left.discard(pid)
            return status
        if time.monotonic() >= until:
            _left.add(pid)
            return None
        time.sleep(0.001)


def _crash(pid: int) -> str:
    """How a worker ended that did not say goodbye."""
    status = _reap(pid, 0.5)
    if status is not None and os.WIFSIGNALED(status):
        import signal

        try:
            return f"CRASH {signal.Signals(os.WTERMSIG(status)).name}"
        except ValueError:
            return f"CRASH signal {os.WTERMSIG(status)}"
    return "CRASH" if status is None else f"CRASH exit status {os.waitstatus_to_exitcode(status)}"


# --- one worker at a time -----------------------------------------------------------------------------------------


def _lock(library: str, deadline: float) -> socket.socket | str | None:
    """The lock, to be handed to the worker; None where this machine has none; why not where another run keeps it.

    An abstract socket name leaves no file and goes with its process. Anyone may take any such name, so a holder is
    believed only if root or this user started it; each user has a name of their own, and all respect root's. The file
    of the library is part of the name, since another library hangs on its own.
    """
    import errno
    import socket

    until = time.monotonic() + max(0.0, deadline - time.monotonic()) / 2
    user = os.geteuid()
    try:
        file = os.stat(library)
    except OSError:
        return None
    names = {owner: b"\0gpu-topo/nvml/%d/%d-%d" % (owner, file.st_dev, file.st_ino) for owner in (0, user)}
    while True:
        state = _FREE
        for name in names.values():
            state = _holder(name, user, until)
            if state not in (_FREE, _STRANGER):
                return state
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(names[user])
            lock.listen(16)
            return lock
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE or state == _STRANGER:
                # No such sockets here: at least this process adds no second one.
                alive = [pid for pid in tuple(_left) if _reap(pid, 0.0) is None]
                return f"HELD NVML {alive[0]}" if alive else None
        if time.monotonic() >= until:
            return _BUSY


_FREE, _STRANGER, _BUSY = "", "STRANGER", "BUSY"


def _holder(name: bytes, user: int, until: float) -> str:
    """Wait for the worker of another run to end: then the lock is free; else who keeps it, as its worker says."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.settimeout(0.2)
            holder.connect(name)
            credentials = holder.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] not in (0, user):
                return _STRANGER
            holder.settimeout(max(0.001, until - time.monotonic()))
            said = holder.recv(256).decode("ascii", "replace").split()
        except (TimeoutError, BlockingIOError):
            return _BUSY
        except OSError:
            return _FREE
    return f"HELD {said[1]} {said[0]}" if len(said) == 2 else _FREE
