"""What the collectors of network, RDMA, storage and accelerator classes share: reading sysfs attributes as readings."""

from __future__ import annotations

import re
import time

from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, TIMEOUT, SourceStatus
from gpu_topo.model.reading import MALFORMED, NO_DATA, Reading, Unknown
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Answer, Dir, Refusal, Target

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
# A function inside a function that shares its port: mlx5 scalable functions and the like, on the auxiliary bus.
_SUBFUNCTION = re.compile(r"\w+\.sf\.\d+\Z")


class Tally:
    """Counts what could not be read in one scan of one source, by reason and file name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def text(self, answer: Answer, where: str) -> Reading[str]:
        """The stripped text; None where the file is absent or empty, Unknown where it was refused."""
        if isinstance(answer, Refusal):
            if answer.why == NOT_THERE:
                return None
            self.note(answer.why, where)
            return Unknown(answer.why, where)
        return answer.decode("utf-8", "replace").strip(" \t\r\n\0") or None

    def number(self, answer: Answer, where: str) -> Reading[int]:
        """A decimal or 0x number; what is no number is Unknown, and so is a counter that says N/A."""
        text = self.text(answer, where)
        if text is None or isinstance(text, Unknown):
            return text
        try:
            return int(text, 0) if text[:2].lower() == "0x" else int(text)
        except ValueError:
            if text.upper().startswith("N/A"):
                return Unknown(NO_DATA, where)
            self.note(MALFORMED, where)
            return Unknown(MALFORMED, where)

    def note(self, why: str, where: str) -> None:
        """Count one reading that ended so."""
        key = f"{why}: {where}"
        self.counts[key] = self.counts.get(key, 0) + 1

    def status(self, name: str, started: float, late: bool = False, detail: str = "") -> SourceStatus:
        """OK, PARTIAL where readings were refused, TIMEOUT where the deadline came first."""
        seconds = time.monotonic() - started
        if late:
            return SourceStatus(name, TIMEOUT, detail or "the deadline came before everything was read", seconds)
        if self.counts:
            parts = [f"{key} ({count})" for key, count in sorted(self.counts.items())]
            return SourceStatus(name, PARTIAL, "; ".join(parts[:8]), seconds)
        return SourceStatus(name, OK, detail, seconds)


def missing(name: str, path: str, answer: Refusal, started: float) -> SourceStatus:
    """The status of a source whose folder cannot be opened: this machine has none, or it may not be read."""
    status = answer.why if answer.why in (ABSENT, DENIED) else FAILED
    return SourceStatus(name, status, f"{path}: {answer.error or answer.why}", time.monotonic() - started)


def too_late(context: Context) -> bool:
    """Whether an answer is no longer worth having."""
    return time.monotonic() >= context.deadline


def pci_address(target: Target) -> str | None:
    """The PCI function that a class entry's link leads through, None where it is no PCI device.

    What hangs from a USB controller is not that controller.
    """
    if isinstance(target, Refusal):
        return None
    found = None
    for part in target.split("/"):
        if part[-2:-1] == "." and _ADDRESS.match(part.lower()):
            found = part.lower()
        elif found and part.startswith("usb"):
            return None
    return found


def is_virtual(target: Target) -> bool:
    """Whether a class entry's link leads to a device without hardware: bond, bridge, veth, Soft-RoCE."""
    return isinstance(target, str) and "/virtual/" in target


def shares_a_port(target: Target, address: str | None, functions: Dir | Refusal) -> bool:
    """Whether a class entry belongs to a virtual or scalable function beside its visible physical function.

    Told from links alone, so that nothing of a thousand such functions is opened.
    """
    if address is None or isinstance(target, Refusal):
        return False
    if any(_SUBFUNCTION.match(part) for part in target.split("/")):
        return True
    return not isinstance(functions, Refusal) and isinstance(functions.link(f"{address}/physfn"), str)


def last_part(target: Target) -> str | None:
    """The name that a link points to: a driver, a bond."""
    return None if isinstance(target, Refusal) else target.rstrip("/").rsplit("/", 1)[-1] or None
