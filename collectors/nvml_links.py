"""NVLink, the fabric and the ways between GPUs, from the answers of NVML. Pure."""

from __future__ import annotations

from itertools import combinations

from gpu_topo.collectors.nvml_transcript import ABSENT_ERRORS, NO_SUCH_INDEX, Error, Place, Transcript, is_int, why
from gpu_topo.model.gpu import ACTIVE, INACTIVE, UNKNOWN_STATE, DriverGpu, Fabric, NvLink, Peer
from gpu_topo.model.reading import MALFORMED, Reading, Unknown, known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Fields = Mapping[tuple[int, int], Any]


MAX_LINKS = 64
_NO_SUCH = ABSENT_ERRORS | NO_SUCH_INDEX  # no such link, or not this version of the structure

# nvml.h 13.5.37: nvmlNvlinkVersion_t, nvmlIntNvLinkDeviceType_t, nvmlGpuFabricState_t, NVML_GPU_FABRIC_HEALTH_*,
# nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t, nvmlGpuP2PCapsIndex_t; the words are those of nvidia-smi.
_VERSIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
_REMOTE_KINDS = {0: "gpu", 1: "cpu", 2: "nvswitch"}
_IBM = 0x1014  # PCI vendor: NVLink to a POWER CPU
_FABRIC_STATES = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_FABRIC_SUMMARY = {1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
_TRUE_FALSE = {1: "True", 2: "False"}
# Lowest bit, mask and words of each sub-field; 0 means "not supported" in every one.
_FABRIC_HEALTH = {
    "bandwidth": (0, 3, {1: "Degraded", 2: "Full"}),
    "route_recovery_in_progress": (2, 3, _TRUE_FALSE),
    "route_unhealthy": (4, 3, _TRUE_FALSE),
    "access_timeout_recovery": (6, 3, _TRUE_FALSE),
    "incorrect_configuration": (
        8,
        15,
        {
            1: "None",
            2: "Incorrect system GUID",
            3: "Incorrect chassis serial number",
            4: "No partition",
            5: "Insufficient NVLinks",
            6: "Incompatible GPU firmware",
            7: "Invalid location",
            8: "GPU state invalid",
        },
    ),
    "partition": (12, 3, {1: "Assigned", 2: "Not Assigned"}),
    "fabric_manager": (14, 3, {1: "Connected", 2: "Disconnected"}),
}
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_P2P_CAPABILITIES = {0: "read", 2: "nvlink"}

# NVML_FI_DEV_NVLINK_*, with the link as scope; drivers that do not know GET_SPEED have one field for each link.
_SPEED = 164
_OLD_SPEED = {**{link: 84 + link for link in range(6)}, **{6 + at: 132 + at for at in range(6)}}
_OLD_SPEED_COMMON = 90
_ERROR_FIELDS = {
    161: "replay",
    162: "recovery",
    163: "crc",
    206: "malformed_packet",
    207: "buffer_overrun",
    208: "receive",
    209: "receive_remote",
    210: "receive_general",
    211: "local_link_integrity",
    212: "transmit_discard",
    214: "recovery_failed",
    219: "effective",
}
_OLD_ERRORS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}  # NVML_NVLINK_ERROR_DL_*


def nvlinks(said: Transcript, gpu: int, listed: frozenset[str]) -> Reading[tuple[NvLink, ...]]:
    """Every link that the state query knows; None on a GPU without NVLink. listed: the addresses of all GPUs."""
    question = "nvmlDeviceGetNvLinkState"
    if not said.asked(question, gpu, 0):
        return said.unasked(question, gpu)
    fields = said.fields(gpu)
    links: list[NvLink] = []
    for number in range(MAX_LINKS):
        state = said.get(question, gpu, number)
        if is_int(state) and state in (0, 1):
            links.append(_nvlink(said, gpu, number, ACTIVE if state else INACTIVE, fields, listed))
        elif isinstance(state, Error) and state.name not in _NO_SUCH:
            if not links:
                return Unknown(why(state.name), question)
            links.append(NvLink(number, UNKNOWN_STATE))
    return tuple(links) or None


