"""A reading is a value, absent, or unknown with a reason; the type of every fact says so."""

from __future__ import annotations

from gpu_topo.model.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar, Union

# Why a reading is unknown. A short fixed list, since it becomes a metric label.
DENIED = "denied"  # permission refused (EACCES, EPERM, NVML NO_PERMISSION)
FAILED = "failed"  # the read itself failed (EIO, EINVAL, ENODEV, NVML UNKNOWN)
TIMEOUT = "timeout"  # no answer before the deadline
MALFORMED = "malformed"  # an answer that makes no sense
NOT_RECORDED = "not-recorded"  # the recording does not hold it
NO_DATA = "no-data"  # the platform itself does not know (numa_node -1, speed "Unknown")
ASLEEP = "asleep"  # runtime-suspended or D3cold: reading would wake it
LOST = "lost"  # the device no longer answers


class Unknown(NamedTuple):
    """A fact that exists but could not be learned.

    why: one of the constants of this module; where: the file, NVML function or line that would have told.
    """

    why: str
    where: str


# Reading[int] is a value, an Unknown with its reason, or None: this machine has no such thing.
if TYPE_CHECKING:
    T = TypeVar("T")
    Reading = Union[T, Unknown, None]
else:
    Reading = object  # only annotations name it

_MappingProxyType = type(type.__dict__)  # as types has it, which need not be loaded for it
EMPTY: Mapping[Any, Any] = _MappingProxyType({})


def known(reading: Reading[T]) -> T | None:
    """The value, or None where it is absent or unknown."""
    return None if isinstance(reading, Unknown) else reading
