"""Rules on steps: slow steps, named by the trainer's events or by their period, and slow ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.metrics import EventRow
from fastload._tools.doctor.account import (
    WAITING_STAGE,
    Pause,
    Stall,
    find_groups,
    median_of_chunks,
)
from fastload._tools.doctor.case import Case, Unclaimed
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import (
    JITTER_SHARE,
    LOGGING_STEPS,
    LONG_S,
    RANK_SHARE,
    RARE_WAIT,
    SHORT_S,
    SLOW_FACTOR,
)

FIXES = {
    "checkpoint": "Save less often or in the background: copy the state to CPU memory and write it "
    "in a thread (torch.distributed.checkpoint.async_save).",
    "evaluation": "Evaluate less often, on part of the data, or in a separate job that reads the "
    "checkpoints.",
    "logging": "Log less often and keep values on the device until then, because .item() and print "
    "make the CPU wait for the device.",
    "epoch-start": "Keep the workers alive between epochs with persistent_workers=True; "
    "fastload.DataLoader does not restart anything.",
    "stall": "Check what the trainer does at these steps, and wrap it in probe.event to see its "
    "name here.",
}

# Part of an event's name and its kind. The first match decides.
EVENT_KINDS = {
    "check": "checkpoint",
    "save": "checkpoint",
    "ckpt": "checkpoint",
    "eval": "evaluation",
    "val": "evaluation",
    "test": "evaluation",
    "log": "logging",
}


def by_events(case: Case) -> tuple[Unclaimed, float]:
    """What the events leave unexplained, and the seconds of events outside all steps."""
    account = case.account
    once: dict[tuple[str, int], EventRow] = {}
    for event in case.run.events:
        key = (event.name, event.iter)
        if account.first_iter <= event.iter <= account.last_iter and (
            key not in once or once[key].seconds < event.seconds
        ):
            once[key] = event
    left = list(case.stalls)
    wait_s = account.wait_s
    outside_s = 0.0
    threshold_s = (SLOW_FACTOR - 1) * account.typical_s
    for event in once.values():
        near = [
            place
            for place, stall in enumerate(left)
            if abs(stall.iter - event.iter) <= 1 + stall.slack
        ]
        rest = event.seconds
        for place in near:
            stall = left[place]
            excess_s = stall.excess_s - min(rest, stall.excess_s)
            data_s = min(stall.data_s, excess_s)
            rest -= stall.excess_s - excess_s
            # The event delays the next batch, so its time is part of data_time as well.
            wait_s -= stall.data_s - data_s
            left[place] = replace(
                stall, excess_s=excess_s, data_s=data_s, peak_s=min(stall.peak_s, excess_s)
            )
        if rest > threshold_s:
            outside_s += rest
    pauses = [
        _event_group(name, [event for event in once.values() if event.name == name])
        for name in dict.fromkeys(event.name for event in once.values())
    ]
    # A remainder shorter than a step is measurement error.
    stalls = [stall for stall in left if stall.excess_s > threshold_s]
    return Unclaimed(stalls, max(wait_s, 0.0), pauses), outside_s


def _event_group(name: str, events: list[EventRow]) -> Pause:
    distances = np.diff(np.sort([event.iter for event in events]))
    middle = int(np.median(distances)) if len(distances) else 0
    period = middle if middle and float(np.mean(np.abs(distances - middle) <= 1)) >= 0.5 else 0
    kinds = (kind for part, kind in EVENT_KINDS.items() if part in name.lower())
    seconds = [event.seconds for event in events]
    return Pause(
        period,
        events[0].iter % period if period else 0,
        tuple(Stall(event.iter, 0, event.seconds, 0.0) for event in events),
        float(np.median(seconds)),
        sum(seconds),
        kind=next(kinds, "stall"),
        name=name,
        by_event=True,
    )


def periodic(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """One finding per named pause. Less than 2 % of the time is only information."""
    pauses, unclaimed.stalls = _by_period(case, unclaimed.stalls)
    unclaimed.pauses += pauses
    findings = []
    for each in unclaimed.pauses:
        times = fmt.count(len(each.stalls), "time")
        rhythm = f"every {fmt.count(each.period)} steps" if each.period else times
        places = "."
        if each.period:
            first = fmt.count(each.phase or each.period)
            places = f", at steps {first} + n x {fmt.count(each.period)}."
        source = "The name is a guess from period and duration; probe.event records it."
        if each.by_event:
            source = "The name is that of the trainer's own event."
        findings.append(
            case.finding(
                each.kind,
                f"{each.name}, {rhythm}, {fmt.seconds(each.seconds)}",
                [f"It happened {times}, {fmt.seconds(each.seconds)} each{places}", source],
                FIXES[each.kind],
                lost_s=each.lost_s,
            )
        )
    return findings


def _by_period(case: Case, stalls: Sequence[Stall]) -> tuple[list[Pause], list[Stall]]:
    """Pauses with a name and a period, and the remaining stalls."""
    extent = (case.account.first_iter, case.account.last_iter)
    groups, rest = find_groups([stall for stall in stalls if not stall.by_data], *extent)
    starts, rest_late = find_groups([stall for stall in stalls if stall.by_data], *extent)
    named = [_guessed(group, groups, case.account.typical_s) for group in groups]
    for group in starts:
        if group.period >= RARE_WAIT:
            name = "waiting for data, probably the start of an epoch"
            named.append(replace(group, kind="epoch-start", name=name))
        else:
            rest_late += group.stalls
    return named, rest + rest_late


def _guessed(group: Pause, groups: Sequence[Pause], typical_s: float) -> Pause:
    """Short and frequent is logging, the longest is evaluation, anything between a checkpoint."""
    if group.period <= LOGGING_STEPS and group.seconds < max(SHORT_S, 3 * typical_s):
        return replace(group, kind="logging", name="probably logging")
    is_longest = all(each.seconds <= group.seconds for each in groups)
    is_rarer = any(
        group.seconds > each.seconds >= SHORT_S and group.period > each.period for each in groups
    )
    if group.seconds >= LONG_S or (group.period % 50 and is_longest) or is_rarer:
        return replace(group, kind="evaluation", name="probably evaluation")
    return replace(group, kind="checkpoint", name="probably a checkpoint")


def jitter(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """Slow steps without a period: first the loader's, then all others."""
    findings = []
    for by_data in (True, False):
        stalls = [stall for stall in unclaimed.stalls if stall.by_data == by_data]
        lost_s = sum(stall.excess_s for stall in stalls)
        if not stalls or lost_s < JITTER_SHARE * case.total_s:
            continue
        longest = max(stalls, key=lambda stall: stall.excess_s)
        peak_s = max(stall.peak_s or stall.excess_s for stall in stalls)
        typical_s = case.account.typical_s
        evidence = [
            f"{fmt.count(len(stalls), 'stall')} in {fmt.count(case.account.n_steps, 'step')} have "
            f"no period; the longest takes {fmt.seconds(longest.excess_s)} in "
            f"{fmt.count(max(longest.steps, 1), 'step')} from step {fmt.count(longest.iter)}.",
            f"Ordinary steps take {fmt.seconds(typical_s)}.",
        ]
        title = f"single steps take up to {fmt.seconds(peak_s + typical_s)} without a period"
        fix = (
            "Check other processes (fastload monitor --pid PID), Python's garbage collector, "
            "memory allocation (changing image sizes) and other jobs on the GPU."
        )
        if by_data:
            title = (
                f"the data arrives in bursts, with {fmt.count(len(stalls), 'wait')} of up to "
                f"{fmt.seconds(peak_s)}"
            )
            fix = (
                "Suspect a shared disk or the page cache: watch iowait with fastload monitor, pack "
                "the dataset into sequential blocks, and keep it on a local disk."
            )
        findings.append(case.finding("jitter", title, evidence, fix, lost_s=lost_s))
    return findings


