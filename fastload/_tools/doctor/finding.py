"""The result types that doctor, diagnose and check_trainer share.

``fastload doctor`` and ``fastload.examine`` (recorded runs), ``fastload.diagnose`` (a loader) and
``fastload.check_trainer`` (a training step) return a ``Diagnosis``. They differ in its ``numbers``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.limits import BAD_SHARE, WARN_SHARE

HEALTHY = "healthy"
OK = "ok"
INFO = "info"
WARN = "warn"
BAD = "bad"
_ORDER = {BAD: 0, WARN: 1, INFO: 2}


class Kind(NamedTuple):
    """What a kind of finding is called in a verdict, and how the verdict treats it."""

    label: str
    compares_runs: bool = False  # states how runs differ, not a cause of lost time
    is_data_wait: bool = False  # the time lost is time spent waiting for batches


KINDS = {
    # recorded runs
    "data-bound": Kind("Data-bound", is_data_wait=True),
    "disk-bound": Kind("Disk-bound", is_data_wait=True),
    "cpu-saturated": Kind("CPU-bound loading", is_data_wait=True),
    "transfer-bound": Kind("Transfer-bound"),
    "slow-rank": Kind("One slow rank"),
    "jitter": Kind("Jitter"),
    "checkpoint": Kind("Stalls"),
    "evaluation": Kind("Stalls"),
    "logging": Kind("Stalls"),
    "epoch-start": Kind("Stalls"),
    "stall": Kind("Stalls"),
    "swap": Kind("Swapping"),
    "throttled": Kind("Throttled GPU"),
    "host-bound": Kind("Host-bound step"),
    "low-power": Kind("Underused GPU"),
    "gpu-idle": Kind("Idle GPU"),
    "batch-size": Kind("Batch size", compares_runs=True),
    "comparison": Kind("Comparison", compares_runs=True),
    # loaders
    "decoding": Kind("Slow decoding"),
    "no-workers": Kind("num_workers=0"),
    "workers": Kind("Too few workers"),
    "threads": Kind("Too few threads"),
    "float-images": Kind("Float images"),
    "worker-start": Kind("Worker restarts"),
    # training steps
    "amp": Kind("AMP"),
    "tf32": Kind("TF32"),
    "sync": Kind("Synchronization"),
    "copy": Kind("Blocking copies"),
    "channels_last": Kind("Memory format"),
    "compile": Kind("Compilation"),
    "optimizer": Kind("Optimizer"),
    "batch": Kind("Small kernels"),
    "anomaly": Kind("Anomaly detection"),
}


@public()
@dataclass(frozen=True, slots=True)
class Ceiling:
    """The speed that remains when one cause is removed.

    Attributes:
        it_s: Steps per second without the cause.
        gain: Relative gain over the current speed; 0.32 means 32 % more.
    """

    it_s: float
    gain: float

    def __str__(self) -> str:
        return f"{fmt.rate(self.it_s)} it/s (+{fmt.percent(self.gain)})"


@public()
@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost time, with its evidence and one fix.

    Attributes:
        kind: Identifier, for example ``"data-bound"`` or ``"amp"``.
        title: One sentence that names the cause.
        evidence: The measurements that support it.
        fix: What to do next.
        lost_s: Seconds of the run that this cause costs.
        share: ``lost_s`` as a share of the run's time, 0 to 1.
        of_lost: ``lost_s`` as a share of the time that all findings lose, 0 to 1.
        ceiling: The speed without this cause. None if it is not known.
        severity: ``"bad"``, ``"warn"`` or ``"info"``. A run with only ``"info"`` is healthy.
        run: Name of the run, if several runs were examined.
        where: ``file:line`` in the user's code, if there is one.

    Examples:
        >>> for finding in diagnosis.findings:
        ...     print(finding.kind, finding.title, finding.fix)
    """

    kind: str
    title: str
    evidence: tuple[str, ...]
    fix: str
    lost_s: float = 0.0
    share: float = 0.0
    of_lost: float = 0.0
    ceiling: Ceiling | None = None
    severity: str = WARN
    run: str = ""
    where: str = ""

    @property
    def state(self) -> str:
        """The kind in words, for example ``"Data-bound"``."""
        return self._kind.label

    @property
    def compares_runs(self) -> bool:
        """True if the finding compares two runs and is not a cause of lost time."""
        return self._kind.compares_runs

    @property
    def is_data_wait(self) -> bool:
        """True if the lost time is time spent waiting for batches."""
        return self._kind.is_data_wait

    @property
    def _kind(self) -> Kind:
        return KINDS.get(self.kind) or Kind(self.kind.capitalize())


def severity_of(share: float, *, at_least: str = INFO) -> str:
    """Severity of a cause that costs ``share`` of the time, never milder than ``at_least``."""
    severity = INFO
    if share >= WARN_SHARE:
        severity = BAD if share >= BAD_SHARE else WARN
    return min(severity, at_least, key=_ORDER.__getitem__)


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Comparisons of runs first, because two files ask for one; then by severity and cost."""
    return sorted(
        findings, key=lambda each: (not each.compares_runs, _ORDER[each.severity], -each.share)
    )


class Numbers(Protocol):
    """The measurements of a diagnosis."""

    def lines(self) -> list[str]:
        """Lines of the printed page, between the verdict and the findings."""

    def as_json(self) -> dict[str, object]:
        """Entries that are added to the diagnosis' JSON."""


N_co = TypeVar("N_co", bound=Numbers, covariant=True)


