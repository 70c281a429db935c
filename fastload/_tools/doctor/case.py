"""What the rules look at: one run with its accounts, and how a rule makes a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastload._tools.doctor.account import Account, Stall, account, own_time, reference_rank
from fastload._tools.doctor.finding import Ceiling, Finding, RunFigures, severity_of
from fastload._tools.doctor.limits import LOOK_SHARE
from fastload._tools.doctor.runs import Rank, Run, Window, mean_of


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``account`` is that of the reference rank: an ordinary one, not the slowest."""

    run: Run
    rank: Rank
    account: Account
    accounts: tuple[Account, ...]
    window: Window | None
    own: tuple[float, ...]  # seconds a step that each rank needs for itself
    stalls: tuple[Stall, ...]
    total_s: float

    @property
    def it_s(self) -> float:
        """Steps a second, all losses included."""
        return self.account.n_steps / self.total_s

    def finding(
        self,
        kind: str,
        title: str,
        evidence: Sequence[str],
        fix: str,
        *,
        lost_s: float = 0.0,
        least: str = "",
    ) -> Finding:
        """Share, severity and ceiling follow from the time lost; ``least`` is the mildest severity."""
        lost_s = min(max(lost_s, 0.0), 0.99 * self.total_s)
        share = lost_s / self.total_s
        severity = severity_of(share)
        ceiling = (
            Ceiling(self.account.n_steps / (self.total_s - lost_s), share / (1 - share))
            if share >= LOOK_SHARE
            else None
        )
        return Finding(
            kind,
            title,
            tuple(evidence),
            fix,
            lost_s,
            share,
            0.0,
            ceiling,
            least if least and severity == "info" else severity,
        )


def case_of(run: Run, window: Window | None) -> Case:
    """Adds up all ranks of a run and picks the reference."""
    accounts = tuple(account(rank) for rank in run.ranks)
    own = tuple(own_time(rank, each) for rank, each in zip(run.ranks, accounts, strict=True))
    place = reference_rank(own)
    chosen = accounts[place]
    stalls = _shared_stalls(
        chosen, [each for number, each in enumerate(accounts) if number != place]
    )
    return Case(run, run.ranks[place], chosen, accounts, window, own, stalls, chosen.total_s)


def _shared_stalls(chosen: Account, others: Sequence[Account]) -> tuple[Stall, ...]:
    """When one rank waits for data, the others wait for it in the backward pass: the cause is in its row, not in theirs."""
    late: dict[int, float] = {}
    for other in others:
        for stall in other.stalls:
            for number in (stall.iter - 1, stall.iter, stall.iter + 1):
                late[number] = max(late.get(number, 0.0), stall.data_s)
    if not late:
        return chosen.stalls
    return tuple(
        Stall(
            each.iter,
            each.steps,
            each.excess_s,
            max(each.data_s, min(late.get(each.iter, 0.0), each.excess_s)),
            each.slack,
            each.swap,
            each.peak_s,
        )
        for each in chosen.stalls
    )


def figures_of(case: Case) -> RunFigures:
    """The run in figures."""
    account = case.account
    rank = case.rank
    known = account.rows & np.isfinite(rank.samples)
    batch = (
        float(rank.samples[known].sum() / rank.steps[known].sum())
        if known.any()
        else float(case.run.header.get("batch_size", 0))
    )
    # Every rank has its own samples; a file of one rank of many stands for all of them.
    world = max(len(case.run.ranks), int(case.run.header.get("world", 1)))
    batch = batch if 0 < batch < 1e12 else 0.0
    return RunFigures(
        case.run.name,
        account.n_steps,
        case.total_s,
        case.it_s,
        account.total_s / account.n_steps,
        account.typical_s,
        account.spread,
        account.wait_s / account.n_steps if account.has_data else None,
        account.wait_s / case.total_s if account.has_data else None,
        batch * case.it_s * min(world, 1 << 20) if batch else None,
        batch or None,
        len(case.run.ranks),
        account.warm_steps,
        account.warm_s,
        {
            name: value
            for name, value in account.stages.items()
            if mean_of(rank.stage_times[name]) >= 0
        },
    )
