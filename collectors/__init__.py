"""Reading one machine: each collector asks one source and brings home facts, without judging them."""

from __future__ import annotations

import sys

from gpu_topo.collectors.context import Context
from gpu_topo.model.facts import ABSENT, Facts, SourceStatus
from gpu_topo.model.record import NamedTuple
from gpu_topo.source import Refusal, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Collect = Callable[[Source, Context], Facts]


class Collector(NamedTuple):
    """A source by name; its module is imported when it is first asked, and only where the folder `needs` is there.

    repeatable: its facts follow from what it reads of the source and from nothing else, so that a daemon need not ask
    again while that reads the same.
    """

    name: str
    module: str
    function: str = "collect"
    needs: str = ""
    repeatable: bool = False

    def collect(self, source: Source, context: Context) -> Facts:
        """Ask the source. Never raises on what a machine holds."""
        if self.needs and isinstance(refused := source.list(self.needs), Refusal) and refused.why == ABSENT:
            return Facts(SourceStatus(self.name, ABSENT, f"{self.needs}: {refused.error}"))
        __import__(self.module)  # importlib.import_module would load warnings
        collect: Collect = getattr(sys.modules[self.module], self.function)
        return collect(source, context)


COLLECTORS: tuple[Collector, ...] = (
    Collector("platform", "gpu_topo.collectors.platform"),
    Collector("pcie", "gpu_topo.collectors.pcie", repeatable=True),
    Collector("nvml", "gpu_topo.collectors.nvml"),
    Collector("rdma", "gpu_topo.collectors.rdma", needs="/sys/class/infiniband", repeatable=True),
    Collector("net", "gpu_topo.collectors.net", repeatable=True),
    Collector("block", "gpu_topo.collectors.block", repeatable=True),
    Collector("kfd", "gpu_topo.collectors.kfd", needs="/sys/class/kfd/kfd/topology/nodes", repeatable=True),
)

# One more look at what changes by the second: P-state, utilisation and link speed.
LOAD = Collector("nvml", "gpu_topo.collectors.nvml", "collect_load")
