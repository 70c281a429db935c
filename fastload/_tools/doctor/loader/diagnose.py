"""``fastload.diagnose``: measures the loader that a trainer uses today."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from fastload._common import cuda
from fastload._common.cpus import available_cpus
from fastload._common.formatting import count
from fastload._common.public import public
from fastload._tools.doctor.finding import Diagnosis
from fastload._tools.doctor.loader.figures import BatchTiming, LoaderFigures, diagnosis_of
from fastload._tools.doctor.loader.model import (
    CannotMeasure,
    LoaderCosts,
    measure_candidate,
    suggestions,
)
from fastload._tools.doctor.loader.stages import (
    StageCosts,
    measure_stages,
    of_fastload,
    of_torch,
)
from fastload._tools.doctor.loader.timing import (
    LoaderTiming,
    Source,
    Step,
    restored_random,
    time_loader,
    time_step,
)
from fastload._tools.monitor.batches import count_samples, float_images
from fastload.errors import ConfigError

_CROWDED = 0.15  # share of a worker's time spent waiting for a core that is worth a note


@public()
def diagnose(
    loader: Iterable[Any], step: Step | None = None, *, seconds: float = 60.0
) -> Diagnosis[LoaderFigures]:
    """Measures whether training waits for its loader, and predicts what a change would gain.

    Times the loader alone, the step alone on replayed batches, and both together. The work of a
    torch DataLoader is also split into stages. The loader is not changed: a copy runs, its workers
    are ended, and random generators are restored. A plain iterator loses the batches that it
    yields, and the step really trains.

    Args:
        loader: Any iterable of batches.
        step: The training step, called as ``step(batch)``. Without it, only the loader is measured.
        seconds: Approximate duration of all measurements together.

    Returns:
        The verdict, possible changes with their predicted speed, and the measurements.

    Raises:
        ConfigError: An argument is invalid, the loader yields no batch, or loader or step raise.

    Examples:
        >>> print(fastload.diagnose(loader, lambda batch: train_step(model, batch), seconds=60))
    """
    return run_diagnosis(loader, step, seconds, lambda _: None)


def run_diagnosis(
    loader: Iterable[Any], step: Step | None, seconds: float, on_phase: Callable[[str], None]
) -> Diagnosis[LoaderFigures]:
    """Runs ``diagnose`` and calls ``on_phase`` with a description before each measurement."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < float("inf"):
        raise ConfigError(f"diagnose: seconds={seconds!r:.40}: expected a number above 0")
    if step is not None and not callable(step):
        raise ConfigError(
            f"diagnose: step={type(step).__name__}: expected a function of one batch, or None"
        )
    with restored_random(loader), closing(Source(loader)) as source:
        return _measure(source, step, seconds, on_phase)


