"""Compares two windows by images/s, or by GPU utilization if images/s is unknown. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass

from fastload._common.strict_json import Json
from fastload._tools.monitor.window import GpuWindow, Window

# Samples 0.1 s apart are correlated. Means over 5 s are nearly independent.
BLOCK_S = 5.0
MIN_POINTS = 2.0  # smallest change of utilization that counts
MIN_SHARE = 0.02  # smallest relative change of images/s that counts
RULE = (
    "better: the mean rose by more than twice the standard error of the difference "
    f"(computed from {BLOCK_S:.0f} s means) and by at least {100 * MIN_SHARE:.0f} % of images/s "
    f"or {MIN_POINTS:.0f} points of utilization. Images/s is used if both windows have it."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean of one quantity in one window; ``error`` is None with fewer than three blocks."""

    mean: float
    error: float | None  # standard error of the mean
    parts: int  # number of BLOCK_S blocks

    def as_json(self) -> dict[str, object]:
        error = None if self.error is None else round(self.error, 3)
        return {"mean": round(self.mean, 3), "error": error, "parts": self.parts}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``verdict`` is "better", "worse", "no difference" or "unknown"."""

    verdict: str
    quantity: str
    unit: str
    before: Figure | None
    after: Figure | None
    limit: float | None  # smallest change that counts
    why: str
    notes: tuple[str, ...] = ()
    rule: str = RULE

    @property
    def better(self) -> bool:
        return self.verdict == "better"

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "before": self.before and self.before.as_json(),
            "after": self.after and self.after.as_json(),
            "limit": None if self.limit is None else round(self.limit, 3),
            "notes": list(self.notes),
        }


def compare(before: Window, after: Window) -> Comparison:
    quantity = unit = "images/s"
    old = _images_per_s(before)
    new = _images_per_s(after)
    if old is None or new is None:
        quantity = "GPU utilization"
        unit = "%"
        old = _utilization(before)
        new = _utilization(after)
    limit = None
    verdict = "unknown"
    if old is None or new is None:
        why = "the windows have neither images/s nor GPU utilization in common"
    elif old.error is None or new.error is None:
        why = (
            f"the windows are too short: {old.parts} and {new.parts} blocks of {BLOCK_S:.0f} s, "
            "expected at least 3 in each"
        )
    else:
        floor = MIN_SHARE * old.mean if unit == "images/s" else MIN_POINTS
        limit = max(2 * math.hypot(old.error, new.error), floor)
        change = new.mean - old.mean
        verdict = "no difference"
        if abs(change) > limit:
            verdict = "better" if change > 0 else "worse"
        why = (
            f"{old.mean:.1f} -> {new.mean:.1f} {unit} ({change:+.1f}); "
            f"a change of more than {limit:.1f} counts"
        )
    return Comparison(
        verdict, quantity, unit, old, new, limit, why, tuple(_differences(before, after))
    )


def _figure(values: list[float]) -> Figure | None:
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) >= 3 else None
    return Figure(statistics.fmean(values), error, len(values))


def _utilization(window: Window) -> Figure | None:
    """Averages blocks over all GPUs. An incomplete last block is dropped."""
    blocks: dict[int, list[float]] = {}
    for gpu in window.gpus:
        for at, value in zip(gpu.t, gpu.series["util"], strict=True):
            if value is not None:
                blocks.setdefault(int(at // BLOCK_S), []).append(value)
    complete = [
        statistics.fmean(values)
        for number, values in sorted(blocks.items())
        if (number + 1) * BLOCK_S <= window.seconds + 0.5
    ]
    return _figure(complete or [statistics.fmean(values) for values in blocks.values()])


def _images_per_s(window: Window) -> Figure | None:
    """Divides all images by all seconds. A mean of row rates would give fast rows more weight."""
    rows = (window.training or {}).get("rows")
    blocks: dict[int, list[tuple[float, float]]] = {}
    for row in rows if isinstance(rows, list) else []:
        end, images, seconds = _row_numbers(row)
        if seconds > 0:
            blocks.setdefault(int(end // BLOCK_S), []).append((images, seconds))
    spread = _figure([_rate(block) for block in blocks.values()])
    return spread and Figure(
        _rate([row for block in blocks.values() for row in block]), spread.error, spread.parts
    )


def _row_numbers(row: Json) -> tuple[float, float, float]:
    """Returns (0, 0, 0) for a malformed row: any program may have written the file."""
    if not isinstance(row, list) or len(row) != 3:
        return 0.0, 0.0, 0.0
    end, images, seconds = (float(each) if isinstance(each, int | float) else 0.0 for each in row)
    return end, images, seconds


def _rate(rows: list[tuple[float, float]]) -> float:
    return sum(images for images, _ in rows) / sum(seconds for _, seconds in rows)


def _differences(before: Window, after: Window) -> list[str]:
    notes = []
    names = [
        ", ".join(f"gpu {gpu.index} {gpu.name}" for gpu in window.gpus) or "none"
        for window in (before, after)
    ]
    if names[0] != names[1]:
        notes.append(f"the GPUs differ: {names[0]}; {names[1]}")
    for old, new in zip(before.gpus, after.gpus, strict=False):
        limits = _power_limit(old), _power_limit(new)
        if limits[0] != limits[1]:
            notes.append(f"gpu {old.index}: the power limits differ: {limits[0]} W, {limits[1]} W")
    if abs(before.seconds - after.seconds) > 0.1 * max(before.seconds, after.seconds):
        notes.append(f"the lengths differ: {before.seconds:.0f} s, {after.seconds:.0f} s")
    if (before.gate is None) != (after.gate is None):
        notes.append("only one window waited for a steady run (--gate)")
    return notes


def _power_limit(gpu: GpuWindow) -> float | None:
    return max((each for each in gpu.series["power_limit_w"] if each is not None), default=None)
