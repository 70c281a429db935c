"""Accounts for the time of one rank: warm-up, the typical step, data wait and slow steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fastload._tools.doctor.limits import (
    CAUSE_PART,
    CHUNK_STEPS,
    GAP_S,
    SLOW_FACTOR,
    STRETCH_FACTOR,
    SWAP_BYTES_S,
    WARM_FACTOR,
    WARM_PART,
    WARM_STEPS,
)
from fastload._tools.doctor.runs import Bools, Floats, Ints, Rank, mean_of, weighted_median

WAITING_STAGE = "backward"  # where DDP ranks wait for the slowest one
WARM_UP_RULE = (
    f"warm-up ends at the first {CHUNK_STEPS} steps that take at most {WARM_FACTOR} x the median "
    f"of the run's second half; it is at most 1/{WARM_PART} of the run (in a short run "
    f"{WARM_STEPS} steps, but at most half of it)"
)


def steady_rows(rank: Rank) -> Bools:
    """True for rows after the warm-up. Every restart of a run has its own warm-up."""
    steady = np.ones(len(rank.iter_time), bool)
    for session in np.unique(rank.session):
        rows = np.flatnonzero(rank.session == session)
        steady[rows[: warm_rows(rank.iter_time[rows], rank.steps[rows])]] = False
    return steady if steady.any() else ~steady


def warm_rows(step: Floats, steps: Ints) -> int:
    """Number of warm-up rows by ``WARM_UP_RULE``. From 80 steps on, the first 10 always count."""
    means, first = _chunk_means(step, steps)
    n = len(means)
    if n < 2:
        return int(len(step) >= 4 and step[0] > WARM_FACTOR * float(np.median(step[1:])))
    is_steady = means <= WARM_FACTOR * float(np.median(means[n // 2 :]))
    least = 1 if n >= 2 * WARM_PART else 0
    most = max(n // WARM_PART, min(n // 2, WARM_STEPS // CHUNK_STEPS), 1)
    end = least + int(np.argmax(is_steady[least:])) if is_steady[least:].any() else most
    return int(first[min(end, most)])


@dataclass(frozen=True, slots=True)
class Stall:
    """Consecutive slow steps."""

    iter: int  # number of the first step
    steps: int  # 0: time between two rows that belongs to no step
    excess_s: float  # time beyond typical steps
    data_s: float  # the part of excess_s spent waiting for data
    slack: int = 0  # uncertainty of iter, in steps
    swap: bool = False  # the host swapped meanwhile
    peak_s: float = 0.0  # excess of the slowest single step

    @property
    def by_data(self) -> bool:
        """True if waiting for data is the main cause."""
        return self.data_s >= CAUSE_PART * self.excess_s


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of one rank went, without its warm-up."""

    rows: Bools  # rows that count
    n_steps: int
    total_s: float
    warm_steps: int
    warm_s: float
    typical_s: float  # median step
    wait_s: float  # data wait of all steps that no device work covered
    has_data: bool
    covered: bool  # device work covered part of data_time
    stages: dict[str, float]  # mean seconds per step
    stalls: tuple[Stall, ...]
    spread: float  # of ordinary steps: (p95 - p5) / median
    first_iter: int
    last_iter: int

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return self.total_s / self.n_steps


def account(rank: Rank) -> Account:
    rows = steady_rows(rank)
    step = rank.iter_time[rows]
    steps = rank.steps[rows]
    data = np.nan_to_num(rank.data_time[rows])
    stages = {
        name: value
        for name, column in rank.stage_times.items()
        if not np.isnan(value := mean_of(column[rows], steps))
    }
    busy = sum((np.nan_to_num(column[rows]) for column in rank.stage_times.values()), 0 * step)
    # A device works through its queue while the host waits for the next batch. Only the
    # remainder of data_time is lost.
    wait = np.clip(np.minimum(data, step - busy), 0, None) if stages else np.minimum(data, step)
    rest, _, rest_steps = without_slow(rank, rows)
    typical = weighted_median(rest, rest_steps)
    found = sorted(
        _stalls(rank, rows, typical, float(np.median(data))), key=lambda stall: stall.iter
    )
    stalls = tuple(_merged(found))
    gaps_s = sum(stall.excess_s for stall in stalls if not stall.steps)
    low, high = np.percentile(rest[(rest_steps > 0) & (rest <= SLOW_FACTOR * typical)], [5, 95])
    wait_s = float((wait * steps).sum())
    return Account(
        rows=rows,
        n_steps=int(steps.sum()),
        total_s=float((step * steps).sum()) + gaps_s,
        warm_steps=int(rank.steps[~rows].sum()),
        warm_s=float(rank.seconds[~rows].sum()),
        typical_s=typical,
        wait_s=wait_s,
        has_data=bool(np.isfinite(rank.data_time[rows]).any()),
        covered=bool(wait_s < 0.9 * (data * steps).sum()),
        stages=stages,
        stalls=stalls,
        spread=float((high - low) / typical),
        first_iter=int(rank.iter[rows].min() - steps[rank.iter[rows].argmin()] + 1),
        last_iter=int(rank.iter[rows].max()),
    )


