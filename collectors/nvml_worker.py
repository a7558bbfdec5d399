"""The child side of the NVML collector: asks the library one question after another and streams each answer.

It runs as a process of its own, because a driver call can hang in the kernel where no signal reaches it. It imports
nothing of gpu-topo, so that it starts fast. What it sends, line by line:

    ?nvmlDeviceGetName 0 []                                          the question that comes now
    {"q": "nvmlDeviceGetName", "gpu": 0, "r": "NVIDIA L4", "t": 7e-06}  its answer, or "e": why there is none
    .                                                                that was all

What it is sent: `next N`: question N is overdue, go on with the others in a fresh thread. When the channel closes,
it asks nothing more, and ends as soon as its last call has returned: it is never killed, since killing a process
that is inside the driver has frozen GPUs (NVIDIA/dcgm-exporter#84).
"""

from __future__ import annotations

import _thread
import json
import os
import select
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Union

if TYPE_CHECKING:
    import socket

CHANNEL = 3  # the parent's end of a socket pair
LOCK = 4  # a listening socket: who holds it is the one worker; absent where the machine gave none
MAX_GPUS = 64  # asked where the library does not tell the count
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest nvml.h (13.5.37)
MAX_STUCK = 4  # calls that may hang at one time before the rest is given up

# Errors after which the next link (or GPU) number does not exist either.
NO_MORE = frozenset({"INVALID_ARGUMENT", "NOT_SUPPORTED", "NOT_FOUND", "FUNCTION_NOT_FOUND"})
NOT_THIS_VERSION = frozenset({"FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "ARGUMENT_VERSION_MISMATCH"})
PROC_GPUS = "/proc/driver/nvidia/gpus"

# Fields of nvmlDeviceGetFieldValues with the link as scope (nvml.h 13.5.37): line rate, rate after FEC overhead,
# error counters of Hopper, error counters of Blackwell.
LINK_FIELDS = (164, 296, 161, 162, 163, 206, 207, 208, 209, 210, 211, 212, 214, 219)
# NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to L11 and _COMMON, for drivers that do not know field 164.
OLD_SPEED_FIELDS = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137, 90)
LINK_COUNT_FIELD = 91
OLD_COUNTERS = (0, 1, 2, 3)  # NVML_NVLINK_ERROR_DL_REPLAY, RECOVERY, CRC_FLIT, CRC_DATA
P2P_READ, P2P_NVLINK = 0, 2


class Question(NamedTuple):
    """One call of a function of nvidia-ml-py (or of `call`), and how it is written down."""

    name: str
    gpu: int | None = None
    args: tuple[Any, ...] = ()  # as the transcript shows them, without handles
    parameters: tuple[Any, ...] = ()  # as the function takes them
    write: Callable[[Any], Any] | None = None  # turns the answer into something that JSON can hold
    other: int | None = None  # the second GPU of a pair
    call: Callable[..., Any] | None = None  # instead of a function of nvidia-ml-py


class Failed(NamedTuple):
    """Why a question has no answer: NVML's name of the error without NVML_ERROR_, or DEADLINE, SKIPPED, CRASH."""

    error: str


Batch = Generator[Question, Any, None]
Write = Union[Callable[[Any], Any], None]


# --- what is asked ------------------------------------------------------------------------------------------------


def of(gpu: int, handle: Any, name: str, *args: Any, write: Write = None) -> Question:
    """A question about one GPU, whose function takes the handle and then the arguments."""
    return Question(name, gpu, args, (handle, *args), write)


def everything(nvml: Any) -> Batch:
    """The full batch: identity of every GPU first, so that a later hang costs no GPU its name."""
    gpus = yield from identities()
    listed: list[str] = []
    for gpu, handle in tuple(gpus.items()):
        pci = yield of(gpu, handle, "nvmlDeviceGetPciInfo", write=write_pci)
        if pci == Failed("GPU_IS_LOST"):
            del gpus[gpu]
            continue
        if not isinstance(pci, Failed):
            listed.append(kernel_address(text(pci.busId)))
        for name in ("UUID", "Name", "MinorNumber", "Architecture", "BoardPartNumber"):
            yield of(gpu, handle, f"nvmlDeviceGet{name}")
    for gpu, handle in gpus.items():
        yield from load(gpu, handle)
    for gpu, handle in gpus.items():
        yield from properties(gpu, handle)
        yield from fabric(nvml, gpu, handle)
    for gpu, handle in gpus.items():
        yield from nvlinks(gpu, handle)
    numbers = list(gpus)
    for at, a in enumerate(numbers):
        for b in numbers[at + 1 :]:
            pair = (gpus[a], gpus[b])
            yield Question("nvmlDeviceGetTopologyCommonAncestor", a, (b,), pair, other=b)
            yield Question("nvmlDeviceGetP2PStatus", a, (b, P2P_READ), (*pair, P2P_READ), other=b)
            yield Question("nvmlDeviceGetP2PStatus", a, (b, P2P_NVLINK), (*pair, P2P_NVLINK), other=b)
    yield from unlisted(listed)


def load_only(nvml: Any) -> Batch:
    """The short batch of a further sample: how busy each GPU is and what its PCIe link does meanwhile."""
    gpus = yield from identities()
    for gpu, handle in gpus.items():
        yield of(gpu, handle, "nvmlDeviceGetPciInfo", write=write_pci)
        yield from load(gpu, handle)


def identities() -> Generator[Question, Any, dict[int, Any]]:
    """Starts the library; the handle of each GPU that has one."""
    gpus: dict[int, Any] = {}
    if isinstance((yield Question("nvmlInit")), Failed):
        return gpus
    yield Question("nvmlSystemGetDriverVersion")
    count = yield Question("nvmlDeviceGetCount")
    for gpu in range(MAX_GPUS if isinstance(count, Failed) else count):
        handle = yield Question("nvmlDeviceGetHandleByIndex", gpu, (), (gpu,), lambda handle: True)
        if not isinstance(handle, Failed):
            gpus[gpu] = handle
        elif isinstance(count, Failed) and handle.error in NO_MORE:
            break
    return gpus


def load(gpu: int, handle: Any) -> Batch:
    """P-state, utilisation, clock reasons, and the PCIe link as it is now."""
    yield of(gpu, handle, "nvmlDeviceGetPerformanceState")
    yield of(gpu, handle, "nvmlDeviceGetUtilizationRates", write=lambda rates: rates.gpu)
    reasons = yield of(gpu, handle, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons == Failed("FUNCTION_NOT_FOUND"):
        yield of(gpu, handle, "nvmlDeviceGetCurrentClocksThrottleReasons")  # its name before driver 535
    yield of(gpu, handle, "nvmlDeviceGetCurrPcieLinkGeneration")
    yield of(gpu, handle, "nvmlDeviceGetCurrPcieLinkWidth")


def properties(gpu: int, handle: Any) -> Batch:
    """What else there is to know of one GPU by itself."""
    for name in ("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration", "PcieReplayCounter"):
        yield of(gpu, handle, f"nvmlDeviceGet{name}")
    yield of(gpu, handle, "nvmlDeviceGetBAR1MemoryInfo", write=lambda memory: memory.bar1Total)
    yield of(gpu, handle, "nvmlDeviceGetVirtualizationMode")
    yield of(gpu, handle, "nvmlDeviceGetNumaNodeId")
    yield of(gpu, handle, "nvmlDeviceGetC2cModeInfoV", write=lambda mode: mode.isC2cEnabled)
    mig = yield of(gpu, handle, "nvmlDeviceGetMigMode")
    if isinstance(mig, Failed) or not mig[0]:
        return
    most = yield of(gpu, handle, "nvmlDeviceGetMaxMigDeviceCount")
    for number in range(0 if isinstance(most, Failed) else min(most, MAX_GPUS)):
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        partition = yield of(gpu, handle, name, number, write=lambda handle: True)
        # NOT_FOUND means no partition of that number; higher numbers may exist all the same.
        if isinstance(partition, Failed) and partition.error != "NOT_FOUND":
            break


def fabric(nvml: Any, gpu: int, handle: Any) -> Batch:
    """The fabric registration by the newest call that this driver has."""
    from ctypes import byref

    versions = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t", 3),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t", 2),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", 1),
        ("nvmlDeviceGetGpuFabricInfo_v4", "c_nvmlGpuFabricInfo_v4_t", 4),
    )
    for function, structure, version in versions:
        kind = getattr(nvml, structure, None)
        if kind is None:
            continue  # an older nvidia-ml-py
        info = kind()
        answer = yield Question(function, gpu, (version,), (handle, byref(info)), FabricWriter(info))
        if not (isinstance(answer, Failed) and answer.error in NOT_THIS_VERSION):
            return


