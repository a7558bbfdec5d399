"""The NVLinks of a GPU from all that was said of them: lists are joined link by link, counts fill in what no list says.

A list names every link by its number, the ones that are down too. A count (NCCL's and hwloc's XML) is of links that
are up, and tells where they lead: it never adds a link to a list and never overrules one. A list at which a recording
ends is a list only if it has all links.
"""

from __future__ import annotations

from gpu_topo.model.gpu import ACTIVE, CUT_SHORT, INACTIVE, UNKNOWN_STATE, NvLink
from gpu_topo.model.reading import NOT_RECORDED, Reading, Unknown, known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_topo.model.gpu import DriverGpu
    from gpu_topo.model.node import Part

    Links = tuple[NvLink, ...]

_UNKNOWN_END = "unknown"


def most_listed(views: Iterable[DriverGpu]) -> dict[str, int]:
    """By model, the most links that a list of which nothing is missing has."""
    most: dict[str, int] = {}
    for view in views:
        model, links = known(view.model), known(view.nvlinks)
        if model and links and view.nvlinks_are != CUT_SHORT:
            most[model] = max(most.get(model, 0), len(links))
    return most


def whole(view: DriverGpu, part: Part | None, most: dict[str, int]) -> Reading[Links]:
    """The links of a GPU, unknown where its list ends before those of its equals, or of its board, do.

    A link that is printed as down is a fault, wherever the list ends. What a middle GPU prints is all that it has.
    """
    links = known(view.nvlinks)
    if not links or view.nvlinks_are != CUT_SHORT or any(link.state == INACTIVE for link in links):
        return view.nvlinks
    expected = most.get(known(view.model) or "")
    if expected is None and part is not None and part.form_factor.upper().startswith("SXM"):
        expected = part.fabric_links
    if len(links) >= (expected or 0):
        return view.nvlinks
    return Unknown(NOT_RECORDED, "nvidia-smi nvlink: the recording ends before the last link")


def completed(listed: Reading[Links], counted: Reading[Links]) -> Reading[Links]:
    """What a list says, and of a count what the list says of none of its links: that they are up, and their ends."""
    if listed is None or isinstance(listed, Unknown):
        return listed if counted is None else counted
    if counted is None or isinstance(counted, Unknown) or not counted:
        return listed
    links = listed
    if len(links) == len(counted) and all(link.state == UNKNOWN_STATE for link in links):
        links = tuple(link._replace(state=ACTIVE) for link in links)
    return _with_ends(links, counted)


def _with_ends(links: Links, counted: Sequence[NvLink]) -> Links:
    """Links that are up with the ends of a count. Where these differ and the numbers agree, so many links lead to each:
    which one leads where is then told by nothing, and nothing depends on it."""
    up = [link for link in links if link.state == ACTIVE]
    kinds = [link.remote_kind for link in counted]
    ends = [link.remote for link in counted]
    if len(up) != len(counted):
        kinds = kinds[:1] * len(up) if len(set(kinds)) == 1 else [_UNKNOWN_END] * len(up)
        ends = ends[:1] * len(up) if len(set(ends)) == 1 else [None] * len(up)
    if any(link.remote_kind != _UNKNOWN_END for link in links):
        kinds = [link.remote_kind for link in up]
    if any(link.remote for link in links):
        ends = [link.remote for link in up]
    told = {link.number: (kind, end) for link, kind, end in zip(up, kinds, ends, strict=True)}
    return tuple(
        link._replace(remote_kind=told[link.number][0], remote=told[link.number][1]) if link.number in told else link
        for link in links
    )
