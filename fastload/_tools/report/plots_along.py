"""Plots along the run: stages of the step, data wait, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from fastload._common import formatting as fmt
from fastload._tools.charts import (
    Area,
    Line,
    Plot,
    Point,
    Rect,
    Scale,
    Text,
    log_ticks,
    spread_out,
    stage_color,
    text_width,
    ticks,
    time_label,
)
from fastload._tools.doctor.case import Case, Named
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.runs import Floats
from fastload._tools.report.series import Columns, columns, own_columns, position_of

NARROW = 500.0  # a narrower plot has its labels above it, not beside it
BESIDE = 160.0  # space for labels beside a plot
MAX_RAILS = 3  # kinds of pauses in a plot
MAX_MARKS = 60  # marks per kind of pause; more would merge into a bar
STEADY_S = 0.02  # data wait below which the gate of the monitor considers a run steady
STEADY_LABEL = "steady below 20 ms"


def step_parts(study: Study, width: float) -> Plot:
    """Stacks the stages of the step along the run. Pauses are marks above the plot."""
    case = study.case
    narrow = width < NARROW
    shown = columns(case.rank, case.account, int(width / 3))
    parts = {
        name: values
        for name, values in shown.parts.items()
        if values.max() > 0 and values.mean() > 0.002 * case.account.typical_s
    }
    total = sum(parts.values(), np.zeros(len(shown.edges) - 1))
    steady = total[shown.edges[1:] > shown.warm_until]
    top = float(np.percentile(steady, 98) if len(steady) else total.max()) * 1.12
    rows = 1 + max((line for _, line in _legend_places(parts, width)), default=0)
    legend = 18 * rows if narrow else 0
    rails = sorted(study.named, key=lambda each: -each.lost_s)[:MAX_RAILS]
    upper = 12.0 + legend + (28 if narrow else 17) * len(rails)
    label = ", ".join(_label(name, values) for name, values in parts.items())
    plot = Plot("step-parts", width, upper + 240.0, f"Time per step along the run: {label}")
    right = width - (8 if narrow else BESIDE)
    x = Scale(shown.edges[0], shown.edges[-1], 46, right)
    y = Scale(0, top, plot.height - 26, upper)
    add_grid(plot, x, y, ticks(y.low, y.high, 4), time_label)
    _step_axis(plot, x, y.start, narrow=narrow)
    _stack(plot, shown, parts, x, y)
    _warm(plot, shown, x, y)
    for row, named in enumerate(rails):
        _rail(plot, study, named, x, (legend + 20.0 + 28 * row) if narrow else (10.0 + 17 * row))
    _name_parts(plot, parts, y, right=None if narrow else right, width=width)
    return plot


def _rail(plot: Plot, study: Study, named: Named, x: Scale, high: float) -> None:
    """Draws a mark per pause. The name is beside the rail, or above it on a phone."""
    plot.add(Line(((x.start, high), (x.end, high)), "grid"))
    for number in named.iters[:: max(len(named.iters) // MAX_MARKS, 1)]:
        at = x(position_of(study.case.rank, number))
        plot.add(
            Rect(
                at - 1.5,
                high - 5,
                3,
                10,
                "stall",
                1.0,
                f"{named.name} at step {number:,}: {fmt.seconds(named.seconds)}",
            )
        )
    name = (
        named.name.removeprefix("probably ")
        .removeprefix("a ")
        .removeprefix("waiting for data, probably the ")
    )
    corner = (x.end + 8, high + 4) if x.end < plot.width - 20 else (x.start, high - 8)
    plot.add(Text(*corner, f"{name} {fmt.seconds(named.seconds)}", "stall", 12))


def _stack(plot: Plot, shown: Columns, parts: dict[str, Floats], x: Scale, y: Scale) -> None:
    below = np.zeros(len(shown.edges) - 1)
    for name, values in parts.items():
        above = below + values
        points = _staircase(shown.edges, above, x, y) + _staircase(shown.edges, below, x, y)[::-1]
        plot.add(Area(tuple(points), part_color(name)))
        below = above


def part_color(name: str) -> str:
    """Returns orange for data wait and gray for time outside the stages."""
    return {"data wait": "wait", "rest of the step": "other"}.get(name) or stage_color(name)


def _staircase(edges: Floats, values: Floats, x: Scale, y: Scale) -> list[Point]:
    return [
        (x(float(edge)), y(float(value)))
        for k, value in enumerate(values)
        for edge in (edges[k], edges[k + 1])
    ]


def add_grid(
    plot: Plot, x: Scale, y: Scale, values: Iterable[float], label: Callable[[float], str]
) -> None:
    """Draws horizontal grid lines with their labels."""
    for value in values:
        plot.add(
            Line(((x.start, y(value)), (x.end, y(value))), "grid"),
            Text(x.start - 6, y(value) + 4, label(value), "muted", 11, "end"),
        )


def _step_axis(plot: Plot, x: Scale, base: float, *, narrow: bool) -> None:
    for value in ticks(x.low, x.high, 3 if narrow else 6):
        plot.add(
            Text(
                x(value),
                base + 16,
                fmt.count(value),
                "muted",
                11,
                "middle" if x(value) < x.end - 20 else "end",
            )
        )
    plot.add(Text(x.start - 12, base + 16, "step", "muted", 11, "end"))


def _warm(plot: Plot, shown: Columns, x: Scale, y: Scale) -> None:
    end = x(shown.warm_until)
    if end - x.start > 1:
        plot.add(
            Rect(x.start, y.end, end - x.start, y.start - y.end, "card", 0.65, "warm-up, excluded")
        )
        if end - x.start > text_width("warm-up", 11):
            plot.add(Text(x.start + 4, y.end + 12, "warm-up", "muted", 11))


def _legend_places(parts: dict[str, Floats], width: float) -> list[tuple[float, int]]:
    """Returns x and line of each label in a legend above the plot."""
    places: list[tuple[float, int]] = []
    at = 46.0
    line = 0
    for name, values in parts.items():
        size = text_width(_label(name, values), 11) + 24
        if at + size > width:
            at = 46.0
            line += 1
        places.append((at, line))
        at += size
    return places


def _label(name: str, values: Floats) -> str:
    return f"{name} {fmt.seconds(float(np.median(values)))}"


def _name_parts(
    plot: Plot, parts: dict[str, Floats], y: Scale, *, right: float | None, width: float
) -> None:
    if right is None:
        places = _legend_places(parts, width)
        for (name, values), (at, line) in zip(parts.items(), places, strict=True):
            plot.add(
                Rect(at, 4 + 18 * line, 10, 10, part_color(name)),
                Text(at + 14, 13 + 18 * line, _label(name, values), "text", 11),
            )
        return
    middles = []
    below = 0.0
    for values in parts.values():
        last = float(np.median(values[-max(len(values) // 10, 1) :]))
        middles.append(y(below + last / 2))
        below += last
    for (name, values), place in zip(
        parts.items(), spread_out(middles, 16, y.end + 6, y.start - 4), strict=True
    ):
        plot.add(
            Rect(right + 8, place - 5, 10, 10, part_color(name)),
            Text(right + 23, place + 4, _label(name, values), "text", 12),
        )


def data_wait(study: Study, width: float) -> Plot | None:
    """Draws the mean and longest wait along the run.

    The axis is logarithmic, so that waits of 1 ms and of 6 s are both visible.
    """
    case = study.case
    narrow = width < NARROW
    if not case.account.has_data:
        return None
    shown = columns(case.rank, case.account, int(width / 3))
    wait = np.maximum(shown.parts["data wait"], 1e-4)
    longest = np.maximum(shown.wait_max, 1e-4)
    # The first wait takes seconds and would flatten the rest of the plot.
    steady = shown.edges[1:] > shown.warm_until
    top = float(longest[steady].max() if steady.any() else longest.max())
    low = float(10 ** np.floor(np.log10(wait.min())))
    high = float(max(10 ** np.ceil(np.log10(top)), 0.1))
    plot = Plot(
        "data-wait",
        width,
        190.0,
        f"Data wait along the run: mean {fmt.seconds(float(wait.mean()))}, "
        f"longest {fmt.seconds(top)}",
    )
    right = width - (8 if narrow else BESIDE)
    x = Scale(shown.edges[0], shown.edges[-1], 46, right)
    y = Scale(low, high, plot.height - 26, 22 if narrow else 10, log=True)
    add_grid(plot, x, y, log_ticks(low, high), time_label)
    _step_axis(plot, x, y.start, narrow=narrow)
    for k, value in enumerate(longest):
        left, end = x(float(shown.edges[k])), x(float(shown.edges[k + 1]))
        plot.add(Rect(left, y(float(value)) - 1, max(end - left, 2), 2, "wait", 0.45))
    bottom = ((x.end, y.start), (x.start, y.start))
    stairs = _staircase(shown.edges, wait, x, y)
    plot.add(Area((*stairs, *bottom), "wait", 0.25), Line(tuple(stairs), "wait", 1.8))
    _warm(plot, shown, x, y)
    if low < STEADY_S < high:
        plot.add(Line(((x.start, y(STEADY_S)), (x.end, y(STEADY_S))), "muted", 1.0, dashed=True))
    _wait_labels(
        plot, (float(np.median(wait[-9:])), float(np.median(longest[-9:]))), y, right, narrow=narrow
    )
    return plot


def _wait_labels(
    plot: Plot, ends: tuple[float, float], y: Scale, right: float, *, narrow: bool
) -> None:
    if narrow:
        plot.add(
            Rect(46, 5, 10, 10, "wait"),
            Text(60, 14, "mean", "text", 11),
            Rect(104, 5, 10, 10, "wait", 0.45),
            Text(118, 14, "longest", "text", 11),
            Text(176, 14, f"- - {STEADY_LABEL}", "muted", 11),
        )
        return
    labels = ["mean", "longest"]
    places = [y(each) for each in ends]
    if y.low < STEADY_S < y.high:
        labels = [*labels, STEADY_LABEL]
        places = [*places, y(STEADY_S)]
    for label, place in zip(labels, spread_out(places, 15, y.end + 6, y.start - 4), strict=True):
        color = "muted" if label == STEADY_LABEL else "wait"
        plot.add(Text(right + 8, place + 4, label, color, 12))


def rank_lanes(case: Case, width: float) -> Plot | None:
    """Draws one lane per rank. A darker color means more time for its own work."""
    if len(case.run.ranks) < 2:
        return None
    narrow = width < NARROW
    shown = case.run.ranks[:64]
    drawn = columns(case.rank, case.account, int(width / 6))
    edges = np.linspace(drawn.warm_until, drawn.edges[-1], len(drawn.edges))
    lanes = [own_columns(rank, edges) for rank in shown]
    typical = float(np.median(np.stack(lanes)))
    lane = 22.0
    plot = Plot(
        "rank-lanes",
        width,
        30 + lane * len(lanes),
        "Own work of each rank per step: "
        + ", ".join(
            f"rank {rank.rank} {fmt.seconds(own)}"
            for rank, own in zip(shown, case.own, strict=False)
        ),
    )
    right = width - (64 if narrow else BESIDE)
    x = Scale(edges[0], edges[-1], 58, right)
    for row, (rank, values) in enumerate(zip(shown, lanes, strict=True)):
        top = 4 + lane * row
        plot.add(
            Text(x.start - 8, top + 14, f"rank {rank.rank}", "text", 11, "end"),
            Rect(x.start, top, right - x.start, lane - 4, "grid", 0.5),
            *_heat(values, edges, x, (top, lane - 4), typical),
        )
        own = case.own[row]
        slow = own > 1.05 * typical + 1e-4
        label = fmt.seconds(own) if narrow else f"{fmt.seconds(own)} own work"
        plot.add(Text(right + 8, top + 14, label, "wait" if slow else "muted", 11, bold=slow))
    _step_axis(plot, x, 2 + lane * len(lanes), narrow=narrow)
    return plot


def _heat(
    values: Floats, edges: Floats, x: Scale, lane: tuple[float, float], typical: float
) -> Iterator[Rect]:
    """Merges adjacent columns of one shade into one rectangle, to keep the page small."""
    shade: list[int] = (
        np.clip(np.ceil(8 * (values / max(typical, 1e-9) - 1.02)), 0, 8).astype(int).tolist()
    )
    start = 0
    for k in range(1, len(shade) + 1):
        if k == len(shade) or shade[k] != shade[start]:
            left, end = x(float(edges[start])), x(float(edges[k]))
            if shade[start]:
                label = f"{fmt.seconds(float(values[start:k].mean()))} per step"
                yield Rect(
                    left, lane[0], end - left, lane[1], "wait", 0.2 + 0.1 * shade[start], label
                )
            start = k
