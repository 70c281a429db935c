"""Arithmetic of a window: what a series of utilization says, and in which state the GPU was. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fastload._common.public import public

ACTIVE = 5.0  # % of utilization from which a sample counts as active
IDLE_SHARE = 0.05  # of the window
STARVED = 70.0  # % of mean utilization
WAVY = 25.0  # points between p5 and p95
RULE = (
    f"idle: at or above {ACTIVE:.0f} % for less than {100 * IDLE_SHARE:.0f} % of the window; starved: mean below {STARVED:.0f} %; "
    f"wavy: p95 - p5 above {WAVY:.0f} points; else steady"
)
Numbers = Sequence[float | None]


@public()
@dataclass(frozen=True, slots=True)
class GpuSummary:
    """Utilization of one GPU in %, over the samples that have one; None where there is none."""

    avg: float | None
    p50: float | None
    p5: float | None
    p95: float | None
    std: float | None
    active_seconds: float | None  # time at or above ACTIVE
    idle_seconds: float | None  # the rest of the time that was measured
    avg_active: float | None  # mean while active
    energy_j: float | None
    state: str  # steady, wavy, starved, idle or unknown
    rule: str


def summarize(
    t: Sequence[float], util: Numbers, *, seconds: float, energy_j: float | None = None
) -> GpuSummary:
    """``t`` are the samples' times since the window's start; each sample stands for the time up to the next one."""
    known = [
        (at, spent, value)
        for at, spent, value in zip(t, _spans(t, seconds), util, strict=True)
        if value is not None
    ]
    if not known:
        return GpuSummary(
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            _rounded(energy_j),
            "unknown",
            "no utilization was read",
        )
    spans = np.array([row[1] for row in known])
    values = np.array([row[2] for row in known], float)
    active = values >= ACTIVE
    p5, p50, p95 = (float(each) for each in np.percentile(values, (5, 50, 95)))
    active_s = float(spans[active].sum())
    all_s = float(spans.sum())
    average = float(values.mean())
    state = state_of(average, p95 - p5, active_s / all_s if all_s else float(active.mean()))
    while_active = round(float(values[active].mean()), 2) if active.any() else None
    return GpuSummary(
        round(average, 2),
        round(p50, 2),
        round(p5, 2),
        round(p95, 2),
        round(float(values.std()), 2),
        round(active_s, 2),
        round(all_s - active_s, 2),
        while_active,
        _rounded(energy_j),
        state,
        RULE,
    )


def state_of(average: float, spread: float, active_share: float) -> str:
    """One word, by RULE."""
    if active_share < IDLE_SHARE:
        return "idle"
    if average < STARVED:
        return "starved"
    return "wavy" if spread > WAVY else "steady"


def energy(t: Sequence[float], power_w: Numbers) -> float | None:
    """Joules from power readings, for GPUs without an energy counter: trapezoids between the samples that have one."""
    known = [(at, watts) for at, watts in zip(t, power_w, strict=True) if watts is not None]
    if len(known) < 2:
        return None
    return sum(
        (later[0] - sooner[0]) * (later[1] + sooner[1]) / 2 for sooner, later in pairwise(known)
    )


def mean(values: Numbers) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def summary_of_all(
    gpus: Sequence[tuple[int, Sequence[float], Numbers, GpuSummary]], images: float | None
) -> dict[str, float | None]:
    """(index, t, util, summary) of each GPU, and the images trained on meanwhile → window.json's summary; seconds are means over GPUs."""
    summaries = [each[3] for each in gpus]
    values = np.array(
        [value for _, _, util, _ in gpus for value in util if value is not None], float
    )
    found: dict[str, float | None] = {f"gpu{index}_avg": each.avg for index, _, _, each in gpus}
    found["all_avg"] = mean([each.avg for each in summaries])
    found |= {"p50": None, "spread": None, "std": None}
    if len(values):
        p5, p50, p95 = (float(each) for each in np.percentile(values, (5, 50, 95)))
        found |= {
            "p50": round(p50, 2),
            "spread": round(p95 - p5, 2),
            "std": round(float(values.std()), 2),
        }
    found["active_seconds"] = mean([each.active_seconds for each in summaries])
    found["idle_seconds"] = mean([each.idle_seconds for each in summaries])
    active = values[values >= ACTIVE]
    found["avg_active"] = round(float(active.mean()), 2) if len(active) else None
    joules = [each.energy_j for each in summaries]
    known = [each for each in joules if each is not None]
    found["joules_per_image"] = (
        round(sum(known) / images, 4) if images and known and len(known) == len(joules) else None
    )
    return found


def sparkline(values: Numbers, *, width: int, top: float = 100.0) -> str:
    """The last ``width`` values as blocks; a dot where nothing is known."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(
        "·" if value is None else blocks[min(max(int(value / top * 8), 0), 7)]
        for value in list(values)[-width:]
    )


def _spans(t: Sequence[float], seconds: float) -> list[float]:
    return (
        [max(later - sooner, 0.0) for sooner, later in zip(t, [*t[1:], seconds], strict=True)]
        if t
        else []
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
