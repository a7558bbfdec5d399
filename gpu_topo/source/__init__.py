"""The one door to the machine: Live reads it, Tree reads a copy in memory, Recording remembers, Replay gives back.

Every path is absolute and in the inspected machine's own terms (/sys/bus/pci/devices). A Dir is opened once and
its files are read relative to it, which costs a third of opening full paths. Whoever reads gets bytes or a Refusal,
never an exception: one broken file must not hide the rest.
"""

from __future__ import annotations

from gpu_topo.source.base import (
    ABSENT,
    MAX_READ,
    NOT_THERE,
    Answer,
    Dir,
    Names,
    Refusal,
    Source,
    Target,
    refusal,
)
from gpu_topo.source.live import Live, is_readable_tree
from gpu_topo.source.live_dir import LiveDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_topo.source.recording import NeverRecorded, Recording, Replay
    from gpu_topo.source.tree import Entry, Tree, TreeDir

__all__ = [
    "ABSENT",
    "MAX_READ",
    "NOT_THERE",
    "Answer",
    "Dir",
    "Entry",
    "Live",
    "LiveDir",
    "Names",
    "NeverRecorded",
    "Recording",
    "Refusal",
    "Replay",
    "Source",
    "Target",
    "Tree",
    "TreeDir",
    "is_readable_tree",
    "refusal",
]

_TREE = frozenset({"Entry", "Tree", "TreeDir"})
_RECORDING = frozenset({"NeverRecorded", "Recording", "Replay"})


def __getattr__(name: str) -> object:
    """What an audit of the running machine never needs is imported when it is asked for."""
    if name in _TREE:
        from gpu_topo.source import tree

        return getattr(tree, name)
    if name in _RECORDING:
        from gpu_topo.source import recording

        return getattr(recording, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
