"""Words that several reports for a person share: headline, evidence, names in short, text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gpu_topo.exporters.view import names, open_findings, subject_name
from gpu_topo.model.finding import CRITICAL, INFO, WARNING, Acceptance, Finding, Report
from gpu_topo.model.gpu import ACTIVE, UNKNOWN_STATE
from gpu_topo.model.node import ACCELERATOR, GPU, NIC, NVSWITCH, STORAGE, Link
from gpu_topo.model.reading import Unknown, known
from gpu_topo.model.units import describe_link
from gpu_topo.topology.counted import is_spare
from gpu_topo.topology.ports import port_name

# Controls, and the marks that reverse or hide text: a name from a recording must not act on the terminal or mislead.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

# Where these rules could not judge a link, or a port, nothing of it was checked.
_OF_LINKS, _OF_PORTS = "pcie-width-degraded", ("port-down", "port-rate-degraded")

_NOUNS = {
    GPU: ("GPU", "GPUs"),
    ACCELERATOR: ("accelerator", "accelerators"),
    NVSWITCH: ("NVSwitch", "NVSwitches"),
    NIC: ("NIC", "NICs"),
    STORAGE: ("storage device", "storage devices"),
}


def clean(text: str) -> str:
    """The text with every control and direction mark spelled out, on one line."""
    return _UNSAFE.sub(_spell, text)


def _spell(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code in (0x09, 0x0A, 0x0D):
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plural(count: int, kind: str) -> str:
    """`1 GPU`, `8 GPUs`, `2 storage devices`."""
    one, many = _NOUNS.get(kind, (kind, f"{kind}s"))
    return f"{count} {one if count == 1 else many}"


def enumerate_words(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def gbs(value: float | None) -> str:
    """GB/s with one decimal below 100; a question mark where it is not known."""
    return "?" if value is None else f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def link_text(link: Link | None) -> str:
    """`Gen5 x16`, or nothing where no source spoke of a link."""
    if link is None or (known(link.speed_gts) is None and known(link.width) is None):
        return ""
    return describe_link(known(link.speed_gts), known(link.width))


def link_gbs(link: Link | None, of: str = " of ") -> str:
    """`63.0`, or `31.5 of 63.0` where the link is below what both of its ends can do."""
    if link is None or link.gbs is None:
        return ""
    if link.expected_gbs is not None and link.gbs < 0.98 * link.expected_gbs:
        return f"{gbs(link.gbs)}{of}{gbs(link.expected_gbs)}"
    return gbs(link.gbs)


# How vendors stand before a model in pci.ids and in lspci's output.
_VENDOR = re.compile(
    r"^(?:Advanced Micro Devices, Inc\. \[AMD(?:/ATI)?\]|Broadcom / LSI|.*?\b(?:Corporation|Corp\.?|Inc\.?|Ltd\.?|"
    r"Technologies|Incorporated|subsidiaries))\s+(?=\S)"
)


def model(name: str) -> str:
    """A device's name without its vendor: `NVIDIA Corporation GH100 [H100 SXM5 80GB]` becomes `H100 SXM5 80GB`."""
    inner = re.search(r"\[([^\[\]]+)\]\s*\Z", name)
    if inner and "," not in inner.group(1):
        return inner.group(1)
    if inner:  # a code name, not a model
        name = name[: inner.start()].rstrip() or name
    while (shorter := _VENDOR.sub("", name)) != name:
        name = shorter
    return re.sub(r"^(?:NVIDIA |AMD |Tesla )+", "", name)


def compact(items: Iterable[str]) -> str:
    """Names in short: GPU0, GPU1, GPU2, mlx5_0 become `GPU0-GPU2, mlx5_0`."""
    runs: list[list[str]] = []
    for item in items:
        if runs and _follows(runs[-1][-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    parts: list[str] = []
    for run in runs:
        parts.extend(run if len(run) < 3 else [f"{run[0]}-{run[-1]}"])
    return ", ".join(parts)


_NUMBERED = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)


def _follows(before: str, after: str) -> bool:
    first, second = _NUMBERED.match(before), _NUMBERED.match(after)
    if first is None or second is None or ":" in before or first.group(1) != second.group(1):
        return False
    return int(second.group(2)) == int(first.group(2)) + 1


def value_text(value: object) -> str:
    """A piece of evidence for a person; long lists are cut, with their length."""
    if value is None or isinstance(value, Unknown):
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value_text(item)}" for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)):
        shown = [value_text(item) for item in value[:8]] or ["none"]
        return ", ".join(shown) + (f" and {len(value) - 8} more" if len(value) > 8 else "")
    return str(value)


_UNITS = (("_gts", " GT/s"), ("_gbps", " Gb/s"), ("_gbs", " GB/s"), ("_bytes", " bytes"), ("_seconds", " s"))


def _labelled(key: str, value: object) -> tuple[str, str]:
    """`max_speed_gts`, 16.0 become `max speed`, `16 GT/s`."""
    text = value_text(value)
    for suffix, unit in _UNITS:
        if key.endswith(suffix):
            key = key[: -len(suffix)]
            text += "" if text == "unknown" else unit
            break
    return key.replace("_", " "), text


def evidence(finding: Finding) -> str:
    """What was seen and what was to be seen: `width 8 (expected 16), speed 32 GT/s`."""
    parts = []
    for key, value in finding.observed.items():
        label, text = _labelled(key, value)
        wanted = finding.expected.get(key)
        if key in finding.expected and value_text(wanted) != value_text(value):
            text += f" (expected {_labelled(key, wanted)[1]})"
        parts.append(f"{label} {text}")
    for key, value in finding.expected.items():
        if key not in finding.observed:
            label, text = _labelled(key, value)
            parts.append(f"expected {label} {text}")
    return ", ".join(parts)


