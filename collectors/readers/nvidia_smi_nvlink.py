"""Reads `nvidia-smi nvlink` (-s, -R, -p, -e) and `nvidia-smi -L`, whose lists of GPUs look alike.

How what nvidia-smi says of NVLink becomes DriverGpu.nvlinks:
nothing said (-L): None. "Device does not have or support Nvlink": (). "All links are inactive": () and
unknowns["nvlink"], since the number of links is not told. Refused under MIG: Unknown, and mig is True.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_topo.collectors.readers.nvidia_smi_gpu import rejoin
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.address import normalise
from gpu_topo.model.facts import OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import ACTIVE, CUT_SHORT, INACTIVE, LISTED, UNKNOWN_STATE, DriverGpu, DriverState, NvLink
from gpu_topo.model.reading import FAILED, NO_DATA, NOT_RECORDED, Reading, Unknown
from gpu_topo.model.record import NamedTuple

KIND = "nvidia-smi nvlink"

_GPU = re.compile(r"\s*GPU (\d{1,4}): ?(.{0,300})")
_BRANDS = ("NVIDIA", "Tesla", "Quadro", "GeForce", "TITAN", "GRID", "Graphics Device")
_MIG = re.compile(r"\s*MIG \S{1,40}\s+Device\s+\d{1,3}:")
_LINK = re.compile(r"\s*Link (\d{1,3}): ?(.{1,200})\Z")
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?GB/s")
_INACTIVE = re.compile(r"<?\s?(?:inactive|in-active|disabled|off)\s?>?\Z", re.IGNORECASE)
_REMOTE = re.compile(r"(?:Remote Device:? )?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b")
_ELLIPSIS = re.compile(r"\s*(?:\.{2,}|…|[\[(<](?:\.{2,}|…|snip\w*|truncated|cut)[\])>])\s*\Z", re.IGNORECASE)
_ERRORS = re.compile(r"([A-Za-z][\w /-]{0,60}[Ee]rrors?[\w ]{0,20}): ?(\d{1,19})\Z")

STATUS, REMOTE, ERRORS, LIST = "status", "remote", "errors", "list"


def _begins(line: str) -> bool:
    if "Link " in line:
        link = _LINK.match(line)
        return bool(link and _question(link.group(2)))
    head = _heading(line)
    return bool(head and (head.uuid or head.model))


class _Heading(NamedTuple):
    """ "GPU 0: NVIDIA H200 (UUID: GPU-...)": without the UUID on older drivers; a message may stand behind it.

    named: the name is whole, since the UUID begins behind it.
    """

    ordinal: int
    model: str
    named: bool
    uuid: str | None
    message: str


def _heading(line: str) -> _Heading | None:
    match = _GPU.match(line) if "GPU " in line else None
    if not match:
        return None
    text = match.group(2).strip()
    model, mark, rest = text.partition("(UUID: ")
    uuid, closed, message = rest.partition(")")
    if not mark and text and not text.startswith(_BRANDS):
        return None  # prose: "GPU 0: fell off the bus"
    return _Heading(int(match.group(1)), model.strip(), bool(mark), (uuid or None) if closed else None, message.strip())


def _question(text: str) -> str | None:
    """Which question a line of a link answers."""
    if _RATE.match(text) or _INACTIVE.match(text.strip()):
        return STATUS
    if _REMOTE.match(text) or text.startswith("Remote Device"):
        return REMOTE
    return ERRORS if _ERRORS.match(text.strip()) else None


class _Gpu:
    """One GPU while its lines are read."""

    def __init__(self, ordinal: int | None, model: str | None, uuid: str | None) -> None:
        self.ordinal = ordinal
        self.model = model
        self.uuid = uuid
        self.named = False
        self.links: dict[int, NvLink] = {}
        self.partitions = 0
        self.mig = False
        self.lost = False
        self.asked: set[str] = set()
        self.none = False  # the driver says that there are no links, or that none is active
        self.cut = False  # whoever pasted this left links out
        self.last = False  # the recording ends within or behind its links: more may have followed
        self.unknown: Unknown | None = None
        self.unknowns: dict[str, str] = {}

    def add_link(self, number: int, text: str) -> None:
        link = self.links.get(number, NvLink(number))
        rate = _RATE.match(text)
        remote = _REMOTE.match(text)
        errors = _ERRORS.match(text)
        if rate:
            link = link._replace(state=ACTIVE, gbs=float(rate.group(1)))
        elif _INACTIVE.match(text):
            link = link._replace(state=INACTIVE)
        elif remote:
            # Only links that are up know whom they are connected to.
            state = ACTIVE if link.state == UNKNOWN_STATE else link.state
            link = link._replace(state=state, remote=_remote(remote.group(1)))
        elif errors:
            name = errors.group(1).strip().lower().replace(" ", "_")
            link = link._replace(errors={**link.errors, name: int(errors.group(2))})
        question = _question(text)
        if question or number not in self.links:
            self.links[number] = link
        self.asked.add(question or STATUS)

    def add_message(self, text: str) -> bool:
        """What nvidia-smi says instead of links; False for a line that says nothing of them."""
        word = text.lower()
        if self.links or "nvidia-smi" in word:
            return False
        if "gpu is lost" in word:
            self.lost = True
        elif "nvlink" not in word:
            return False
        elif "mig mode" in word:
            self.mig = True
            self.unknown = Unknown(NO_DATA, "nvidia-smi nvlink: not supported in MIG mode")
        elif "all links are inactive" in word:
            self.none = True
            self.unknowns["nvlink"] = "all links are inactive"
        elif "does not have or support" in word or "not supported" in word:
            self.none = True
        elif "unable" in word or "error" in word or "fail" in word:
            self.unknown = Unknown(FAILED, f"nvidia-smi nvlink: {text[:120]}")
        else:
            return False
        self.asked.add(STATUS)
        return True

    def merge(self, later: _Gpu) -> None:
        """Add what a later output of another question says of the same GPU. One whole list names all its links."""
        whole = any(gpu.links and not gpu.cut and not gpu.last for gpu in (self, later))
        self.cut = (self.cut or later.cut) and not whole
        self.last = (self.last or later.last) and not whole
        for number, link in later.links.items():
            mine = self.links.get(number, NvLink(number))
            self.links[number] = NvLink(
                number,
                state=mine.state if mine.state != UNKNOWN_STATE else link.state,
                remote=mine.remote or link.remote,
                gbs=mine.gbs if mine.gbs is not None else link.gbs,
                errors={**mine.errors, **link.errors},
            )
        self.model = self.model or later.model
        self.uuid = self.uuid or later.uuid
        self.partitions = max(self.partitions, later.partitions)
        self.mig = self.mig or later.mig
        self.lost = self.lost or later.lost
        self.none = self.none or later.none
        self.unknown = self.unknown or later.unknown
        self.unknowns.update(later.unknowns)
        self.asked |= later.asked

    def facts(self) -> DriverGpu:
        nvlinks: Reading[tuple[NvLink, ...]] = None
        if self.cut:
            nvlinks = Unknown(NOT_RECORDED, "nvidia-smi nvlink: the list of links is cut off")
        elif self.links:
            nvlinks = tuple(self.links[number] for number in sorted(self.links))
        elif self.none:
            nvlinks = ()
        elif self.unknown:
            nvlinks = self.unknown
            self.unknowns["nvlink"] = self.unknown.where
        return DriverGpu(
            ordinal=self.ordinal,
            uuid=self.uuid,
            model=self.model,
            mig=True if self.mig or self.partitions else None,
            partitions=self.partitions or None,
            nvlinks=nvlinks,
            nvlinks_are=CUT_SHORT if self.last else LISTED,
            lost=self.lost,
            unknowns=self.unknowns,
        )


def _remote(text: str) -> str | None:
    """The other end; None for the empty address that links to something off PCI show."""
    address = normalise(text)
    return None if address == "0000:00:00.0" else address


def _outputs(lines: Sequence[str]) -> list[list[_Gpu]]:
    """The GPUs of each output: one that comes again begins the next."""
    outputs: list[list[_Gpu]] = []
    seen: set[tuple[int | None, str | None]] = set()
    gpu: _Gpu | None = None
    for line in rejoin(lines):
        head = _heading(line)
        link = _LINK.match(line) if "Link " in line else None
        if head:
            gpu = _Gpu(head.ordinal, head.model or None, head.uuid)
            gpu.named = head.named
            key = (gpu.ordinal, gpu.uuid)
            if not outputs or key in seen:
                outputs.append([])
                seen.clear()
            seen.add(key)
            outputs[-1].append(gpu)
            if head.message:
                gpu.add_message(head.message)
        elif link:
            if gpu is None and not _question(link.group(2).strip()):
                continue
            if gpu is None:
                gpu = _Gpu(None, None, None)
                outputs.append([gpu])
                seen.clear()
            gpu.add_link(int(link.group(1)), link.group(2).strip())
        elif gpu is None:
            continue
        elif _MIG.match(line):
            gpu.partitions += 1
        elif gpu.links and _ELLIPSIS.match(line):
            gpu.cut = True
        elif line.strip() and not gpu.add_message(line.strip()) and not _begins_a_link(line):
            gpu = None  # a prompt or another tool's output
    if gpu is not None:
        _mark_last(outputs[-1])
    return [output for output in outputs if output]


def _begins_a_link(line: str) -> bool:
    """Whether a line is one of a link, or the beginning of one that was cut off."""
    text = line.strip()
    return text.startswith("Link ") or "Link".startswith(text)


def _mark_last(output: list[_Gpu]) -> None:
    """A recording may end anywhere: in the links of its last GPU, or in the line that names it."""
    last = output[-1]
    last.last = sorted(last.links) == list(range(len(last.links)))
    if not last.asked and not last.named and any(gpu.named for gpu in output):
        last.model = None  # what stands there may be the beginning of a name


def _questions(output: list[_Gpu]) -> set[str]:
    """What an output was asked for; a mere list of GPUs is an answer too."""
    return set().union(*(gpu.asked for gpu in output)) or {LIST}


def _join(outputs: list[list[_Gpu]]) -> list[list[_Gpu]]:
    """Answers to different questions about the same GPUs (-s, then -R) are one sample, to the same question two."""
    joined: list[list[_Gpu]] = []
    for output in outputs:
        known = {(gpu.ordinal, gpu.uuid): gpu for gpu in joined[-1]} if joined else {}
        keys = [(gpu.ordinal, gpu.uuid) for gpu in output]
        if joined and all(key in known for key in keys) and not _questions(joined[-1]) & _questions(output):
            for gpu in output:
                known[gpu.ordinal, gpu.uuid].merge(gpu)
        else:
            joined.append(output)
    return joined


def _facts(output: list[_Gpu], where: str) -> Facts:
    questions = _questions(output)
    gpus = tuple(gpu.facts() for gpu in output)
    lost = sum(gpu.lost for gpu in gpus)
    # -i selects a GPU, in practice one; a run of numbers from 0 is the whole list.
    whole = [gpu.ordinal for gpu in gpus] == list(range(len(gpus))) and (len(gpus) > 1 or questions == {LIST})
    return Facts(
        SourceStatus(
            f"{'nvidia-smi -L' if questions == {LIST} else KIND} ({where})",
            PARTIAL if lost else OK,
            f"{lost} lost" if lost else "",
        ),
        gpus=gpus,
        driver=DriverState("nvml", "ok", lists_all=whole),
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every output is one sample, oldest first; answers to different questions about the same GPUs are joined."""
    return [_facts(output, where) for output in _join(_outputs(lines))]


READER = Reader(f"{KIND} -s", _begins, read)
