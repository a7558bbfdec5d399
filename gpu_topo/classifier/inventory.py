"""What should be there: fewer devices than declared or than the baseline has, and any other change of the shape."""

from __future__ import annotations

from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.model.finding import BASELINE, CAUSE_NOT_RECORDED, CONFIG, CRITICAL, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.topology.counted import accelerators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpu_topo.topology.baseline import Difference

SHORT = "inventory-short"
DRIFT = "baseline-drift"
_WORDS = {
    "gpus": ("GPU", "GPUs"),
    "accelerators": ("accelerator", "accelerators"),
    "nics": ("NIC", "NICs"),
    "nvswitches": ("NVSwitch", "NVSwitches"),
    "storage": ("storage device", "storage devices"),
}
_GPUS = "gpus"


def _present(node: Node) -> dict[str, int]:
    """How many of each kind there are. Who expects GPUs on a machine of accelerators means these."""
    from gpu_topo.topology.baseline import counts  # only who expects something needs it

    found = counts(node)
    if not found[_GPUS]:
        found[_GPUS] = len(accelerators(node))
    return found


def judge_short(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """inventory-short."""
    saved = past.baseline.get("counts")
    wanted = ((policy.expect, CONFIG), (saved if isinstance(saved, dict) else {}, BASELINE))
    if not any(expected for expected, _ in wanted):
        return
    if not node.devices:
        reason = "the recording holds no inventory of devices"
        yield Unassessed(SHORT, "node", reason, CAUSE_NOT_RECORDED)
        return
    present = _present(node)
    short: dict[str, tuple[int, str]] = {}
    for expected, basis in wanted:
        for kind, count in expected.items():
            if isinstance(count, int) and present.get(kind, 0) < count and kind not in short:
                short[kind] = (count, basis)
    if not short:
        return
    words = ", ".join(
        f"{_counted(present.get(kind, 0), kind)} instead of {count}" for kind, (count, _) in short.items()
    )
    bases = {basis for _, basis in short.values()}
    yield Finding(
        SHORT,
        CRITICAL,
        "node",
        words,
        CONFIG if CONFIG in bases else BASELINE,
        "a job that expects the whole node does not start, or runs on less than it was given",
        (
            "see what the kernel said when it went: dmesg | grep -iE 'pcieport|AER|link|hotplug'",
            "drain the node and power-cycle it",
            "reseat the card, its riser or its cable",
        ),
        "gpu-topo inspect --all; lspci",
        related=_gone(node, past, policy, short),
        observed={kind: present.get(kind, 0) for kind in short},
        expected={kind: count for kind, (count, _) in short.items()},
    )


def _counted(count: int, kind: str) -> str:
    one, more = _WORDS.get(kind, (kind, kind))
    return f"{count} {one if count == 1 else more}"


def _gone(node: Node, past: Past, policy: Policy, short: Collection[str]) -> tuple[str, ...]:
    """Which devices of these kinds the baseline has and the machine has not: the subjects of pcie-device-lost."""
    if not past.baseline:
        return ()
    from gpu_topo.topology.baseline import COUNTED, MISSING, differences

    found = differences(node, past.baseline, policy.exclude)
    return tuple(d.subject for d in found if d.kind == MISSING and COUNTED.get(str(d.was.get("kind"))) in short)


def judge_drift(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """baseline-drift."""
    if not past.baseline:
        return
    from gpu_topo.topology.baseline import differences

    by_subject: dict[str, list[Difference]] = {}
    for difference in differences(node, past.baseline, policy.exclude):
        by_subject.setdefault(difference.subject, []).append(difference)
    for subject, changes in by_subject.items():
        yield Finding(
            DRIFT,
            WARNING,
            subject,
            "; ".join(change.summary for change in changes),
            BASELINE,
            "the machine is not the one that was tested: results and failures may differ from before",
            (
                "find out whether it was meant: maintenance, another slot, new firmware",
                "if it was, save the new shape: gpu-topo baseline save",
                "if not, put it back as it was",
            ),
            "gpu-topo baseline diff",
            observed=changes[0].now,
            expected=changes[0].was,
        )


RULES = (
    Rule(
        SHORT,
        (CRITICAL,),
        "devices are missing",
        "GPUs, NICs, NVSwitches and storage devices against --expect, the configuration and the saved baseline",
        "as many or more are there, or nobody said how many there should be",
        ("see what the kernel said when it went", "power-cycle the node", "reseat the card"),
        ("NVIDIA/dcgm-exporter#348, leptonai/gpud#810 (devices that vanish without a word)",),
        judge_short,
        reads=("pcie",),
        misled_without=("pcie",),
    ),
    Rule(
        DRIFT,
        (WARNING,),
        "the machine's shape has changed against its baseline",
        "devices by place, their links, switches, NVLinks, ports and NUMA nodes against the saved baseline",
        "nothing changed, what is new is not known, or no baseline was saved. Firmware versions and bus numbers alone "
        "are no change",
        ("gpu-topo baseline diff", "gpu-topo baseline save"),
        ("dsx-ai-factory/infra-controller#519 (declared against found)",),
        judge_drift,
        reads=("pcie", "rdma"),
        misled_without=("pcie", "rdma"),
    ),
)
