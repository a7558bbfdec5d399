"""One scan of the daemon beside the one before: what a source that falls silent must not change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from gpu_topo.agent.watch import Memory, Settings, look
from gpu_topo.collectors import Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, TIMEOUT, Facts, SourceStatus
from gpu_topo.model.host import VIRTUAL_MACHINE, Platform
from gpu_topo.source import Source, Tree

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
