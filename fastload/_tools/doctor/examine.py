"""Recorded runs → diagnosis: every rule on every run, then the runs against each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.account import RULE, Stall
from fastload._tools.doctor.case import Case, case_of, figures_of
from fastload._tools.doctor.finding import (
    HEALTHY,
    Ceiling,
    Diagnosis,
    Finding,
    RecordedRuns,
    RunFigures,
    ranked,
    severity_of,
)
from fastload._tools.doctor.limits import DATA_SHARE, SAME_BATCH, SAME_SPEED, UTIL_BUSY
from fastload._tools.doctor.reading import read_files
from fastload._tools.doctor.rules import Named, Unclaimed, rules
from fastload._tools.doctor.rules.gpu import throttling
from fastload._tools.doctor.rules.stalls import by_events
from fastload._tools.doctor.runs import Run, Window, mean_of
from fastload.errors import ConfigError


def compare(runs: Sequence[RunFigures]) -> list[Finding]:
    """The first run against each of the others."""
    return [_pair(runs[0], other) for other in runs[1:]]


def _pair(first: RunFigures, other: RunFigures) -> Finding:
    evidence: tuple[str, ...] = (_speeds(first), _speeds(other))
    it_change = other.it_s / first.it_s - 1
    if (
        first.samples_s is None
        or other.samples_s is None
        or first.batch_size is None
        or other.batch_size is None
    ):
        more = f"{100 * abs(it_change):.0f} % {'more' if it_change >= 0 else 'less'}"
        return Finding(
            "comparison",
            f"{other.name} does {more} in it/s than {first.name}",
            evidence,
            "batch sizes are not recorded: where they differ, it/s cannot be compared",
            severity="info",
        )
    change = other.samples_s / first.samples_s - 1
    if abs(other.batch_size / first.batch_size - 1) <= SAME_BATCH:
        title = f"{other.name} {_verb(change)} {first.name}"
        return Finding("comparison", title, evidence, "", severity="info")
    batches = (
        f"batch {other.batch_size:.4g} {_verb(change)} batch {first.batch_size:.4g} in samples/s"
    )
    misleading = abs(change) <= SAME_SPEED or (change > 0) != (it_change > 0)
    why = f"; it/s says {100 * it_change:+.0f} % and means nothing here" if misleading else ""
    if abs(change) <= SAME_SPEED:
        evidence = (*evidence, f"the limit is a cost per sample: {_limit(other)}")
    advice = "The larger figure wins, as long as the model learns as well"
    if change <= SAME_SPEED:
        advice = "A larger batch does not pay; repair what limits each sample"
    return Finding(
        "batch-size",
        batches + why,
        evidence,
        f"compare samples/s. {advice}",
        severity="look" if misleading else "info",
    )


def _limit(run: RunFigures) -> str:
    if run.data_share is None:
        return "the loader or the GPU"
    if run.data_share >= DATA_SHARE:
        return f"the loader ({fmt.percent(run.data_share)} waiting for data)"
    return f"the step itself (data wait {fmt.percent(run.data_share)})"


def _speeds(run: RunFigures) -> str:
    more = (
        f" x {run.batch_size:.4g} = {fmt.rate(run.samples_s)} samples/s"
        if run.samples_s is not None and run.batch_size
        else ""
    )
    return f"{run.name}: {fmt.rate(run.it_s)} it/s{more}"


def _verb(change: float) -> str:
    if abs(change) <= SAME_SPEED:
        return f"is as fast ({100 * change:+.0f} %) as"
    return f"is {100 * abs(change):.0f} % {'faster' if change > 0 else 'slower'} than"


ALWAYS = ("data wait", "transfer", "slow steps and their periods", "swap")


@public()
def examine(*paths: str | os.PathLike[str]) -> Diagnosis[RecordedRuns]:
    """Reads metrics.jsonl of one run or several (or of its ranks), and window.json where there is one; says what is slow.

        >>> diagnosis = fastload.examine("metrics.jsonl", "window.json")
        >>> print(diagnosis)

    Raises ConfigError where a file cannot be read or has no usable row.
    """
    runs, windows = read_files(paths)
    return examine_runs(runs, windows)


def examine_runs(runs: Sequence[Run], windows: Sequence[Window] = ()) -> Diagnosis[RecordedRuns]:
    """The same for what was read already. The first window belongs to the first run, and so on."""
    if not runs and not windows:
        raise ConfigError("nothing to examine: expected metrics.jsonl, or a window.json, or both")
    if not runs:
        return _window_only(windows)
    cases = [
        case_of(run, windows[place] if place < len(windows) else None)
        for place, run in enumerate(runs)
    ]
    found: list[Finding] = []
    facts: list[RunFigures] = []
    for case in cases:
        studied = study(case)
        facts.append(figures_of(studied.case))
        found += [
            replace(each, run=case.run.name) if len(cases) > 1 else each
            for each in studied.findings
        ]
    found = ranked(found + compare(facts))
    bad = [each for each in found if each.severity != "info"]
    notes = [note for run in runs for note in run.notes] + [
        note for window in windows for note in window.notes
    ]
    notes += [f"warm-up {RULE}"] if any(each.warm_steps for each in facts) else []
    checked, not_checked = _coverage(cases)
    return Diagnosis(
        _verdict(found, facts, cases),
        found[0].kind if bad else HEALTHY,
        not bad,
        tuple(found),
        RecordedRuns(tuple(facts)),
        checked,
        not_checked,
        tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class Study:
    """One run, looked at by every rule; ``rest`` are slow steps without a name."""

    case: Case
    findings: tuple[Finding, ...]
    named: tuple[Named, ...]
    rest: tuple[Stall, ...]


def study(case: Case) -> Study:
    """All rules in their order; a second that one of them claims is not offered to the next."""
    named, stalls, outside_s = by_events(case, case.stalls)
    case = replace(case, total_s=case.total_s + outside_s)
    unclaimed = Unclaimed(stalls, case.account.wait_s, named)
    findings: list[Finding] = []
    for rule in rules():
        found = rule(case, unclaimed)
        findings += found
        unclaimed.lost_s += sum(each.lost_s for each in found)
    lost_s = unclaimed.lost_s
    shares = tuple(
        replace(each, of_lost=each.lost_s / lost_s if lost_s > 0 else 0.0) for each in findings
    )
    return Study(case, shares, tuple(unclaimed.named), tuple(unclaimed.stalls))


def _verdict(found: Sequence[Finding], facts: Sequence[RunFigures], cases: Sequence[Case]) -> str:
    first = found[0] if found else None
    if first is not None and first.kind in ("batch-size", "comparison"):
        other = next(
            (each for each in found if each.severity != "info" and each is not first), None
        )
        return f"{first.state}: {first.title}." + (
            f" {other.state}: {other.title}{_with_ceiling(other)}." if other else ""
        )
    if first is None or first.severity == "info":
        return _clean_bill(facts[0], first)
    total = sum(each.share for each in found)
    rest = [each for each in found[1:] if each.severity != "info" and each.lost_s]
    every = ""
    if rest and first.ceiling and total < 0.95:
        repaired = "both" if len(rest) == 1 else f"all {len(rest) + 1}"
        every = f" With {repaired} repaired: {Ceiling(cases[0].it_s / (1 - total), total / (1 - total))}."
    return f"{first.state}: {first.title}{_with_ceiling(first)}.{every}"


def _with_ceiling(finding: Finding) -> str:
    if finding.ceiling is None:
        return ""
    free = (
        "with data for free"
        if finding.kind in ("data-bound", "disk-bound", "cpu-saturated")
        else "without that"
    )
    return f"; {free} you would reach {finding.ceiling}"


def _clean_bill(facts: RunFigures, minor: Finding | None) -> str:
    wait = (
        f"data wait {fmt.percent(facts.data_share)} of the time"
        if facts.data_share is not None
        else "no data wait recorded"
    )
    largest = max(facts.stages, key=lambda name: facts.stages[name], default="")
    limit = (
        f"the step itself is the limit ({largest} {fmt.percent(facts.stages[largest] / facts.step_s)} of it)"
        if largest
        else "the step itself is the limit"
    )
    minor_note = (
        f" Minor: {minor.title} ({fmt.percent(minor.share)} of the time)."
        if minor is not None and minor.lost_s
        else ""
    )
    return f"Healthy: {wait}, ordinary steps vary by {fmt.percent(facts.spread)}; {limit}, {fmt.rate(facts.it_s)} it/s.{minor_note}"


def _coverage(cases: Sequence[Case]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    checked = list(ALWAYS)
    missing = []
    if not any(case.account.has_data for case in cases):
        checked.remove("data wait")
        missing.append("data wait (no data_time in the file)")
    if not any("to_device" in case.account.stages for case in cases):
        checked.remove("transfer")
        missing.append("transfer (no to_device in stage_times)")
    if not any(np.isfinite(case.rank.swap_bytes).any() for case in cases) and not any(
        case.window for case in cases
    ):
        checked.remove("swap")
        missing.append("swap (no swap_bytes in the file)")
    if any(len(case.own) > 1 for case in cases):
        checked.append("slow rank")
    if any(case.window for case in cases):
        checked += ["throttling", "CPU and disk load", "GPU utilization"]
    else:
        missing.append(
            "throttling, CPU and disk load, GPU utilization (no window.json: fastload monitor --out window.json)"
        )
    return tuple(checked), tuple(missing)


def _window_only(windows: Sequence[Window]) -> Diagnosis[RecordedRuns]:
    """No steps: what the GPU did is known, why it waited is not."""
    found: list[Finding] = []
    for window in windows:
        found += [
            Finding(
                "throttled",
                each.title,
                each.evidence,
                each.fix,
                share=each.share,
                severity=severity_of(each.share, look=-1.0),
            )
            for each in throttling(window)
        ]
        for gpu in window.gpus:
            util = mean_of(gpu.util)
            if util < UTIL_BUSY:
                idle = 1 - util / 100
                found.append(
                    Finding(
                        "gpu-idle",
                        f"GPU {gpu.index} idles {fmt.percent(idle)} of the time",
                        (f"utilization {util:.0f} %",),
                        "record the steps with fastload.StepProbe and give metrics.jsonl as well: this window cannot say why",
                        share=idle,
                        severity=severity_of(idle),
                    )
                )
    found = ranked(found)
    verdict = "Healthy: the GPUs are busy and nothing holds them back."
    if found:
        verdict = f"{found[0].state}: {found[0].title}."
    notes = tuple(note for window in windows for note in window.notes)
    return Diagnosis(
        verdict,
        found[0].kind if found else HEALTHY,
        not found,
        tuple(found),
        RecordedRuns(),
        ("throttling", "GPU utilization"),
        ("all else (no metrics.jsonl)",),
        notes,
    )
