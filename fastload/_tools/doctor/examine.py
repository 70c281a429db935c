"""Diagnoses recorded runs: every rule on every run, then the runs against each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.account import WARM_UP_RULE, Pause
from fastload._tools.doctor.case import Case, case_of, figures_of
from fastload._tools.doctor.finding import (
    HEALTHY,
    INFO,
    WARN,
    Ceiling,
    Diagnosis,
    Finding,
    RecordedRuns,
    RunFigures,
    ranked,
    severity_of,
)
from fastload._tools.doctor.limits import DATA_SHARE, SAME_BATCH, SAME_SPEED, UTIL_BUSY
from fastload._tools.doctor.rules import data, gpu, steps
from fastload._tools.doctor.runs import Run, mean_of, read_files, samples
from fastload._tools.monitor.window import Window
from fastload.errors import ConfigError

# Earlier rules claim the seconds that several could explain: certain causes precede guesses.
# Slow steps that the trainer named itself (events) are claimed before the first rule.
RULES = (
    gpu.swapping,  # slow steps and waits while the host swapped
    data.data_wait,  # waiting for data in most steps: loader, disk, CPU
    data.transfer,  # copies to the device
    steps.periodic,  # slow steps at equal distances
    steps.jitter,  # slow steps without a period
    steps.slow_rank,  # one rank that the other ranks wait for
    gpu.throttled_gpus,  # GPUs slowed down by heat or power
    gpu.host_bound,  # a GPU that is still idle: the trainer's own Python
)


@public()
def examine(*paths: str | os.PathLike[str]) -> Diagnosis[RecordedRuns]:
    """Explains what slows recorded training runs down.

    Args:
        *paths: ``metrics.jsonl`` files of one or several runs and, if available, a ``window.json``
            per run. Files of several ranks of a run are joined. Two or more runs are compared.

    Returns:
        The verdict, the findings in order of their cost, and the figures of each run.

    Raises:
        ConfigError: A file cannot be read or has no usable row.

    Examples:
        >>> print(fastload.examine("metrics.jsonl", "window.json"))
    """
    return examine_runs(*read_files(paths))


def examine_runs(
    runs: Sequence[Run], windows: Sequence[Window] = (), studies: Sequence[Study] | None = None
) -> Diagnosis[RecordedRuns]:
    """Diagnoses runs in memory. The first window belongs to the first run, and so on.

    ``studies`` is the result of ``study_runs``, if the caller has it.
    """
    if not runs:
        return _window_only(windows)
    studies = study_runs(runs, windows) if studies is None else studies
    figures = [figures_of(each.case) for each in studies]
    findings = [
        replace(finding, run=each.case.run.name) if len(runs) > 1 else finding
        for each in studies
        for finding in each.findings
    ]
    findings = ranked([*findings, *(compare(figures[0], other) for other in figures[1:])])
    healthy = all(each.severity == INFO for each in findings)
    notes = [note for run in runs for note in run.notes]
    notes += [note for window in windows for note in window.notes]
    notes += [WARM_UP_RULE] if any(each.warm_steps for each in figures) else []
    checked, not_checked = _coverage([each.case for each in studies])
    return Diagnosis(
        _verdict(findings, figures[0]),
        HEALTHY if healthy else findings[0].kind,
        healthy,
        tuple(findings),
        RecordedRuns(tuple(figures)),
        checked,
        not_checked,
        tuple(notes),
    )


def study_runs(runs: Sequence[Run], windows: Sequence[Window]) -> list[Study]:
    return [study(case_of(run, window)) for run, window in zip_longest(runs, windows[: len(runs)])]


@dataclass(frozen=True, slots=True)
class Study:
    """One run after all rules."""

    case: Case
    findings: tuple[Finding, ...]
    pauses: tuple[Pause, ...]


def study(case: Case) -> Study:
    """Applies all rules in order. Time that one rule claims is not available to the next."""
    unclaimed, outside_s = steps.by_events(case)
    case = replace(case, total_s=case.total_s + outside_s)
    findings: list[Finding] = []
    for rule in RULES:
        for each in rule(case, unclaimed):
            findings.append(case.charged(each, unclaimed))
            unclaimed.lost_s += findings[-1].lost_s
    lost_s = unclaimed.lost_s or 1.0
    shares = tuple(replace(each, of_lost=each.lost_s / lost_s) for each in findings)
    return Study(case, shares, tuple(unclaimed.pauses))


def compare(first: RunFigures, other: RunFigures) -> Finding:
    evidence = [_speeds(first), _speeds(other)]
    it_change = other.it_s / first.it_s - 1
    if not (first.samples_s and other.samples_s and first.batch_size and other.batch_size):
        return Finding(
            "comparison",
            f"{other.name} {_verb(it_change, 'in it/s')} {first.name}",
            tuple(evidence),
            "Record the batch sizes, because it/s cannot be compared if they differ.",
            severity=INFO,
        )
    change = other.samples_s / first.samples_s - 1
    if abs(other.batch_size / first.batch_size - 1) <= SAME_BATCH:
        title = f"{other.name} {_verb(change)} {first.name}"
        return Finding("comparison", title, tuple(evidence), "", severity=INFO)
    batches = (
        f"batch {other.batch_size:.4g} {_verb(change)} batch {first.batch_size:.4g} in samples/s"
    )
    misleading = abs(change) <= SAME_SPEED or (change > 0) != (it_change > 0)
    if abs(change) <= SAME_SPEED:
        evidence.append(f"The limit is a cost per sample: {_limit(other)}.")
    fix = "Compare samples/s; the larger value wins if the model learns equally well."
    if change <= SAME_SPEED:
        fix = "Compare samples/s; a larger batch does not help, so reduce the cost per sample."
    return Finding(
        "batch-size",
        batches + (f"; the change in it/s ({100 * it_change:+.0f} %) misleads" * misleading),
        tuple(evidence),
        fix,
        severity=WARN if misleading else INFO,
    )


def _limit(run: RunFigures) -> str:
    if run.data_share is None:
        return "the loader or the GPU"
    if run.data_share >= DATA_SHARE:
        return f"the loader (data wait {fmt.percent(run.data_share)} of the time)"
    return f"the step itself (data wait {fmt.percent(run.data_share)} of the time)"


def _speeds(run: RunFigures) -> str:
    samples_s = ""
    if run.samples_s and run.batch_size:
        samples_s = f" x {run.batch_size:.4g} = {fmt.rate(run.samples_s)} samples/s"
    return f"{run.name}: {fmt.rate(run.it_s)} it/s{samples_s}."


def _verb(change: float, unit: str = "") -> str:
    in_unit = f" {unit}" if unit else ""
    if abs(change) <= SAME_SPEED:
        return f"is as fast ({100 * change:+.0f} %){in_unit} as"
    faster = "faster" if change > 0 else "slower"
    return f"is {100 * abs(change):.0f} % {faster}{in_unit} than"


def _verdict(findings: Sequence[Finding], figures: RunFigures) -> str:
    causes = [each for each in findings if each.severity != INFO and not each.compares_runs]
    if findings and findings[0].compares_runs:
        cause = f" {_sentence(causes[0])}" if causes else ""
        return f"{findings[0].state}: {findings[0].title}.{cause}"
    if not causes:
        return _healthy(figures, findings[0] if findings else None)
    same_run = [each for each in findings if each.run == causes[0].run]
    total = sum(each.share for each in same_run)
    together = ""
    fixable = [each for each in causes[1:] if each.lost_s and each in same_run]
    if fixable and causes[0].ceiling and total < 0.95:
        fixed = "both" if len(fixable) == 1 else f"all {len(fixable) + 1}"
        ceiling = Ceiling(figures.it_s / (1 - total), total / (1 - total))
        together = f" With {fixed} fixed: {ceiling}."
    return _sentence(causes[0]) + together


def _sentence(finding: Finding) -> str:
    ceiling = ""
    if finding.ceiling is not None:
        without = "with data for free" if finding.is_data_wait else "without that"
        ceiling = f"; {without} you would reach {finding.ceiling}"
    return f"{finding.state}: {finding.title}{ceiling}."


def _healthy(figures: RunFigures, minor: Finding | None) -> str:
    wait = "no data wait was recorded"
    if figures.data_share is not None:
        wait = f"data wait is {fmt.percent(figures.data_share)} of the time"
    limit = "the step itself is the limit"
    if figures.stages:
        stage, seconds = max(figures.stages.items(), key=lambda each: each[1])
        limit += f" ({stage} is {fmt.percent(seconds / figures.step_s)} of it)"
    also = ""
    if minor is not None and minor.lost_s:
        also = f" Minor: {minor.title} ({fmt.percent(minor.share)} of the time)."
    return (
        f"Healthy: {wait}, ordinary steps vary by {fmt.percent(figures.spread)}, and {limit} at "
        f"{fmt.rate(figures.it_s)} it/s.{also}"
    )


def _coverage(cases: Sequence[Case]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the checks that ran, and of the others with the missing input."""
    has_window = any(case.window for case in cases)
    has_swap = has_window or any(np.isfinite(case.rank.swap_bytes).any() for case in cases)
    window_checks = "throttling, CPU and disk load, GPU utilization"
    table = [
        ("data wait", any(case.account.has_data for case in cases), "no data_time in the file"),
        (
            "transfer",
            any("to_device" in case.account.stages for case in cases),
            "no to_device in stage_times",
        ),
        ("slow steps and their periods", True, ""),
        ("swap", has_swap, "no swap_bytes in the file"),
        ("slow rank", any(len(case.own) > 1 for case in cases), ""),
        (window_checks, has_window, "no window.json: fastload monitor --out window.json"),
    ]
    checked = tuple(name for name, present, _ in table if present)
    missing = tuple(f"{name} ({why})" for name, present, why in table if not present and why)
    return checked, missing


