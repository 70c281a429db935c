"""The figures of benchmarks/decode.py as rows, and their targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import quartiles

Row = dict[str, float | str]
# The figure of each part that has a target, and whether it is a minimum or a maximum. Rows without
# "bar" have no target.
BARS = {
    "times": ("ratio", "at least"),
    "gains": ("pool", "at least"),
    "stages": ("share", "at most"),
    "handover": ("more", "at most"),
}


def row_of(work: str, found: Mapping[str, Sequence[float]], **more: float | str) -> Row:
    """Medians and quartiles over the rounds."""
    row: Row = {"work": work, "rounds": len(next(iter(found.values()))), **more}
    for name, values in found.items():
        row[f"{name}_low"], row[name], row[f"{name}_high"] = quartiles(values)
    return row


def misses(parts: Mapping[str, Any]) -> Iterator[str]:
    """Describes each missed target."""
    for part, (figure, side) in BARS.items():
        for row in parts.get(part, []):
            if "bar" in row and (
                row[figure] < row["bar"] if side == "at least" else row[figure] > row["bar"]
            ):
                setting = ", ".join(
                    f"{name} {row[name]}" for name in ("threads", "simd") if name in row
                )
                beside = (
                    f"; separate processes reach {row['processes']:.2f} on this machine"
                    if part == "gains"
                    else ""
                )
                where = f"{part}, {row['work']}{setting and f' ({setting})'}"
                yield f"{where}: {row[figure]:.2f}, target {side} {row['bar']}{beside}"
