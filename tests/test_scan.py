"""Asking all sources: in order, in one thread while none hangs, and never longer than allowed."""

from __future__ import annotations

import _thread
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpu_topo.agent.inspect import conclude
from gpu_topo.agent.scan import scan
from gpu_topo.collectors import Collector
from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import OK, TIMEOUT, Facts, SourceStatus
from gpu_topo.source import Source, Tree
from tests.commands import server

Ask = Callable[[], None]


class Asked(Collector):
    """A collector whose answer is made by a test."""

    def collect(self, source: Source, context: Context) -> Facts:
        HOW[self.name]()
        return Facts(SourceStatus(self.name, OK))


HOW: dict[str, Ask] = {}


def collectors(**how: Ask) -> list[Asked]:
    HOW.update(how)
    return [Asked(name, "") for name in how]


@contextmanager
def hanging() -> Iterator[tuple[Ask, threading.Event]]:
    """Something that hangs until the test is over, and whether it has returned."""
    release, returned = threading.Event(), threading.Event()

    def hang() -> None:
        release.wait(30)
        returned.set()

    yield hang, returned
    release.set()
    assert returned.wait(30)


def nothing() -> None:
    pass


def test_sources_are_asked_in_order_by_one_thread() -> None:
    """The facts come in the order of the collectors, and one thread asks them all."""
    threads: list[int] = []
    found = scan(
        Tree({}), 5.0, collectors=collectors(**{n: lambda: threads.append(_thread.get_ident()) for n in "abc"})
    )
    assert [facts.source.name for facts in found] == ["a", "b", "c"]
    assert len(set(threads)) == 1
    assert threads[0] != _thread.get_ident()


def test_one_that_hangs_is_left_and_the_rest_come() -> None:
    """Its status is a timeout, the others are asked by another thread, and the whole takes no longer than allowed."""
    with hanging() as (hang, _):
        begun = time.monotonic()
        found = scan(Tree({}), 1.0, collectors=collectors(a=nothing, b=hang, c=nothing))
        assert time.monotonic() - begun < 1.5
        assert [facts.source.status for facts in found] == [OK, TIMEOUT, OK]


def test_several_that_hang_share_the_time() -> None:
    """Each gets its part, and the last one still has its turn."""
    with hanging() as (first, _), hanging() as (second, _):
        found = scan(Tree({}), 1.0, collectors=collectors(a=first, b=second, c=nothing))
        assert [facts.source.status for facts in found] == [TIMEOUT, TIMEOUT, OK]


def test_no_thread_stays() -> None:
    """After a hundred scans, and once what hung has returned, there are as many threads as before."""
    before = _thread._count()
    for _ in range(100):
        scan(Tree({}), 5.0, collectors=collectors(a=nothing))
    with hanging() as (hang, _):
        scan(Tree({}), 0.2, collectors=collectors(a=hang))
    ends = time.monotonic() + 10
    while _thread._count() > before and time.monotonic() < ends:
        threading.Event().wait(0.01)
    assert _thread._count() == before


def test_a_bug_is_raised() -> None:
    """What a collector raises is not swallowed, and no thread stays behind."""

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scan(Tree({}), 5.0, collectors=collectors(a=broken))


class Hanging(Collector):
    """A source whose read never comes back."""

    def collect(self, source: Source, context: Context) -> Facts:
        gate = io.open(os.pipe()[0], "rb")  # noqa: UP020, SIM115  a pipe that nobody writes to
        gate.read()
        raise AssertionError


@pytest.mark.parametrize("position", [0, 1])
def test_source_that_hangs(position: int) -> None:
    """The report comes within the timeout, with what the hang does not touch, and names the source."""
    working = Collector("pcie", "gpu_topo.collectors.pcie")
    collectors = [working]
    collectors.insert(position, Hanging("stuck", ""))
    begun = time.monotonic()
    facts = scan(server(8).tree(), 1.0, collectors=collectors)
    assert time.monotonic() - begun < 2.0
    assert facts[position].source.name == "stuck"
    assert facts[position].source.status == "timeout"
    report = conclude(facts)
    assert [f.code for f in report.findings if f.severity == "critical"] == ["pcie-width-degraded"]


def test_several_sources_that_hang() -> None:
    """However many hang, the others get their turn and the whole stays within the timeout."""
    collectors = [Hanging(f"stuck{n}", "") for n in range(3)]
    collectors.append(Collector("pcie", "gpu_topo.collectors.pcie"))  # type: ignore[arg-type]
    begun = time.monotonic()
    facts = scan(server(8).tree(), 1.0, collectors=collectors)
    assert time.monotonic() - begun < 2.0
    assert [fact.source.status for fact in facts] == ["timeout"] * 3 + ["ok"]
