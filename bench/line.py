"""One line of what the bench prints."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One result: at most `goal`, or why there is none."""

    what: str
    value: float | None
    goal: float
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        goal = f"<= {self.goal:g}{self.unit}"
        if self.value is None:
            return f"{self.what:<62} {'-':>10} {goal:>12}  not measured: {self.note}"
        verdict = "met" if self.value <= self.goal else "MISSED"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.what:<62} {f'{self.value:.3g}{self.unit}':>10} {goal:>12}  {verdict}{note}"
