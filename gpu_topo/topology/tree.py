"""The PCI tree by real ancestry: who is above whom, what kind of port a bridge is, which root bus a path starts at."""

from __future__ import annotations

from gpu_topo.model.pci import DOWNSTREAM_PORT, PCIE_TO_PCI, ROOT_PORT, UPSTREAM_PORT, Function
from gpu_topo.model.reading import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_DEPTH = 64  # deeper than any real fabric; a recording with a cycle must not loop for ever


def parent_of(function: Function) -> str | None:
    """The address of the bridge above, None on a root bus and where it is not known."""
    parent = function.parent
    return None if isinstance(parent, Unknown) else parent


def paths_to(functions: Mapping[str, Function], addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The addresses from the root to each function, itself last: those of a bridge are the beginning of those of
    everything below."""
    known: dict[str, tuple[str, ...]] = {}
    paths = {}
    for address in addresses:
        path = known.get(address)
        if path is None:
            parent = functions[address].parent
            if parent is None:
                path = (address,)
            elif isinstance(parent, str) and parent in known:
                path = (*known[parent], address)
            else:
                path = path_to(functions, address, known)
            known[address] = path
        paths[address] = path
    return paths


def path_to(functions: Mapping[str, Function], address: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The addresses from the root to `address`, itself last. `known` remembers what was worked out before."""
    found = known.get(address)
    if found is not None:
        return found
    chain: list[str] = []
    current: str | None = address
    while current is not None and current not in known and current not in chain and len(chain) < MAX_DEPTH:
        chain.append(current)
        function = functions.get(current)
        current = parent_of(function) if function else None
    path = known.get(current, ()) if current is not None and current not in chain else ()
    for step in reversed(chain):
        path = (*path, step)
        known[step] = path
    return path


def common_steps(up: Sequence[str], down: Sequence[str]) -> int:
    """How many steps two paths have in common, from the root on."""
    count = 0
    for one, other in zip(up, down):  # noqa: B905 - one may be longer
        if one != other:
            break
        count += 1
    return count


def is_complete(functions: Mapping[str, Function], path: tuple[str, ...]) -> bool:
    """Whether a path starts on a root bus, so that nothing above it is missing."""
    top = functions.get(path[0]) if path else None
    return top is not None and top.parent is None


def root_bus(functions: Mapping[str, Function], path: tuple[str, ...]) -> str | None:
    """The host bridge that a complete path starts at, None where the path is cut short."""
    if not is_complete(functions, path):
        return None
    top = functions[path[0]]
    return top.host_bridge or "pci" + top.address.rsplit(":", 1)[0]


def port_type(functions: Mapping[str, Function], function: Function, depth: int = 0) -> str | None:
    """What kind of port a bridge is: as its capability says, else by its place above or below other ports.

    Without root the capability is often not readable, and then structure tells: a bridge with a link on a root bus is
    a root port, below a root or downstream port it is an upstream port, below an upstream port a downstream port.
    """
    if not function.bridge or depth > MAX_DEPTH:
        return None
    told = function.port_type
    if isinstance(told, str):
        return told
    if function.parent is None:
        return ROOT_PORT if function.link is not None or told is not None else None
    parent = functions.get(parent_of(function) or "")
    if parent is None:
        return None
    above = port_type(functions, parent, depth + 1)
    if above in (ROOT_PORT, DOWNSTREAM_PORT):
        return UPSTREAM_PORT if function.link is not None or told is not None else PCIE_TO_PCI
    if above == UPSTREAM_PORT:
        return DOWNSTREAM_PORT
    return None
