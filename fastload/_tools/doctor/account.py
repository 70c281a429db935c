"""Where the time of one rank went: rows → warm-up, typical step, waiting that could not hide, slow steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

WAITING_STAGE = "backward"  # where DDP waits for the slowest
RULE = (
    f"left out: all before the first {CHUNK_STEPS} steps that take at most {WARM_FACTOR} x the median of the run's second half "
    f"(at most 1/{WARM_PART} of the run; of a short one {WARM_STEPS} steps, up to half of it)"
)


def steady_rows(rank: Rank) -> Bools:
    """True for rows that count. Every start of the run (a resume appends to its file) has a warm-up of its own."""
    steady = np.ones(len(rank.iter_time), bool)
    for session in np.unique(rank.session):
        rows = np.flatnonzero(rank.session == session)
        steady[rows[: warm_rows(rank.iter_time[rows], rank.steps[rows])]] = False
    return steady if steady.any() else ~steady


def warm_rows(step: Floats, steps: Ints) -> int:
    """How many rows at the start are warm-up, by ``RULE``; the first 10 steps always are, where there are 80 and more."""
    means, first = _chunk_means(step, steps)
    n = len(means)
    if n < 2:
        return int(len(step) >= 4 and step[0] > WARM_FACTOR * float(np.median(step[1:])))
    fine = means <= WARM_FACTOR * float(np.median(means[n // 2 :]))
    least = 1 if n >= 2 * WARM_PART else 0
    most = max(n // WARM_PART, min(n // 2, WARM_STEPS // CHUNK_STEPS), 1)
    end = least + int(np.argmax(fine[least:])) if fine[least:].any() else most
    return int(first[min(end, most)])


@dataclass(frozen=True, slots=True)
class Stall:
    """Slow steps in a row. ``excess_s`` is what they took beyond typical ones, ``data_s`` the part of it that was waiting for data."""

    iter: int  # the first of them
    steps: int  # 0: time between two rows that belongs to no step
    excess_s: float
    data_s: float
    slack: int = 0  # the step is known to so many steps
    swap: bool = False  # the host swapped meanwhile
    peak_s: float = 0.0  # excess of the slowest single step

    @property
    def by_data(self) -> bool:
        """The loader's fault, mostly."""
        return self.data_s >= CAUSE_PART * self.excess_s


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's time, without warm-up."""

    rank: int
    rows: Bools  # those that count
    n_steps: int
    total_s: float
    warm_steps: int
    warm_s: float
    typical_s: float  # median step
    wait_s: float  # waiting for data that no work on the device covered, all steps
    has_data: bool
    covered: bool  # part of data_time was hidden behind the device's work
    stages: dict[str, float]  # mean seconds a step
    stalls: tuple[Stall, ...]
    spread: float  # of ordinary steps: (p95 - p5) / median
    first_iter: int
    last_iter: int


def account(rank: Rank) -> Account:
    """Adds up one rank's rows."""
    rows = steady_rows(rank)
    step = rank.iter_time[rows]
    steps = rank.steps[rows]
    data = np.nan_to_num(rank.data_time[rows])
    stages = {
        name: value
        for name, column in rank.stage_times.items()
        if not np.isnan(value := mean_of(column[rows], steps))
    }
    busy = (
        np.nansum(np.stack([column[rows] for column in rank.stage_times.values()]), axis=0)
        if rank.stage_times
        else np.zeros(len(step))
    )
    # A device works through its queue while the host waits for the next batch: only the rest of data_time is lost.
    wait = np.clip(np.minimum(data, step - busy), 0, None) if stages else np.minimum(data, step)
    rest, _, rest_steps = without_slow(rank, rows)
    typical = weighted_median(rest, rest_steps)
    stalls = tuple(
        _merged(
            sorted(
                _stalls(rank, rows, typical, float(np.median(data))), key=lambda stall: stall.iter
            )
        )
    )
    gaps = sum(stall.excess_s for stall in stalls if not stall.steps)
    low, high = np.percentile(rest[(rest_steps > 0) & (rest <= SLOW_FACTOR * typical)], [5, 95])
    return Account(
        rank.rank,
        rows,
        int(steps.sum()),
        float((step * steps).sum()) + gaps,
        int(rank.steps[~rows].sum()),
        float(rank.seconds[~rows].sum()),
        typical,
        float((wait * steps).sum()),
        bool(np.isfinite(rank.data_time[rows]).any()),
        bool((wait * steps).sum() < 0.9 * (data * steps).sum()),
        stages,
        stalls,
        float((high - low) / typical),
        int(rank.iter[rows].min() - rank.steps[rows][rank.iter[rows].argmin()] + 1),
        int(rank.iter[rows].max()),
    )