def nvlinks(gpu: int, handle: Any) -> Batch:
    """Every NVLink: only the state query tells which link numbers exist (NVIDIA/TensorRT-LLM#19210)."""
    counted = yield of_fields(gpu, handle, ((LINK_COUNT_FIELD, 0),))
    present = [] if isinstance(counted, Failed) else write_fields(counted)
    claimed = present[0] if present and isinstance(present[0], int) else 0
    links: list[int] = []
    for link in range(MAX_LINKS):
        state = yield of(gpu, handle, "nvmlDeviceGetNvLinkState", link)
        if not isinstance(state, Failed):
            links.append(link)
        elif state.error != "UNKNOWN" and not (state.error in NO_MORE and link + 1 < claimed):
            break
    new_speed = new_errors = False
    for link in links:
        yield of(gpu, handle, "nvmlDeviceGetNvLinkVersion", link)
        yield of(gpu, handle, "nvmlDeviceGetNvLinkRemoteDeviceType", link)
        yield of(gpu, handle, "nvmlDeviceGetNvLinkRemotePciInfo", link, write=write_pci)
        values = yield of_fields(gpu, handle, tuple((field, link) for field in LINK_FIELDS))
        if not isinstance(values, Failed):
            told = [isinstance(value, (int, float)) for value in write_fields(values)]
            new_speed = new_speed or told[0]
            new_errors = new_errors or any(told[2:])
    if links and not new_speed:
        yield of_fields(gpu, handle, tuple((field, 0) for field in OLD_SPEED_FIELDS))
    if not new_errors:
        for link in links:
            for counter in OLD_COUNTERS:
                yield of(gpu, handle, "nvmlDeviceGetNvLinkErrorCounter", link, counter)


