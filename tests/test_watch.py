"""One scan of the daemon beside the one before: clocks, counters, and sources that fall silent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpu_topo.agent.watch import Memory, Settings, boot_clock, look
from gpu_topo.collectors import Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.host import VIRTUAL_MACHINE, Platform
from gpu_topo.model.node import Node
from gpu_topo.source import Live, Source, Tree
from gpu_topo.source.kept import Kept
from tests.daemons import attribute, parent, tree

__all__ = ["tree"]  # fixtures

NAME = "gpu_topo_test_platform"


@pytest.fixture
def answers() -> Iterator[list[Facts]]:
    """What the platform source says in the next scans."""
    said: list[Facts] = []
    module = ModuleType(NAME)

    def collect(source: Source, context: Context) -> Facts:
        return said.pop(0)

    module.collect = collect  # type: ignore[attr-defined]
    sys.modules[NAME] = module
    yield said
    del sys.modules[NAME]


def test_a_guest_stays_a_guest_while_its_platform_is_silent(answers: list[Facts]) -> None:
    """A platform source that hangs does not make emulated links look like hardware."""
    guest = Platform(kind=VIRTUAL_MACHINE, hypervisor="KVM", uptime_seconds=5000.0)
    answers.append(Facts(SourceStatus("platform", OK), platform=guest))
    answers.append(Facts(SourceStatus("platform", TIMEOUT)))
    collectors = (Collector("platform", NAME),)
    first = look(Tree({}), Settings(), Memory(), collectors)
    second = look(Tree({}), Settings(), first.memory, collectors)
    assert second.report.node.platform.kind == VIRTUAL_MACHINE
    assert second.report.node.platform.uptime_seconds is None


def test_a_clock_that_is_set_moves_no_beginning(tree: tuple[Path, str]) -> None:
    """When the wall clock jumps a day, what began a minute ago began a minute before the new time."""
    root, gpu = tree
    for address in (gpu, parent(root, gpu)):
        attribute(root, address, "current_link_width").write_text("8\n")
    source = Live(str(root))
    boot = [1000.0]
    wall = [2_000_000_000.0]
    settings = Settings(boot_grace=0.0)
    first = look(source, settings, Memory(), clock=lambda: boot[0], wall=lambda: wall[0])
    key = ("pcie-width-degraded", gpu)
    assert first.memory.lives[key].since == wall[0]
    boot[0] += 60
    wall[0] += 60 + 86400
    second = look(source, settings, first.memory, clock=lambda: boot[0], wall=lambda: wall[0])
    assert second.memory.lives[key].since == wall[0] - 60
    assert [finding.since for finding in second.report.findings if finding.code == key[0]] == [wall[0] - 60]


def test_errors_that_grow_are_raised(tree: tuple[Path, str]) -> None:
    """Counters are judged by what the daemon saw them grow by, not by what they stand at."""
    root, gpu = tree
    file = attribute(root, gpu, "aer_dev_fatal")
    file.write_text("DLP 5\nTOTAL_ERR_FATAL 5\n")
    for name in ("correctable", "nonfatal"):
        attribute(root, gpu, f"aer_dev_{name}").write_text("RxErr 9\nTOTAL_ERR_COR 9\n")
    source = Live(str(root))
    seen = look(source, Settings(boot_grace=0.0), Memory())
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    assert not [finding for finding in seen.report.findings if finding.code == "pcie-errors"]
    file.write_text("DLP 6\nTOTAL_ERR_FATAL 6\n")
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    seen = look(source, Settings(boot_grace=0.0), seen.memory)
    (found,) = [finding for finding in seen.report.findings if finding.code == "pcie-errors"]
    assert (found.subject, found.severity) == (gpu, "critical")


def test_the_boot_clock_runs() -> None:
    """CLOCK_BOOTTIME goes on and is not the wall clock."""
    assert 0 < boot_clock() <= boot_clock() < time.time()


def test_kept_and_live_give_the_same_report(tree: tuple[Path, str]) -> None:
    """A warm scan concludes what a cold one does."""
    kept = Kept(str(tree[0]))
    memory = Memory()
    for _ in range(3):
        kept.begin()
        seen = look(kept, Settings(), memory)
        cold: Node = look(Live(str(tree[0])), Settings(), memory).report.node
        assert seen.report.node._replace(sources=()) == cold._replace(sources=())
        memory = seen.memory
    kept.close()
