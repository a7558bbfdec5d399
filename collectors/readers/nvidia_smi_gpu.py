"""One GPU of `nvidia-smi -q` or `-q -x`: its answers by name become a DriverGpu, every refusal with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpu_topo.model.address import normalise
from gpu_topo.model.gpu import DriverGpu, Fabric
from gpu_topo.model.host import BARE_METAL, VIRTUAL_MACHINE, Platform
from gpu_topo.model.pci import LinkEnd
from gpu_topo.model.reading import (
    DENIED,
    FAILED,
    LOST,
    MALFORMED,
    NO_DATA,
    NOT_RECORDED,
    TIMEOUT,
    Reading,
    Unknown,
    known,
)
from gpu_topo.model.units import GTS_OF_GENERATION

# Answers of one GPU: "parent/name" and "name", in lower case with spaces, the first of each name. Text and XML differ
# little once XML's underscores are spaces.
Answers = Mapping[str, str]

_ABSENT = ("", "n/a", "not supported", "not available", "requested functionality has been deprecated")
# How nvidia-smi words a refusal, and why a reading is then unknown; the first that fits decides.
_REFUSALS = (
    ("is lost", LOST),
    ("insufficient permission", DENIED),
    ("no permission", DENIED),
    ("timeout", TIMEOUT),
    ("timed out", TIMEOUT),
    ("requires reset", FAILED),
    ("unknown error", FAILED),
    ("err!", FAILED),
    ("redacted", NOT_RECORDED),
)
_ALWAYS_ANSWERED = (
    "performance state",
    "utilization/gpu",
    "utilization/gpu util",
    "link width/current",
    "link widths/current link width",
    "pcie generation/current",
    "pcie gen/current link gen",
)
_DIGITS = re.compile(r"\d{1,18}")


def add_answer(answers: dict[str, str], parent: str, name: str, value: str) -> None:
    """Remember an answer under its name and under its parent's and its own; the first answer stays."""
    name = name.lower().replace("_", " ")
    answers.setdefault(name, value)
    answers.setdefault(f"{parent.lower().replace('_', ' ')}/{name}", value)


def reading(value: str | None, where: str) -> Reading[str]:
    """An answer as a value, None (not supported, not printed) or Unknown (refused, lost, cut out)."""
    if value is None:
        return None
    text = value.strip().strip("[]").strip()
    word = text.lower()
    if word in _ABSENT:
        return None
    if len(word) < 120:
        for sign, why in _REFUSALS:
            if sign in word:
                return Unknown(why, f"nvidia-smi: {where}: {text}")
        if word == "unknown":
            return Unknown(NO_DATA, f"nvidia-smi: {where}")
    return text


