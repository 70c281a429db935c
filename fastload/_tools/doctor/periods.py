"""Finds slow steps at equal distances: their period and phase. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload._tools.doctor.account import Stall
from fastload._tools.doctor.limits import EXACT_PERIOD, PERIOD_FILLED, PERIOD_SLACK, PERIOD_TIMES
from fastload._tools.doctor.runs import Bools, Ints

# Long stalls first, so that hiccups of 0.2 s cannot mask a save of 4 s.
SIZE_FLOORS = (0.5, 0.2, 0.05, 0.0)  # relative to the longest stall
MAX_STALLS = 300  # distances are computed among so many stalls
NEIGHBORS = 12  # and to so many following stalls
MAX_PERIODS = 4  # logging, checkpoint, evaluation, epoch
CHANCE = 0.01  # a period that noise shows with this probability is ignored


@dataclass(frozen=True, slots=True)
class Group:
    """Stalls every ``period`` steps."""

    period: int
    phase: int  # iter % period
    stalls: tuple[Stall, ...]
    seconds: float  # median duration
    lost_s: float


def find_groups(stalls: Sequence[Stall], first: int, last: int) -> tuple[list[Group], list[Stall]]:
    """Groups with a period, and the stalls without one."""
    pool = list(stalls)
    done: list[Stall] = []
    groups: list[Group] = []
    while len(groups) < MAX_PERIODS and (group := _next_group(pool, done, first, last)):
        groups.append(group)
        done += group.stalls
        taken = set(map(id, group.stalls))
        pool = [stall for stall in pool if id(stall) not in taken]
    return _split_shared(groups), pool


def _next_group(pool: list[Stall], done: list[Stall], first: int, last: int) -> Group | None:
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
            return Group(period, phase, group, float(np.median(excess)), sum(excess))
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


def _split_shared(groups: list[Group]) -> list[Group]:
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
