"""Rule on ranks: which one holds the others up. Pure.

Ranks of one run take equal time, for they wait for each other in the backward pass. What distinguishes them is what each needs
for itself: waiting for its data, copying, forward, loss, optimizer.
"""

from __future__ import annotations

import numpy as np

from fastload._common import formatting as fmt
from fastload._tools.doctor.account import WAITING_STAGE, median_of_chunks
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import RANK_SHARE
from fastload._tools.doctor.rules.registry import Unclaimed, rule


@rule(60)
def slow_rank(case: Case, _: Unclaimed) -> list[Finding]:
    """At most one: the rank whose own time is far beyond the others'."""
    if len(case.own) < 2:
        return []
    slowest = int(np.argmax(case.own))
    others = [value for place, value in enumerate(case.own) if place != slowest]
    excess = case.own[slowest] - float(np.median(others))
    rank = case.run.ranks[slowest]
    account = case.accounts[slowest]
    wait = median_of_chunks(np.nan_to_num(rank.data_time[account.rows]), rank.steps[account.rows])
    usual = median_of_chunks(
        np.nan_to_num(case.rank.data_time[case.account.rows]), case.rank.steps[case.account.rows]
    )
    work = case.own[slowest] - wait
    usual_work = float(np.median(others)) - usual
    by_data = wait - usual >= excess / 2
    if not by_data and usual_work > 0 and WAITING_STAGE in account.stages:
        # A slow GPU is as slow backward; there the others' waiting hides it.
        excess += account.stages[WAITING_STAGE] * max(1 - usual_work / work, 0.0)
    if excess < RANK_SHARE * case.account.total_s / case.account.n_steps:
        return []
    evidence = [
        f"rank {rank.rank} needs {fmt.seconds(case.own[slowest])} a step for itself, the other {len(others)} "
        f"{fmt.seconds(float(np.median(others)))}: everybody waits {fmt.seconds(excess)} for it"
    ]
    if by_data:
        evidence.append(
            f"it waits for data {fmt.seconds(wait)} a step, the others {fmt.seconds(usual)}"
        )
        fix = (
            f"look at rank {rank.rank}'s disk, cores and share of the data (same machine? same affinity? fastload doctor there): "
            "its loader alone is late"
        )
    else:
        evidence.append(
            f"its data is there in time ({fmt.seconds(wait)}): the step itself is slower"
        )
        fix = f"look at rank {rank.rank}'s GPU: clocks, temperature, PCIe width, another process on it (fastload monitor)"
    return [
        case.finding(
            "slow-rank",
            f"rank {rank.rank} of {len(case.own)} holds the others up {fmt.seconds(excess)} a step",
            evidence,
            fix,
            lost_s=excess * case.account.n_steps,
        )
    ]
