"""Rules on slow steps: named by the trainer's own events or by their period; what is left is jitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.metrics import EventRow
from fastload._tools.doctor.account import Stall
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import (
    JITTER_SHARE,
    LOGGING_STEPS,
    LONG_S,
    RARE_WAIT,
    SHORT_S,
    SLOW_FACTOR,
)
from fastload._tools.doctor.periods import Group, find_groups
from fastload._tools.doctor.rules.registry import Named, Unclaimed, rule

FIXES = {
    "checkpoint": "save less often, or in the background: copy the state to CPU memory, write it in a thread (torch.distributed.checkpoint"
    ".async_save)",
    "evaluation": "evaluate less often, on a part of the data, or in a job of its own that reads the checkpoints",
    "logging": "log less often, and keep values on the device until then: .item() and print make the device wait",
    "epoch-start": "keep the loader alive from epoch to epoch: persistent_workers=True; fastload.DataLoader needs no restart",
    "stall": "see what the trainer does every so many steps; tell the probe (probe.event) to get it by name",
}

# Part of an event's name: its kind. The first match decides.
EVENT_KINDS = {
    "check": "checkpoint",
    "save": "checkpoint",
    "ckpt": "checkpoint",
    "eval": "evaluation",
    "val": "evaluation",
    "test": "evaluation",
    "log": "logging",
}


@rule(50)
def periodic(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """Slow steps with a name, from events or from their period; less than 2 % is told, but does no harm."""
    named, unclaimed.stalls = by_period(case, unclaimed.stalls)
    unclaimed.named += named
    return pauses(case, unclaimed.named)


def by_events(case: Case, stalls: Sequence[Stall]) -> tuple[list[Named], list[Stall], float]:
    """Events by name, the stalls they do not explain, and the seconds of events that are in no step's time."""
    account = case.account
    once: dict[tuple[str, int], EventRow] = {}
    for event in case.run.events:
        key = (event.name, event.iter)
        if account.first_iter <= event.iter <= account.last_iter and (
            key not in once or once[key].seconds < event.seconds
        ):
            once[key] = event
    left = {id(stall): stall for stall in stalls}
    outside = 0.0
    for event in once.values():
        near = [
            stall
            for stall in left.values()
            if -1 - stall.slack <= stall.iter - event.iter <= 1 + stall.slack
        ]
        if not near and event.seconds > (SLOW_FACTOR - 1) * account.typical_s:
            outside += event.seconds
        rest = event.seconds
        for stall in near:
            taken = min(rest, stall.excess_s)
            rest -= taken
            key_of = next(key for key, value in left.items() if value is stall)
            left[key_of] = replace(
                stall,
                excess_s=stall.excess_s - taken,
                data_s=min(stall.data_s, stall.excess_s - taken),
                peak_s=min(stall.peak_s, stall.excess_s - taken),
            )
    named = [
        _event_group(name, [event for event in once.values() if event.name == name])
        for name in dict.fromkeys(event.name for event in once.values())
    ]
    # What an event leaves of its stall is measurement error as long as it is shorter than a step.
    return (
        named,
        [
            stall
            for stall in left.values()
            if stall.excess_s > (SLOW_FACTOR - 1) * account.typical_s
        ],
        outside,
    )


def _event_group(name: str, events: list[EventRow]) -> Named:
    distances = np.diff(np.sort([event.iter for event in events]))
    middle = int(np.median(distances)) if len(distances) else 0
    period = middle if middle and float(np.mean(np.abs(distances - middle) <= 1)) >= 0.5 else 0
    kinds = (kind for part, kind in EVENT_KINDS.items() if part in name.lower())
    seconds = [event.seconds for event in events]
    return Named(
        next(kinds, "stall"),
        name,
        period,
        events[0].iter % period if period else 0,
        len(events),
        float(np.median(seconds)),
        sum(seconds),
        True,
        tuple(event.iter for event in events),
    )


