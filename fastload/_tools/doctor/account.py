"""Accounts for the time of one rank: warm-up, data wait, slow steps and their periods. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload._tools.doctor.limits import (
    CAUSE_PART,
    CHUNK_STEPS,
    EXACT_PERIOD,
    GAP_S,
    PERIOD_FILLED,
    PERIOD_SLACK,
    PERIOD_TIMES,
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
# Long stalls first, so that hiccups of 0.2 s cannot mask a save of 4 s.
SIZE_FLOORS = (0.5, 0.2, 0.05, 0.0)  # relative to the longest stall
MAX_STALLS = 300  # distances are computed among so many stalls
NEIGHBORS = 12  # and to so many following stalls
MAX_PERIODS = 4  # logging, checkpoint, evaluation, epoch
CHANCE = 0.01  # a period that noise shows with this probability is ignored


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
    stalls = _merged(_stalls(rank, rows, typical, float(np.median(data))))
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


def _merged(stalls: Iterable[Stall]) -> tuple[Stall, ...]:
    """Joins slow steps that follow each other without a break."""
    merged: list[Stall] = []
    for stall in sorted(stalls, key=lambda each: each.iter):
        last = merged[-1] if merged else None
        if (
            last is not None
            and stall.iter <= last.iter + max(last.steps, 1)
            and stall.by_data == last.by_data
            and bool(stall.steps) == bool(last.steps)
        ):
            merged[-1] = replace(
                last,
                steps=max(stall.iter + stall.steps - last.iter, last.steps),
                excess_s=last.excess_s + stall.excess_s,
                data_s=last.data_s + stall.data_s,
                slack=max(last.slack, stall.slack),
                swap=last.swap or stall.swap,
                peak_s=max(last.peak_s, stall.peak_s),
            )
        else:
            merged.append(stall)
    return tuple(merged)


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
    _, first = np.unique((np.cumsum(steps) - steps) // CHUNK_STEPS, return_index=True)
    return np.add.reduceat(values * steps, first) / np.add.reduceat(steps, first), first


@dataclass(frozen=True, slots=True)
class Pause:
    """Stalls with a common cause: every ``period`` steps, or events of the trainer."""

    period: int  # in steps; 0 without a period
    phase: int  # iter % period
    stalls: tuple[Stall, ...]
    seconds: float  # median duration
    lost_s: float
    kind: str = ""
    name: str = ""  # the event's name, or "probably a checkpoint"
    by_event: bool = False


def find_groups(stalls: Sequence[Stall], first: int, last: int) -> tuple[list[Pause], list[Stall]]:
    """Pauses with a period, and the stalls without one."""
    pool = list(stalls)
    done: list[Stall] = []
    groups: list[Pause] = []
    while len(groups) < MAX_PERIODS and (group := _next_group(pool, done, first, last)):
        groups.append(group)
        done += group.stalls
        taken = set(map(id, group.stalls))
        pool = [stall for stall in pool if id(stall) not in taken]
    return _split_shared(groups), pool


def _next_group(pool: list[Stall], done: list[Stall], first: int, last: int) -> Pause | None:
    largest = max((stall.excess_s for stall in pool), default=0.0)
    known = np.array([stall.iter for stall in done], np.int64)
    for floor in SIZE_FLOORS if pool else ():
        members = [stall for stall in pool if stall.excess_s >= floor * largest]
        iters = np.array([stall.iter for stall in members], np.int64)
        slack = int(np.median([stall.slack for stall in members]))
        found = find_period(iters, known, first, last, slack=slack)
        if found is not None:
            period, phase, chosen = found
            group = tuple(stall for stall, one in zip(members, chosen, strict=True) if one)
            excess = [stall.excess_s for stall in group]
            return Pause(period, phase, group, float(np.median(excess)), sum(excess))
    return None


def find_period(
    iters: Ints, known: Ints, first: int, last: int, *, slack: int = 0
) -> tuple[int, int, Bools] | None:
    """Period, phase, and which of ``iters`` lie on it.

    ``known`` stalls belong to an earlier group. They may fill positions but do not count.
    """
    if len(iters) < PERIOD_TIMES:
        return None
    some = np.sort(iters)[:MAX_STALLS]
    pairs = [some[k:] - some[:-k] for k in range(1, min(NEIGHBORS + 1, len(some)))]
    distances, counts = np.unique(np.concatenate(pairs), return_counts=True)
    candidates = distances[np.argsort(-counts, kind="stable")][:100]
    best: tuple[int, int, Bools] | None = None
    most = (0, 0)
    for period in (int(each) for each in candidates if each >= 2):
        near = max(slack, 1 if period >= PERIOD_SLACK else 0)
        if 6 * near > period:  # a stall could be anywhere
            continue
        phase, on = _phase(iters, period, near)
        extent = (first - phase, last - phase)
        count = _filled(
            iters[on] - phase, known - phase, period, extent, near=near, n_stalls=len(iters)
        )
        explains = period >= EXACT_PERIOD or 2 * on.sum() > len(iters)
        if count and explains and (count, period) > most:
            best = (period, phase, on)
            most = (count, period)
    return best


def _phase(iters: Ints, period: int, near: int) -> tuple[int, Bools]:
    rest = iters % period
    values = np.unique(rest)[: 2 * MAX_STALLS]
    distance = np.abs(rest[None, :] - values[:, None])
    on = np.minimum(distance, period - distance) <= near
    phase = int(np.argmax(on.sum(axis=1)))
    return int(values[phase]), on[phase]


def _filled(
    iters: Ints, known: Ints, period: int, extent: tuple[int, int], *, near: int, n_stalls: int
) -> int:
    """Number of positions of the period that these stalls fill.

    Returns 0 if too many positions are empty or if chance could do the same.
    """
    mine = np.unique((iters + near) // period)
    rest = known % period
    others = (known[np.minimum(rest, period - rest) <= near] + near) // period
    places = np.unique(np.concatenate([mine, others]))
    wanted = math.floor((extent[1] - near) / period) - math.ceil((extent[0] + near) / period) + 1
    if len(mine) < PERIOD_TIMES or len(places) < PERIOD_FILLED * wanted:
        return 0
    # Any two stalls define a distance and a phase. Chance must place all the others.
    hit = min((2 * near + 1) * n_stalls / max(extent[1] - extent[0] + 1, 1), 1.0)
    n = max(wanted, len(places))
    log_chance = (
        math.log(n_stalls * min(n_stalls, NEIGHBORS))
        + (len(mine) - 2) * math.log(hit)
        + math.lgamma(n + 1)
        - math.lgamma(len(mine) + 1)
        - math.lgamma(n - len(mine) + 1)
    )
    return len(mine) if log_chance < math.log(CHANCE) else 0


def _split_shared(groups: list[Pause]) -> list[Pause]:
    """Splits stalls that belong to two periods.

    If every fourth save coincides with an evaluation, that stall contains both, and each group
    gets its part.
    """
    groups = sorted(groups, key=lambda group: group.period)
    for low, small in enumerate(groups):
        for high in range(low + 1, len(groups)):
            large = groups[high]
            if (
                large.period % small.period
                or abs((large.phase - small.phase) % small.period) > 1
                or large.seconds <= small.seconds
            ):
                continue
            shared_s = len(large.stalls) * small.seconds
            groups[high] = replace(
                large, seconds=large.seconds - small.seconds, lost_s=large.lost_s - shared_s
            )
            groups[low] = replace(
                groups[low],
                stalls=(*groups[low].stalls, *large.stalls),
                lost_s=groups[low].lost_s + shared_s,
            )
    return groups