def _nvlink(said: Transcript, gpu: int, number: int, state: str, fields: Fields, listed: frozenset[str]) -> NvLink:
    version = said.number("nvmlDeviceGetNvLinkVersion", gpu, number)
    if isinstance(version, int):
        version = _VERSIONS.get(version) or Unknown(MALFORMED, "nvmlDeviceGetNvLinkVersion")
    remote = Place.of(said.get("nvmlDeviceGetNvLinkRemotePciInfo", gpu, number))
    kind = _REMOTE_KINDS.get(_or(said.integer("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number), -1), "unknown")
    if kind == "unknown" and remote.address in listed:
        kind = "gpu"  # drivers before the type query tell it by the address
    elif kind == "unknown" and _or(remote.ids, 0) & 0xFFFF == _IBM:
        kind = "cpu"
    errors: dict[str, int] = {}
    for code, name in _ERROR_FIELDS.items():
        value = fields.get((code, number))
        if isinstance(value, int) and value >= 0:
            errors[name] = value
    for counter, name in _OLD_ERRORS.items():
        value = said.integer("nvmlDeviceGetNvLinkErrorCounter", gpu, number, counter)
        if value is not None:
            errors[name] = value
    return NvLink(number, state, version, kind, remote.address, _gbs(number, state, fields), errors)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _gbs(number: int, state: str, fields: Fields) -> Reading[float]:
    """GB/s per direction as reported, which is the line rate; NVML gives MB/s."""
    fallbacks = (_OLD_SPEED.get(number, _OLD_SPEED_COMMON), _OLD_SPEED_COMMON)
    speeds = [fields.get((_SPEED, number)), *(fields.get((code, 0)) for code in fallbacks)]
    for speed in speeds:
        if isinstance(speed, (int, float)) and 0 < speed < 1 << 32:
            return speed / 1000.0
    if state == ACTIVE and isinstance(speeds[0], Error) and speeds[0].name not in _NO_SUCH:
        return Unknown(why(speeds[0].name), "nvmlDeviceGetFieldValues")
    return None


def with_switches(gpus: Mapping[int, DriverGpu]) -> dict[int, DriverGpu]:
    """The GPUs with the NVSwitches named by what only they can be: the other end of links of several GPUs.

    Drivers before nvmlDeviceGetNvLinkRemoteDeviceType leave the kind open; a POWER CPU is told by its vendor before.
    """
    reached: dict[str, set[int]] = {}
    for gpu, facts in gpus.items():
        for link in known(facts.nvlinks) or ():
            if link.remote is not None and link.remote_kind == "unknown":
                reached.setdefault(link.remote, set()).add(gpu)
    switches = {remote for remote, ends in reached.items() if len(ends) > 1}
    if not switches:
        return dict(gpus)
    return {
        gpu: facts._replace(
            nvlinks=tuple(
                link._replace(remote_kind="nvswitch") if link.remote in switches else link for link in facts.nvlinks
            )
            if facts.nvlinks is not None and not isinstance(facts.nvlinks, Unknown)
            else facts.nvlinks
        )
        for gpu, facts in gpus.items()
    }


def fabric(said: Transcript, gpu: int) -> Reading[Fabric]:
    """The registration by whichever version of the call answered; None on a GPU without a fabric."""
    newest = "nvmlDeviceGetGpuFabricInfoV"
    calls = ((newest, 3), (newest, 2), ("nvmlDeviceGetGpuFabricInfo", 1), ("nvmlDeviceGetGpuFabricInfo_v4", 4))
    if not any(said.asked(question, gpu, version) for question, version in calls):
        return said.unasked(newest, gpu)
    refused: Reading[Fabric] = None
    for question, version in calls:
        answer = said.get(question, gpu, version)
        if isinstance(answer, dict):
            return _read_fabric(answer, question)
        if isinstance(answer, Error) and answer.name not in _NO_SUCH:
            refused = Unknown(why(answer.name), question)
    return refused


def _read_fabric(answer: Mapping[str, Any], question: str) -> Reading[Fabric]:
    numbers = {name: value for name, value in answer.items() if is_int(value)}
    if "state" not in numbers or "status" not in numbers:
        return Unknown(MALFORMED, question)
    if numbers["state"] == 0:
        return None  # "Not Supported": this GPU joins no fabric
    health: dict[str, str] = {}
    if numbers.get("summary") in _FABRIC_SUMMARY:
        health["summary"] = _FABRIC_SUMMARY[numbers["summary"]]
    for name, (lowest, mask, words) in _FABRIC_HEALTH.items():
        value = numbers.get("health", 0) >> lowest & mask
        if value in words:
            health[name] = words[value]
    return Fabric(
        state=_FABRIC_STATES.get(numbers["state"]) or Unknown(MALFORMED, question),
        status="Success" if numbers["status"] == 0 else f"NVML error {numbers['status']}",
        clique=numbers.get("clique"),
        health=health,
    )


def peers(said: Transcript, gpus: Mapping[int, DriverGpu]) -> tuple[Peer, ...]:
    """What NVML says of each pair: P2P status, and the way between them as `nvidia-smi topo -m` names it."""
    found: list[Peer] = []
    for a, b in combinations(sorted(gpus), 2):
        kind = _LEVELS.get(_or(said.integer("nvmlDeviceGetTopologyCommonAncestor", a, b), -1))
        p2p: dict[str, str] = {}
        for code, name in _P2P_CAPABILITIES.items():
            status = said.integer("nvmlDeviceGetP2PStatus", a, b, code)
            if status is not None:
                p2p[name] = _P2P.get(status, "U")
        if p2p.get("nvlink", "OK") == "OK":
            if bonded := _bonded(gpus[a], gpus[b]):
                kind = f"NV{bonded}"
            elif isinstance(gpus[a].nvlinks, Unknown) or isinstance(gpus[b].nvlinks, Unknown):
                kind = None  # the way over PCIe is known, but there may be a better one
        if kind or p2p:
            found.append(Peer(gpus[a].address or f"GPU{a}", gpus[b].address or f"GPU{b}", kind, p2p))
    return tuple(found)


def _bonded(a: DriverGpu, b: DriverGpu) -> int:
    """How many active links join two GPUs: directly, or through switches that both reach."""
    active = [[link for link in known(gpu.nvlinks) or () if link.state == ACTIVE] for gpu in (a, b)]
    direct = sum(link.remote == b.address for link in active[0] if link.remote is not None)
    return direct or min(sum(link.remote_kind == "nvswitch" for link in links) for links in active)