def slow_rank(case: Case, _: Unclaimed) -> list[Finding]:
    """The rank whose own time is far above that of the others.

    All ranks of a run take equal time, because they wait for each other in the backward pass. What
    differs is what each rank needs for itself: data wait, copy, forward, loss, optimizer.
    """
    if len(case.own) < 2:
        return []
    slowest = int(np.argmax(case.own))
    own_s = case.own[slowest]
    usual_s = float(np.median([*case.own[:slowest], *case.own[slowest + 1 :]]))
    rank = case.run.ranks[slowest]
    account = case.accounts[slowest]
    wait, usual_wait = (
        median_of_chunks(np.nan_to_num(each.data_time[rows]), each.steps[rows])
        for each, rows in ((rank, account.rows), (case.rank, case.account.rows))
    )
    excess = own_s - usual_s
    by_data = wait - usual_wait >= excess / 2
    if not by_data and usual_s > usual_wait and WAITING_STAGE in account.stages:
        # A slow GPU is also slow in the backward pass, where the waiting of the others hides it.
        slower = max(1 - (usual_s - usual_wait) / (own_s - wait), 0.0)
        excess += account.stages[WAITING_STAGE] * slower
    if excess < RANK_SHARE * case.account.step_s:
        return []
    evidence = [
        f"Rank {rank.rank} needs {fmt.seconds(own_s)} per step for itself, the other "
        f"{len(case.own) - 1} need {fmt.seconds(usual_s)}."
    ]
    if by_data:
        evidence.append(
            f"It waits {fmt.seconds(wait)} per step for data, the others {fmt.seconds(usual_wait)}."
        )
        fix = (
            f"Compare the disk, cores, affinity and share of the data of rank {rank.rank} with the "
            "other ranks: run fastload doctor on its machine."
        )
    else:
        evidence.append(
            f"It waits only {fmt.seconds(wait)} per step for data, so its step is slower."
        )
        fix = (
            f"Check the GPU of rank {rank.rank} with fastload monitor: clocks, temperature, PCIe "
            "width, other processes."
        )
    title = (
        f"rank {rank.rank} of {len(case.own)} delays the others by {fmt.seconds(excess)} per step"
    )
    return [case.finding("slow-rank", title, evidence, fix, lost_s=excess * case.account.n_steps)]