def by_period(case: Case, stalls: Sequence[Stall]) -> tuple[list[Named], list[Stall]]:
    """Groups with a period and the name that fits it; and what is left."""
    work = [stall for stall in stalls if not stall.by_data]
    late = [stall for stall in stalls if stall.by_data]
    groups, rest = find_groups(work, case.account.first_iter, case.account.last_iter)
    starts, rest_late = find_groups(late, case.account.first_iter, case.account.last_iter)
    rest_late += [stall for group in starts if group.period < RARE_WAIT for stall in group.stalls]
    named = [_named(group, groups, case.account.typical_s) for group in groups]
    named += [
        _as_named(group, "epoch-start", "waiting for data, probably the start of an epoch")
        for group in starts
        if group.period >= RARE_WAIT
    ]
    return named, rest + rest_late


def _named(group: Group, groups: Sequence[Group], typical_s: float) -> Named:
    """A guess, and said to be one: short and often is logging, the longest is evaluation, between them the checkpoint."""
    longer = [each for each in groups if each.seconds > group.seconds]
    round_number = group.period % 50 == 0
    if group.period <= LOGGING_STEPS and group.seconds < max(SHORT_S, 3 * typical_s):
        return _as_named(group, "logging", "probably logging")
    if (
        group.seconds >= LONG_S
        or (not round_number and not longer)
        or any(
            group.seconds > each.seconds and group.period > each.period and each.seconds >= SHORT_S
            for each in groups
        )
    ):
        return _as_named(group, "evaluation", "probably evaluation")
    return _as_named(group, "checkpoint", "probably a checkpoint")


def _as_named(group: Group, kind: str, name: str) -> Named:
    return Named(
        kind,
        name,
        group.period,
        group.phase,
        len(group.stalls),
        group.seconds,
        group.lost_s,
        False,
        tuple(stall.iter for stall in group.stalls),
    )


def pauses(case: Case, named: Sequence[Named]) -> list[Finding]:
    """A finding for each name; what costs less than 2 % is told, but does no harm."""
    findings = []
    for each in named:
        rhythm = (
            f"every {fmt.count(each.period)} steps"
            if each.period
            else f"{fmt.count(each.times, 'time')}"
        )
        evidence = [
            f"{fmt.count(each.times, 'time')}, {fmt.seconds(each.seconds)} each"
            + (
                f", at steps {fmt.count(each.phase or each.period)} + n x {fmt.count(each.period)}"
                if each.period
                else ""
            ),
            "named by the trainer's own event"
            if each.by_event
            else "named by its period and length; probe.event tells it for certain",
        ]
        findings.append(
            case.finding(
                each.kind,
                f"{each.name}, {rhythm}, {fmt.seconds(each.seconds)}",
                evidence,
                FIXES[each.kind],
                lost_s=each.lost_s,
            )
        )
    return findings


@rule(50)
def jitter(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """Slow steps without a period: the loader's, and the others."""
    findings = []
    for by_data in (True, False):
        these = [stall for stall in unclaimed.stalls if stall.by_data == by_data]
        lost = sum(stall.excess_s for stall in these)
        if not these or lost < JITTER_SHARE * case.total_s:
            continue
        largest = max(these, key=lambda stall: stall.excess_s)
        peak = max(stall.peak_s or stall.excess_s for stall in these)
        evidence = [
            f"{fmt.count(len(these), 'stall')} in {fmt.count(case.account.n_steps, 'step')}, without a period; the longest "
            f"{fmt.seconds(largest.excess_s)} in {fmt.count(max(largest.steps, 1), 'step')}, from {fmt.count(largest.iter)}",
            f"ordinary steps take {fmt.seconds(case.account.typical_s)}",
        ]
        if by_data:
            title = f"the data comes in gusts: {fmt.count(len(these), 'wait')} of up to {fmt.seconds(peak)}"
            fix = (
                "a shared disk or the page cache gives way now and then: pack the dataset (sequential blocks), keep it on a local disk, "
                "read ahead more; watch iowait with fastload monitor"
            )
        else:
            title = f"single steps take up to {fmt.seconds(peak + case.account.typical_s)}, without a period"
            fix = (
                "look for what shares the machine (fastload monitor --pid), Python's garbage collector, memory allocation "
                "(changing image sizes), another job on the GPU"
            )
        findings.append(case.finding("jitter", title, evidence, fix, lost_s=lost))
    return findings