BASES = {
    "link-partners": "what both ends of the link can do",
    "peers": "its twins in this node",
    "catalogue": "the data sheet of exactly this part",
    "baseline": "this machine's saved baseline",
    "config": "the configuration",
    "counters": "counters",
}


def judged_by(finding: Finding) -> str:
    """What a finding rests on, for a person."""
    return finding.witness or BASES.get(finding.basis, finding.basis)


def counts(report: Report) -> list[str]:
    """How many devices of each kind there are, virtual functions beside their physical function left out."""
    found: dict[str, int] = {}
    for device in report.node.devices.values():
        if not is_spare(report.node, device):
            found[device.kind] = found.get(device.kind, 0) + 1
    return [plural(found[kind], kind) for kind in _NOUNS if kind in found]


def checked(report: Report) -> str:
    """What the audit could judge: `24 PCIe links, 144 NVLinks and 8 ports`."""
    node = report.node
    not_judged = {(item.code, item.subject) for item in report.unassessed}
    links = sum(
        device.link is not None
        and known(device.link.width) is not None
        and device.kind in _NOUNS
        and device.address not in node.hidden_links
        and (_OF_LINKS, device.address) not in not_judged
        for device in node.devices.values()
    )
    parts = [f"{links} PCIe link{'' if links == 1 else 's'}"] if links else []
    if nvlinks := sum(link.state != UNKNOWN_STATE for gpu in node.gpus for link in known(gpu.nvlinks) or ()):
        parts.append(f"{nvlinks} NVLinks")
    if others := sum(link.state == ACTIVE for link in node.accelerator_links):
        parts.append(f"{others} {node.accelerator_links[0].kind} connection{'' if others == 1 else 's'}")
    if ports := sum(
        (known(port.state) is not None or known(port.phys_state) is not None)
        and not_judged.isdisjoint((code, port_name(port)) for code in _OF_PORTS)
        for port in node.ports
    ):
        parts.append(f"{ports} port{'' if ports == 1 else 's'}")
    return enumerate_words(parts)


def tally(report: Report) -> str:
    """`1 critical, 2 warnings, 3 notes`."""
    found = open_findings(report)
    numbers = [(severity, sum(f.severity == severity for f in found)) for severity in (CRITICAL, WARNING, INFO)]
    words = {CRITICAL: ("critical", "critical"), WARNING: ("warning", "warnings"), INFO: ("info", "info")}
    return ", ".join(f"{number} {words[severity][number != 1]}" for severity, number in numbers if number)


def host(report: Report) -> str:
    """The machine's name, or `this machine`."""
    return clean(known(report.node.platform.hostname) or "this machine")


def headline(report: Report) -> str:
    """One sentence on the whole machine, without the verdict's word."""
    found = open_findings(report)
    serious = [f for f in found if f.severity in (CRITICAL, WARNING)]
    devices = enumerate_words(counts(report)) or "no device"
    if serious:
        worst = serious[0]
        more = f", and {len(serious) - 1} more" if len(serious) > 1 else ""
        return clean(f"{told(worst, names(report.node))}{more}")
    if report.verdict == "unknown":
        if not any(d.kind in (GPU, ACCELERATOR) and not d.integrated for d in report.node.devices.values()):
            return f"whether there is a GPU or accelerator the recording does not tell ({devices})"
        return f"no link of an accelerator could be judged ({devices})"
    return fits(report, 1000).partition(": ")[2]


def told(finding: Finding, short: Mapping[str, str]) -> str:
    """The finding's summary, with its subject in front where the summary does not name it."""
    summary = finding.summary.rstrip(".")
    name = short.get(finding.subject, finding.subject)
    if finding.subject == "node" or finding.subject in summary or re.search(rf"\b{re.escape(name)}\b", summary):
        return summary
    return f"{subject_name(finding.subject, short)}: {summary}"


def fits(report: Report, room: int) -> str:
    """What was checked on a machine with nothing wrong, as fully as the room allows."""
    name, looked, found = host(report), checked(report), counts(report)
    devices = enumerate_words(found)
    kinds = enumerate_words([text for text in found if "storage" not in text]) or devices
    if not (found or looked):
        seen = "no GPU, NIC or storage device"
        if ports := len(report.node.ports):  # ibstat names no devices
            seen = f"{ports} RDMA port{'' if ports == 1 else 's'} found, none judged"
        return f"{name}: {seen}"[:room]
    if looked:
        choices = [f"{looked} of {devices}", f"{looked} of {kinds}", looked, kinds] if found else [looked]
        endings = (" checked, nothing wrong", ": all right")
    else:
        choices, endings = [devices, kinds], (" found, nothing wrong seen", " found")
    if not any(d.kind in (GPU, ACCELERATOR) for d in report.node.devices.values()):
        # Who expects some says so with --expect; nobody should take this line for a healthy GPU node.
        choices = [f"no GPU or accelerator; {choice}" for choice in choices] + ["no GPU or accelerator"]
    for machine in (name, name.split(".")[0]):
        for choice in choices:
            for ending in endings:
                line = f"{machine}: {choice}{ending}"
                if len(line) <= room:
                    return line
    return f"{name.split('.')[0]}: nothing wrong"[-room:]


def accepted_text(accepted: Acceptance) -> str:
    """Why a finding is accepted, by whom and how long as far as that was said: `riser (ops, until 2030-12-31)`."""
    until = f"until {accepted.until}" if accepted.until else ""
    more = ", ".join(word for word in (accepted.by, until) if word)
    return f"{accepted.reason} ({more})" if more else accepted.reason


def moment(seconds: float) -> str:
    """A moment since the epoch as UTC."""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