def _window_only(windows: Sequence[Window]) -> Diagnosis[RecordedRuns]:
    """Without steps, the GPU's activity is known, but not why it waited."""
    gpus = [gpu for window in windows for gpu in window.gpus if gpu.t]
    if not gpus:
        raise ConfigError(
            "nothing to examine: expected metrics.jsonl, or a window.json with GPU samples, or both"
        )
    findings = [each for window in windows for each in gpu.throttling(window)]
    for each in gpus:
        util = mean_of(samples(each.series["util"]))
        idle = 1 - util / 100
        if util < UTIL_BUSY:
            findings.append(
                Finding(
                    "gpu-idle",
                    f"GPU {each.index} is idle {fmt.percent(idle)} of the time",
                    (f"Its utilization is {util:.0f} % (limit {UTIL_BUSY:.0f} %).",),
                    "Record the steps with fastload.StepProbe and pass metrics.jsonl as well; this "
                    "window cannot explain why the GPU waits.",
                    share=idle,
                    severity=severity_of(idle),
                )
            )
    findings = ranked(findings)
    healthy = "Healthy: the GPUs are busy and are not slowed down."
    return Diagnosis(
        _sentence(findings[0]) if findings else healthy,
        findings[0].kind if findings else HEALTHY,
        not findings,
        tuple(findings),
        RecordedRuns(),
        ("throttling", "GPU utilization"),
        ("everything else (no metrics.jsonl)",),
        tuple(note for window in windows for note in window.notes),
    )
