"""Measuring processes: CPU time and peak memory of one run, and ratios of several in interleaved rounds."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple


class Cost(NamedTuple):
    """What one process cost, its children included."""

    cpu: float  # user and system, seconds
    peak: float  # MiB


Job = Callable[[], float]


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a program to its end, its output thrown away.

    The peak counts from what this process holds (the kernel carries it across exec), so callers keep themselves small.
    """
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    try:
        pid = os.posix_spawnp(command[0], list(command), dict(environment or os.environ), file_actions=actions)
    finally:
        os.close(null)
    _, status, usage = os.wait4(pid, 0)
    if os.WIFSIGNALED(status):
        raise RuntimeError(f"{command[0]} ended by {signal.Signals(os.WTERMSIG(status)).name}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def number(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Run a program that measures itself and prints one number."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return float(done.stdout)


def interleaved(jobs: Mapping[str, Job], rounds: int) -> dict[str, list[float]]:
    """Every job once in every round, so that what disturbs the machine disturbs all of them alike."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return median(a / b for a, b in zip(above, below, strict=True))
