"""Data of the plots: the rows of a run, averaged into the columns of a plot. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastload._tools.doctor.account import Account, own_seconds, without_slow
from fastload._tools.doctor.runs import Floats, Ints, Rank, samples
from fastload._tools.monitor.series import ACTIVE
from fastload._tools.monitor.window import GpuWindow


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


def step_times(rank: Rank, account: Account) -> tuple[Floats, Floats]:
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


def own_columns(rank: Rank, edges: Floats) -> Floats:
    """Returns the seconds per step of the rank's own work, along the run."""
    n = len(edges) - 1
    middle = positions(rank) - rank.steps / 2
    shown = middle >= edges[0]
    place = np.clip(np.searchsorted(edges, middle[shown], side="right") - 1, 0, n - 1)
    return _mean(own_seconds(rank)[shown], rank.steps[shown], place, n)


def utilization_of(gpu: GpuWindow) -> Floats:
    return samples(gpu.series["util"])


def idle_spans(gpu: GpuWindow) -> list[tuple[float, float]]:
    """Returns (start, end) of each idle period in seconds since the start of the window."""
    idle = np.concatenate([[False], utilization_of(gpu) < ACTIVE, [False]])
    change = np.flatnonzero(np.diff(idle.astype(np.int8)))
    step = float(np.median(np.diff(gpu.t))) if len(gpu.t) > 1 else 0.0
    return [
        (float(gpu.t[first]), float(gpu.t[last - 1]) + step)
        for first, last in zip(change[::2], change[1::2], strict=True)
    ]
