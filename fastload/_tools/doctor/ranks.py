"""Which rank holds the others up. Pure.

Ranks of one run take equal time, for they wait for each other in the backward pass. What tells them apart is what each needs
for itself: waiting for its data, copying, forward, loss, optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastload._common import formatting as words
from fastload._tools.doctor.account import Account
from fastload._tools.doctor.diagnosis import Finding
from fastload._tools.doctor.limits import CHUNK_STEPS, RANK_SHARE
from fastload._tools.doctor.runs import Floats, Ints, Rank

if TYPE_CHECKING:
    from fastload._tools.doctor.case import Case

WAITING_STAGE = "backward"  # where DDP waits for the slowest


def own_time(rank: Rank, account: Account) -> float:
    """Seconds a step this rank needs for itself; robust against single slow steps."""
    rows = account.rows
    own = np.nan_to_num(rank.data_time[rows])
    for name, column in rank.stage_times.items():
        if name != WAITING_STAGE:
            own = own + np.nan_to_num(column[rows])
    return median_of_chunks(own, rank.steps[rows])


def median_of_chunks(values: Floats, steps: Ints) -> float:
    """Median over stretches of 10 steps: a loader that is late every eighth step is late, one hiccup is not."""
    chunk = (np.cumsum(steps) - steps) // CHUNK_STEPS
    _, first = np.unique(chunk, return_index=True)
    return float(np.median(np.add.reduceat(values * steps, first) / np.add.reduceat(steps, first)))


def reference_rank(own: Sequence[float]) -> int:
    """The middle one of those that are not the slowest."""
    order = sorted(range(len(own)), key=lambda place: own[place])
    return order[(len(order) - 1) // 2] if len(order) > 1 else 0


def slow_rank(case: Case) -> list[Finding]:
    """At most one: the rank whose own time is far beyond the others'."""
    if len(case.own) < 2:
        return []
    slowest = int(np.argmax(case.own))
    others = [value for place, value in enumerate(case.own) if place != slowest]
    excess = case.own[slowest] - float(np.median(others))
    rank, account = case.run.ranks[slowest], case.accounts[slowest]
    wait = median_of_chunks(np.nan_to_num(rank.data_time[account.rows]), rank.steps[account.rows])
    usual = median_of_chunks(
        np.nan_to_num(case.rank.data_time[case.account.rows]), case.rank.steps[case.account.rows]
    )
    work, usual_work = case.own[slowest] - wait, float(np.median(others)) - usual
    by_data = wait - usual >= excess / 2
    if not by_data and usual_work > 0 and WAITING_STAGE in account.stages:
        # A slow GPU is as slow backward; there the others' waiting hides it.
        excess += account.stages[WAITING_STAGE] * max(1 - usual_work / work, 0.0)
    if excess < RANK_SHARE * case.account.total_s / case.account.n_steps:
        return []
    evidence = [
        f"rank {rank.rank} needs {words.seconds(case.own[slowest])} a step for itself, the other {len(others)} "
        f"{words.seconds(float(np.median(others)))}: everybody waits {words.seconds(excess)} for it"
    ]
    if by_data:
        evidence.append(
            f"it waits for data {words.seconds(wait)} a step, the others {words.seconds(usual)}"
        )
        fix = (
            f"look at rank {rank.rank}'s disk, cores and share of the data (same machine? same affinity? fastload doctor there): "
            "its loader alone is late"
        )
    else:
        evidence.append(
            f"its data is there in time ({words.seconds(wait)}): the step itself is slower"
        )
        fix = f"look at rank {rank.rank}'s GPU: clocks, temperature, PCIe width, another process on it (fastload monitor)"
    return [
        case.finding(
            "slow-rank",
            f"rank {rank.rank} of {len(case.own)} holds the others up {words.seconds(excess)} a step",
            evidence,
            fix,
            lost_s=excess * case.account.n_steps,
        )
    ]
