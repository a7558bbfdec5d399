"""What independent tools say of the machine they run on, and what follows from it by brute force."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple

from defusedxml.ElementTree import fromstring


class Seen(NamedTuple):
    """A PCI function as `lspci -D -vvv` and `lspci -D -PP` show it."""

    numa: int | None
    speed_gts: float | None
    width: int | None
    driver: str | None
    path: tuple[str, ...]  # the bridges above and itself, root first


def lspci(verbose: str, paths: str) -> dict[str, Seen]:
    """Every function by address."""
    above = dict(_paths(paths))
    found = {}
    for block in re.split(r"\n\s*\n", verbose.strip()):
        address = block.split()[0]
        link = re.search(r"LnkSta:\s+Speed ([\d.]+)GT/s[^,]*, Width x(\d+)", block)
        numa = re.search(r"NUMA node: (\d+)", block)
        driver = re.search(r"Kernel driver in use: (\S+)", block)
        found[address] = Seen(
            int(numa[1]) if numa else None,
            float(link[1]) if link else None,
            int(link[2]) if link else None,
            driver[1] if driver else None,
            above[address],
        )
    return found


def _paths(text: str) -> list[tuple[str, tuple[str, ...]]]:
    found = []
    for line in text.splitlines():
        domain, _, rest = line.split()[0].partition(":")
        steps = tuple(f"{domain}:{step}" for step in rest.split("/"))
        found.append((steps[-1], steps))
    return found


def lstopo(xml: str) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """PCI functions of `lstopo --whole-io --of xml`: path, and the NUMA node that they hang from (None: from all)."""
    found: dict[str, tuple[tuple[str, ...], int | None]] = {}

    def walk(element: object, path: tuple[str, ...], nodes: str) -> None:
        for child in element.findall("object"):  # type: ignore[attr-defined]
            nodes_here = child.get("nodeset") or nodes
            here = path
            if child.get("type") in ("Bridge", "PCIDev") and child.get("bridge_type", "1-1") != "0-1":
                here = (*path, child.get("pci_busid"))
                number = int(nodes_here, 16)
                found[here[-1]] = here, number.bit_length() - 1 if number.bit_count() == 1 else None
            walk(child, here, nodes_here)

    walk(fromstring(xml), (), "0x0")
    return found


def kinds(seen: dict[str, Seen], endpoints: list[str], switches: set[str]) -> dict[tuple[str, str], str]:
    """The path kind of each pair, from lspci's paths: switches holds the upstream ports of switch chips."""
    found = {}
    for a, b in combinations(endpoints, 2):
        shared = [x for x, y in zip(seen[a].path, seen[b].path, strict=False) if x == y]
        below = [len(seen[end].path) - len(shared) for end in (a, b)]
        if shared and shared[-1] in switches and below == [2, 2]:
            kind = "PIX"
        elif shared:
            kind = "PXB"
        elif seen[a].path[0].split(":")[1] == seen[b].path[0].split(":")[1]:
            kind = "PHB"
        elif seen[a].numa == seen[b].numa:
            kind = "NODE"
        else:
            kind = "SYS"
        found[a, b] = kind
    return found


def ibstat(text: str) -> dict[str, tuple[str, str, float]]:
    """State, physical state and rate in Gb/s of each device's first port."""
    found = {}
    for name, block in re.findall(r"^CA '(\S+)'\n(.*?)(?=^CA '|\Z)", text, re.M | re.S):
        state, phys, rate = (re.search(rf"{key}: (\S+)", block) for key in ("State", "Physical state", "Rate"))
        assert state and phys and rate, block
        found[name] = state[1], phys[1], float(rate[1])
    return found


def ibv_devinfo(text: str) -> dict[str, tuple[str, str]]:
    """State (PORT_ACTIVE, PORT_DOWN) and link layer of each device's first port."""
    found = {}
    for name, block in re.findall(r"^hca_id:\s+(\S+)\n(.*?)(?=^hca_id:|\Z)", text, re.M | re.S):
        state, layer = re.search(r"state:\s+(\S+)", block), re.search(r"link_layer:\s+(\S+)", block)
        assert state and layer, block
        found[name] = state[1], layer[1]
    return found


def rdma_link(text: str) -> dict[str, tuple[str, str, str]]:
    """State, physical state and network interface of each port, by "rxe0/1"."""
    rows = re.findall(r"^link (\S+) state (\S+) physical_state (\S+) netdev (\S+)", text, re.M)
    return {name: (state, phys, netdev) for name, state, phys, netdev in rows}
