"""The figures of benchmarks/load.py with their targets, and their record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import quartiles


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and its target, such as ">= 0.95"; "" means none."""

    name: str
    figure: float
    low: float
    high: float
    bar: str
    note: str = ""

    @property
    def reached(self) -> bool:
        sign, _, limit = self.bar.partition(" ")
        return not self.bar or (
            self.figure >= float(limit) if sign == ">=" else self.figure <= float(limit)
        )

    def __str__(self) -> str:
        missed = "" if self.reached else "MISSED"
        return (
            f"{self.name:44} {self.figure:9.3f} [{self.low:.3f}-{self.high:.3f}] "
            f"{self.bar:>9} {missed}  {self.note}"
        )


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile, in the order of the fields of a row."""
    low, median, high = quartiles(values)
    return median, low, high


def record(
    path: Path,
    rows: Sequence[Row],
    *,
    machine: Mapping[str, str],
    options: Mapping[str, str],
    commit: str,
) -> None:
    """Writes the rows, each with its commit. Rows of the record that were not measured stay."""
    kept = (
        {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    )
    kept |= {row.name: {**asdict(row), "commit": commit} for row in rows}
    path.write_text(
        json.dumps(
            {"machine": dict(machine), "options": dict(options), "rows": list(kept.values())},
            indent=1,
        )
        + "\n"
    )
