"""A whole NVML transcript becomes Facts: the GPUs, the ways between them, and how the driver answered. Pure."""

from __future__ import annotations

from gpu_topo.collectors import nvml_gpu, nvml_links
from gpu_topo.collectors.nvml_driver import NO_DRIVER, no_driver
from gpu_topo.collectors.nvml_transcript import (
    ABSENT_ERRORS,
    CRASH,
    DEADLINE,
    NO_SUCH_INDEX,
    Error,
    Place,
    Transcript,
    entries,
    is_int,
    why,
)
from gpu_topo.model.address import normalise, sort_key
from gpu_topo.model.facts import ABSENT, FAILED, OK, PARTIAL, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.facts import DENIED as SOURCE_DENIED
from gpu_topo.model.gpu import DriverGpu, DriverState
from gpu_topo.model.reading import DENIED, MALFORMED, NOT_RECORDED, Unknown, known
from gpu_topo.model.reading import FAILED as READ_FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SOURCE = "nvml"
UNASKED = "unasked"  # a status of the driver
# The errors by which NVML says that there is no such thing: no gap in what is known.
_EXPECTED = ABSENT_ERRORS | NO_SUCH_INDEX | {"FileNotFoundError"}


def read(lines: Iterable[str], bound: frozenset[str], seconds: float) -> Facts:
    """The facts of one batch. bound: addresses that the nvidia kernel driver is bound to, empty where unknown.

    No lines at all: nobody asked, so that nothing is said of the driver either.
    """
    said = Transcript(lines)
    if said.begin is None:
        return Facts(SourceStatus(SOURCE, ABSENT, "not recorded", seconds))
    if isinstance(said.begin, Error):
        return no_driver(said.begin.name, seconds)
    gpus = _gpus(said, bound)
    minors = _minors(said, gpus.values())
    opened = said.get("openable")
    openable = frozenset(minor for minor in opened if is_int(minor)) if isinstance(opened, list) else None
    status, state, detail = _status(said, gpus, bound)
    driver = DriverState(
        library=SOURCE,
        status=state,
        detail=detail,
        version=said.text("nvmlSystemGetDriverVersion"),
        lists_all=_lists_all(said, gpus.values(), bound, minors, openable),
        openable_minors=Unknown(NOT_RECORDED, "/dev/nvidia*") if openable is None else openable,
        minors=minors,
    )
    source = SourceStatus(SOURCE, status, detail, seconds)
    return Facts(source, gpus=tuple(gpus.values()), peers=nvml_links.peers(said, gpus), driver=driver)


def _gpus(said: Transcript, bound: frozenset[str]) -> dict[int, DriverGpu]:
    """Every GPU that NVML counts, whether it has a handle or not."""
    handle = "nvmlDeviceGetHandleByIndex"
    counted = said.integer("nvmlDeviceGetCount") is not None
    indexes = []
    for gpu in said.gpus():
        answer = said.get(handle, gpu)
        # Where the count is not known, asking ended at the first index without a GPU.
        if said.asked(handle, gpu) and (counted or not isinstance(answer, Error) or answer.name not in _EXPECTED):
            indexes.append(gpu)
    addresses = {gpu: Place.of(said.get("nvmlDeviceGetPciInfo", gpu)).address for gpu in indexes}
    # The order of NVML is that of the bus: the GPUs it cannot name are those that are left, where the numbers agree.
    unnamed = [gpu for gpu, address in addresses.items() if address is None]
    left = sorted(bound.difference(addresses.values()), key=sort_key)
    if len(unnamed) == len(left):
        addresses.update(dict(zip(unnamed, left, strict=True)))
    listed = frozenset(address for address in addresses.values() if address)
    return nvml_links.with_switches({gpu: nvml_gpu.read(said, gpu, addresses[gpu], listed) for gpu in indexes})


def _minors(said: Transcript, gpus: Iterable[DriverGpu]) -> dict[str, int]:
    """Minor number of /dev/nvidia<minor> by address: from NVML, and from the kernel for GPUs that NVML did not list."""
    minors: dict[str, int] = {}
    for gpu in gpus:
        minor = known(gpu.minor)
        if gpu.address is not None and minor is not None:
            minors[gpu.address] = minor
    for args, answer in entries(said.answers.get(None, {}), "procfs_minor"):
        address = normalise(args[0]) if args and isinstance(args[0], str) else None
        if address is not None and is_int(answer):
            minors[address] = answer
    return minors