def without_slow(rank: Rank, rows: Bools) -> tuple[Floats, Floats, Ints]:
    """Mean step and data wait of each row without the steps that the probe named slow.

    The third array is how many steps are left: 0 where all of them are slow.
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
    last = rank.iter[where]
    data = np.nan_to_num(rank.data_time[where])
    listed = np.array([bool(rank.slow[row]) for row in where])
    swapping = np.nan_to_num(rank.swap_bytes[where]) > SWAP_BYTES_S * rank.seconds[where]
    single = (steps == 1) & (rank.iter_time[where] > SLOW_FACTOR * typical)
    stretch = (steps > 1) & (rest_steps > 0) & (rest > STRETCH_FACTOR * typical)
    hidden = (steps > 1) & ~listed & ~stretch & (rank.iter_time_max[where] > SLOW_FACTOR * typical)
    for place in np.flatnonzero(single | stretch | hidden | listed):
        number = int(last[place])
        swap = bool(swapping[place])
        if single[place]:
            yield _stall(
                number,
                1,
                rank.iter_time[where[place]] - typical,
                data[place] - typical_data,
                swap=swap,
            )
            continue
        for each in rank.slow[where[place]]:
            if each.iter_time > SLOW_FACTOR * typical:
                yield _stall(
                    each.iter, 1, each.iter_time - typical, each.data_time - typical_data, swap=swap
                )
        if stretch[place]:
            n = int(rest_steps[place])
            slow_data = sum(each.data_time for each in rank.slow[where[place]])
            late = max(steps[place] * data[place] - slow_data, 0.0) - n * typical_data
            yield _stall(
                number - int(steps[place]) + 1,
                int(steps[place]),
                n * (rest[place] - typical),
                late,
                slack=int(steps[place]),
                swap=swap,
            )
        elif hidden[place]:
            row = where[place]
            yield _stall(
                number - int(steps[place]) // 2,
                1,
                rank.iter_time_max[row] - typical,
                np.nan_to_num(rank.data_time_max[row]) - typical_data,
                slack=int(steps[place]) // 2 + 1,
                swap=swap,
            )
    yield from _gaps(rank, where, typical)


def _stall(
    number: int, steps: int, excess: float, data: float, *, slack: int = 0, swap: bool = False
) -> Stall:
    excess = max(float(excess), 0.0)
    return Stall(
        number,
        steps,
        excess,
        min(max(float(data), 0.0), excess),
        slack,
        swap,
        excess / max(steps, 1),
    )


def _gaps(rank: Rank, where: Ints, typical: float) -> Iterator[Stall]:
    """Time between rows that no step accounts for: an evaluation outside the loop that the probe watches."""
    if len(where) < 2:
        return
    gap = np.diff(rank.time[where]) - rank.seconds[where[1:]]
    follows = (np.diff(rank.session[where]) == 0) & (np.diff(where) == 1)
    # NaN compares false; a gap of more than the whole run is a clock that was set.
    for place in (
        np.flatnonzero(follows & (gap > max(GAP_S, SLOW_FACTOR * typical)) & (gap < 1e6)) + 1
    ):
        yield Stall(
            int(rank.iter[where[place]] - rank.steps[where[place]]),
            0,
            float(gap[place - 1]),
            0.0,
            slack=1,
        )


def _merged(stalls: list[Stall]) -> Iterator[Stall]:
    """Slow steps that follow each other without a break are one stall."""
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


def own_time(rank: Rank, account: Account) -> float:
    """Seconds a step this rank needs for itself; robust against single slow steps."""
    return median_of_chunks(own_seconds(rank)[account.rows], rank.steps[account.rows])


def own_seconds(rank: Rank) -> Floats:
    """For each row: seconds per step without waiting for other ranks."""
    own = np.nan_to_num(rank.data_time)
    for name, column in rank.stage_times.items():
        if name != WAITING_STAGE:
            own = own + np.nan_to_num(column)
    return own


def median_of_chunks(values: Floats, steps: Ints) -> float:
    """Median over stretches of 10 steps: a loader that is late every eighth step is late, one hiccup is not."""
    return float(np.median(_chunk_means(values, steps)[0]))


def _chunk_means(values: Floats, steps: Ints) -> tuple[Floats, Ints]:
    """Means over stretches of 10 steps, and the first row of each."""
    chunk = (np.cumsum(steps) - steps) // CHUNK_STEPS
    _, first = np.unique(chunk, return_index=True)
    return np.add.reduceat(values * steps, first) / np.add.reduceat(steps, first), first


def reference_rank(own: Sequence[float]) -> int:
    """The middle one of those that are not the slowest."""
    order = sorted(range(len(own)), key=lambda place: own[place])
    return order[(len(order) - 1) // 2] if len(order) > 1 else 0
