"""pcie-errors: counters by growth in the daemon, what stands in them once, and sticky bits of recordings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_topo.assemble import assemble
from gpu_topo.model.facts import OK, Facts, SourceStatus
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.node import Node
from gpu_topo.model.pci import Aer, Function
from tests.nvlinks import GUEST, drivers
from tests.trees import Machine, findings

ERRORS = "pcie-errors"

_TOTAL = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}


def counters(kind: str, counts: Mapping[str, int]) -> bytes:
    """An AER file as the kernel writes it."""
    lines = "".join(f"{name} {count}\n" for name, count in counts.items())
    return f"{lines}TOTAL_ERR_{_TOTAL[kind]} {sum(counts.values())}\n".encode()


def gpu_with(**counts: Mapping[str, int]) -> tuple[Machine, str]:
    machine = Machine()
    gpu = machine.gpu(machine.root_port(machine.host(0x10)))
    every = {"correctable": {"RxErr": 0}, "nonfatal": {"DLP": 0}, "fatal": {"DLP": 0}, **counts}
    machine.files(gpu, **{f"aer_dev_{kind}": counters(kind, of_kind) for kind, of_kind in every.items()})
    return machine, gpu


def sticky(correctable: Mapping[str, int], uncorrectable: Mapping[str, int], class_code: int = 0x030200) -> Node:
    """A function of an lspci text or dump, whose status bits stay set until somebody clears them."""
    aer = Aer(dict(correctable), dict(uncorrectable), {}, sticky=True)
    function = Function("0000:65:00.0", 0x10DE, 0x2330, class_code, parent=None, aer=aer)
    return assemble([Facts(SourceStatus("lspci -vvv", OK), functions=(function,))])


# --- once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["correctable", "nonfatal", "fatal"])
def test_counted_since_boot(kind: str) -> None:
    """What was counted since boot is information, whatever it is: nobody knows when it happened."""
    machine, gpu = gpu_with(**{kind: {"BadTLP": 812, "Rollover": 3}})
    (found,) = findings(machine.node(), ERRORS)
    assert (found.subject, found.severity, found.basis) == (gpu, "info", "counters")
    assert "815" in found.summary
    assert "BadTLP" in found.summary


def test_one_error() -> None:
    """One is no many."""
    (found,) = findings(gpu_with(correctable={"BadTLP": 1})[0].node(), ERRORS)
    assert "1 PCIe error since boot, BadTLP" in found.summary


def test_nothing_counted() -> None:
    """Zeros, and no counters at all, are nothing to mention."""
    assert findings(gpu_with()[0].node(), ERRORS) == []
    machine = Machine()
    machine.gpu(machine.root_port(machine.host()))
    assert findings(machine.node(), ERRORS) == []


@pytest.mark.parametrize("harmless", ["UnsupReq", "AdvNonFatalErr", "NonFatalErr"])
def test_harmless_errors(harmless: str) -> None:
    """Unsupported requests come from probing software, and advisory errors are their echo: they count for nothing."""
    kind = "nonfatal" if harmless == "UnsupReq" else "correctable"
    assert findings(gpu_with(**{kind: {harmless: 40_000}})[0].node(), ERRORS) == []
    assert findings(sticky({harmless: 1}, {}), ERRORS) == []
    assert findings(sticky({}, {harmless: 1}), ERRORS) == []


@pytest.mark.parametrize(
    ("correctable", "uncorrectable", "severity"),
    [({"RxErr": 1}, {}, "info"), ({}, {"CmpltTO": 1}, "warning"), ({"BadTLP": 1}, {"MalfTLP": 1}, "warning")],
)
def test_sticky_bits(correctable: Mapping[str, int], uncorrectable: Mapping[str, int], severity: str) -> None:
    """Bits that stay set until cleared: uncorrectable ones are a warning, correctable ones information."""
    (found,) = findings(sticky(correctable, uncorrectable), ERRORS)
    assert found.severity == severity
    # A bit says that there was an error and not how many; a kind without one is not worth a word.
    kinds = {"correctable": sorted(correctable), "uncorrectable": sorted(uncorrectable)}
    assert found.observed == {**{kind: bits for kind, bits in kinds.items() if bits}, "sticky": True}


def test_virtual_machine() -> None:
    """A guest's error registers are not the hardware's."""
    machine, _ = gpu_with(correctable={"RxErr": 9})
    machine.platform = GUEST
    assert findings(machine.node(), ERRORS) == []


# --- the daemon ------------------------------------------------------------------------------------------------


def grown(subject: str, **deltas: int) -> Past:
    return Past(watching=True, counters={(subject, name): by for name, by in deltas.items()})


@pytest.mark.parametrize(
    ("deltas", "severity"),
    [
        ({"aer_correctable": 101}, "warning"),
        ({"aer_correctable": 100}, None),
        ({"aer_correctable": 0}, None),
        ({"aer_fatal": 1}, "critical"),
        ({"aer_nonfatal": 1, "aer_correctable": 5000}, "critical"),
        ({"replays": 101}, "warning"),
        ({"replays": 100}, None),
    ],
)
def test_growth(deltas: Mapping[str, int], severity: str | None) -> None:
    """Fatal ones that grow are critical; correctable ones and replays a warning above the threshold."""
    machine, gpu = gpu_with(correctable={"RxErr": 100_000})
    found = findings(machine.node(drivers([gpu])), ERRORS, grown(gpu, **deltas))
    assert [f.severity for f in found] == ([severity] if severity else [])


def test_threshold_of_the_operator() -> None:
    """The operator may choose another threshold."""
    machine, gpu = gpu_with()
    past = grown(gpu, aer_correctable=50)
    assert findings(machine.node(), ERRORS, past) == []
    assert findings(machine.node(), ERRORS, past, Policy(correctable_per_hour=10)) != []


def test_totals_say_nothing_to_the_daemon() -> None:
    """The daemon looks at growth alone: old totals raise nothing."""
    machine, _ = gpu_with(correctable={"RxErr": 100_000}, fatal={"DLP": 3})
    assert findings(machine.node(), ERRORS, Past(watching=True)) == []