class _Asker:
    """Looks answers up and converts them; remembers what was refused."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.unknowns: dict[str, str] = {}

    def text(self, question: str, *names: str) -> Reading[str]:
        for name in names:
            if name in self.answers:
                answer = reading(self.answers[name], name)
                if isinstance(answer, Unknown):
                    self.unknowns[question] = answer.where
                return answer
        return None

    def number(self, question: str, low: int, high: int, *names: str) -> Reading[int]:
        """The first number of an answer ("16x", "P0", "0 %"), Unknown where it is none or out of range."""
        answer = self.text(question, *names)
        if answer is None or isinstance(answer, Unknown):
            return answer
        match = _DIGITS.search(answer)
        if match and low <= int(match.group()) <= high:
            return int(match.group())
        unknown = Unknown(MALFORMED, f"nvidia-smi: {names[0]}: {answer[:40]}")
        self.unknowns[question] = unknown.where
        return unknown

    def generation(self, question: str, *names: str) -> Reading[float]:
        answer = self.number(question, 1, max(GTS_OF_GENERATION), *names)
        return answer if answer is None or isinstance(answer, Unknown) else GTS_OF_GENERATION[answer]

    def switch(self, question: str, *names: str) -> Reading[bool]:
        """Enabled or Disabled."""
        answer = self.text(question, *names)
        if answer is None or isinstance(answer, Unknown):
            return answer
        word = answer.lower()
        if word in ("enabled", "disabled"):
            return word == "enabled"
        return Unknown(MALFORMED, f"nvidia-smi: {names[0]}: {answer[:40]}")

    def width(self, question: str, *names: str) -> Reading[int]:
        """Lanes: "16x". A number without its x is cut off, and 1 may be the beginning of 16."""
        answer = self.text(question, *names)
        if isinstance(answer, str) and answer.isdecimal():
            unknown = Unknown(MALFORMED, f"nvidia-smi: {names[0]}: {answer[:40]}")
            self.unknowns[question] = unknown.where
            return unknown
        return self.number(question, 1, 32, *names)

    def below(self, *parents: str) -> dict[str, str]:
        """Every answer below one of these headings, by name."""
        prefixes = tuple(f"{parent}/" for parent in parents)
        return {name.split("/", 1)[1]: value for name, value in self.answers.items() if name.startswith(prefixes)}


def _fabric(ask: _Asker) -> Reading[Fabric]:
    """The fabric registration; None where the GPU has none (state N/A)."""
    state = ask.text("fabric", "fabric/state")
    if state is None or isinstance(state, Unknown):
        return state
    health = {}
    for name, value in ask.below("health").items():
        text = known(reading(value, name))
        if text is not None:
            health[name.replace(" ", "_")] = text
    return Fabric(
        state=state,
        status=ask.text("fabric.status", "fabric/status"),
        clique=ask.number("fabric.clique", 0, 1 << 32, "fabric/cliqueid", "fabric/clique id"),
        health=health,
    )


def _ids(ask: _Asker) -> tuple[int | None, int | None]:
    """Vendor and device: nvidia-smi packs device and vendor into one number, 0x233510DE."""
    text = known(ask.text("ids", "device id", "pci device id")) or ""
    digits = text.lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{5,8}", digits):
        return None, None
    return int(digits[-4:], 16), int(digits[:-4], 16)


def _is_lost(answers: Answers) -> bool:
    """Whether the driver says that the GPU is lost, or fails on everything that a present GPU answers.

    One failing sensor is no lost GPU: that "Unknown Error" is common.
    """
    if any("gpu is lost" in value.lower() for value in answers.values()):
        return True
    asked = [reading(answers[name], name) for name in _ALWAYS_ANSWERED if name in answers]
    return len(asked) > 1 and all(isinstance(answer, Unknown) and answer.why == FAILED for answer in asked)


def build(address: str | None, ordinal: int | None, answers: Answers, partitions: int) -> DriverGpu:
    """One GPU from its answers. partitions: how many MIG devices were printed below it."""
    ask = _Asker(answers)
    vendor, device = _ids(ask)
    mig = ask.switch("mig", "mig mode/current", "mig mode/current mig")
    uuid = ask.text("uuid", "gpu uuid", "uuid")
    return DriverGpu(
        address=normalise(address or known(ask.text("address", "bus id", "pci bus id")) or ""),
        ordinal=ordinal,
        uuid=uuid,
        model=ask.text("model", "product name"),
        architecture=ask.text("architecture", "product architecture"),
        vendor_id=vendor,
        device_id=device,
        minor=ask.number("minor", 0, 1 << 20, "minor number"),
        pstate=ask.number("pstate", 0, 15, "performance state"),
        utilization=ask.number("utilization", 0, 100, "utilization/gpu", "utilization/gpu util"),
        link=LinkEnd(
            speed_gts=ask.generation("link.speed", "pcie generation/current", "pcie gen/current link gen"),
            width=ask.width("link.width", "link width/current", "link widths/current link width"),
            max_speed_gts=ask.generation("link.max_speed", "pcie generation/max", "pcie gen/max link gen"),
            max_width=ask.width("link.max_width", "link width/max", "link widths/max link width"),
        ),
        gpu_max_speed_gts=ask.generation("gpu_max", "pcie generation/device max", "pcie gen/max device link gen"),
        host_max_speed_gts=ask.generation("host_max", "pcie generation/host max", "pcie gen/max host link gen"),
        replays=ask.number("replays", 0, 1 << 62, "replays since reset", "replay counter"),
        mig=mig,
        partitions=partitions if known(mig) or partitions else None,
        virtualization=ask.text("virtualization", "virtualization mode"),
        fabric=_fabric(ask),
        lost=_is_lost(answers),
        c2c=ask.switch("c2c", "gpu c2c mode", "c2c mode"),
        unknowns=ask.unknowns,
    )


def platform_of(gpus: tuple[DriverGpu, ...]) -> Platform | None:
    """What the virtualization mode says of the machine: Pass-Through and VGPU are a guest's, None and Host a host's."""
    modes = {mode for mode in (known(gpu.virtualization) for gpu in gpus) if mode}
    for mode in sorted(modes):
        if not mode.lower().startswith(("none", "host")):
            return Platform(kind=VIRTUAL_MACHINE, evidence=f"nvidia-smi -q: virtualization mode {mode}")
    return Platform(kind=BARE_METAL, evidence=f"nvidia-smi -q: virtualization mode {min(modes)}") if modes else None


_UUID = re.compile(r"\s*(?:GPU|MIG)-[\w-]{4,60}\)?.{0,80}\Z")


def rejoin(lines: Iterable[str]) -> Iterator[str]:
    """The lines of nvidia-smi with each UUID behind the colon before it, where a mail program put it on a line of its
    own: at 76 columns these are the lines that break."""
    held: str | None = None
    for line in lines:
        if held is not None and _UUID.match(line):
            line, held = f"{held.rstrip()} {line.strip()}", None
        if held is not None:
            yield held
        held = line if line.rstrip().endswith(":") else None
        if held is None:
            yield line
    if held is not None:
        yield held
