"""The process: asks the questions of a batch, streams the answers, and hears the parent meanwhile."""

from __future__ import annotations

import _thread
import json
import os
import select
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .answers import error_name
from .questions import Batch, Failed, Question, everything, load_only

if TYPE_CHECKING:
    import socket

CHANNEL = 3  # the parent's end of a socket pair
LOCK = 4  # a listening socket: who holds it is the one worker; absent where the machine gave none
MAX_STUCK = 4  # calls that may hang at one time before the rest is given up


class Worker:
    """One batch of questions, asked by one thread at a time; a thread whose call is overdue is left behind."""

    def __init__(self, nvml: Any, batch: Batch, skip: Iterable[tuple[str, int | str | None, str]]) -> None:
        self.nvml = nvml
        self.batch = batch
        self.skip = {(name, gpu): error for name, gpu, error in skip}
        self.lock = _thread.allocate_lock()
        self.number = 0  # of the question that is being asked
        self.question: Question | None = None
        self.turn = 0  # which thread's answer counts
        self.inside = 0  # threads that are inside a call or about to make one
        self.hung: list[Question] = []
        self.closing = False
        self.shut = False

    def begin(self) -> None:
        """Ask the first question in a thread of its own."""
        with self.lock:
            self._advance(b"", None)

    def overdue(self, number: int) -> None:
        """Question `number` hangs: mark it, and go on without it. Ignored where it was answered just now."""
        with self.lock:
            if number != self.number or self.question is None:
                return
            self.hung.append(self.question)
            if len(self.hung) < MAX_STUCK:
                self._advance(b"", Failed("DEADLINE"))
            else:
                self.turn += 1
                self.question = None
                self._send(b".\n")

    def close(self) -> None:
        """The parent is gone or has seen enough: end now, or when the last call returns."""
        with self.lock:
            self.closing = True
            if not self.inside:
                self._leave()

    def _advance(self, line: bytes, answer: Any) -> None:
        """Send the answer, find the next question that may be asked, and ask it in a new thread."""
        line = self._next(line, answer)
        self._send(line)
        self.turn += 1
        if self.question is not None:
            try:
                _thread.start_new_thread(self._ask, (self.turn, self.question))
                self.inside += 1
            except RuntimeError as error:  # no more threads for this user or this container
                self._give_up(f"{error}")
        if not self.inside and self.question is None:
            self._leave()

    def _give_up(self, reason: str) -> None:
        """Ask nothing more; whoever is inside a call ends the process when it returns."""
        self.question = None
        self._send(answer_line(Question("worker"), Failed(reason), None, 0.0) + b".\n")

    def _ask(self, turn: int, question: Question | None) -> None:
        """Ask question after question, until none is left or one of mine was overdue."""
        try:
            while question is not None:
                began = time.perf_counter()
                answer, value = self._call(question)
                took = time.perf_counter() - began
                with self.lock:
                    if turn != self.turn or self.closing:
                        break
                    self._send(self._next(answer_line(question, answer, value, took), answer))
                    question = self.question
        except BaseException as error:  # a mistake of this file: the parent has to learn of it
            self._send(answer_line(Question("worker"), Failed(f"{type(error).__name__}: {error}"), None, 0.0))
            os._exit(70)
        with self.lock:
            self.inside -= 1
            if not self.inside and (self.closing or self.question is None):
                self._leave()

    def _call(self, question: Question) -> tuple[Any, Any]:
        """The answer for the batch, and as it is written down. Whatever goes wrong is an answer too."""
        try:
            answer = (question.call or getattr(self.nvml, question.name))(*question.parameters)
            return answer, question.write(answer) if question.write else answer
        except self.nvml.NVMLError as error:
            return Failed(error_name(error.value)), None
        except AttributeError:
            return Failed("FUNCTION_NOT_FOUND"), None  # this nvidia-ml-py is older than the question
        except OSError as error:
            return Failed(type(error).__name__), None
        except Exception as error:  # a name that is no text, a structure that this nvidia-ml-py reads differently
            return Failed(f"MALFORMED: {type(error).__name__}"), None

    def _next(self, line: bytes, answer: Any) -> bytes:
        """Move on to the next question worth asking; the line grows by what to tell the parent about it."""
        self.question = None
        while not self.closing:
            try:
                question = self.batch.send(answer)
            except StopIteration:
                return self._finish(line)
            refused = self._refusal(question)
            if refused is None:
                self.number += 1
                self.question = question
                return line + start_line(question)
            answer = Failed(refused)
            line += answer_line(question, answer, None, 0.0)
        return line

    def _finish(self, line: bytes) -> bytes:
        """Shut the library down as the last question; with a call still inside it, when that returns."""
        if self.inside <= 1 and not self.hung and not self.shut:
            self.shut = True
            self.number += 1
            self.question = Question("nvmlShutdown")
            return line + start_line(self.question)
        return line + b".\n"

    def _refusal(self, question: Question) -> str | None:
        """Why a question is not asked: it crashed the library before, or its function or a GPU of it hangs.

        A function that hung at one GPU may answer for another, and a GPU may answer another question; twice is enough.
        """
        known = self.skip.get((question.name, question.gpu)) or self.skip.get((question.name, "*"))
        if known is not None:
            return known
        same_function = [hung.gpu for hung in self.hung if hung.name == question.name]
        if question.gpu in same_function or len(same_function) > 1:
            return "SKIPPED"
        for gpu in (question.gpu, question.other):
            if gpu is not None and sum(hung.gpu == gpu for hung in self.hung) > 1:
                return "SKIPPED"
        return None

    def _send(self, line: bytes) -> None:
        """To the parent; one that has gone is no error, the batch just ends."""
        try:
            while line:
                line = line[os.write(CHANNEL, line) :]
        except OSError:
            self.closing = True

    def _leave(self) -> None:
        """End the process. Called when no thread is inside the library any more."""
        if not self.shut:
            try:
                self.nvml.nvmlShutdown()
            except Exception:
                pass  # never started, or already shut down
        os._exit(0)