def _measure(
    source: Source, step: Step | None, seconds: float, on_phase: Callable[[str], None]
) -> Diagnosis[LoaderFigures]:
    def phase(name: str, share: float) -> float:
        on_phase(f"measuring {name} (about {share * seconds:.0f} s)")
        return share * seconds

    has_stages = source.kind == "torch"
    alone_share, stages_share = (0.35, 0.2) if step else (0.6, 0.4)
    replay: list[object] = []
    alone_share += 0.0 if has_stages else stages_share
    alone = time_loader(source, phase("the loader alone", alone_share), replay=replay)
    if alone is None:
        raise ConfigError(
            f"diagnose: the loader ({type(source.loader).__name__}) yielded no batch. "
            "It is empty, or an iterator that is used up."
        )
    batch = replay[0]
    step_timing = together = costs = candidate = None
    if step is not None:
        step_timing = time_step(step, replay, phase("the step alone", 0.15))
        if not alone.ended:
            together = time_loader(source, phase("loader and step together", 0.3), step=step)
    notes = []
    if has_stages:
        costs = measure_stages(source, phase("the stages of the loader", stages_share), batch)
    if costs:
        budget_s = min(0.1 * seconds, 3.0)
        try:
            candidate = measure_candidate(costs.samples, batch, costs.here.items, budget_s)
        except CannotMeasure as error:
            notes.append(
                f"the gain of fastload is not predicted: {error}. Measure it with fastload pack "
                "and fastload bench load."
            )
    notes += _notes(source, alone, costs, ended_early=step is not None and together is None)
    size = count_samples(batch) or 0
    workers = source.workers
    loader_costs = LoaderCosts(
        loader_s=alone.timing.seconds,
        cores=available_cpus(),
        step_s=step_timing.seconds if step_timing else None,
        together_s=together.timing.seconds if together else None,
        workers=workers if has_stages else None,
        threads=source.fixed_threads,
        start_s=alone.start_s,
        epoch_batches=source.length,
        persistent=bool(getattr(source.loader, "persistent_workers", True)),
        float_images=float_images(batch),
        **(_worker_costs(costs) if costs else {}),
        candidate=candidate,
    )
    stages, stages_from = of_torch(costs, workers or 0) if costs else ((), "")
    if source.kind == "fastload":
        stages, stages_from = of_fastload(source.loader, size)
    figures = LoaderFigures(
        loader_kind=source.kind,
        batch_size=size,
        cores=loader_costs.cores,
        workers=workers,
        loader=alone.timing,
        step=step_timing,
        together=together.timing if together else None,
        wait_share=_wait_share(alone, step_timing, together, background=bool(workers)),
        on_gpu=cuda.in_use(),
        start_s=alone.start_s,
        stages=stages,
        stages_from=stages_from,
    )
    return diagnosis_of(figures, suggestions(loader_costs), notes)


def _notes(
    source: Source, alone: LoaderTiming, costs: StageCosts | None, *, ended_early: bool
) -> Iterator[str]:
    if not alone.settled:
        yield "the loader yields one batch per pass, so its start is part of the measured time"
    if source.once:
        yield (
            f"the loader is an iterator: more than {alone.timing.batches} of its batches "
            "are consumed"
        )
    if ended_early:
        yield "the loader ended before it could run together with the step"
    if source.kind == "torch" and costs is None:
        yield "the dataset is a stream that cannot be measured without consuming it: no stages"
    if costs is None:
        return
    cores = available_cpus()
    queued = costs.shown.queued_s / costs.shown.wall_s if costs.shown.wall_s else 0.0
    if queued > _CROWDED:
        why = "other work uses the cores"
        if (source.workers or 0) > cores:
            why = f"{source.workers} workers share {count(cores, 'core')}"
        subject = "each worker" if costs.there else "loading"
        yield f"{subject} waits {100 * queued:.0f} % of its time for a core: {why}"
    if costs.whole_calls:
        names = ", ".join(sorted(costs.whole_calls))
        yield f"{names} reads and decodes in one call, which is counted as decode"
    if cuda.in_use() and not source.loader.pin_memory:
        yield (
            "pin_memory is off, so copies to the GPU block; "
            "pin_memory=True and non_blocking=True overlap them"
        )


def _worker_costs(costs: StageCosts) -> dict[str, float]:
    """Cost of one batch in one worker that runs alone; the model adds the number of workers."""
    here = costs.here
    collate_ipc_s = here.collate_s + costs.ipc_s
    wall_s = here.wall_s - here.queued_s + collate_ipc_s
    return {
        "wall_s": wall_s,
        "cpu_s": min(wall_s, here.cpu_s + collate_ipc_s),
        "collate_ipc_s": collate_ipc_s,
    }


def _wait_share(
    alone: LoaderTiming,
    step: BatchTiming | None,
    together: LoaderTiming | None,
    *,
    background: bool,
) -> float | None:
    """Share of the time that the trainer waits for data.

    On a GPU this is the time together that the step alone does not need, on a CPU the time inside
    next(). Without a measurement together it follows from the two timings.
    """
    if step is None:
        return None
    if together is None:
        loader_s = alone.timing.seconds
        if background:
            return max(0.0, 1 - step.seconds / loader_s)
        return loader_s / (loader_s + step.seconds)
    if cuda.in_use():
        return max(0.0, 1 - step.seconds / together.timing.seconds)
    return min(1.0, together.wait_s / together.timing.seconds)
