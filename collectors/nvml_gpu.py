"""One GPU from the answers of NVML. Pure."""

from __future__ import annotations

from gpu_topo.collectors import nvml_links
from gpu_topo.collectors.nvml_transcript import NO_SUCH_INDEX, Error, Place, Transcript, is_int, why
from gpu_topo.model.gpu import DriverGpu
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import MALFORMED, Reading, Unknown
from gpu_topo.model.units import GTS_OF_GENERATION

# nvml.h 13.5.37: NVML_DEVICE_ARCH_*, nvmlGpuVirtualizationMode_t.
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_VIRTUALIZATION = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
_MAX_PARTITIONS = 64


def read(said: Transcript, gpu: int, address: str | None, listed: frozenset[str]) -> DriverGpu:
    """Everything that was said of the GPU with this index. listed: the addresses of all GPUs that NVML lists."""
    place = Place.of(said.get("nvmlDeviceGetPciInfo", gpu))
    refused = {
        question: answer.name
        for (question, _), answer in said.answers.get(gpu, {}).items()
        if isinstance(answer, Error) and answer.name not in NO_SUCH_INDEX
    }
    architecture = said.number("nvmlDeviceGetArchitecture", gpu)
    virtualization = said.number("nvmlDeviceGetVirtualizationMode", gpu)
    c2c = said.number("nvmlDeviceGetC2cModeInfoV", gpu)
    numa = said.number("nvmlDeviceGetNumaNodeId", gpu)
    mig, partitions = _mig(said, gpu)
    return DriverGpu(
        address=address,
        ordinal=gpu,
        uuid=said.text("nvmlDeviceGetUUID", gpu),
        model=said.text("nvmlDeviceGetName", gpu),
        architecture=_ARCHITECTURES.get(architecture) if isinstance(architecture, int) else architecture,
        vendor_id=None if place.ids is None else place.ids & 0xFFFF,
        device_id=None if place.ids is None else place.ids >> 16 & 0xFFFF,
        minor=said.number("nvmlDeviceGetMinorNumber", gpu),
        numa_node=None if isinstance(numa, int) and numa < 0 else numa,
        pstate=_up_to(15, said, "nvmlDeviceGetPerformanceState", gpu),
        utilization=_up_to(100, said, "nvmlDeviceGetUtilizationRates", gpu),
        link=LinkEnd(
            _speed(said, "nvmlDeviceGetCurrPcieLinkGeneration", gpu),
            _width(said, "nvmlDeviceGetCurrPcieLinkWidth", gpu),
            _speed(said, "nvmlDeviceGetMaxPcieLinkGeneration", gpu),
            _width(said, "nvmlDeviceGetMaxPcieLinkWidth", gpu),
        ),
        gpu_max_speed_gts=_speed(said, "nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu),
        replays=said.number("nvmlDeviceGetPcieReplayCounter", gpu),
        mig=mig,
        partitions=partitions,
        virtualization=_VIRTUALIZATION.get(virtualization) if isinstance(virtualization, int) else virtualization,
        nvlinks=nvml_links.nvlinks(said, gpu, listed),
        fabric=nvml_links.fabric(said, gpu),
        lost="GPU_IS_LOST" in refused.values(),
        c2c=bool(c2c) if isinstance(c2c, int) else c2c,
        unknowns=refused,
    )


def _speed(said: Transcript, question: str, gpu: int) -> Reading[float]:
    """GT/s of a PCIe generation."""
    generation = said.number(question, gpu)
    if generation is None or isinstance(generation, Unknown):
        return generation
    return GTS_OF_GENERATION.get(generation) or Unknown(MALFORMED, question)


def _width(said: Transcript, question: str, gpu: int) -> Reading[int]:
    """Lanes; a virtual machine may show 0, which is none."""
    return said.number(question, gpu) or (Unknown(MALFORMED, question) if said.integer(question, gpu) == 0 else None)


def _up_to(most: int, said: Transcript, question: str, gpu: int) -> Reading[int]:
    """A number from 0 to `most`; NVML's own "unknown" P-state is 32."""
    value = said.number(question, gpu)
    return Unknown(MALFORMED, question) if isinstance(value, int) and not 0 <= value <= most else value


def _mig(said: Transcript, gpu: int) -> tuple[Reading[bool], Reading[int]]:
    """Whether MIG is on, and how many partitions there are."""
    question = "nvmlDeviceGetMigMode"
    answer = said.reading(question, gpu)
    if answer is None or isinstance(answer, Unknown):
        return answer, answer
    if not (isinstance(answer, list) and answer and is_int(answer[0])):
        return Unknown(MALFORMED, question), Unknown(MALFORMED, question)
    if not answer[0]:
        return False, 0
    count = 0
    of_partitions = "nvmlDeviceGetMigDeviceHandleByIndex"
    for number in range(_MAX_PARTITIONS):
        partition = said.get(of_partitions, gpu, number)
        if isinstance(partition, Error) and partition.name != "NOT_FOUND":
            return True, Unknown(why(partition.name), of_partitions)
        count += partition is True
    return True, count
