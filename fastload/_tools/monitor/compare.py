"""Did it get better? Two windows, compared by what was trained where both know it, else by utilization. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from fastload._common.strict_json import Json
from fastload._tools.monitor.window import Window

BLOCK_S = 5.0  # samples a tenth of a second apart are not independent; means of 5 s nearly are
LEAST_POINTS = 2.0  # of utilization: less is nothing to anybody
LEAST_SHARE = 0.02  # of images/s
RULE = (
    f"better: the mean rose by more than twice the standard error of the difference (from means of {BLOCK_S:.0f} s) "
    f"and by at least {LEAST_POINTS:.0f} points of utilization or {100 * LEAST_SHARE:.0f} % of images/s; images/s decide "
    "where both have them"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean and its standard error (None where there are too few parts to tell) of one quantity in one window."""

    mean: float
    error: float | None
    parts: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """``verdict`` is better, worse, no difference or unknown; ``rule`` says how it was found."""

    quantity: str
    unit: str
    before: Figure | None
    after: Figure | None
    limit: float | None  # how much it must differ
    verdict: str
    why: str
    notes: tuple[str, ...] = ()
    rule: str = RULE

    @property
    def better(self) -> bool:
        """Beyond the spread."""
        return self.verdict == "better"

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""

        def figure(each: Figure | None) -> dict[str, object] | None:
            error = None if each is None or each.error is None else round(each.error, 3)
            return (
                None
                if each is None
                else {"mean": round(each.mean, 3), "error": error, "parts": each.parts}
            )

        return {
            "verdict": self.verdict,
            "quantity": self.quantity,
            "unit": self.unit,
            "before": figure(self.before),
            "after": figure(self.after),
            "limit": None if self.limit is None else round(self.limit, 3),
            "why": self.why,
            "notes": list(self.notes),
            "rule": self.rule,
        }


def compare(before: Window, after: Window) -> Comparison:
    """The second against the first."""
    notes = _differences(before, after)
    quantity = "images/s"
    unit = "images/s"
    pair = (_images(before), _images(after))
    if pair[0] is None or pair[1] is None:
        quantity = "GPU utilization"
        unit = "%"
        pair = (_utilization(before), _utilization(after))
    old, new = pair
    limit = None
    verdict = "unknown"
    if old is None or new is None:
        why = "neither images/s nor GPU utilization is in both windows"
    elif old.error is None or new.error is None:
        why = f"too short to tell the spread: {old.parts} and {new.parts} parts, 3 of {BLOCK_S:.0f} s are needed"
    else:
        least = LEAST_SHARE * old.mean if unit == "images/s" else LEAST_POINTS
        limit = max(2 * math.hypot(old.error, new.error), least)
        change = new.mean - old.mean
        verdict = "no difference"
        if abs(change) > limit:
            verdict = "better" if change > 0 else "worse"
        why = (
            f"{old.mean:.1f} -> {new.mean:.1f} {unit}, {change:+.1f}; "
            f"it takes {limit:.1f} to be more than the spread"
        )
    return Comparison(quantity, unit, old, new, limit, verdict, why, notes)


def _figure(values: list[float]) -> Figure | None:
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) >= 3 else None
    return Figure(statistics.fmean(values), error, len(values))


def _utilization(window: Window) -> Figure | None:
    """From means of BLOCK_S over all GPUs; a last block that is not full is left out."""
    blocks: dict[int, list[float]] = {}
    for gpu in window.gpus:
        for at, value in zip(gpu.t, gpu.series["util"], strict=True):
            if value is not None:
                blocks.setdefault(int(at // BLOCK_S), []).append(value)
    full = [
        statistics.fmean(values)
        for number, values in sorted(blocks.items())
        if (number + 1) * BLOCK_S <= window.seconds + 0.5
    ]
    return _figure(full or [statistics.fmean(values) for values in blocks.values()])


def _images(window: Window) -> Figure | None:
    """Images over time, not the mean of the rows' rates, in which fast rows would weigh more; the error from BLOCK_S of rows."""
    rows = (window.training or {}).get("rows")
    blocks: dict[int, list[tuple[float, float]]] = {}
    for row in rows if isinstance(rows, list) else []:
        end, images, seconds = _three(row)
        if seconds > 0:
            blocks.setdefault(int(end // BLOCK_S), []).append((images, seconds))
    rates = [_rate(block) for block in blocks.values()]
    spread = _figure(rates)
    return spread and Figure(
        _rate([row for block in blocks.values() for row in block]), spread.error, spread.parts
    )


def _three(row: Json) -> tuple[float, float, float]:
    """A row of a file that anybody may have written: (0, 0, 0) for what is none."""
    if not isinstance(row, list) or len(row) != 3:
        return 0.0, 0.0, 0.0
    end, images, seconds = (float(each) if isinstance(each, int | float) else 0.0 for each in row)
    return end, images, seconds


def _rate(rows: list[tuple[float, float]]) -> float:
    return sum(images for images, _ in rows) / sum(seconds for _, seconds in rows)


def _differences(before: Window, after: Window) -> tuple[str, ...]:
    """What else was not the same."""
    notes = []
    names = [
        ", ".join(f"gpu {gpu.index} {gpu.name}" for gpu in window.gpus) or "none"
        for window in (before, after)
    ]
    if names[0] != names[1]:
        notes.append(f"not the same GPUs: {names[0]}; {names[1]}")
    for number in range(min(len(before.gpus), len(after.gpus))):
        limits = [
            max(
                (each for each in window.gpus[number].series["power_limit_w"] if each is not None),
                default=None,
            )
            for window in (before, after)
        ]
        if limits[0] != limits[1]:
            notes.append(
                f"gpu {before.gpus[number].index}: not the same power limit: {limits[0]} W, {limits[1]} W"
            )
    if abs(before.seconds - after.seconds) > 0.1 * max(before.seconds, after.seconds):
        notes.append(f"not as long: {before.seconds:.0f} s, {after.seconds:.0f} s")
    if (before.gate is None) != (after.gate is None):
        notes.append("only one of them waited for a steady run (--gate)")
    return tuple(notes)
