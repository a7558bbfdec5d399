"""What the collectors of network, RDMA, storage and accelerator classes share: reading sysfs attributes as readings."""

from __future__ import annotations

import time

from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, DENIED, FAILED, OK, PARTIAL, TIMEOUT, SourceStatus
from gpu_topo.model.reading import MALFORMED, NO_DATA, Reading, Unknown
from gpu_topo.source import ABSENT as NOT_THERE
from gpu_topo.source import Answer, Dir, Refusal, Source, Target

_HEX = frozenset("0123456789abcdef")


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
        if isinstance(answer, bytes):
            try:
                return int(answer)  # what nearly every attribute holds
            except ValueError:
                pass
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


def open_class(source: Source, path: str) -> tuple[Dir, tuple[str, ...]] | Refusal:
    """A class folder, for the caller to close, and the names in it."""
    folder = source.dir(path)
    if isinstance(folder, Refusal):
        return folder
    names = folder.list()
    if isinstance(names, Refusal):
        folder.close()
        return names
    return folder, names


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
    if isinstance(target, str):
        for part in reversed(target.split("/")):
            # The function nearest to the entry is its own; those before it are the bridges above.
            if part[-8::3] == "::." and _is_address(part.lower()):
                return part.lower()
            if part.startswith("usb"):
                return None
    return None


def _is_address(part: str) -> bool:
    """0000:65:00.0, with a domain of 4 to 8 digits; its separators were looked at."""
    return (
        12 <= len(part) <= 16
        and part[-1] in "01234567"
        and _HEX.issuperset(part[:-8])
        and _HEX.issuperset(part[-7:-5])
        and _HEX.issuperset(part[-4:-2])
    )


def is_virtual(target: Target) -> bool:
    """Whether a class entry's link leads to a device without hardware: bond, bridge, veth, Soft-RoCE."""
    return isinstance(target, str) and "/virtual/" in target


def shares_a_port(target: Target, address: str | None, functions: Dir | Refusal) -> bool:
    """Whether a class entry belongs to a virtual or scalable function beside its visible physical function.

    Told from links alone, so that nothing of a thousand such functions is opened.
    """
    if address is None or isinstance(target, Refusal):
        return False
    if ".sf." in target and any(_is_subfunction(part) for part in target.split("/")):
        return True
    if isinstance(functions, Refusal):
        return False
    # Nearly none is virtual, which costs less to be told than that there is no such link.
    physical = f"{address}/physfn"
    return functions.has(physical) and isinstance(functions.link(physical), str)


def _is_subfunction(part: str) -> bool:
    """mlx5_core.sf.2: a function inside a function that shares its port, on the auxiliary bus."""
    driver, mark, number = part.rpartition(".sf.")
    return bool(driver and mark) and number.isdecimal()


def last_part(target: Target) -> str | None:
    """The name that a link points to: a driver, a bond."""
    return None if isinstance(target, Refusal) else target.rstrip("/").rsplit("/", 1)[-1] or None
