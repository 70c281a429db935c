"""Slow steps that come at equal distances: period and phase. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload._tools.doctor.account import Stall
from fastload._tools.doctor.limits import EXACT_PERIOD, PERIOD_FILLED, PERIOD_SLACK, PERIOD_TIMES
from fastload._tools.doctor.runs import Bools, Ints

LEVELS = (
    0.5,
    0.2,
    0.05,
    0.0,
)  # long stalls first: a save of 4 s must not drown in hiccups of 0.2 s
MOST_STALLS = 300  # distances are taken among so many
NEIGHBORS = 12  # and to so many that follow
MOST_PERIODS = 4  # logging, checkpoint, evaluation, epoch
CHANCE = 0.01  # a period that noise would show with this probability is none


@dataclass(frozen=True, slots=True)
class Group:
    """Stalls every ``period`` steps; ``seconds`` is the median of one."""

    period: int
    phase: int  # iter % period
    stalls: tuple[Stall, ...]
    seconds: float
    lost_s: float


def find_groups(stalls: Sequence[Stall], first: int, last: int) -> tuple[list[Group], list[Stall]]:
    """Groups with a period, and the stalls that have none."""
    pool = list(stalls)
    done: list[Stall] = []
    groups: list[Group] = []
    while (
        len(groups) < MOST_PERIODS and (group := _next_group(pool, done, first, last)) is not None
    ):
        groups.append(group)
        taken = set(map(id, group.stalls))
        done += group.stalls
        pool = [stall for stall in pool if id(stall) not in taken]
    return _shared(groups), pool


def _next_group(pool: list[Stall], done: list[Stall], first: int, last: int) -> Group | None:
    if not pool:
        return None
    largest = max(stall.excess_s for stall in pool)
    for level in LEVELS:
        members = [stall for stall in pool if stall.excess_s >= level * largest]
        iters = np.array([stall.iter for stall in members], np.int64)
        slack = int(np.median([stall.slack for stall in members]))
        found = find_period(
            iters, np.array([stall.iter for stall in done], np.int64), first, last, slack=slack
        )
        if found is not None:
            period, phase, chosen = found
            group = tuple(stall for stall, one in zip(members, chosen, strict=True) if one)
            excess = [stall.excess_s for stall in group]
            return Group(period, phase, group, float(np.median(excess)), sum(excess))
    return None


def find_period(
    iters: Ints, known: Ints, first: int, last: int, *, slack: int = 0
) -> tuple[int, int, Bools] | None:
    """Period, phase and which of ``iters`` are on it. ``known`` were explained before; they may fill places, but do not count."""
    if len(iters) < PERIOD_TIMES:
        return None
    some = np.sort(iters)[:MOST_STALLS]
    pairs = [some[k:] - some[:-k] for k in range(1, min(NEIGHBORS + 1, len(some)))]
    distances, counts = np.unique(np.concatenate(pairs), return_counts=True)
    candidates = distances[np.argsort(-counts, kind="stable")][:100]
    best: tuple[int, int, Bools] | None = None
    most = 0
    for period in (int(each) for each in candidates if each >= 2):
        near = _near(period, slack)
        if near is None:
            continue
        phase, on = _phase(iters, period, near)
        count = _filled(
            iters[on] - phase,
            known - phase,
            period,
            (first - phase, last - phase),
            near=near,
            n_stalls=len(iters),
        )
        if (
            count
            and (period >= EXACT_PERIOD or 2 * on.sum() > len(iters))
            and (count, period) > (most, best[0] if best else 0)
        ):
            best = (period, phase, on)
            most = count
    return best


def _near(period: int, slack: int) -> int | None:
    """How far off its place a stall may be; None where that would be anywhere."""
    near = max(slack, 1 if period >= PERIOD_SLACK else 0)
    return near if 6 * near <= period else None


def _phase(iters: Ints, period: int, near: int) -> tuple[int, Bools]:
    rest = iters % period
    values = np.unique(rest)[: 2 * MOST_STALLS]
    distance = np.abs(rest[None, :] - values[:, None])
    on = np.minimum(distance, period - distance) <= near
    phase = int(np.argmax(on.sum(axis=1)))
    return int(values[phase]), on[phase]


def _filled(
    iters: Ints, known: Ints, period: int, extent: tuple[int, int], *, near: int, n_stalls: int
) -> int:
    """How many places of the period these stalls fill; 0 where too many are empty, or chance could do the same."""
    mine = np.unique((iters + near) // period)
    rest = known % period
    others = (known[np.minimum(rest, period - rest) <= near] + near) // period
    places = np.unique(np.concatenate([mine, others]))
    wanted = math.floor((extent[1] - near) / period) - math.ceil((extent[0] + near) / period) + 1
    if len(mine) < PERIOD_TIMES or len(places) < PERIOD_FILLED * wanted:
        return 0
    # Any two stalls have a distance and a phase; chance has to put all the others on their places.
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


def _shared(groups: list[Group]) -> list[Group]:
    """Every fourth save comes with an evaluation: its stall holds both, and each gets its part."""
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
            n = len(large.stalls)
            groups[high] = replace(
                large,
                seconds=large.seconds - small.seconds,
                lost_s=large.lost_s - n * small.seconds,
            )
            groups[low] = replace(
                groups[low],
                stalls=(*groups[low].stalls, *large.stalls),
                lost_s=groups[low].lost_s + n * small.seconds,
            )
    return groups
