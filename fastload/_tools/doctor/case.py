"""What the rules work on: one run with its accounts, and the time that no rule has claimed yet.

A rule is a function in a module of ``rules/``. It receives a run and the unclaimed time and returns
findings. ``examine.RULES`` lists all rules in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fastload._tools.doctor.account import (
    Account,
    Pause,
    Stall,
    account,
    median_of_chunks,
    own_seconds,
)
from fastload._tools.doctor.finding import INFO, Ceiling, Finding, RunFigures, severity_of
from fastload._tools.doctor.limits import WARN_SHARE
from fastload._tools.doctor.runs import Rank, Run
from fastload._tools.monitor.window import Window

MOST_LOST = 0.99  # share of a run that all findings together lose at most; a ceiling is finite


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``account`` belongs to the reference rank, which is an ordinary one."""

    run: Run
    rank: Rank
    account: Account
    accounts: tuple[Account, ...]
    window: Window | None
    own: tuple[float, ...]  # seconds per step that each rank needs for itself
    stalls: tuple[Stall, ...]
    total_s: float

    @property
    def it_s(self) -> float:
        """Steps per second, all losses included."""
        return self.account.n_steps / self.total_s

    def finding(
        self,
        kind: str,
        title: str,
        evidence: Sequence[str],
        fix: str,
        *,
        lost_s: float = 0.0,
        at_least: str = INFO,
    ) -> Finding:
        """A finding whose share, ceiling and severity follow from the time lost."""
        lost_s = min(max(lost_s, 0.0), MOST_LOST * self.total_s)
        share = lost_s / self.total_s
        ceiling = Ceiling(self.it_s / (1 - share), share / (1 - share))
        return Finding(
            kind,
            title,
            tuple(evidence),
            fix,
            lost_s,
            share,
            ceiling=ceiling if share >= WARN_SHARE else None,
            severity=severity_of(share, at_least=at_least),
        )

    def charged(self, finding: Finding, unclaimed: Unclaimed) -> Finding:
        """The finding without the seconds that earlier findings lose already."""
        left_s = max(MOST_LOST * self.total_s - unclaimed.lost_s, 0.0)
        if finding.lost_s <= left_s:
            return finding
        less = self.finding(
            finding.kind, finding.title, finding.evidence, finding.fix, lost_s=left_s
        )
        note = "Other findings lose part of that time already; it is charged once."
        return replace(less, evidence=(*finding.evidence, note))


def case_of(run: Run, window: Window | None) -> Case:
    """Accounts for all ranks of a run and picks the reference rank."""
    accounts = tuple(account(rank) for rank in run.ranks)
    # Medians are robust against single slow steps.
    own = tuple(
        median_of_chunks(own_seconds(rank)[each.rows], rank.steps[each.rows])
        for rank, each in zip(run.ranks, accounts, strict=True)
    )
    by_time = sorted(range(len(own)), key=own.__getitem__)
    place = by_time[(len(own) - 1) // 2]
    chosen = accounts[place]
    stalls = _shared_stalls(chosen, [*accounts[:place], *accounts[place + 1 :]])
    return Case(run, run.ranks[place], chosen, accounts, window, own, stalls, chosen.total_s)


def _shared_stalls(chosen: Account, others: Sequence[Account]) -> tuple[Stall, ...]:
    """Attributes a wait in the backward pass to the rank that waited for data at that step."""
    late: dict[int, float] = {}
    for stall in (stall for other in others for stall in other.stalls):
        for number in (stall.iter - 1, stall.iter, stall.iter + 1):
            late[number] = max(late.get(number, 0.0), stall.data_s)
    return tuple(
        replace(each, data_s=max(each.data_s, min(late.get(each.iter, 0.0), each.excess_s)))
        for each in chosen.stalls
    )


def figures_of(case: Case) -> RunFigures:
    account = case.account
    rank = case.rank
    known = account.rows & np.isfinite(rank.samples)
    batch = float(case.run.header.get("batch_size", 0))
    if known.any():
        batch = float(rank.samples[known].sum() / rank.steps[known].sum())
    batch = batch if 0 < batch < 1e12 else 0.0
    # Every rank has its own samples. The file of one rank out of many represents all of them.
    world = max(len(case.run.ranks), int(case.run.header.get("world", 1)))
    return RunFigures(
        case.run.name,
        account.n_steps,
        case.total_s,
        case.it_s,
        account.step_s,
        account.typical_s,
        account.spread,
        account.wait_s / account.n_steps if account.has_data else None,
        account.wait_s / case.total_s if account.has_data else None,
        batch * case.it_s * min(world, 1 << 20) if batch else None,
        batch or None,
        len(case.run.ranks),
        account.warm_steps,
        account.warm_s,
        dict(account.stages),
    )


@dataclass(slots=True)
class Unclaimed:
    """The time of a run that no rule has claimed yet. Each rule removes what it claims."""

    stalls: list[Stall]
    wait_s: float  # data wait that no device work covered
    pauses: list[Pause] = field(default_factory=list)  # with a name, for findings and plots
    lost_s: float = 0.0  # claimed by all rules so far
