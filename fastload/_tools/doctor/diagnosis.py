"""What the doctor says: findings with evidence, share, one fix and a ceiling; printable, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from fastload._common import formatting as words
from fastload._tools.doctor.limits import BAD_SHARE, LOOK_SHARE

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
}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Speed without the cause; ``gain`` 0.32 is 32 % more."""

    it_s: float
    gain: float

    def __str__(self) -> str:
        return f"{words.rate(self.it_s)} it/s (+{words.percent(self.gain)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. ``share`` is of the run's time, ``of_lost`` of all the time that the findings lose."""

    kind: str
    title: str
    evidence: tuple[str, ...]
    fix: str
    lost_s: float = 0.0
    share: float = 0.0
    of_lost: float = 0.0
    ceiling: Ceiling | None = None
    severity: str = "look"  # "bad", "look" or "info"; info does not spoil a clean bill
    run: str = ""  # which one, where several were given

    @property
    def state(self) -> str:
        """Its name for people."""
        return STATES.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run in figures, without warm-up. NaN became None."""

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
        speed = f"{words.rate(self.it_s)} it/s"
        if self.samples_s is not None and self.batch_size is not None:
            speed += f", {words.rate(self.samples_s)} samples/s (batch {self.batch_size:.4g})"
        wait = (
            "data wait not recorded"
            if self.data_s is None or self.data_share is None
            else (f"data wait {words.seconds(self.data_s)} ({words.percent(self.data_share)})")
        )
        ranks = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.name}: {words.count(self.steps, 'step')} in {words.seconds(self.seconds)}{ranks}: {speed}, step "
            f"{words.seconds(self.step_s)} (median {words.seconds(self.typical_step_s)}), {wait}; warm-up left out: "
            f"{words.count(self.warm_steps, 'step')}, {words.seconds(self.warm_s)}"
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer. ``if diagnosis.healthy``: nothing to repair. print() it, or take ``as_json()``."""

    verdict: str
    healthy: bool
    findings: tuple[Finding, ...]
    runs: tuple[RunFacts, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """``"healthy"``, or the kind of the first finding."""
        return "healthy" if self.healthy else self.findings[0].kind

    def as_json(self) -> dict[str, object]:
        """For machines (``--json``)."""
        return {
            "verdict": self.verdict,
            "healthy": self.healthy,
            "state": self.state,
            "findings": [_finite(asdict(each)) for each in self.findings],
            "runs": [_finite(asdict(each)) for each in self.runs],
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.verdict, "", *(str(run) for run in self.runs)]
        for number, finding in enumerate(self.findings, 1):
            lines += ["", *_lines(number, finding)]
        lines += ["", f"looked for: {', '.join(self.checked)}"]
        if self.not_checked:
            lines.append(f"not looked for: {'; '.join(self.not_checked)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _lines(number: int, finding: Finding) -> list[str]:
    where = f" [{finding.run}]" if finding.run else ""
    lines = [f"{number}. {finding.severity.upper()}  {finding.state}: {finding.title}{where}"]
    if finding.lost_s:
        lines.append(
            f"   lost      {words.seconds(finding.lost_s)}: {words.percent(finding.share)} of the time, "
            f"{words.percent(finding.of_lost)} of what is lost"
        )
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
    return "bad" if share >= bad else "look" if share >= look else "info"


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
