"""The figures of benchmarks/decode.py as rows, and the bars that they are held against. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.machine import quartiles

Row = dict[str, float | str]
# By part: which figure the bar is for, and on which side of it it has to be. A row without a bar is shown beside the others.
BARS = {
    "times": ("ratio", "at least"),
    "gains": ("pool", "at least"),
    "stages": ("share", "at most"),
    "handover": ("more", "at most"),
}


def row_of(work: str, found: Mapping[str, Sequence[float]], **more: float | str) -> Row:
    """Medians and quartiles of what the rounds gave."""
    row: Row = {"work": work, "rounds": len(next(iter(found.values()))), **more}
    for name, values in found.items():
        row[f"{name}_low"], row[name], row[f"{name}_high"] = quartiles(values)
    return row


def misses(parts: Mapping[str, Any]) -> Iterator[str]:
    """The bars that were not reached."""
    for part, (figure, side) in BARS.items():
        for row in parts.get(part, []):
            if "bar" in row and (
                row[figure] < row["bar"] if side == "at least" else row[figure] > row["bar"]
            ):
                setting = ", ".join(
                    f"{name} {row[name]}" for name in ("threads", "simd") if name in row
                )
                beside = (
                    f"; processes that share nothing reach {row['processes']:.2f} here"
                    if part == "gains"
                    else ""
                )
                yield f"{part}, {row['work']}{setting and f' ({setting})'}: {row[figure]:.2f}, asked {side} {row['bar']}{beside}"
