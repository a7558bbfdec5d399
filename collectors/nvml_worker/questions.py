"""What NVML is asked, in which order, and which further questions an answer leads to.

A batch is a generator: it yields a question, and is sent the answer or a Failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Union

from .answers import FabricWriter, text, write_fields, write_pci

MAX_GPUS = 64  # asked where the library does not tell the count
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest nvml.h (13.5.37)

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
        for name in ("UUID", "Name", "MinorNumber", "Architecture"):
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
    """P-state, utilisation, and the PCIe link as it is now."""
    yield of(gpu, handle, "nvmlDeviceGetPerformanceState")
    yield of(gpu, handle, "nvmlDeviceGetUtilizationRates", write=lambda rates: rates.gpu)
    yield of(gpu, handle, "nvmlDeviceGetCurrPcieLinkGeneration")
    yield of(gpu, handle, "nvmlDeviceGetCurrPcieLinkWidth")


def properties(gpu: int, handle: Any) -> Batch:
    """What else there is to know of one GPU by itself."""
    for name in ("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration", "PcieReplayCounter"):
        yield of(gpu, handle, f"nvmlDeviceGet{name}")
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