def _lists_all(
    said: Transcript,
    gpus: Iterable[DriverGpu],
    bound: frozenset[str],
    minors: Mapping[str, int],
    openable: frozenset[int] | None,
) -> bool:
    """False where a container or a job is shown some GPUs only: the driver has more than it may open or see."""
    shown = said.get("procfs")
    visible = {normalise(name) for name in shown if isinstance(name, str)} if isinstance(shown, list) else None
    for address in bound.difference(gpu.address for gpu in gpus):
        if address in minors:
            if openable is not None and minors[address] not in openable:
                return False
        elif visible is not None:
            if address not in visible:
                return False  # the driver's own list in /proc is masked, which only containers do
        elif openable is not None and len(openable) < len(bound):
            return False
    return True


# --- how the library answered -------------------------------------------------------------------------------------


def _status(said: Transcript, gpus: Mapping[int, DriverGpu], bound: frozenset[str]) -> tuple[str, str, str]:
    """Status of the source, status of the driver, and in words what is missing and why."""
    errors = [error for error in said.errors() if error[0] != "end"]
    end = said.end.name if isinstance(said.end, Error) else ""
    lost = [_name(gpu, gpus) for gpu, facts in gpus.items() if facts.lost]
    words = [f"lost: {', '.join(lost)}"] if lost else []
    late = [f"{question}{_of(gpu, gpus)}" for question, gpu, error in errors if error == DEADLINE]
    if late:
        words.append(f"no answer in time: {_some(late)}")
        return TIMEOUT, "timeout", "; ".join(words)
    crashes = [error for error in errors if error[2].startswith(CRASH)]
    crashed = [f"{question}{_of(gpu, gpus)} ({error[len(CRASH) :].strip()})" for question, gpu, error in crashes]
    if crashed or end.startswith(CRASH):
        words.append(f"the library crashed in {_some(crashed)}" if crashed else "the worker process crashed")
        return PARTIAL if gpus else FAILED, "crashed", "; ".join(words)
    if end:
        return _ended(end)
    for question in ("pynvml", "worker", "nvmlInit"):
        failed = said.get(question)
        if isinstance(failed, Error):
            if failed.name in NO_DRIVER and not bound:
                return ABSENT, ABSENT, NO_DRIVER[failed.name]
            denied = failed.name == "NO_PERMISSION"
            state = "failed" if question == "nvmlInit" else UNASKED
            return SOURCE_DENIED if denied else FAILED, state, f"{question}: {failed.name}"
    for label, reasons in (("no permission", {DENIED}), ("failed", {READ_FAILED, MALFORMED})):
        questions = [q for q, _, error in errors if error not in _EXPECTED and why(error) in reasons]
        if questions:
            words.append(f"{label}: {_some(questions)}")
    return PARTIAL if words else OK, "ok", "; ".join(words)


def _ended(end: str) -> tuple[str, str, str]:
    """The status where asking ended before all was asked, and no single question is to blame."""
    if end.startswith("HELD"):
        _, function, process = [*end.split(), "?", "?"][:3]
        return TIMEOUT, "timeout", f"an earlier call of {function} still hangs in process {process}; not asked again"
    if end == "BUSY":
        return TIMEOUT, UNASKED, "another gpu-topo was asking NVML all the time"
    if end == DEADLINE:
        return TIMEOUT, UNASKED, "there was no time to ask everything"
    return FAILED, UNASKED, end  # there was no process to ask it


def _some(items: list[str]) -> str:
    items = list(dict.fromkeys(items))
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")


def _name(gpu: int, gpus: Mapping[int, DriverGpu]) -> str:
    address = gpus[gpu].address if gpu in gpus else None
    return f"GPU {gpu} ({address})" if address else f"GPU {gpu}"


def _of(gpu: int | None, gpus: Mapping[int, DriverGpu]) -> str:
    return "" if gpu is None else f" of {_name(gpu, gpus)}"
