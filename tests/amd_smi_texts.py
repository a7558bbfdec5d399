"""Texts in the formats of rocm-smi and amd-smi, made for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Cell = Callable[[int, int], object]
HIVES = [f"0000:{bus}:00.0" for bus in ("43", "23", "26", "03", "e3", "c3", "c6", "83")]


def title(text: str) -> str:
    return f" {text} ".center(90, "=")


def matrix(names: Sequence[str], cell: Cell, own: str = "0") -> list[str]:
    rows = [" " * 13 + "".join(f"{name:<13}" for name in names)]
    for i, name in enumerate(names):
        cells = (own if i == j else str(cell(i, j)) for j in range(len(names)))
        rows.append(f"{name:<13}" + "".join(f"{word:<13}" for word in cells))
    return rows


def log(*lines: str) -> str:
    return "\n".join(["", title("ROCm System Management Interface"), *lines, title("End of ROCm SMI Log"), ""])


def weigh(link: Cell) -> tuple[Cell, Cell, Cell]:
    """Weight, hops and type of each pair as the driver prints them for direct links (True) and PCIe ways."""
    return (
        lambda i, j: 15 if link(i, j) else 72,
        lambda i, j: 1 if link(i, j) else 3,
        lambda i, j: "XGMI" if link(i, j) else "PCIE",
    )


def showtopo(count: int, weight: Cell | None, hops: Cell | None, kind: Cell | None, numa: Sequence[int] = ()) -> str:
    names = [f"GPU{n}" for n in range(count)]
    lines: list[str] = []
    for words, cell in (("Weight", weight), ("Hops", hops), ("Link Type", kind)):
        if cell is not None:
            lines += [title(f"{words} between two GPUs"), *matrix(names, cell), ""]
    if numa:
        lines.append(title("Numa Nodes"))
    for number, node in enumerate(numa):
        lines.append(f"GPU[{number}]\t\t: (Topology) Numa Node: {node}")
        lines.append(f"GPU[{number}]\t\t: (Topology) Numa Affinity: {node}")
    return log(*lines)


def showbus(addresses: Sequence[str]) -> str:
    fields = [f"GPU[{n}]\t\t: PCI Bus: {address.upper()}" for n, address in enumerate(addresses)]
    return log(title("PCI Bus ID"), *fields, "=" * 90)


def two_hives(i: int, j: int) -> bool:
    return i // 4 == j // 4


def topology(addresses: Sequence[str], weight: Cell, kind: Cell, rate: Cell) -> str:
    lines: list[str] = []
    for words, cell, own in (
        ("ACCESS", lambda i, j: "ENABLED", "ENABLED"),
        ("WEIGHT", weight, "0"),
        ("HOPS", lambda i, j: 1 if kind(i, j) == "XGMI" else 2, "0"),
        ("LINK TYPE", kind, "SELF"),
        ("NUMA BW", rate, "N/A"),
        ("CACHE COHERANCY", lambda i, j: "C", "SELF"),
    ):
        lines += [f"{words} TABLE:", *matrix(addresses, cell, own), ""]
    return "\n".join([*lines, "", "Legend:", "  SELF = Current GPU", "  <BW from>-<BW to>", ""])