def start_line(question: Question) -> bytes:
    """The marker that tells the parent what is being asked from now on."""
    gpu = "-" if question.gpu is None else question.gpu
    return f"?{question.name} {gpu} {json.dumps(question.args)}\n".encode()


def answer_line(question: Question, answer: Any, value: Any, took: float) -> bytes:
    """One answer as a line of JSON."""
    line: dict[str, Any] = {"q": question.name}
    if question.gpu is not None:
        line["gpu"] = question.gpu
    if question.args:
        line["args"] = question.args
    if isinstance(answer, Failed):
        line["e"] = answer.error
    else:
        line["r"] = value
    line["t"] = round(took, 6)
    return json.dumps(line).encode() + b"\n"


def serve(worker: Worker, listener: socket.socket | None) -> None:
    """Hear the parent, and tell other runs that wait for the lock what hangs. Ends with the process only."""
    poll = select.poll()
    poll.register(CHANNEL, select.POLLIN)
    if listener is not None:
        poll.register(listener.fileno(), select.POLLIN)
    waiting: list[socket.socket] = []  # their connections end with this process: that is how they learn of it
    heard = b""
    while True:
        for fd, _ in poll.poll():
            if fd != CHANNEL and listener is not None:
                try:
                    waiting.append(listener.accept()[0])
                except OSError:
                    pass  # it did not wait
                continue
            data = os.read(CHANNEL, 4096)
            if not data:
                poll.unregister(CHANNEL)
                worker.close()
                continue
            *orders, heard = (heard + data).split(b"\n")
            for order in orders:
                worker.overdue(int(order.split()[1]))
        stuck = worker.hung or ([worker.question] if worker.closing and worker.question else [])
        if stuck:
            for connection in waiting:
                try:
                    connection.sendall(f"{os.getpid()} {stuck[0].name}\n".encode())
                except OSError:
                    pass  # it did not wait
                connection.close()
            waiting.clear()


def main(argument: str) -> None:
    """argument: JSON with `load_only`, `skip` (questions not to ask and why) and `lock` (whether there is one)."""
    setting = json.loads(argument)
    os.setsid()  # a Ctrl-C at the terminal is the parent's business
    for name in os.listdir("/proc/self/fd"):
        if int(name) > (LOCK if setting["lock"] else CHANNEL):
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own descriptor
    listener = None
    if setting["lock"]:
        import socket

        listener = socket.socket(fileno=LOCK)
        listener.listen(16)
    try:
        import pynvml  # type: ignore[import-untyped]
    except Exception as error:
        os.write(CHANNEL, answer_line(Question("pynvml"), Failed(f"{type(error).__name__}: {error}"), None, 0.0))
        os.write(CHANNEL, b".\n")
        return
    batch = load_only(pynvml) if setting["load_only"] else everything(pynvml)
    worker = Worker(pynvml, batch, [tuple(entry) for entry in setting["skip"]])
    worker.begin()
    serve(worker, listener)
