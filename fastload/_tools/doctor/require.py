"""Targets for a recorded run: ``fastload doctor --require "util>=85 step_cv<10"``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from fastload._tools.doctor.account import without_slow
from fastload._tools.doctor.case import figures_of
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.finding import Diagnosis, RecordedRuns
from fastload._tools.doctor.runs import mean_of, samples
from fastload._tools.monitor.window import Window
from fastload.errors import ConfigError

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_TARGET = re.compile(
    r"[\s,]*([A-Za-z_]\w*)\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?=[\s,]|$)[\s,]*"
)


class Unknown(Exception):
    """The files do not contain what a metric needs."""


Value = Callable[[Study | None, Window | None], float]  # raises Unknown


class Metric(NamedTuple):
    """A figure that can be required. docs/diagnose.md describes each."""

    unit: str
    value: Value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One target and whether a run meets it. ``reason`` explains a missing value."""

    name: str
    comparison: str
    target: float
    unit: str
    value: float | None
    passed: bool
    reason: str = ""
    run: str = ""

    def __str__(self) -> str:
        run = f" [{self.run}]" if self.run else ""
        unit = f" {self.unit}" if self.unit else ""
        found = self.reason if self.value is None else f"{self.value:.4g}{unit}"
        state = "pass" if self.passed else "FAIL"
        return f"{state}  {self.name} {self.comparison} {self.target:g}{unit}: {found}{run}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A diagnosis and the targets of its runs."""

    diagnosis: Diagnosis[RecordedRuns]
    requirements: tuple[Requirement, ...]

    @property
    def passed(self) -> bool:
        return all(each.passed for each in self.requirements)

    def __str__(self) -> str:
        return "\n".join([str(self.diagnosis), "", *map(str, self.requirements)])

    def as_json(self) -> dict[str, object]:
        return {
            **self.diagnosis.as_json(),
            "requirements": [asdict(each) for each in self.requirements],
            "requirements_met": self.passed,
        }


def _known_study(study: Study | None) -> Study:
    if study is None:
        raise Unknown("not known, pass metrics.jsonl")
    return study


def _known(value: float | None, missing: str) -> float:
    if value is None or not math.isfinite(value):
        raise Unknown(f"not known, {missing}")
    return value


def _util(_: Study | None, window: Window | None) -> float:
    gpus = [gpu for gpu in window.gpus if gpu.t] if window else []
    lowest = min((mean_of(samples(gpu.series["util"])) for gpu in gpus), default=None)
    return _known(lowest, "pass a window.json with GPU samples: fastload monitor --out window.json")


def _step_cv(study: Study | None, _: Window | None) -> float:
    """Listed slow steps and the slowest step of a row count alone, the others as their mean."""
    case = _known_study(study).case
    rank = case.rank
    rows = case.account.rows
    rest, _data, left = without_slow(rank, rows)
    values = [*rest]
    weights = [*left]
    for place, row in enumerate(np.flatnonzero(rows)):
        n = int(left[place])
        is_split = n < rank.steps[row]  # the listed slow steps are not part of the mean
        slow = [each.iter_time for each in rank.slow[row]] if is_split else []
        if not slow and n > 1:
            # The slowest step of the row is known, so it is separated from the mean.
            slow = [min(float(rank.iter_time_max[row]), n * float(rest[place]))]
            values[place] = (n * rest[place] - slow[0]) / (n - 1)
            weights[place] = n - 1
        values += slow
        weights += [1] * len(slow)
    if sum(weights) < 2:
        raise Unknown("not known, the run has less than 2 steps after its warm-up")
    mean = np.average(values, weights=weights)
    return float(100 * np.sqrt(np.average((values - mean) ** 2, weights=weights)) / mean)


def _swap(study: Study | None, window: Window | None) -> float:
    if window is not None:
        host = window.host.series
        rate = mean_of(samples(host["swap_in_mb_s"]) + samples(host["swap_out_mb_s"]))
        if math.isfinite(rate):
            return rate
    case = _known_study(study).case
    swapped = case.rank.swap_bytes[case.account.rows]
    seconds = case.rank.seconds[case.account.rows]
    return _known(mean_of(swapped / seconds, seconds) / 1e6, "no swap_bytes in the file")


def _lost(study: Study | None, _: Window | None) -> float:
    return 100 * sum(each.share for each in _known_study(study).findings)


def _figure(name: str, scale: float, missing: str = "") -> Value:
    def value(study: Study | None, _: Window | None) -> float:
        return scale * _known(getattr(figures_of(_known_study(study).case), name), missing)

    return value


_NO_DATA = "no data_time in the file"
_NO_BATCH = "no batch size in the file"
METRICS = {
    # the lowest of several GPUs
    "util": Metric("%", _util),
    # standard deviation of the step time / its mean
    "step_cv": Metric("%", _step_cv),
    "data_share": Metric("%", _figure("data_share", 100, _NO_DATA)),
    "data_ms": Metric("ms", _figure("data_s", 1e3, _NO_DATA)),
    "step_ms": Metric("ms", _figure("step_s", 1e3)),
    "it_s": Metric("it/s", _figure("it_s", 1)),
    "samples_s": Metric("samples/s", _figure("samples_s", 1, _NO_BATCH)),
    # of all findings together
    "lost": Metric("%", _lost),
    "swap_mb_s": Metric("MB/s", _swap),
}


def metric_names() -> str:
    """The metrics with units, for help and error messages."""
    return ", ".join(f"{name} ({each.unit})" for name, each in METRICS.items())


def parse_targets(text: str) -> tuple[tuple[str, str, float], ...]:
    """Returns (name, comparison, number) of each target in the text."""
    found: list[tuple[str, str, float]] = []
    place = 0
    while place < len(text) or not found:
        match = _TARGET.match(text, place)
        if match is None:
            raise ConfigError(
                f"--require {text!r:.120}: cannot read {text[place:]!r:.60}. Expected targets such "
                f'as "util>=85 step_cv<10", with >=, <=, > or <. Names: {metric_names()}'
            )
        name, comparison, number = match.groups()
        if name not in METRICS:
            raise ConfigError(
                f"--require: unknown name {name!r:.60}. "
                f"Names that can be required: {metric_names()}"
            )
        found.append((name, comparison, float(number)))
        place = match.end()
    return tuple(found)


def check_targets(
    targets: Sequence[tuple[str, str, float]], studies: Sequence[Study], windows: Sequence[Window]
) -> tuple[Requirement, ...]:
    """Every target on every run. The first window belongs to the first run, and so on."""
    found = []
    for study, window in zip_longest(studies, windows):
        run = study.case.run.name if study and max(len(studies), len(windows)) > 1 else ""
        for name, comparison, target in targets:
            value = None
            reason = ""
            try:
                value = METRICS[name].value(study, window)
            except Unknown as error:
                reason = str(error)
            passed = value is not None and bool(_COMPARE[comparison](value, target))
            found.append(
                Requirement(
                    name, comparison, target, METRICS[name].unit, value, passed, reason, run
                )
            )
    return tuple(found)
