"""What runs inside the installed gpu-topo, measures itself, and prints one number: CPU milliseconds.

inside.py audit TREE   reading, model and findings of a cold audit, without start-up and imports
inside.py nvml         all questions to NVML, the worker process included
inside.py no-driver    asking NVML where there is none, imports included
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from importlib import import_module


def audit(root: str) -> float:
    """Read, put together and judge a tree once, as the command does."""
    from gpu_topo.agent.inspect import audit as run
    from gpu_topo.collectors import COLLECTORS
    from gpu_topo.source import Live

    for collector in COLLECTORS:
        import_module(collector.module)
    import_module("gpu_topo.collectors.pci_names")  # as the others, loaded when it is first needed
    gc.disable()
    begun = time.process_time()
    report = run(Live(root), timeout=600.0)
    took = time.process_time() - begun
    assert report.node.devices, f"{root} holds nothing to read"
    return took


def cold(root: str) -> float:
    """Ask every source of a tree for the first time."""
    from gpu_topo.agent.scan import scan
    from gpu_topo.collectors import COLLECTORS
    from gpu_topo.source import Live

    for collector in COLLECTORS:
        import_module(collector.module)
    gc.disable()
    begun = time.process_time()
    scan(Live(root), 600.0)
    return time.process_time() - begun


def warm(root: str) -> float:
    """Ask every source of a tree once more, as the daemon does."""
    from gpu_topo.agent.scan import scan
    from gpu_topo.agent.watch import guarded
    from gpu_topo.source.kept import Kept

    source, collectors = Kept(root), guarded()
    took = []
    for _ in range(6):
        begun = time.process_time()
        source.begin()
        scan(source, 600.0, collectors=collectors)
        took.append(time.process_time() - begun)
    return sorted(took[1:])[2]


def nvml() -> float:
    """Ask NVML everything."""
    from gpu_topo.collectors import nvml as collector
    from gpu_topo.collectors.context import Context
    from gpu_topo.source import Live

    begun = _cpu()
    facts = collector.collect(Live("/"), Context(time.monotonic() + 60))
    took = _cpu() - begun
    assert len(facts.gpus) == 8, f"NVML answered for {len(facts.gpus)} GPUs: {facts.source.detail}"
    return took


def no_driver() -> float:
    """What the NVML source adds to `inspect --json` on a machine without a driver."""
    import_module("gpu_topo.exporters.json")  # what the report needs anyway
    from gpu_topo.collectors.context import Context
    from gpu_topo.source import Live

    begun = _cpu()
    import_module("gpu_topo.collectors.nvml").collect(Live("/"), Context(time.monotonic() + 60))
    return _cpu() - begun


def _cpu() -> float:
    """CPU seconds of this process and its children that have ended."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usage)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    seconds = {"audit": audit, "cold": cold, "warm": warm, "nvml": nvml, "no-driver": no_driver}[what](*rest)  # type: ignore[operator]
    print(f"{seconds * 1000:.4f}")
