"""What a diagnosis found: numbers first, then what to change. Printed as a page (fastload._tools.diagnose.page), or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a batch takes in the steady state: the mean over ``batches`` of them, warm-up left out."""

    seconds: float
    batches: int

    @property
    def per_s(self) -> float:
        """Batches per second."""
        return 1.0 / self.seconds if self.seconds > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the loader's work on a batch: seconds of one worker (thread, process), and its share of all of them."""

    name: str
    seconds: float
    share: float
    detail: tuple[
        tuple[str, float], ...
    ] = ()  # parts of it by name, in seconds; e.g. the single transforms


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change; ``expected_per_s`` is what the model in docs/diagnose.md expects of it, never more than the ceiling."""

    change: str
    why: str
    expected_per_s: float  # batches per second
    gain: float  # 0.32 = 32 % more than now


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why the trainer waits, or why it does not. ``print(diagnosis)`` is a page, ``to_json()`` the same for machines."""

    loader_kind: str  # "torch", "fastload", "other"
    batch_size: int  # samples; 0 = could not be told
    cores: int  # that this job may use
    workers: int | None  # processes (torch) or threads (fastload); None = not known
    loader: Timing  # alone
    step: Timing | None = None  # alone, on batches replayed from memory: the ceiling
    together: Timing | None = None  # both; None without a step, or where the loader ended before
    wait_share: float | None = None  # of the time together in which the trainer waits for data
    on_gpu: bool = False
    start_s: float = 0.0  # from iter(loader) to its first batch
    stages: tuple[Stage, ...] = ()
    stages_from: str = ""  # how they were measured
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def per_s(self) -> float:
        """Batches per second now: measured together, else as the timings alone say."""
        return (self.together or self.slower).per_s

    @property
    def slower(self) -> Timing:
        """The loader's timing, or the step's."""
        return max(
            (each for each in (self.loader, self.step) if each is not None),
            key=lambda each: each.seconds,
        )

    @property
    def ceiling_per_s(self) -> float | None:
        """Batches per second with data for free; None without a step."""
        return self.step.per_s if self.step is not None else None

    @property
    def verdict(self) -> str:
        """``"loader"``: the trainer waits for it; ``"step"``: it does not; ``"unknown"`` without a step.

        Handing over a batch that is ready costs something, too: a loader that is faster than the step has to be waited for 15 % of the
        time until it is blamed, one that is not 5 %.
        """
        if self.step is None or self.wait_share is None:
            return "unknown"
        return (
            "loader"
            if self.wait_share >= (0.05 if self.loader.seconds > 0.8 * self.step.seconds else 0.15)
            else "step"
        )

    def stage(self, name: str) -> Stage | None:
        """The stage of this name, where there is one."""
        return next((each for each in self.stages if each.name == name), None)

    def to_json(self) -> dict[str, object]:
        """Plain dicts, lists, numbers and text."""
        told: dict[str, object] = asdict(self)
        told |= {
            "per_s": self.per_s,
            "ceiling_per_s": self.ceiling_per_s,
            "verdict": self.verdict,
            "stages": [{**asdict(each), "detail": dict(each.detail)} for each in self.stages],
            "suggestions": [asdict(each) for each in self.suggestions],
            "notes": list(self.notes),
        }
        return told

    def __str__(self) -> str:
        from fastload._tools.diagnose.page import page

        return page(self)
