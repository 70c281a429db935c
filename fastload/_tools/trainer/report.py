"""What check_trainer found, to print or to read by program."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time: the evidence, where it is, and one fix."""

    check: str  # "amp", "tf32", "channels_last", "compile", "optimizer", "sync", "copy", "batch", "anomaly"
    evidence: str
    fix: str
    where: str = ""  # file:line, where there is one


@dataclass(frozen=True, slots=True)
class Passed:
    """One thing that was looked at and is as it should be, or that could not be looked at here."""

    check: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """``if report:`` reads "if the trainer is clean"."""

    device: str
    step_s: float  # one step, nothing watching it
    batch_size: int  # samples; 0 = could not be told
    findings: tuple[Finding, ...]
    passed: tuple[Passed, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def found(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check."""
        return tuple(each for each in self.findings if each.check == check)

    def to_json(self) -> dict[str, object]:
        """Plain dicts, lists, numbers and text."""
        return {
            **asdict(self),
            "findings": [asdict(each) for each in self.findings],
            "passed": [asdict(each) for each in self.passed],
            "clean": bool(self),
        }

    def __str__(self) -> str:
        rate = 1 / self.step_s if self.step_s > 0 else float("inf")
        samples = (
            f" = {rate * self.batch_size:.0f} samples/s (batch {self.batch_size})"
            if self.batch_size
            else ""
        )
        lines = [
            f"One step on {self.device}: {1e3 * self.step_s:.1f} ms, {rate:.1f} it/s{samples}.",
            f"{len(self.findings)} finding{'s' * (len(self.findings) != 1)}:"
            if self.findings
            else "Nothing found that costs time.",
        ]
        for number, each in enumerate(self.findings, 1):
            lines.append(_wrapped(f"  {number}. {each.check}: {each.evidence}"))
            lines += [f"     at {each.where}"] if each.where else []
            lines.append(_wrapped(f"     fix: {each.fix}"))
        lines += [f"  ok {each.check}: {each.evidence}" for each in self.passed]
        return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="     ", break_on_hyphens=False)
