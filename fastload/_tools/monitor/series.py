"""Statistics of a measured window: utilization, state and energy of the GPUs. Pure."""

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
    f"idle: utilization is {ACTIVE:.0f} % or more for less than {100 * IDLE_SHARE:.0f} % of the "
    f"window; starved: mean below {STARVED:.0f} %; wavy: p95 - p5 above {WAVY:.0f} points; "
    "otherwise steady"
)
Numbers = Sequence[float | None]


@public()
@dataclass(frozen=True, slots=True)
class GpuSummary:
    """Statistics of one GPU over a window. Utilization is in percent; unknown values are None.

    Attributes:
        avg: Mean utilization.
        p50: Median utilization.
        p5: 5th percentile.
        p95: 95th percentile.
        std: Standard deviation.
        active_seconds: Seconds with a utilization of at least 5 %.
        idle_seconds: The remaining measured seconds.
        avg_active: Mean utilization while active.
        energy_j: Energy in joules.
        state: "steady", "wavy", "starved", "idle" or "unknown".
        rule: How ``state`` was decided.

    Examples:
        >>> window = fastload.read_window("window.json")
        >>> window.gpus[0].summary.state
        'steady'
    """

    avg: float | None = None
    p50: float | None = None
    p5: float | None = None
    p95: float | None = None
    std: float | None = None
    active_seconds: float | None = None
    idle_seconds: float | None = None
    avg_active: float | None = None
    energy_j: float | None = None
    state: str = "unknown"
    rule: str = "no utilization was read"


def summarize(
    t: Sequence[float], util: Numbers, *, seconds: float, energy_j: float | None = None
) -> GpuSummary:
    """Summarizes one GPU.

    ``t`` has the sample times in seconds since the start of the window. A sample counts for the
    time until the next sample.
    """
    energy_j = None if energy_j is None else round(energy_j, 2)
    lengths = [max(end - start, 0.0) for start, end in pairwise([*t, seconds])]
    known = [
        (length, value) for length, value in zip(lengths, util, strict=True) if value is not None
    ]
    if not known:
        return GpuSummary(energy_j=energy_j)
    spans, values = np.array(known, float).T
    active = values >= ACTIVE
    p5, p50, p95 = (float(each) for each in np.percentile(values, (5, 50, 95)))
    active_s = float(spans[active].sum())
    all_s = float(spans.sum())
    average = float(values.mean())
    return GpuSummary(
        round(average, 2),
        round(p50, 2),
        round(p5, 2),
        round(p95, 2),
        round(float(values.std()), 2),
        round(active_s, 2),
        round(all_s - active_s, 2),
        round(float(values[active].mean()), 2) if active.any() else None,
        energy_j,
        state_of(average, p95 - p5, active_s / all_s if all_s else float(active.mean())),
        RULE,
    )


def state_of(average: float, spread: float, active_share: float) -> str:
    """Classifies a GPU by ``RULE``."""
    if active_share < IDLE_SHARE:
        return "idle"
    if average < STARVED:
        return "starved"
    return "wavy" if spread > WAVY else "steady"


def energy(t: Sequence[float], power_w: Numbers) -> float | None:
    """Integrates power readings to joules, for GPUs without an energy counter."""
    known = [(at, watts) for at, watts in zip(t, power_w, strict=True) if watts is not None]
    if len(known) < 2:
        return None
    return sum(
        (later[0] - sooner[0]) * (later[1] + sooner[1]) / 2 for sooner, later in pairwise(known)
    )


def mean(values: Numbers) -> float | None:
    """Averages the known values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def summary_of_all(
    gpus: Sequence[tuple[int, Sequence[float], Numbers, GpuSummary]], images: float | None
) -> dict[str, float | None]:
    """Returns the ``summary`` of window.json over all GPUs.

    ``gpus`` has (index, t, util, summary) per GPU, ``images`` the images trained on in the window.
    """
    summaries = [summary for _, _, _, summary in gpus]
    values = np.array(
        [value for _, _, util, _ in gpus for value in util if value is not None], float
    )
    active = values[values >= ACTIVE]
    joules = [each.energy_j for each in summaries if each.energy_j is not None]
    all_known = bool(joules) and len(joules) == len(summaries)
    p5, p50, p95 = np.percentile(values, (5, 50, 95)) if len(values) else (None, None, None)
    return {
        **{f"gpu{index}_avg": each.avg for index, _, _, each in gpus},
        "all_avg": mean([each.avg for each in summaries]),
        "p50": None if p50 is None else round(float(p50), 2),
        "spread": None if p95 is None else round(float(p95 - p5), 2),
        "std": round(float(values.std()), 2) if len(values) else None,
        "active_seconds": mean([each.active_seconds for each in summaries]),
        "idle_seconds": mean([each.idle_seconds for each in summaries]),
        "avg_active": round(float(active.mean()), 2) if len(active) else None,
        "joules_per_image": round(sum(joules) / images, 4) if images and all_known else None,
    }


def sparkline(values: Numbers, *, width: int, top: float = 100.0) -> str:
    """Draws the last ``width`` values as block characters; a dot is an unknown value."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(
        "·" if value is None else blocks[min(max(int(value / top * 8), 0), 7)]
        for value in list(values)[-width:]
    )
