"""The numbers of a live diagnosis, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.finding import Diagnosis, Finding

DATA_BOUND = "data-bound"
COMPUTE_BOUND = "compute-bound"
UNKNOWN = "unknown"


@public()
@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Seconds a batch takes in the steady state: the mean over ``batches`` of them, warm-up left out."""

    seconds: float
    batches: int

    @property
    def per_s(self) -> float:
        """Batches per second."""
        return 1.0 / self.seconds if self.seconds > 0 else float("inf")


@public()
@dataclass(frozen=True, slots=True)
class StageShare:
    """One part of the loader's work on a batch: seconds of one worker (thread, process), and its share of all of them."""

    name: str
    seconds: float
    share: float
    detail: tuple[
        tuple[str, float], ...
    ] = ()  # parts of it by name, in seconds; e.g. the single transforms


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFigures:
    """What ``fastload.diagnose`` measured, in seconds per batch."""

    loader_kind: str  # "torch", "fastload", "other"
    batch_size: int  # samples; 0 = unknown
    cores: int  # that this job may use
    workers: int | None  # processes (torch) or threads (fastload); None = not known
    loader: BatchTiming  # alone
    step: BatchTiming | None = None  # alone, on batches replayed from memory: the ceiling
    together: BatchTiming | None = (
        None  # both; None without a step, or where the loader ended before
    )
    wait_share: float | None = None  # of the time together in which the trainer waits for data
    on_gpu: bool = False
    start_s: float = 0.0  # from iter(loader) to its first batch
    stages: tuple[StageShare, ...] = ()
    stages_from: str = ""  # how they were measured

    @property
    def per_s(self) -> float:
        """Batches per second now: measured together, else as the timings alone say."""
        alone = [each for each in (self.loader, self.step) if each is not None]
        return (self.together or max(alone, key=lambda each: each.seconds)).per_s

    @property
    def ceiling_per_s(self) -> float | None:
        """Batches per second with data for free; None without a step."""
        return self.step.per_s if self.step is not None else None

    @property
    def state(self) -> str:
        """``"data-bound"``: the trainer waits for the loader; ``"compute-bound"``: it does not; ``"unknown"`` without a step.

        Handing over a batch that is ready costs something, too: a loader that is faster than the step has to be waited for 15 % of the
        time until it is blamed, one that is not 5 %.
        """
        if self.step is None or self.wait_share is None:
            return UNKNOWN
        limit = 0.05 if self.loader.seconds > 0.8 * self.step.seconds else 0.15
        return DATA_BOUND if self.wait_share >= limit else COMPUTE_BOUND

    def stage(self, name: str) -> StageShare | None:
        """The stage of this name, where there is one."""
        return next((each for each in self.stages if each.name == name), None)

    def as_json(self) -> dict[str, object]:
        """All figures, and the rates that follow."""
        return {
            **asdict(self),
            "per_s": self.per_s,
            "ceiling_per_s": self.ceiling_per_s,
            "stages": [{**asdict(each), "detail": dict(each.detail)} for each in self.stages],
        }

    def lines(self) -> list[str]:
        """Rates, then where the loader's time goes."""
        lines = [self._rates()]
        if self.stages:
            lines.append(f"Where the loader's time goes ({self.stages_from}):")
            lines += [_row(each) for each in self.stages if each.seconds > 0 or each.name == "ipc"]
        return lines

    def _rates(self) -> str:
        where = fmt.count(self.cores, "core")
        if self.workers is not None:
            noun = "thread" if self.loader_kind == "fastload" else "worker"
            where += f", {fmt.count(self.workers, noun)}"
        if self.step is None:
            return (
                f"{self.loader.batches} batches measured on {where}. With a step (diagnose(loader, step)) you learn whether "
                "that is enough."
            )
        parts = [f"with data for free it would be {self.rate(self.step.per_s)}", where]
        if self.together is not None:
            reached = self.rate(self.together.per_s)
            parts.insert(
                0, f"Together they reach {reached} ({self.together.batches} batches measured)"
            )
        return "; ".join(parts) + "."

    def rate(self, per_s: float) -> str:
        """it/s beside samples/s: the first alone misleads when batch sizes differ."""
        samples = f" = {fmt.rate(per_s * self.batch_size)} samples/s" if self.batch_size else ""
        return f"{fmt.rate(per_s)} it/s{samples}"


def diagnosis_of(
    figures: LoaderFigures, findings: Sequence[Finding], notes: Sequence[str]
) -> Diagnosis[LoaderFigures]:
    """The verdict on these figures; ``findings`` are what could be changed, the best first."""
    return Diagnosis(
        _verdict(figures, findings),
        figures.state,
        figures.state != DATA_BOUND,
        tuple(findings),
        figures,
        notes=tuple(notes),
    )


def _verdict(figures: LoaderFigures, findings: Sequence[Finding]) -> str:
    loader = fmt.seconds(figures.loader.seconds)
    if figures.step is None:
        batch = f"a batch of {figures.batch_size}" if figures.batch_size else "a batch"
        rate = figures.rate(figures.loader.per_s)
        return f"Your loader needs {loader} for {batch}: it gives {rate}."
    who = "GPU" if figures.on_gpu else "step"
    waits = f"waits {fmt.percent(figures.wait_share or 0.0)} of the time"
    if figures.wait_share is None or figures.wait_share < 0.05:
        waits = "does not wait for data"
    verdict = f"Your step needs {fmt.seconds(figures.step.seconds)}, your loader {loader}: the {who} {waits}."
    largest = max(figures.stages, key=lambda each: each.seconds, default=None)
    if largest is not None and figures.state == DATA_BOUND:
        verdict += (
            f" {largest.name.capitalize()} is {fmt.percent(largest.share)} of the loader's work."
        )
    if findings:
        best = findings[0]
        limit = fmt.rate(figures.step.per_s)
        verdict += f"\nBest change: {best.fix.split(' (')[0]}: expected {best.ceiling}, ceiling {limit} it/s."
    elif figures.state == COMPUTE_BOUND:
        verdict += (
            " Nothing to gain from the loader: look at the step itself (fastload.check_trainer)."
        )
    return verdict


def _row(each: StageShare) -> str:
    detail = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in each.detail)
    line = f"  {each.name:10} {1e3 * each.seconds:9.1f} ms {fmt.percent(each.share):>7}"
    return line + (f"   {detail}" if detail else "")
