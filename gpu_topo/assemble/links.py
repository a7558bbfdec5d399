"""The two ends of a link joined: what it runs at, what both ends can do together, and the narrowest on a path."""

from __future__ import annotations

from gpu_topo.model.node import Link
from gpu_topo.model.pci import DOWNSTREAM_PORT, ROOT_PORT, Function, LinkEnd
from gpu_topo.model.reading import Reading, known
from gpu_topo.model.units import pcie_gbs
from gpu_topo.topology.tree import parent_of, port_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    N = TypeVar("N", int, float)  # lanes, GT/s


def _at_least(maximum: Reading[N], running: Reading[N]) -> Reading[N]:
    """A maximum is at least what the link runs at, whatever it claims (emulated and old ports claim less)."""
    most, now = known(maximum), known(running)
    return now if most is not None and now is not None and now > most else maximum


def _lesser(a: Reading[N], b: Reading[N]) -> N | None:
    """What both ends can do, None where one of them is not known."""
    first, second = known(a), known(b)
    return None if first is None or second is None else min(first, second)


_ROUNDING = 1e-6  # GB/s
_LEADS_DOWN = (ROOT_PORT, DOWNSTREAM_PORT, None)


def join(functions: Mapping[str, Function], function: Function, joined: dict[tuple[object, ...], Link]) -> Link | None:
    """The link above a function. For root and downstream ports, whose link leads down, only their own end.

    joined: what was worked out before; the hundreds of links of a machine are a dozen pairs of ends.
    """
    end, trusted = function.link, function.link_trusted
    gbs = known(function.link_gbs)
    if end is None:
        return Link(gbs=gbs, trusted=trusted) if gbs is not None else None
    if function.bridge and port_type(functions, function) in _LEADS_DOWN:
        link = joined.get((end, trusted))
        if link is None:
            link = joined[end, trusted] = _own(end, trusted)
        return link
    above = functions.get(parent_of(function) or "")
    other = above.link if above is not None and port_type(functions, above) in _LEADS_DOWN else None
    link = joined.get((end, other, trusted, gbs))
    if link is None:
        link = joined[end, other, trusted, gbs] = _both(end, other, trusted, gbs)
    return link if above is None else Link(above.address, *link[1:])


def _both(end: LinkEnd, other: LinkEnd | None, trusted: bool, gbs: float | None) -> Link:
    """Two ends joined. other: the port's, where it is known."""
    speed, width = end.speed_gts, end.width
    max_speed = _at_least(end.max_speed_gts, speed)
    max_width = _at_least(end.max_width, width)
    port_speed = port_width = None
    if other is not None:
        # Both ends run at the same speed and width: what the lower end shows, the port can do.
        port_speed = _at_least(_at_least(other.max_speed_gts, other.speed_gts), speed)
        port_width = _at_least(_at_least(other.max_width, other.width), width)
    expected_speed = _lesser(max_speed, port_speed)
    expected_width = _lesser(max_width, port_width)
    running = pcie_gbs(known(speed), known(width))
    return Link(
        None,
        speed,
        width,
        max_speed,
        max_width,
        port_speed,
        port_width,
        expected_speed,
        expected_width,
        running if running is not None else gbs,
        pcie_gbs(expected_speed, expected_width),
        trusted,
    )


def _own(end: LinkEnd, trusted: bool) -> Link:
    return Link(
        speed_gts=end.speed_gts,
        width=end.width,
        max_speed_gts=_at_least(end.max_speed_gts, end.speed_gts),
        max_width=_at_least(end.max_width, end.width),
        gbs=pcie_gbs(known(end.speed_gts), known(end.width)),
        trusted=trusted,
    )


def from_driver(end: LinkEnd, gpu_max_speed: Reading[float], host_max_speed: Reading[float]) -> Link:
    """The link as the driver of a GPU sees it: the port is only known by the host's maximum speed.

    Where the driver does not tell that, its maximum is still what GPU and system can do together (nvidia-smi:
    pcie.link.gen.max). Of lanes it is not: cards in narrow slots have x16 there.
    """
    max_speed = _at_least(gpu_max_speed if known(gpu_max_speed) is not None else end.max_speed_gts, end.speed_gts)
    host = _at_least(host_max_speed, end.speed_gts)
    return Link(
        None,
        end.speed_gts,
        end.width,
        max_speed,
        _at_least(end.max_width, end.width),
        host,
        None,
        _lesser(max_speed, host if known(host) is not None else end.max_speed_gts),
        None,
        pcie_gbs(known(end.speed_gts), known(end.width)),
    )


def bottleneck(path: tuple[str, ...], links: Mapping[str, Link | None], least: dict[str, float]) -> str | None:
    """The address on a path, itself last, whose link upwards is narrowest and narrower than the device's own.

    least: the narrowest link up to a bridge, in GB/s, by the bridge: what was worked out for another path.
    """
    own = links.get(path[-1]) if path else None
    if own is None or own.gbs is None or not own.trusted:
        return None
    above = path[-2] if len(path) > 1 else ""
    if above not in least:
        rates = [link.gbs for step in path[:-1] if (link := links.get(step)) and link.port and link.gbs is not None]
        least[above] = min(rates, default=float("inf"))
    if least[above] >= own.gbs - _ROUNDING:
        return None
    narrowest, rate = None, own.gbs
    for address in path[:-1]:
        link = links.get(address)
        if link is not None and link.port is not None and link.gbs is not None and link.gbs < rate - _ROUNDING:
            narrowest, rate = address, link.gbs
    return narrowest
