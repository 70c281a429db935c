"""Plots without a step axis: the distribution of step times, and GPU utilization over time."""

from __future__ import annotations

import numpy as np

from fastload._common import formatting as fmt
from fastload._tools.charts import (
    Area,
    Line,
    Plot,
    Rect,
    Scale,
    Text,
    log_ticks,
    spread_out,
    text_width,
    time_label,
)
from fastload._tools.doctor.account import Account, without_slow
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.runs import Floats, Rank, mean_of, samples
from fastload._tools.monitor.window import ACTIVE, GpuWindow, Window
from fastload._tools.report.plots_along import NARROW, add_axis, add_grid

LANE = 92.0  # height per GPU
MAX_LANES = 16


def histogram(study: Study, width: float) -> Plot:
    """Draws a histogram of step times.

    Both axes are logarithmic, so that ten checkpoints are visible beside ten thousand steps.
    """
    case = study.case
    times, counts = _step_times(case.rank, case.account)
    pauses = [pause.seconds for pause in study.pauses if pause.seconds > 0]
    low = float(times.min()) * 0.9
    high = (
        max(float(times.max()), *(each * 1.05 for each in pauses), float(times.min()) * 1.5) * 1.15
    )
    edges = np.geomspace(low, high, max(int(width / 9), 12) + 1)
    bars, _ = np.histogram(times, edges, weights=counts)
    most = max(float(bars.max()), 10.0)
    typical = case.account.typical_s
    slow = 2 * case.account.typical_s
    plot = Plot(
        "step-times",
        width,
        230.0,
        f"Histogram of step times: median {fmt.seconds(typical)}, "
        f"longest {fmt.seconds(float(times.max()))}",
    )
    x = Scale(low, high, 46, width - 10, log=True)
    y = Scale(0.7, most * 1.5, plot.height - 26, 40, log=True)
    counts_shown = log_ticks(1, most * 1.2)
    add_grid(plot, x, y, counts_shown[:: max(len(counts_shown) // 4, 1)], fmt.count)
    plot.add(
        Text(x.start - 12, y.start + 16, "time", "muted", 11, "end"),
        Text(4, 12, "steps", "muted", 11),
    )
    for value in _few(log_ticks(low, high), x):
        plot.add(Text(x(value), y.start + 16, time_label(value), "muted", 11, "middle"))
    for k, count in enumerate(bars):
        if count:
            left, right = x(float(edges[k])), x(float(edges[k + 1]))
            bounds = [fmt.seconds(float(edge)) for edge in edges[k : k + 2]]
            plot.add(
                Rect(
                    left + 0.5,
                    y(float(count)),
                    max(right - left - 1, 1),
                    y.start - y(float(count)),
                    "stall" if edges[k] >= slow else "backward",
                    1.0,
                    f"{fmt.count(float(count), 'step')}: {bounds[0]} to {bounds[1]}",
                )
            )
    _median_label(plot, typical, x, y)
    _pause_labels(plot, study, x, y, edges[:-1][bars > 0])
    return plot


def _step_times(rank: Rank, account: Account) -> tuple[Floats, Floats]:
    """Returns step times and their counts, without warm-up.

    A row counts with its mean; slow steps count individually.
    """
    step, _, steps = without_slow(rank, np.ones(len(rank.steps), bool))
    slow = [
        each.iter_time
        for row in np.flatnonzero(account.rows)
        for each in rank.slow[row]
        if rank.steps[row] > 1
    ]
    # The time is 0 if the slow steps of a row add up to more than the row itself.
    rows = account.rows & (steps > 0) & (step > 0)
    return np.concatenate([step[rows], slow]), np.concatenate([steps[rows], np.ones(len(slow))])


def _few(values: list[float], x: Scale) -> list[float]:
    """Drops ticks whose labels would overlap."""
    kept: list[float] = []
    for value in values:
        if x.start + 16 <= x(value) <= x.end - 14 and (not kept or x(value) - x(kept[-1]) > 52):
            kept.append(value)
    return kept


def _median_label(plot: Plot, typical: float, x: Scale, y: Scale) -> None:
    plot.add(Line(((x(typical), y.end - 6), (x(typical), y.start)), "text", 1.0, dashed=True))
    label = f"median {fmt.seconds(typical)}"
    at_end = x(typical) + text_width(label) > x.end
    plot.add(
        Text(x(typical), y.end - 12, label, "text", 12, "end" if at_end else "start", bold=True)
    )


def _pause_labels(plot: Plot, study: Study, x: Scale, y: Scale, filled: Floats) -> None:
    """Labels the nearest bar. Pauses in the same step share a bar that is longer than each."""
    pauses = sorted(study.pauses, key=lambda each: each.seconds)[-4:]
    heights = spread_out(
        [y(float(len(each.stalls))) - 12 for each in pauses], 15, y.end + 14, y.start - 20
    )
    for each, high in zip(pauses, heights, strict=True):
        took = each.seconds + study.case.account.typical_s
        at = x(float(filled[np.argmin(np.abs(np.log(filled / took)))])) + 3
        name = each.name.removeprefix("probably ").removeprefix("a ")
        label = (
            f"{len(each.stalls)} x {name} {fmt.seconds(each.seconds)}"
            if plot.width >= NARROW
            else f"{len(each.stalls)} x {name[:14]}"
        )
        at_end = at + text_width(label, 11) > x.end
        plot.add(
            Line(((at, high + 3), (at, y.start)), "stall", 1.0),
            Text(
                at + (-3 if at_end else 3), high, label, "stall", 11, "end" if at_end else "start"
            ),
        )


def utilization(window: Window, width: float) -> Plot | None:
    """Draws one panel per GPU with its idle periods."""
    gpus = [gpu for gpu in window.gpus if np.isfinite(samples(gpu.series["util"])).any()][
        :MAX_LANES
    ]
    if not gpus:
        return None
    plot = Plot(
        "utilization",
        width,
        24 + LANE * len(gpus),
        "GPU utilization: " + "; ".join(_gpu_title(gpu) for gpu in gpus),
    )
    for row, gpu in enumerate(gpus):
        _gpu_lane(plot, gpu, LANE * row, width)
    x = Scale(0, float(max(gpu.t[-1] for gpu in gpus)) or 1.0, 46, width - 10)
    add_axis(plot, x, plot.height - 22, lambda value: f"{value:.3g} s")
    return plot


def _idle_spans(gpu: GpuWindow) -> list[tuple[float, float]]:
    """Returns (start, end) of each idle period in seconds since the start of the window."""
    idle = np.concatenate([[False], samples(gpu.series["util"]) < ACTIVE, [False]])
    change = np.flatnonzero(np.diff(idle.astype(np.int8)))
    step = float(np.median(np.diff(gpu.t))) if len(gpu.t) > 1 else 0.0
    return [
        (float(gpu.t[first]), float(gpu.t[last - 1]) + step)
        for first, last in zip(change[::2], change[1::2], strict=True)
    ]


def _gpu_title(gpu: GpuWindow) -> str:
    idle = sum(end - start for start, end in _idle_spans(gpu))
    average = mean_of(samples(gpu.series["util"]))
    return f"GPU {gpu.index}: mean {average:.0f} %, idle {idle:.1f} s of {float(gpu.t[-1]):.0f} s"


def _gpu_lane(plot: Plot, gpu: GpuWindow, top: float, width: float) -> None:
    x = Scale(0, float(gpu.t[-1]) or 1.0, 46, width - 10)
    y = Scale(0, 100, top + LANE - 10, top + 24)
    plot.add(Text(x.start, top + 15, _gpu_title(gpu), "text", 12, bold=True))
    add_grid(plot, x, y, (0, 50, 100), lambda value: f"{value:.0f} %")
    util = samples(gpu.series["util"])
    known = np.flatnonzero(np.isfinite(util))
    every = known[:: max(len(known) // int(width), 1)]
    points = [(x(float(gpu.t[k])), y(float(util[k]))) for k in every]
    plot.add(
        Area(((points[0][0], y.start), *points, (points[-1][0], y.start)), "backward", 0.3),
        Line(tuple(points), "backward", 1.2),
    )
    for start, end in _idle_spans(gpu):
        length = max(x(end) - x(start), 1)
        plot.add(
            Rect(x(start), y.end, length, y.start - y.end, "wait", 0.16),
            Rect(x(start), y.start, length, 5, "wait", 1.0, f"idle {end - start:.1f} s"),
        )
    for k in every:
        reasons = ", ".join(gpu.throttle[k] or ())
        if any(word in reasons.lower() for word in ("therm", "slow", "power", "brake")):
            plot.add(Rect(x(float(gpu.t[k])), y.end - 3, 2, 3, "stall", 1.0, reasons))
