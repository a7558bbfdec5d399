"""What should be there: fewer devices than declared or than the baseline has, and any other change of the shape."""

from __future__ import annotations

from gpu_topo.classifier.rule import Conclusion, Rule
from gpu_topo.classifier.undetermined import undetermined
from gpu_topo.model.finding import BASELINE, CAUSE_NOT_RECORDED, CONFIG, CRITICAL, WARNING, Finding, Unassessed
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import NIC, Device, Node
from gpu_topo.topology.adapters import Nic, nics
from gpu_topo.topology.counted import accelerators
from gpu_topo.topology.roles import NVSWITCH as FOR_NVSWITCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

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
_GPUS, _NICS = "gpus", "nics"
_COMPUTING = (_GPUS, "accelerators")
_HINT = "lspci -nn would tell"


def _present(node: Node, policy: Policy, basis: str) -> dict[str, int]:
    """How many of each kind there are. Who expects GPUs on a machine of accelerators means these, and who expects NICs
    does not mean those that manage NVSwitches; a baseline has them too, since it holds what is on the bus."""
    from gpu_topo.topology.baseline import counts  # only who expects something needs it

    found = counts(node)
    if not found[_GPUS]:
        found[_GPUS] = len(accelerators(node))
    if basis == CONFIG:
        found[_NICS] -= sum(nic.role == FOR_NVSWITCHES and _is_nic(node, nic) for nic in nics(node, policy.roles))
    return found


def _is_nic(node: Node, nic: Nic) -> bool:
    device = node.devices.get(nic.address or "")
    return device is not None and device.kind == NIC


def judge_short(node: Node, past: Past, policy: Policy) -> Iterator[Conclusion]:
    """inventory-short."""
    unclear = undetermined(node)
    if unclear:
        yield Unassessed(SHORT, "node", _unclear_words(unclear), CAUSE_NOT_RECORDED)
    saved = past.baseline.get("counts")
    wanted = ((policy.expect, CONFIG), (saved if isinstance(saved, dict) else {}, BASELINE))
    if not any(expected for expected, _ in wanted):
        return
    if not node.devices:
        reason = "the recording holds no inventory of devices"
        yield Unassessed(SHORT, "node", reason, CAUSE_NOT_RECORDED)
        return
    short: dict[str, tuple[int, int, str]] = {}
    for expected, basis in wanted:
        present = _present(node, policy, basis) if expected else {}
        for kind, count in expected.items():
            there = present.get(kind, 0)
            if not isinstance(count, int) or there >= count or kind in short:
                continue
            if kind in _COMPUTING and there + len(unclear) >= count:
                continue  # what is not told apart may be those that seem to be missing
            short[kind] = (there, count, basis)
    if not short:
        return
    words = ", ".join(f"{_counted(there, kind)} instead of {count}" for kind, (there, count, _) in short.items())
    bases = {basis for _, _, basis in short.values()}
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
        observed={kind: there for kind, (there, _, _) in short.items()},
        expected={kind: count for kind, (_, count, _) in short.items()},
    )


def _unclear_words(unclear: Sequence[Device]) -> str:
    first = unclear[0]
    name = f" ({first.name})" if first.name else ""
    if len(unclear) == 1:
        return f"the recording does not tell what {first.address}{name} is: it may be a GPU or accelerator; {_HINT}"
    others = len(unclear) - 1
    return (
        f"the recording does not tell what {first.address}{name} and {others} other{'s' if others > 1 else ''} are: "
        f"they may be GPUs or accelerators; {_HINT}"
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
        "as many or more are there, or nobody said how many there should be. What may be a GPU, and the recording does "
        "not tell (neither class nor a name that says), is unassessed. NICs that manage NVSwitches are none that "
        "one declares",
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
