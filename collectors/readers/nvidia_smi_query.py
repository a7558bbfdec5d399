"""Reads the text of `nvidia-smi -q`, and the one-line errors that any nvidia-smi call may end with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.readers.nvidia_smi_gpu import add_answer, build, platform_of, rejoin
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import normalise
from gpu_topo.model.facts import ABSENT, FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverGpu, DriverState
from gpu_topo.model.record import NamedTuple

KIND = "nvidia-smi -q"

_LOG = re.compile(r"\s*=+\s*NVSMI LOG\s*=+")
_GPU = re.compile(r"(\s*)GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*\Z")
_ATTACHED = re.compile(r"\s*Attached GPUs\s*:\s*(\d{1,6})\s*\Z")
_VERSION = re.compile(r"\s*Driver Version\s*:\s*(\d[\w.]{0,30})\s*\Z")
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
# Followed by "GPU0000:68:00.0: Unknown Error", "GPU 0000:04:00.0: GPU is lost." or "GPU1: 0000:34:00.0: Unknown Error".
_NO_HANDLE = "unable to determine the device handle for gpu"
_INDEX = re.compile(r"\s?(\d{1,3})\b")
_FAILURES = (
    ("nvidia-smi has failed", FAILED),
    ("failed to initialize nvml", FAILED),
    ("nvidia-smi couldn't find libnvidia-ml", ABSENT),
)
_NO_DEVICES = "no devices were found"


def _failure(line: str) -> str | None:
    """How the driver as a whole failed, where this line says so: one of the states of a source."""
    text = line.strip().lower()
    return next((status for words, status in _FAILURES if text.startswith(words)), None)


def _begins(line: str) -> bool:
    text = line.strip()
    first = text[:1].lower()
    if first == "=":
        return bool(_LOG.match(line))
    if first == "g":
        return bool(_GPU.match(line))
    if first == "a":
        return bool(_ATTACHED.match(line))
    return first in "nfu" and (_failure(text) is not None or text.lower().startswith((_NO_DEVICES, _NO_HANDLE)))


class _Gpu(NamedTuple):
    """The lines of one GPU: its address, the indentation of its heading, its lines."""

    address: str
    indent: int
    lines: list[str]


class _Output(NamedTuple):
    """One run of nvidia-smi -q: what stands above the GPUs, and the GPUs."""

    head: list[str]
    gpus: list[_Gpu]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _answers(gpu: _Gpu) -> tuple[dict[str, str], int]:
    """The answers of one GPU and the number of MIG devices below it.

    Deeper lines belong to the heading above them. A paste that lost its indentation still has its headings.
    """
    # A web page makes one blank of every indentation: all lines are equally deep then.
    flat = bool(gpu.lines) and (
        _indent(gpu.lines[0]) <= gpu.indent or max(map(_indent, gpu.lines)) == min(map(_indent, gpu.lines))
    )
    answers: dict[str, str] = {}
    partitions = 0
    mig_indent: int | None = None
    headings: list[tuple[int, str]] = []
    for line in gpu.lines:
        name, colon, value = line.partition(" : ")
        if not colon:
            name, colon, value = line.partition(": ")
        if not colon and line.rstrip().endswith(" :"):
            name, colon = line.rstrip()[:-2], ":"
        name = name.strip()
        indent = 0 if flat else _indent(line)
        if not colon and name.lower() == "mig device":
            partitions += 1
            mig_indent = indent
            continue
        if mig_indent is not None:
            # What a MIG device says of itself is not the GPU's: it has its own BAR1, memory and ECC answers.
            if indent > mig_indent or (flat and name.lower() != "accounting mode"):
                continue
            mig_indent = None
        while headings and (headings[-1][0] >= indent or flat) and not (flat and colon):
            headings.pop()
        if colon:
            add_answer(answers, headings[-1][1] if headings else "", name, value.strip())
        if not (flat and colon):
            headings.append((indent, name))
    return answers, partitions


def _split(lines: Sequence[str]) -> list[_Output | str]:
    """Outputs and error lines, in order. What is neither (prompts, other tools) ends an output."""
    parts: list[_Output | str] = []
    output: _Output | None = None
    gpu: _Gpu | None = None
    for raw in rejoin(lines):
        if not raw.strip():
            continue
        line = raw.expandtabs()
        head = _GPU.match(line)
        if head:
            if output is None:
                output = _Output([], [])
                parts.append(output)
            gpu = _Gpu(head.group(2), len(head.group(1)), [])
            output.gpus.append(gpu)
        elif _LOG.match(line) or (_ATTACHED.match(line) and (output is None or gpu)):
            output, gpu = _Output([line], []), None
            parts.append(output)
        elif _failure(line) or line.strip().lower().startswith((_NO_DEVICES, _NO_HANDLE)):
            parts.append(line.strip())
            output = gpu = None
        elif gpu is not None:
            flat = bool(gpu.lines) and _indent(gpu.lines[0]) <= gpu.indent
            if _indent(line) > gpu.indent or flat or line.lstrip().startswith("Product Name"):
                gpu.lines.append(line)
            else:
                output = gpu = None
        elif output is not None:
            output.head.append(line)
    return parts


def _read_output(output: _Output, where: str) -> Facts | None:
    """One sample of the machine; None for a log without GPUs (`nvidia-smi -q -u` lists units)."""
    attached = next((int(match.group(1)) for match in map(_ATTACHED.match, output.head) if match), None)
    version = next((match.group(1) for match in map(_VERSION.match, output.head) if match), None)
    if not output.gpus and attached is None:
        return None
    # -i selects GPUs: the index is known only where all are printed.
    complete = attached == len(output.gpus)
    gpus = []
    for number, block in enumerate(output.gpus):
        answers, partitions = _answers(block)
        gpus.append(build(block.address, number if complete else None, answers, partitions))
    lost = sum(gpu.lost for gpu in gpus)
    detail = f"{lost} of {len(gpus)} GPUs lost" if lost else ""
    if not complete and attached is not None:
        detail = f"{len(gpus)} of {attached} GPUs in it" + (f", {lost} lost" if lost else "")
    return Facts(
        SourceStatus(f"{KIND} ({where})", PARTIAL if detail else OK, detail),
        gpus=tuple(gpus),
        platform=platform_of(tuple(gpus)),
        driver=DriverState("nvml", "ok", detail, version, lists_all=complete),
    )


def _without_handle(line: str) -> DriverGpu:
    """The GPU that nvidia-smi could not open, by its address, its index or both, as the release prints them."""
    text = line[len(_NO_HANDLE) :]
    address = _ADDRESS.search(text)
    index = _INDEX.match(text[: address.start()] if address else text)
    reason = text.rpartition(": ")[2].strip()
    return DriverGpu(
        address=normalise(address.group()) if address else None,
        ordinal=int(index.group(1)) if index else None,
        lost=True,
        unknowns={"handle": reason[:200] or "no device handle"},
    )


def _read_errors(lines: Sequence[str], where: str) -> Facts:
    """One sample from error lines that stand together: which GPUs are lost, or that the driver failed."""
    name = f"{KIND} ({where})"
    lost: dict[tuple[str | None, int | None], DriverGpu] = {}
    for line in lines:
        if line.lower().startswith(_NO_HANDLE):
            gpu = _without_handle(line)
            lost[gpu.address, gpu.ordinal] = gpu
    if lost:
        # nvidia-smi stops at such a GPU, so nothing is said of the others.
        detail = f"no device handle for {len(lost)} GPU" + ("s" if len(lost) > 1 else "")
        driver = DriverState("nvml", "ok", lines[0], lists_all=False)
        return Facts(SourceStatus(name, PARTIAL, detail), gpus=tuple(lost.values()), driver=driver)
    for line in lines:
        status = _failure(line)
        if status:
            return Facts(SourceStatus(name, status, line), driver=DriverState("nvml", status, line))
    return Facts(
        SourceStatus(name, OK, "no devices were found"), driver=DriverState("nvml", "ok", lines[0], lists_all=False)
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every output and every group of error lines is one sample, oldest first."""
    samples: list[Facts] = []
    errors: list[str] = []
    for part in [*_split(lines), None]:
        if isinstance(part, str):
            errors.append(part)
            continue
        sample = _read_output(part, where) if part else None
        if errors and (sample or part is None):
            samples.append(_read_errors(errors, where))
            errors = []
        if sample:
            samples.append(sample)
    return samples


READER = Reader(KIND, _begins, read)