def of_fields(gpu: int, handle: Any, fields: tuple[tuple[int, int], ...]) -> Question:
    """A question for several field values at once: (field, scope) each."""
    return Question("nvmlDeviceGetFieldValues", gpu, fields, (handle, fields), write_fields)


def unlisted(listed: list[str]) -> Batch:
    """The minor numbers of GPUs that the kernel driver has and NVML did not list: hidden from us, or lost?

    Reading `information` takes the driver's locks, as an NVML call does, so that it belongs here.
    """
    names = yield Question("procfs", call=lambda: sorted(os.listdir(PROC_GPUS)))
    if isinstance(names, Failed):
        return
    for name in names:
        if name.lower() not in listed:
            yield Question("procfs_minor", None, (name.lower(),), (name,), call=proc_minor)


def proc_minor(name: str) -> int | None:
    """The minor number of /dev/nvidia<minor> that the kernel driver states for one GPU."""
    with open(f"{PROC_GPUS}/{name}/information", "rb") as file:
        for line in file.read(4096).splitlines():
            label, _, value = line.partition(b":")
            if label.strip() == b"Device Minor" and value.strip().isdigit():
                return int(value)
    return None


def kernel_address(bus_id: str) -> str:
    """NVML's bus id with its eight-digit domain, as the kernel spells it."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}".lower()


# --- how answers are written down ---------------------------------------------------------------------------------


def write_pci(info: Any) -> list[Any]:
    """Bus id, device and vendor, subsystem: the last two as NVML packs them."""
    return [text(info.busId), info.pciDeviceId, info.pciSubSystemId]


def write_fields(values: Iterable[Any]) -> list[Any]:
    """Each field's value by its own type; the error's name where that one field has none."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # in order of nvmlValueType_t
    written: list[Any] = []
    for value in values:
        if value.nvmlReturn:
            written.append(error_name(value.nvmlReturn))
        elif value.valueType < len(members):
            written.append(getattr(value.value, members[value.valueType]))
        else:
            written.append(None)
    return written


class FabricWriter:
    """Writes down the structure that a fabric question fills: state, status, clique, health."""

    def __init__(self, info: Any) -> None:
        self.info = info

    def __call__(self, _: Any) -> dict[str, int]:
        info = self.info
        written = {"state": info.state, "status": info.status}
        if hasattr(info, "cliqueId"):
            written["clique"] = info.cliqueId
        elif info.numCliques:
            written["clique"] = info.cliques[0].id
        if hasattr(info, "healthMask"):
            written["health"] = info.healthMask
        if hasattr(info, "healthSummary"):
            written["summary"] = info.healthSummary
        return written


def text(value: Any) -> str:
    """A string of the library; older nvidia-ml-py leaves bytes in structures."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_error_names: dict[int, str] = {}


def error_name(code: int) -> str:
    """NVML's name of an error code without NVML_ERROR_; the number where this nvidia-ml-py has no name for it."""
    if not _error_names:
        import pynvml  # type: ignore[import-untyped]

        for name, value in vars(pynvml).items():
            if name.startswith("NVML_ERROR_") and isinstance(value, int):
                _error_names[value] = name[len("NVML_ERROR_") :]
    return _error_names.get(code, str(code))


# --- asking -------------------------------------------------------------------------------------------------------


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


# --- the process --------------------------------------------------------------------------------------------------


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
        import pynvml
    except Exception as error:
        os.write(CHANNEL, answer_line(Question("pynvml"), Failed(f"{type(error).__name__}: {error}"), None, 0.0))
        os.write(CHANNEL, b".\n")
        return
    batch = load_only(pynvml) if setting["load_only"] else everything(pynvml)
    worker = Worker(pynvml, batch, [tuple(entry) for entry in setting["skip"]])
    worker.begin()
    serve(worker, listener)


if __name__ == "__main__":
    main(sys.argv[1])
