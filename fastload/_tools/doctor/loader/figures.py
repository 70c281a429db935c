"""The measurements of ``fastload.diagnose`` and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fastload._common import formatting as fmt
from fastload._common.public import public
from fastload._tools.doctor.finding import Diagnosis, Finding

DATA_BOUND = "data-bound"
COMPUTE_BOUND = "compute-bound"
UNKNOWN = "unknown"
_NO_WAIT = 0.05  # share of the time below which the trainer is said not to wait


@public()
@dataclass(frozen=True, slots=True)
class BatchTiming:
    """The time of a batch in the steady state, without warm-up.

    Attributes:
        seconds: Mean seconds per batch.
        batches: Number of batches measured.
    """

    seconds: float
    batches: int

    @property
    def per_s(self) -> float:
        """Batches per second."""
        return 1.0 / self.seconds if self.seconds > 0 else float("inf")


@public()
@dataclass(frozen=True, slots=True)
class StageShare:
    """One part of the loader's work on a batch.

    Attributes:
        name: Name of the stage, for example ``"decode"``.
        seconds: Seconds per batch in one worker (thread or process).
        share: Share of the loader's work, 0 to 1.
        detail: Parts of the stage as (name, seconds), for example single transforms.
    """

    name: str
    seconds: float
    share: float
    detail: tuple[tuple[str, float], ...] = ()


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFigures:
    """The measurements of ``fastload.diagnose``.

    Attributes:
        loader_kind: ``"torch"``, ``"fastload"`` or ``"other"``.
        batch_size: Samples per batch; 0 if it is not known.
        cores: CPU cores that this job may use.
        workers: Worker processes (torch) or threads (fastload). None if they are not known.
        loader: The loader alone.
        step: The step alone on batches replayed from memory, which is the ceiling. None without a
            step.
        together: Loader and step together. None without a step, or if the loader ended before.
        wait_share: Share of the time together that the trainer waits for data.
        on_gpu: True if the step uses a GPU.
        start_s: Seconds from ``iter(loader)`` to its first batch.
        stages: The parts of the loader's work.
        stages_from: How the stages were measured.

    Examples:
        >>> numbers = fastload.diagnose(loader, train_step).numbers
        >>> numbers.loader.seconds, numbers.step.seconds
        (0.124, 0.021)
    """

    loader_kind: str
    batch_size: int
    cores: int
    workers: int | None
    loader: BatchTiming
    step: BatchTiming | None = None
    together: BatchTiming | None = None
    wait_share: float | None = None
    on_gpu: bool = False
    start_s: float = 0.0
    stages: tuple[StageShare, ...] = ()
    stages_from: str = ""

    @property
    def per_s(self) -> float:
        """Batches per second now: measured together, or that of the slower part."""
        alone = [each for each in (self.loader, self.step) if each is not None]
        return (self.together or max(alone, key=lambda each: each.seconds)).per_s

    @property
    def ceiling_per_s(self) -> float | None:
        """Batches per second if data were free; None without a step."""
        return self.step.per_s if self.step is not None else None

    @property
    def state(self) -> str:
        """``"data-bound"``, ``"compute-bound"``, or ``"unknown"`` without a step.

        The handover of a ready batch also takes time. A loader that is clearly faster than the
        step is therefore blamed from 15 % of waiting on, any other loader from 5 %.
        """
        if self.step is None or self.wait_share is None:
            return UNKNOWN
        limit = 0.05 if self.loader.seconds > 0.8 * self.step.seconds else 0.15
        return DATA_BOUND if self.wait_share >= limit else COMPUTE_BOUND

    def stage(self, name: str) -> StageShare | None:
        """Returns the stage with this name, or None.

        Args:
            name: Name of the stage, for example ``"decode"``.
        """
        return next((each for each in self.stages if each.name == name), None)

    def as_json(self) -> dict[str, object]:
        """Returns all figures and the rates that follow from them."""
        return {
            **asdict(self),
            "per_s": self.per_s,
            "ceiling_per_s": self.ceiling_per_s,
            "stages": [{**asdict(each), "detail": dict(each.detail)} for each in self.stages],
        }

    def lines(self) -> list[str]:
        """Returns the rates and the loader's stages as lines of text."""
        lines = [self._rates()]
        if self.stages:
            lines.append(f"Time of the loader ({self.stages_from}):")
            lines += [_row(each) for each in self.stages if each.seconds > 0 or each.name == "ipc"]
        return lines

    def _rates(self) -> str:
        where = fmt.count(self.cores, "core")
        if self.workers is not None:
            noun = "thread" if self.loader_kind == "fastload" else "worker"
            where += f", {fmt.count(self.workers, noun)}"
        if self.step is None:
            return (
                f"{self.loader.batches} batches measured on {where}. Pass a step, "
                "diagnose(loader, step), to find out whether this is fast enough."
            )
        free = f"With data for free the step would reach {self.rate(self.step.per_s)} ({where})."
        if self.together is None:
            return free
        reached = self.rate(self.together.per_s)
        return f"Together they reach {reached} ({self.together.batches} batches measured). {free}"

    def rate(self, per_s: float) -> str:
        """Returns it/s and samples/s, because it/s alone misleads if batch sizes differ.

        Args:
            per_s: Batches per second.
        """
        samples = f" = {fmt.rate(per_s * self.batch_size)} samples/s" if self.batch_size else ""
        return f"{fmt.rate(per_s)} it/s{samples}"


def diagnosis_of(
    figures: LoaderFigures, findings: Sequence[Finding], notes: Sequence[str]
) -> Diagnosis[LoaderFigures]:
    """The verdict on these figures. ``findings`` are possible changes, the best first."""
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
        return f"Your loader needs {loader} for {batch} and reaches {rate}."
    waits = "does not wait for data"
    if figures.wait_share is not None and figures.wait_share >= _NO_WAIT:
        waits = f"waits {fmt.percent(figures.wait_share)} of the time"
    verdict = (
        f"Your step needs {fmt.seconds(figures.step.seconds)} and your loader {loader}: "
        f"the {'GPU' if figures.on_gpu else 'step'} {waits}."
    )
    largest = max(figures.stages, key=lambda each: each.seconds, default=None)
    if largest is not None and figures.state == DATA_BOUND:
        name = largest.name.capitalize()
        verdict += f" {name} is {fmt.percent(largest.share)} of the loader's work."
    if findings:
        change = findings[0].fix.split(" (")[0]
        limit = fmt.rate(figures.step.per_s)
        verdict += f"\nBest change: {change}: expected {findings[0].ceiling}, ceiling {limit} it/s."
    elif figures.state == COMPUTE_BOUND:
        verdict += " A faster loader gains nothing; check the step with fastload.check_trainer."
    return verdict


def _row(each: StageShare) -> str:
    detail = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in each.detail)
    line = f"  {each.name:10} {1e3 * each.seconds:9.1f} ms {fmt.percent(each.share):>7}"
    return line + (f"   {detail}" if detail else "")
