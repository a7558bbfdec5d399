"""PCIe errors: counters judged by growth in the daemon, what stands in them and in sticky status bits once."""

from __future__ import annotations

from gpu_topo.classifier.links import MATTERS, called, many
from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import COUNTERS, CRITICAL, INFO, WARNING, Finding
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import BRIDGE, Device, Node
from gpu_topo.model.pci import Aer
from gpu_topo.model.reading import known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ERRORS = "pcie-errors"

# Unsupported requests come from probing software, and an advisory non-fatal error is such a request's echo.
HARMLESS = frozenset({"UnsupReq", "AdvNonFatalErr", "NonFatalErr"})
_IMPACT = (
    "each corrected error is a packet sent again: throughput and latency of this link suffer; many of them announce a "
    "link that falls back or a device that drops off the bus"
)
_REMEDY = (
    "watch whether they grow: run the daemon, or compare two audits an hour apart",
    "look at the kernel's messages: dmesg | grep -iE 'AER|pcieport'",
    "reseat the card, its riser or its cable; keep risers short for Gen4 and above",
    "swap with a working slot or card to find the bad one",
)


def judge(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """pcie-errors."""
    for device in node.devices.values():
        function = device.function
        if not past.watching and (function.aer is None or not any(function.aer)):
            continue  # nothing is counted
        if device.address in node.hidden_links or function.physical_function:
            continue
        if past.watching:
            yield from _growing(device, past, policy)
        elif function.aer is not None:
            yield from _standing(device, function.aer)
    if past.watching:
        yield from _replays(node, past, policy)


def _serious(errors: Mapping[str, int] | None) -> dict[str, int]:
    """The errors that count, by name."""
    if not errors:
        return {}
    return {name: count for name, count in errors.items() if count and name not in HARMLESS}


def _standing(device: Device, aer: Aer) -> Iterator[Finding]:
    """What was counted since boot, or which status bits were set since somebody cleared them."""
    correctable = _serious(known(aer.correctable))
    uncorrectable = {**_serious(known(aer.nonfatal)), **_serious(known(aer.fatal))}
    if not correctable and not uncorrectable:
        return
    if device.kind not in MATTERS and device.kind != BRIDGE and not uncorrectable:
        return
    severity = WARNING if aer.sticky and uncorrectable else INFO
    # Bits only say that there was an error, not how many.
    seen = {k: errors for k, errors in (("correctable", correctable), ("uncorrectable", uncorrectable)) if errors}
    if aer.sticky:
        what = ", ".join(sorted(uncorrectable) + sorted(correctable))
        words = f"{called(device)} has the error bits {what} set (since they were last cleared)"
    else:
        total = sum(correctable.values()) + sum(uncorrectable.values())
        worst = max({**correctable, **uncorrectable}.items(), key=lambda item: item[1])
        most = f"most of them {worst[0]} ({worst[1]})" if total > 1 else worst[0]
        words = f"{called(device)} counted {many(total, 'PCIe error')} since boot, {most}"
    yield Finding(
        ERRORS,
        severity,
        device.address,
        words,
        COUNTERS,
        _IMPACT,
        _REMEDY,
        f"lspci -s {device.address} -vv | grep -E 'UESta|CESta'; "
        f"grep . /sys/bus/pci/devices/{device.address}/aer_dev_*",
        observed={
            **{kind: list(errors) if aer.sticky else errors for kind, errors in seen.items()},
            "sticky": aer.sticky,
        },
        expected={kind: [] if aer.sticky else 0 for kind in seen},
    )


def _growing(device: Device, past: Past, policy: Policy) -> Iterator[Finding]:
    grown = sum(past.counters.get((device.address, f"aer_{kind}"), 0) for kind in ("fatal", "nonfatal"))
    correctable = past.counters.get((device.address, "aer_correctable"), 0)
    if grown > 0:
        severity, words = CRITICAL, f"{many(grown, 'uncorrectable PCIe error')} in the last hour at most"
    elif correctable > policy.correctable_per_hour:
        severity = WARNING
        words = f"corrected PCIe errors grow by {correctable} an hour (threshold {policy.correctable_per_hour:g})"
    else:
        return
    yield Finding(
        ERRORS,
        severity,
        device.address,
        f"{called(device)}: {words}",
        COUNTERS,
        _IMPACT,
        _REMEDY,
        f"grep . /sys/bus/pci/devices/{device.address}/aer_dev_*",
        observed={"uncorrectable": grown, "correctable_per_hour": correctable},
        expected={"uncorrectable": 0, "correctable_per_hour": policy.correctable_per_hour},
    )


def _replays(node: Node, past: Past, policy: Policy) -> Iterator[Finding]:
    for gpu in node.gpus:
        grown = past.counters.get((gpu.address, "replays"), 0)
        device = node.devices.get(gpu.address)
        if device is None or grown <= policy.replays_per_hour:
            continue
        yield Finding(
            ERRORS,
            WARNING,
            gpu.address,
            f"{called(device)}: PCIe replays grow by {grown} an hour (threshold {policy.replays_per_hour:g})",
            COUNTERS,
            _IMPACT,
            _REMEDY,
            "nvidia-smi -q | grep -A1 'Replays Since Reset'",
            observed={"replays_per_hour": grown},
            expected={"replays_per_hour": policy.replays_per_hour},
        )


RULES = (
    Rule(
        ERRORS,
        (CRITICAL, WARNING, INFO),
        "PCIe errors are counted, or grow",
        "AER counters and NVML replays: in the daemon their growth over the last hour; once: what was counted since "
        "boot, and in lspci text and configuration space the status bits that stay set until cleared",
        "unsupported requests and advisory non-fatal errors alone, device status alone; in virtual machines",
        _REMEDY,
        (
            "PCI Express Base Specification 7.8.4 (Advanced Error Reporting), 6.2.3.2.4 (advisory non-fatal errors)",
            "linux: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",
        ),
        judge,
        reads=("pcie",),
    ),
)
