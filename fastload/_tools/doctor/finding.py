"""What every diagnosis is made of: findings with evidence, share, one fix and a ceiling; the numbers behind them; a page and JSON.

``fastload doctor`` and ``fastload.examine`` (recorded runs), ``fastload.diagnose`` (a loader) and ``fastload.check_trainer`` (a
training step) all return a ``Diagnosis``; they differ in their ``numbers``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Generic, Protocol, TypeVar

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.limits import BAD_SHARE, LOOK_SHARE

HEALTHY = "healthy"
OK = "ok"  # a part of the machine
LOOK = "look"
BAD = "bad"
# Names of kinds of findings that are not the kind itself.
STATES = {
    "data-bound": "Data-bound",
    "disk-bound": "Disk-bound",
    "cpu-saturated": "CPU-bound loading",
    "transfer-bound": "Transfer-bound",
    "slow-rank": "One slow rank",
    "jitter": "Jitter",
    "checkpoint": "Stalls",
    "evaluation": "Stalls",
    "logging": "Stalls",
    "epoch-start": "Stalls",
    "stall": "Stalls",
    "swap": "Swapping",
    "throttled": "Throttled GPU",
    "host-bound": "Host-bound step",
    "low-power": "Underused GPU",
    "gpu-idle": "Idle GPU",
    "batch-size": "Batch size",
    "comparison": "Comparison",
    # of a loader
    "decoding": "Slow decoding",
    "workers": "Too few workers",
    "threads": "Too few threads",
    "float-images": "Float images",
    "worker-start": "Worker restarts",
    # of a training step
    "amp": "AMP",
    "tf32": "TF32",
    "sync": "Synchronization",
    "copy": "Blocking copies",
    "channels_last": "Memory format",
    "compile": "Compilation",
    "batch": "Small kernels",
    "anomaly": "Anomaly detection",
}


@public()
@dataclass(frozen=True, slots=True)
class Ceiling:
    """Speed without the cause; ``gain`` 0.32 is 32 % more."""

    it_s: float
    gain: float

    def __str__(self) -> str:
        return f"{fmt.rate(self.it_s)} it/s (+{fmt.percent(self.gain)})"


@public()
@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost time, with its evidence and one fix.

    ``share`` is the part of the run's time that it costs, ``of_lost`` the part of all time that the findings lose.

        >>> for finding in diagnosis.findings:
        ...     print(finding.kind, finding.title, finding.fix)
    """

    kind: str  # its id: "data-bound", "amp", ...
    title: str
    evidence: tuple[str, ...]
    fix: str
    lost_s: float = 0.0
    share: float = 0.0
    of_lost: float = 0.0
    ceiling: Ceiling | None = None
    severity: str = LOOK  # "bad", "look" or "info"; info does not spoil a clean bill
    run: str = ""  # which one, where several were given
    where: str = ""  # file:line in the user's code, where there is one

    @property
    def state(self) -> str:
        """The kind, named for people."""
        return STATES.get(self.kind, self.kind.capitalize())


class Numbers(Protocol):
    """The measurements behind a diagnosis."""

    def lines(self) -> list[str]:
        """For the page, between verdict and findings."""

    def as_json(self) -> dict[str, object]:
        """Entries of the diagnosis' JSON."""


N_co = TypeVar("N_co", bound=Numbers, covariant=True)