@public()
@dataclass(frozen=True, slots=True)
class Diagnosis(Generic[N_co]):
    """A verdict in one sentence, findings in order of their cost, and the measurements.

    ``print(diagnosis)`` shows all of it as a page.

    Attributes:
        verdict: The answer in one or two sentences.
        state: ``"healthy"``, or what limits the speed. For recorded runs and training steps this
            is the kind of the first finding.
        healthy: True if nothing needs a fix.
        findings: The causes, most expensive first.
        numbers: The measurements; their type depends on the function that returned the diagnosis.
        checked: Names of the checks that ran.
        not_checked: Checks that could not run, each with the reason.
        notes: Remarks on the input and on the measurement.
        passed: Checks that found nothing, each with what it saw.

    Examples:
        >>> diagnosis = fastload.examine("metrics.jsonl")
        >>> print(diagnosis)
        >>> if not diagnosis.healthy:
        ...     print(diagnosis.findings[0].fix)
    """

    verdict: str
    state: str
    healthy: bool
    findings: tuple[Finding, ...]
    numbers: N_co
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    def found(self, kind: str) -> tuple[Finding, ...]:
        """Returns the findings of one kind.

        Args:
            kind: Identifier of the kind, for example ``"amp"``.

        Examples:
            >>> diagnosis.found("sync")[0].where
            'train.py:85 in train_step'
        """
        return tuple(each for each in self.findings if each.kind == kind)

    def as_json(self) -> dict[str, object]:
        """Returns the diagnosis as dicts, lists, numbers and strings that ``json.dumps`` accepts.

        Examples:
            >>> json.dumps(diagnosis.as_json())
        """
        values = {
            "verdict": self.verdict,
            "healthy": self.healthy,
            "state": self.state,
            "findings": [asdict(each) for each in self.findings],
            **self.numbers.as_json(),
            "checked": self.checked,
            "not_checked": self.not_checked,
            "notes": self.notes,
            "passed": self.passed,
        }
        return {name: _finite(each) for name, each in values.items()}

    def __str__(self) -> str:
        lines = [self.verdict, "", *self.numbers.lines()]
        for number, finding in enumerate(self.findings, 1):
            lines += ["", *_finding_lines(number, finding)]
        if self.passed:
            lines += ["", *(f"ok  {each}" for each in self.passed)]
        footer = [f"checked: {', '.join(self.checked)}"] if self.checked else []
        footer += [f"not checked: {'; '.join(self.not_checked)}"] if self.not_checked else []
        footer += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, "", *footer] if footer else lines)


def _finding_lines(number: int, finding: Finding) -> list[str]:
    run = f" [{finding.run}]" if finding.run else ""
    fix_label = "if needed" if finding.severity == INFO else "fix"
    lost = (
        f"{fmt.seconds(finding.lost_s)}, {fmt.percent(finding.share)} of the time and "
        f"{fmt.percent(finding.of_lost)} of all lost time"
    )
    entries = [
        ("lost", lost if finding.lost_s else ""),
        ("where", finding.where),
        *(("" if place else "evidence", text) for place, text in enumerate(finding.evidence)),
        (fix_label, finding.fix),
        ("ceiling", str(finding.ceiling or "")),
    ]
    title = f"{number}. {finding.severity.upper()}  {finding.state}: {finding.title}{run}"
    return [title, *(f"   {label:9} {text}" for label, text in entries if text)]


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@public()
@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one recorded run, without its warm-up.

    Attributes:
        name: File name of the run.
        steps: Number of steps.
        seconds: Their duration.
        it_s: Steps per second, all losses included.
        step_s: Mean seconds per step.
        typical_step_s: Median seconds per step.
        spread: Variation of ordinary steps, (p95 - p5) / median.
        data_s: Mean seconds per step spent waiting for data while the device was idle.
        data_share: The same as a share of the run's time. None if it was not recorded.
        samples_s: Samples per second over all ranks. None if the batch size is not known.
        batch_size: Mean samples per step and rank. None if it is not known.
        ranks: Number of ranks in the files.
        warm_steps: Steps excluded as warm-up.
        warm_s: Their duration in seconds.
        stages: Mean seconds per step of each stage, by name.
    """

    name: str
    steps: int
    seconds: float
    it_s: float
    step_s: float
    typical_step_s: float
    spread: float
    data_s: float | None
    data_share: float | None
    samples_s: float | None
    batch_size: float | None
    ranks: int
    warm_steps: int
    warm_s: float
    stages: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        speed = f"{fmt.rate(self.it_s)} it/s"
        if self.samples_s is not None and self.batch_size is not None:
            speed += f", {fmt.rate(self.samples_s)} samples/s (batch {self.batch_size:.4g})"
        wait = "data wait not recorded"
        if self.data_s is not None and self.data_share is not None:
            wait = f"data wait {fmt.seconds(self.data_s)} ({fmt.percent(self.data_share)})"
        ranks = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.name}: {fmt.count(self.steps, 'step')}{ranks} in {fmt.seconds(self.seconds)}, "
            f"{speed}, mean step {fmt.seconds(self.step_s)} "
            f"(median {fmt.seconds(self.typical_step_s)}), {wait}; excluded as warm-up: "
            f"{fmt.count(self.warm_steps, 'step')}, {fmt.seconds(self.warm_s)}"
        )


@public()
@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """The numbers of ``fastload.examine``.

    Attributes:
        runs: The figures of each run, in the order of the files.
    """

    runs: tuple[RunFigures, ...] = ()

    def lines(self) -> list[str]:
        """Returns one line of text per run."""
        return [str(run) for run in self.runs]

    def as_json(self) -> dict[str, object]:
        """Returns ``{"runs": [...]}``."""
        return {"runs": [asdict(run) for run in self.runs]}
