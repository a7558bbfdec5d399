"""What the rules about RDMA ports share: which ports are judged, who is whose twin, and why a reading is missing."""

from __future__ import annotations

from gpu_topo.classifier.links import why_unknown
from gpu_topo.model.cached import of_last
from gpu_topo.model.finding import CAUSE_UNREADABLE
from gpu_topo.model.history import Past, Policy
from gpu_topo.model.host import Port
from gpu_topo.model.node import Node
from gpu_topo.model.reading import Reading, Unknown, known
from gpu_topo.model.record import NamedTuple
from gpu_topo.topology.lookup import lookup
from gpu_topo.topology.ports import card_of, is_up, port_name, serves_no_one
from gpu_topo.topology.ports import position as position_of
from gpu_topo.topology.roles import NVSWITCH, roles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COLLECTIVES = "collectives between nodes run at the rate of the slowest port: the whole job, not this node alone"
# InfiniBand Architecture Specification volume 1, 7.2 (logical states; the kernel adds NOP and ACTIVE_DEFER) and 7.11
# (physical states, in the kernel's spelling without blanks).
_STATES = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"})
_PHYS_STATES = frozenset(
    {"sleep", "polling", "disabled", "portconfigurationtraining", "linkup", "linkerrorrecovery", "phytest"}
)
LINK_STATE = "cat /sys/class/infiniband/{device}/ports/{port}/{{state,phys_state,rate}}"


class Judged(NamedTuple):
    """A port that rules look at, with its name (mlx5_0/1), its role and what identifies its board, "" where nothing
    does: one type of chip is sold in several grades."""

    port: Port
    name: str
    role: str
    board: str

    @property
    def up(self) -> bool:
        """Whether it carries data."""
        return is_up(self.port)

    @property
    def card(self) -> str:
        """What the functions and ports of one card share."""
        return card_of(self.port)


@of_last
def judged(node: Node, policy: Policy) -> Sequence[Judged]:
    """Every port but software devices, virtual functions beside their own, and NVSwitch management functions."""
    told = roles(node, policy.roles)
    found = [Judged(port, port_name(port), told.get(port_name(port), ""), _board_of(node, port)) for port in node.ports]
    return [j for j in found if j.role != NVSWITCH and not serves_no_one(node, j.port)]


def _board_of(node: Node, port: Port) -> str:
    """The PSID of a board, which NVIDIA's drivers tell; else the ids of its PCI function, whose subsystem is the board
    (PCI Local Bus Specification 6.2.4)."""
    function = lookup(node).functions.get(known(port.address) or "")
    psid = known(port.board_id)
    if psid or function is None or not function.subsystem_vendor_id or function.device_id is None:
        return psid or ""
    ids = (function.vendor_id, function.device_id, function.subsystem_vendor_id, function.subsystem_device_id)
    return ":".join(f"{number or 0:04x}" for number in ids)


def show(judged: Judged) -> str:
    """The command that shows state and rate of a port."""
    return LINK_STATE.format(device=judged.port.device, port=judged.port.port)


def board(judged: Judged) -> str:
    """The board for a sentence: its PSID, else its type."""
    return known(judged.port.board_id) or known(judged.port.hca_type) or "unknown board"


def by_board(ports: Sequence[Judged]) -> Mapping[tuple[str, ...], list[Judged]]:
    """Ports of the same board and link layer. Where nothing identifies its board a port is nobody's twin."""
    groups: dict[tuple[str, ...], list[Judged]] = {}
    for item in ports:
        if item.board:
            layer = known(item.port.link_layer) or ""
            groups.setdefault((item.board, layer), []).append(item)
    return groups


def position(judged: Judged) -> tuple[str, int]:
    """Which port of its card this is: function and number. Cards are cabled alike, port by port."""
    return position_of(judged.port)


def baseline_port(past: Past, port: Port) -> Mapping[str, object] | None:
    """The row of a port in the saved baseline."""
    rows = past.baseline.get("ports")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("device") == port.device and row.get("port") == port.port:
            return row
    return None


def was_up(past: Past, judged: Judged) -> bool:
    """Whether the port is known to have worked: the daemon saw it, or the baseline has it so."""
    row = baseline_port(past, judged.port)
    return judged.name in past.was_up or (row is not None and row.get("state") == "ACTIVE")


def unread(reading: Reading[str] | Reading[float] | Reading[int], what: str) -> tuple[str, str]:
    """Reason and cause for a reading that is missing."""
    numeric: Reading[float] = reading if isinstance(reading, Unknown) else None
    return why_unknown(numeric, what)


def state_unknown(port: Port) -> tuple[str, str] | None:
    """Reason and cause where the state of a port is missing or a word that nobody here knows; None where it is known.
    What such a port does cannot be told: it is neither up nor down."""
    state = known(port.state)
    if state in _STATES:
        return None
    return unread(port.state, "state of the port") if state is None else _no_such("state", state)


def phys_state_unknown(port: Port) -> tuple[str, str] | None:
    """Reason and cause where the physical state of a port is a word that nobody here knows; None where it is known or
    not told at all."""
    state = known(port.phys_state)
    if state is None or state.replace(" ", "").lower() in _PHYS_STATES:
        return None
    return _no_such("physical state", state)


def _no_such(what: str, state: str) -> tuple[str, str]:
    return f"the {what} of the port is no known one: {state[:40]}", CAUSE_UNREADABLE


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for a sentence: mlx5_0, mlx5_1 and 6 more."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def others(group: Sequence[Judged], item: Judged) -> Iterator[Judged]:
    """The ports of a group without one of them."""
    return (other for other in group if other.name != item.name)
