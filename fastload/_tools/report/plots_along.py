"""Plots along the run: stages of the step, data wait, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
    text_width,
    ticks,
    time_label,
)
from fastload._tools.doctor.account import Account, Pause, own_seconds, without_slow
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.runs import Floats, Ints, Rank

NARROW = 500.0  # a narrower plot has its labels above it, not beside it
BESIDE = 160.0  # space for labels beside a plot
MAX_RAILS = 3  # kinds of pauses in a plot
MAX_MARKS = 60  # marks per kind of pause; more would merge into a bar
STEADY_S = 0.02  # data wait below which the gate of the monitor considers a run steady
PART_COLORS = {  # custom stages share one more color
    "data wait": "wait",
    "to_device": "copy",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest of the step": "other",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Means per step over equal parts of the run. Column i spans steps edges[i] to edges[i + 1]."""

    edges: Floats
    parts: dict[str, Floats]  # seconds per step: "data wait", the stages, "rest of the step"
    wait_max: Floats
    warm_until: float  # number of the last warm-up step


def positions(rank: Rank) -> Floats:
    """Returns the step at which each row ends. A restarted run continues after its first part."""
    start = rank.iter[0] - rank.steps[0] if (np.diff(rank.iter) > 0).all() else 0
    return np.cumsum(rank.steps).astype(np.float64) + float(start)


def position_of(rank: Rank, number: int) -> float:
    """Returns the position of step ``number`` on the axis."""
    row = int(np.argmin(np.abs(rank.iter - number)))
    return float(positions(rank)[row] + number - rank.iter[row])


def columns(rank: Rank, account: Account, most: int) -> Columns:
    """Averages the run into at most ``most`` columns.

    Single slow steps are excluded, because they would dwarf the others. Plots draw them as marks.
    """
    ends = positions(rank)
    begin = float(ends[0] - rank.steps[0])
    n = max(min(most, len(ends)), 1)
    edges = np.linspace(begin, float(ends[-1]), n + 1)
    place = np.clip(np.searchsorted(edges, ends - rank.steps / 2, side="right") - 1, 0, n - 1)
    step, data, weight = without_slow(rank, np.ones(len(rank.steps), bool))
    stages = {name: np.nan_to_num(column) for name, column in rank.stage_times.items()}
    busy = sum(stages.values(), np.zeros(len(step)))
    wait = np.clip(np.minimum(data, step - busy), 0, None) if stages else np.minimum(data, step)
    parts = {"data wait": wait, **stages, "rest of the step": np.clip(step - wait - busy, 0, None)}
    warm = ends[~account.rows & (rank.session == rank.session[0])]
    return Columns(
        edges,
        {name: _mean(values, weight, place, n) for name, values in parts.items()},
        _largest(np.nan_to_num(rank.data_time_max), place, n),
        float(warm[-1]) if len(warm) else begin,
    )


def _mean(values: Floats, weight: Ints, place: Ints, n: int) -> Floats:
    total, count = np.bincount(place, values * weight, n), np.bincount(place, weight, n)
    return _filled(np.divide(total, count, out=np.full(n, np.nan), where=count > 0))


def _largest(values: Floats, place: Ints, n: int) -> Floats:
    found = np.full(n, np.nan)
    np.fmax.at(found, place, values)
    return _filled(found)


def _filled(values: Floats) -> Floats:
    """Fills columns without a row from the previous column."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return np.nan_to_num(values[last])


def own_columns(rank: Rank, edges: Floats) -> Floats:
    """Returns the seconds per step of the rank's own work, along the run."""
    n = len(edges) - 1
    middle = positions(rank) - rank.steps / 2
    shown = middle >= edges[0]
    place = np.clip(np.searchsorted(edges, middle[shown], side="right") - 1, 0, n - 1)
    return _mean(own_seconds(rank)[shown], rank.steps[shown], place, n)


class Label(NamedTuple):
    """An entry of a legend with a square of its color."""

    text: str
    color: str
    opacity: float = 1.0


def _legend(plot: Plot, labels: Iterable[Label]) -> float:
    """Draws labels in lines above the plot, for narrow plots, and returns their height."""
    at = 46.0
    line = 0
    for label in labels:
        size = text_width(label.text, 11) + 24
        if at + size > plot.width:
            at = 46.0
            line += 1
        plot.add(
            Rect(at, 4 + 18 * line, 10, 10, label.color, label.opacity),
            Text(at + 14, 13 + 18 * line, label.text, "text", 11),
        )
        at += size
    return 18.0 * (line + 1)