def without_slow(rank: Rank, rows: Bools) -> tuple[Floats, Floats, Ints]:
    """Mean step and data wait of each row without the steps that the probe listed as slow.

    The third array is the number of remaining steps; 0 where all steps of a row are slow.
    """
    step = rank.iter_time[rows]
    data = np.nan_to_num(rank.data_time[rows])
    steps = rank.steps[rows]
    for place, row in enumerate(np.flatnonzero(rows)):
        slow = rank.slow[row]
        if slow and steps[place] > 1:
            left = max(int(steps[place]) - len(slow), 0)
            step_s = steps[place] * step[place] - sum(each.iter_time for each in slow)
            data_s = steps[place] * data[place] - sum(each.data_time for each in slow)
            step[place] = max(step_s, 0.0) / max(left, 1)
            data[place] = max(data_s, 0.0) / max(left, 1)
            steps[place] = left
    if not steps.any():
        return rank.iter_time[rows], np.nan_to_num(rank.data_time[rows]), rank.steps[rows]
    return step, data, steps


def _stalls(rank: Rank, rows: Bools, typical: float, typical_data: float) -> Iterator[Stall]:
    rest, _, rest_steps = without_slow(rank, rows)
    where = np.flatnonzero(rows)
    steps = rank.steps[where]
    data = np.nan_to_num(rank.data_time[where])
    listed = np.array([bool(rank.slow[row]) for row in where])
    swapping = np.nan_to_num(rank.swap_bytes[where]) > SWAP_BYTES_S * rank.seconds[where]
    single = (steps == 1) & (rank.iter_time[where] > SLOW_FACTOR * typical)
    stretch = (steps > 1) & (rest_steps > 0) & (rest > STRETCH_FACTOR * typical)
    hidden = (steps > 1) & ~listed & ~stretch & (rank.iter_time_max[where] > SLOW_FACTOR * typical)
    for place in np.flatnonzero(single | stretch | hidden | listed):
        row = where[place]
        n = int(steps[place])
        number = int(rank.iter[row])
        swap = bool(swapping[place])
        if single[place]:
            excess = rank.iter_time[row] - typical
            yield _stall(number, 1, excess, data[place] - typical_data, swap=swap)
            continue
        for each in rank.slow[row]:
            if each.iter_time > SLOW_FACTOR * typical:
                late = each.data_time - typical_data
                yield _stall(each.iter, 1, each.iter_time - typical, late, swap=swap)
        if stretch[place]:
            left = int(rest_steps[place])
            slow_data = sum(each.data_time for each in rank.slow[row])
            late = max(n * data[place] - slow_data, 0.0) - left * typical_data
            excess = left * (rest[place] - typical)
            yield _stall(number - n + 1, n, excess, late, slack=n, swap=swap)
        elif hidden[place]:
            excess = rank.iter_time_max[row] - typical
            late = np.nan_to_num(rank.data_time_max[row]) - typical_data
            yield _stall(number - n // 2, 1, excess, late, slack=n // 2 + 1, swap=swap)
    yield from _gaps(rank, where, typical)


def _stall(
    number: int, steps: int, excess: float, data: float, *, slack: int = 0, swap: bool
) -> Stall:
    excess = max(float(excess), 0.0)
    data = min(max(float(data), 0.0), excess)
    return Stall(number, steps, excess, data, slack, swap, excess / max(steps, 1))


def _gaps(rank: Rank, where: Ints, typical: float) -> Iterator[Stall]:
    """Time between rows that no step covers, such as an evaluation outside the watched loop."""
    gap = np.diff(rank.time[where]) - rank.seconds[where[1:]]
    follows = (np.diff(rank.session[where]) == 0) & (np.diff(where) == 1)
    # NaN compares false. A gap longer than any run is a clock that was set.
    long = follows & (gap > max(GAP_S, SLOW_FACTOR * typical)) & (gap < 1e6)
    for place in np.flatnonzero(long):
        row = where[place + 1]
        yield Stall(int(rank.iter[row] - rank.steps[row]), 0, float(gap[place]), 0.0, slack=1)


def _merged(stalls: list[Stall]) -> Iterator[Stall]:
    """Joins slow steps that follow each other without a break."""
    current: Stall | None = None
    for stall in stalls:
        if (
            current is not None
            and stall.iter <= current.iter + max(current.steps, 1)
            and stall.by_data == current.by_data
            and bool(stall.steps) == bool(current.steps)
        ):
            current = replace(
                current,
                steps=max(stall.iter + stall.steps - current.iter, current.steps),
                excess_s=current.excess_s + stall.excess_s,
                data_s=current.data_s + stall.data_s,
                slack=max(current.slack, stall.slack),
                swap=current.swap or stall.swap,
                peak_s=max(current.peak_s, stall.peak_s),
            )
            continue
        if current is not None:
            yield current
        current = stall
    if current is not None:
        yield current


def own_seconds(rank: Rank) -> Floats:
    """Seconds per step of each row without waiting for other ranks."""
    stages = (
        np.nan_to_num(column) for name, column in rank.stage_times.items() if name != WAITING_STAGE
    )
    return sum(stages, np.nan_to_num(rank.data_time))


def median_of_chunks(values: Floats, steps: Ints) -> float:
    """Median over chunks of 10 steps.

    A loader that is late in every eighth step counts as late; a single hiccup does not.
    """
    return float(np.median(_chunk_means(values, steps)[0]))


def _chunk_means(values: Floats, steps: Ints) -> tuple[Floats, Ints]:
    """Means over chunks of 10 steps, and the first row of each chunk."""
    chunk = (np.cumsum(steps) - steps) // CHUNK_STEPS
    _, first = np.unique(chunk, return_index=True)
    return np.add.reduceat(values * steps, first) / np.add.reduceat(steps, first), first
