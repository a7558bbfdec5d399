"""Bandwidth arithmetic. Always per direction, GB/s = 10^9 bytes/s, after line encoding."""

from __future__ import annotations

# GB/s of one lane by transfer rate in GT/s: 8b/10b for 2.5 and 5, 128b/130b for 8 to 32,
# PAM4 with FLITs of 236 of 256 bytes from 64 on. Source: PCI Express Base Specification 1.0 to 7.0.
LANE_GBS = {
    2.5: 2.5 * 8 / 10 / 8,
    5.0: 5.0 * 8 / 10 / 8,
    8.0: 8.0 * 128 / 130 / 8,
    16.0: 16.0 * 128 / 130 / 8,
    32.0: 32.0 * 128 / 130 / 8,
    64.0: 64.0 * 236 / 256 / 8,
    128.0: 128.0 * 236 / 256 / 8,
}

GTS_OF_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
GENERATION_OF_GTS = {gts: generation for generation, gts in GTS_OF_GENERATION.items()}


def pcie_gbs(speed_gts: float | None, width: int | None) -> float | None:
    """GB/s of a PCIe link, None where speed or width is not known (or no PCIe rate)."""
    if speed_gts is None or width is None:
        return None
    lane = LANE_GBS.get(speed_gts)
    return None if lane is None else lane * width


def describe_link(speed_gts: float | None, width: int | None) -> str:
    """A link for a person: 'Gen4 x16', 'Gen? x8' where half of it is unknown."""
    generation = GENERATION_OF_GTS.get(speed_gts) if speed_gts is not None else None
    gen = f"Gen{generation}" if generation else (f"{speed_gts:g} GT/s" if speed_gts else "Gen?")
    return f"{gen} x{width if width is not None else '?'}"
