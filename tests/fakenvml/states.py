"""The machines that the fake libnvidia-ml plays: each function gives the text of a state file (see fakenvml.c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

GPU, IBM_NPU, SWITCH, UNKNOWN_TYPE = 0, 1, 2, 255
SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50
CHIPSET, GPU_NOT, TOPOLOGY, NOT_SUPPORTED = 1, 2, 3, 5
SPEED, LINK_COUNT = 164, 91


class Model(NamedTuple):
    """What the GPUs of one machine have in common."""

    name: str
    devid: int
    subsys: int
    arch: int
    generation: int
    nvlink_version: int  # NVML's enumeration: 2 is 2.0, 4 is 3.0, 6 is 4.0, 7 is 5.0
    nvlink_mbps: int
    bar1: int


V100 = Model("Tesla V100-SXM2-32GB", 0x1DB510DE, 0x124910DE, 5, 3, 2, 25781, 32 << 30)
A100 = Model("NVIDIA A100-PCIE-40GB", 0x20F110DE, 0x145F10DE, 7, 4, 4, 25000, 64 << 30)
H100 = Model("NVIDIA H100 80GB HBM3", 0x233010DE, 0x16C110DE, 9, 5, 6, 26562, 128 << 30)
B200 = Model("NVIDIA B200", 0x290110DE, 0x199910DE, 10, 5, 7, 50000, 256 << 30)
GB200 = Model("NVIDIA GB200", 0x294110DE, 0x20D510DE, 10, 5, 7, 50000, 256 << 30)
L40S = Model("NVIDIA L40S", 0x26B910DE, 0x185110DE, 8, 4, 0, 0, 64 << 30)

Link = tuple[int, int, str]  # state, type of the other end, its bus id or "-"
OFF: Link = (0, UNKNOWN_TYPE, "-")


def _node(
    model: Model,
    buses: Sequence[str],
    links: Mapping[int, Sequence[Link]],
    driver: str = "550.90.07",
    per_socket: int | None = None,
    level: int = NODE,
) -> list[str]:
    """The lines of a machine: one GPU on each bus, the first `per_socket` of them on the first socket."""
    per_socket = per_socket or max(1, len(buses) // 2)
    lines = [f"driver={driver}", f"nvml=12.{driver}", "cuda=12040", f"count={len(buses)}"]
    for i, bus in enumerate(buses):
        facts = {
            "name": model.name,
            "uuid": f"GPU-{i:08x}-1111-2222-3333-444455556666",
            "busid": bus,
            "devid": hex(model.devid),
            "subsys": hex(model.subsys),
            "board_part": "900-21001-0000-000",
            "arch": model.arch,
            "minor": i,
            "numa": i // per_socket,
            "module": i + 1,
            "virt": 0,
            "bar1": model.bar1,
            "pstate": 0,
            "util": 0,
            "reasons": 1,
            "replay": 0,
            "pcie.gen": model.generation,
            "pcie.width": 16,
            "pcie.maxgen": model.generation,
            "pcie.maxwidth": 16,
            "pcie.gpumaxgen": model.generation,
        }
        if model.arch in (7, 9, 10):
            facts["mig"] = "0,0"
        own = links.get(i, ())
        if own:
            facts[f"field.{LINK_COUNT}"] = len(own)
        for number, (state, kind, other) in enumerate(own):
            facts[f"nvlink.{number}"] = f"{state},{kind},{other},{model.nvlink_version}"
            facts[f"field.{SPEED}.{number}"] = model.nvlink_mbps if state else 0
        lines += [f"gpu.{i}.{key}={value}" for key, value in facts.items()]
    for i, j in combinations(range(len(buses)), 2):
        same_socket = i // per_socket == j // per_socket
        lines.append(f"topo.{i}.{j}={level if same_socket else SYSTEM}")
        if not links.get(i) or not links.get(j):
            lines.append(f"p2p.{i}.{j}.2={NOT_SUPPORTED}")
    return lines


HGX_BUSES = tuple(f"00000000:{bus}:00.0" for bus in ("17", "3B", "53", "65", "9A", "AB", "BA", "DB"))
_SWITCHES = tuple(f"00000000:{bus}:00.0" for bus in ("05", "06", "07", "08"))


def hgx_h100() -> str:
    """Eight H100 with 18 links each to four NVSwitches that are on PCI."""
    to_switches = [(1, SWITCH, _SWITCHES[number % 4]) for number in range(18)]
    lines = _node(H100, HGX_BUSES, dict.fromkeys(range(8), to_switches))
    for i in range(8):
        lines.append(f"gpu.{i}.fabric=3,0,0,0x0aa,1")
        lines += [f"gpu.{i}.field.{field}=0" for field in (161, 162, 163)]
    return "\n".join(lines)


def a100_pcie() -> str:
    """Four A100 PCIe cards; a bridge joins the first two with 12 links, the links of the others are off."""
    buses = [f"00000000:{bus}:00.0" for bus in ("01", "41", "81", "C1")]
    links = {
        0: [(1, GPU, buses[1])] * 12,
        1: [(1, GPU, buses[0])] * 12,
        2: [OFF] * 12,
        3: [OFF] * 12,
    }
    lines = _node(A100, buses, links, driver="470.82.01")
    lines += [f"p2p.{i}.{j}.2={NOT_SUPPORTED}" for i, j in combinations(range(4), 2) if (i, j) != (0, 1)]
    for i in range(4):
        lines += [f"gpu.{i}.nvlink.{link}.error.{counter}=0" for link in range(12) for counter in range(4)]
    return "\n".join(lines)


# Links between each pair of a DGX-1 with V100 (NVIDIA DGX-1 system architecture white paper, hybrid cube mesh).
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def dgx1() -> str:
    """Eight V100 in the hybrid cube mesh of a DGX-1: six links each, one or two to a neighbour."""
    buses = [f"00000000:{bus}:00.0" for bus in ("06", "07", "0A", "0B", "85", "86", "89", "8A")]
    links: dict[int, list[Link]] = {i: [] for i in range(8)}
    for (i, j), count in CUBE_MESH.items():
        links[i] += [(1, GPU, buses[j])] * count
        links[j] += [(1, GPU, buses[i])] * count
    lines = _node(V100, buses, links, driver="418.226.00", level=SINGLE)
    for pair in combinations(range(8), 2):
        if pair not in CUBE_MESH:
            lines.append(f"p2p.{pair[0]}.{pair[1]}.2={NOT_SUPPORTED}")
    return "\n".join(lines)


def hgx_b200() -> str:
    """Eight B200: 18 links each to NVSwitches that are not on PCI, so that no link names its other end."""
    lines = _node(B200, HGX_BUSES, {i: [(1, SWITCH, "FFFFFFFF:FF:FF.F")] * 18 for i in range(8)}, driver="570.86.15")
    for i in range(8):
        lines.append(f"gpu.{i}.fabric=3,0,0,0x11aa,1")
        lines += [f"gpu.{i}.field.{field}=0" for field in (206, 207, 208, 209, 210, 211, 212, 214, 219)]
    return "\n".join(lines)


def gb200_tray() -> str:
    """Four GB200 of one compute tray: C2C to their Grace, 18 links into a rack's switches, one fabric clique."""
    buses = [f"{domain:08X}:01:00.0" for domain in (0x8, 0x9, 0x18, 0x19)]
    lines = _node(GB200, buses, {i: [(1, SWITCH, "FFFFFFFF:FF:FF.F")] * 18 for i in range(4)}, driver="570.86.15")
    for i in range(4):
        lines += [f"gpu.{i}.c2c=1", f"gpu.{i}.fabric=3,0,32766,0x11aa,1", f"gpu.{i}.pcie.width=1"]
        lines += [f"gpu.{i}.field.{field}=0" for field in (206, 208, 211, 214)]
    return "\n".join(lines)


def mig_h100(partitions: int = 7) -> str:
    """The HGX H100 with MIG on at every GPU: `partitions` instances, links inactive."""
    lines = [hgx_h100()]
    for i in range(8):
        lines += [f"gpu.{i}.mig=1,1", f"gpu.{i}.mig.devices={partitions}"]
        lines += [f"gpu.{i}.nvlink.{number}=0,{UNKNOWN_TYPE},-,6" for number in range(18)]
    return "\n".join(lines)


def l40s(count: int = 2) -> str:
    """Cards without any NVLink: every NVLink question is NOT_SUPPORTED."""
    return "\n".join(_node(L40S, [f"00000000:{bus + 1:02X}:00.0" for bus in range(count)], {}, level=HOST_BRIDGE))


ALL = (hgx_h100, a100_pcie, dgx1, hgx_b200, gb200_tray, mig_h100, l40s)