@public()
@dataclass(frozen=True, slots=True)
class Diagnosis(Generic[N_co]):
    """The whole answer: a verdict in one sentence, findings in order of their cost, and the numbers behind them.

    >>> diagnosis = fastload.examine("metrics.jsonl")
    >>> print(diagnosis)              # a page
    >>> if not diagnosis.healthy:
    ...     print(diagnosis.findings[0].fix)
    >>> json.dumps(diagnosis.as_json())
    """

    verdict: str
    state: str  # "healthy", or what is wrong: for recorded runs and trainers the kind of the first finding
    healthy: bool  # nothing to repair
    findings: tuple[Finding, ...]
    numbers: N_co
    checked: tuple[str, ...] = ()  # what was looked for
    not_checked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()  # checks that found nothing, with what they saw

    def found(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(each for each in self.findings if each.kind == kind)

    def as_json(self) -> dict[str, object]:
        """Plain dicts, lists, numbers and text (``--json``)."""
        found = {
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
        return {name: _finite(each) for name, each in found.items()}

    def __str__(self) -> str:
        lines = [self.verdict, "", *self.numbers.lines()]
        for number, finding in enumerate(self.findings, 1):
            lines += ["", *_lines(number, finding)]
        lines += ["", *(f"ok  {each}" for each in self.passed)] if self.passed else []
        small = [f"looked for: {', '.join(self.checked)}"] if self.checked else []
        small += [f"not looked for: {'; '.join(self.not_checked)}"] if self.not_checked else []
        small += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, "", *small] if small else lines)


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: state, what was found, and what to do where it is not ok."""

    name: str
    state: str
    found: str
    do: str = ""


@public()
@dataclass(frozen=True, slots=True)
class RunFigures:
    """One recorded run in figures, without warm-up."""

    name: str
    steps: int
    seconds: float
    it_s: float
    step_s: float  # mean
    typical_step_s: float  # median
    spread: float  # of ordinary steps: (p95 - p5) / median
    data_s: float | None  # waiting that nothing covered, mean a step
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
        wait = (
            "data wait not recorded"
            if self.data_s is None or self.data_share is None
            else (f"data wait {fmt.seconds(self.data_s)} ({fmt.percent(self.data_share)})")
        )
        ranks = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.name}: {fmt.count(self.steps, 'step')} in {fmt.seconds(self.seconds)}{ranks}: {speed}, step "
            f"{fmt.seconds(self.step_s)} (median {fmt.seconds(self.typical_step_s)}), {wait}; warm-up left out: "
            f"{fmt.count(self.warm_steps, 'step')}, {fmt.seconds(self.warm_s)}"
        )


@public()
@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """The numbers of ``fastload.examine``: figures of each run."""

    runs: tuple[RunFigures, ...] = ()

    def lines(self) -> list[str]:
        """One per run."""
        return [str(run) for run in self.runs]

    def as_json(self) -> dict[str, object]:
        """``runs``."""
        return {"runs": [asdict(run) for run in self.runs]}


def _lines(number: int, finding: Finding) -> list[str]:
    where = f" [{finding.run}]" if finding.run else ""
    lines = [f"{number}. {finding.severity.upper()}  {finding.state}: {finding.title}{where}"]
    if finding.lost_s:
        lines.append(
            f"   lost      {fmt.seconds(finding.lost_s)}: {fmt.percent(finding.share)} of the time, "
            f"{fmt.percent(finding.of_lost)} of what is lost"
        )
    if finding.where:
        lines.append(f"   where     {finding.where}")
    lines += [
        f"   {'evidence' if not place else '':9} {text}"
        for place, text in enumerate(finding.evidence)
    ]
    lines += (
        [f"   {'fix' if finding.severity != 'info' else 'if needed':9} {finding.fix}"]
        if finding.fix
        else []
    )
    return lines + ([f"   ceiling   {finding.ceiling}"] if finding.ceiling else [])


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def severity_of(share: float, *, bad: float = BAD_SHARE, look: float = LOOK_SHARE) -> str:
    """By the share of the run's time."""
    if share >= bad:
        return "bad"
    return "look" if share >= look else "info"


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """The most costly first; comparisons of runs before all, for they answer the question that was asked."""
    order = {"bad": 0, "look": 1, "info": 2}
    return sorted(
        findings,
        key=lambda each: (
            each.kind not in ("batch-size", "comparison"),
            order[each.severity],
            -each.share,
        ),
    )