def _labels_beside(plot: Plot, labels: Iterable[Label], places: list[float], y: Scale) -> None:
    """Draws labels to the right of the plot, each as near as possible to its place."""
    left = plot.width - BESIDE + 8
    for label, place in zip(labels, spread_out(places, 16, y.end + 6, y.start - 4), strict=True):
        plot.add(
            Rect(left, place - 5, 10, 10, label.color, label.opacity),
            Text(left + 15, place + 4, label.text, "text", 12),
        )


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
    labels = [
        Label(f"{name} {fmt.seconds(float(np.median(values)))}", PART_COLORS.get(name, "more"))
        for name, values in parts.items()
    ]
    described = ", ".join(label.text for label in labels)
    plot = Plot("step-parts", width, 0.0, f"Time per step along the run: {described}")
    legend = _legend(plot, labels) if narrow else 0.0
    rails = sorted(study.pauses, key=lambda each: -each.lost_s)[:MAX_RAILS]
    upper = 12.0 + legend + (28 if narrow else 17) * len(rails)
    plot.height = upper + 240.0
    x = Scale(shown.edges[0], shown.edges[-1], 46, width - (8 if narrow else BESIDE))
    y = Scale(0, top, plot.height - 26, upper)
    add_grid(plot, x, y, ticks(y.low, y.high, 4), time_label)
    _step_axis(plot, x, y.start)
    below = np.zeros(len(shown.edges) - 1)
    places = []
    for label, values in zip(labels, parts.values(), strict=True):
        above = below + values
        points = _staircase(shown.edges, above, x, y) + _staircase(shown.edges, below, x, y)[::-1]
        plot.add(Area(tuple(points), label.color))
        last = slice(-max(len(values) // 10, 1), None)
        places.append(y(float(np.median(below[last] + values[last] / 2))))
        below = above
    _warm(plot, shown, x, y)
    for row, pause in enumerate(rails):
        _rail(plot, study, pause, x, (legend + 20.0 + 28 * row) if narrow else (10.0 + 17 * row))
    if not narrow:
        _labels_beside(plot, labels, places, y)
    return plot


def _rail(plot: Plot, study: Study, pause: Pause, x: Scale, high: float) -> None:
    """Draws a mark per pause. The name is beside the rail, or above it on a phone."""
    plot.add(Line(((x.start, high), (x.end, high)), "grid"))
    for stall in pause.stalls[:: max(len(pause.stalls) // MAX_MARKS, 1)]:
        at = x(position_of(study.case.rank, stall.iter))
        plot.add(
            Rect(
                at - 1.5,
                high - 5,
                3,
                10,
                "stall",
                1.0,
                f"{pause.name} at step {stall.iter:,}: {fmt.seconds(pause.seconds)}",
            )
        )
    name = (
        pause.name.removeprefix("probably ")
        .removeprefix("a ")
        .removeprefix("waiting for data, probably the ")
    )
    corner = (x.end + 8, high + 4) if x.end < plot.width - 20 else (x.start, high - 8)
    plot.add(Text(*corner, f"{name} {fmt.seconds(pause.seconds)}", "stall", 12))


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


def add_axis(plot: Plot, x: Scale, base: float, label: Callable[[float], str]) -> None:
    """Draws the labels of the horizontal axis below ``base``."""
    for value in ticks(x.low, x.high, 3 if plot.width < NARROW else 6):
        anchor = "middle" if x(value) < x.end - 20 else "end"
        plot.add(Text(x(value), base + 16, label(value), "muted", 11, anchor))


def _step_axis(plot: Plot, x: Scale, base: float) -> None:
    add_axis(plot, x, base, fmt.count)
    plot.add(Text(x.start - 12, base + 16, "step", "muted", 11, "end"))


def _warm(plot: Plot, shown: Columns, x: Scale, y: Scale) -> None:
    end = x(shown.warm_until)
    if end - x.start > 1:
        plot.add(
            Rect(x.start, y.end, end - x.start, y.start - y.end, "card", 0.65, "warm-up, excluded")
        )
        if end - x.start > text_width("warm-up", 11):
            plot.add(Text(x.start + 4, y.end + 12, "warm-up", "muted", 11))


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
    x = Scale(shown.edges[0], shown.edges[-1], 46, width - (8 if narrow else BESIDE))
    y = Scale(low, high, plot.height - 26, 22 if narrow else 10, log=True)
    add_grid(plot, x, y, log_ticks(low, high), time_label)
    _step_axis(plot, x, y.start)
    for k, value in enumerate(longest):
        left, end = x(float(shown.edges[k])), x(float(shown.edges[k + 1]))
        plot.add(Rect(left, y(float(value)) - 1, max(end - left, 2), 2, "wait", 0.45))
    bottom = ((x.end, y.start), (x.start, y.start))
    stairs = _staircase(shown.edges, wait, x, y)
    plot.add(Area((*stairs, *bottom), "wait", 0.25), Line(tuple(stairs), "wait", 1.8))
    _warm(plot, shown, x, y)
    labels = [Label("mean", "wait"), Label("longest", "wait", 0.45)]
    places = [y(float(np.median(wait[-9:]))), y(float(np.median(longest[-9:])))]
    if low < STEADY_S < high:
        plot.add(Line(((x.start, y(STEADY_S)), (x.end, y(STEADY_S))), "muted", 1.0, dashed=True))
        labels.append(Label("steady below 20 ms", "muted"))
        places.append(y(STEADY_S))
    if narrow:
        _legend(plot, labels)
    else:
        _labels_beside(plot, labels, places, y)
    return plot


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
    _step_axis(plot, x, 2 + lane * len(lanes))
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
