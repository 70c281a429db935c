"""``fastload.diagnose``: why does my GPU wait, on the loader that is there today."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastload._common.cpus import available_cpus
from fastload._common.formatting import count
from fastload._common.public import public
from fastload._tools.doctor.finding import Diagnosis
from fastload._tools.doctor.loader.figures import (
    BatchTiming,
    LoaderFigures,
    StageShare,
    diagnosis_of,
)
from fastload._tools.doctor.loader.model import LoaderCosts, suggestions
from fastload._tools.doctor.loader.stages import (
    FastloadDecode,
    StageCosts,
    jpegs_of,
    measure_stages,
    of_fastload,
    of_torch,
    time_fastload_decode,
)
from fastload._tools.doctor.loader.timing import (
    LoaderTiming,
    RandomState,
    ReplayBuffer,
    Source,
    Step,
    gpu_in_use,
    time_loader,
    time_step,
)
from fastload._tools.monitor.batches import count_samples, float_images, image_size
from fastload.errors import ConfigError


@public()
def diagnose(
    loader: Iterable[Any], step: Step | None = None, *, seconds: float = 60.0
) -> Diagnosis[LoaderFigures]:
    """Times the loader alone, the step alone on replayed batches, and both together, for about ``seconds`` in all.

    Any iterable will do; a torch DataLoader's dataset is split into its stages, a fastload loader tells its own. The loader is
    left as it was: a copy is run, its workers end here, random generators are put back (a bare iterator loses the batches it
    gives, and a note says how many). The step really runs: give it a model that may be trained on.

        print(fastload.diagnose(loader, lambda batch: train_step(model, batch), seconds=60))
    """
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds < float("inf")
    ):
        raise ConfigError(f"diagnose: seconds={seconds!r:.40}: expected a number above 0")
    if step is not None and not callable(step):
        raise ConfigError(
            f"diagnose: step: expected a function of one batch, found {type(step).__name__}"
        )
    with RandomState(loader):
        source = Source(loader)
        try:
            return _Run(source, step, float(seconds)).diagnosis()
        finally:
            source.close()


_CROWDED = 0.15  # share of a worker's time in the queue for a core that is worth a word


class _Run:
    """One diagnosis: measures in the order in which the parts depend on each other."""

    def __init__(self, source: Source, step: Step | None, seconds: float) -> None:
        self.source = source
        self.step = step
        self.seconds = seconds
        self.notes: list[str] = []
        self.replay = ReplayBuffer()

    def diagnosis(self) -> Diagnosis[LoaderFigures]:
        source = self.source
        opens = self.source.kind == "torch"
        parts = (
            {"loader": 0.35, "step": 0.15, "together": 0.3, "open": 0.2}
            if self.step
            else {"loader": 0.6, "open": 0.4}
        )
        alone = time_loader(
            source,
            self.seconds * (parts["loader"] + (0 if opens else parts["open"])),
            replay=self.replay,
        )
        if alone is None:
            raise ConfigError(
                f"diagnose: the loader ({type(source.loader).__name__}) gave no batch: it is empty, or an iterator that was "
                "used up"
            )
        step_timing = together = None
        if self.step is not None:
            step_timing = time_step(self.step, self.replay.batches, self.seconds * parts["step"])
            together = (
                None
                if alone.ended
                else time_loader(source, self.seconds * parts["together"], step=self.step)
            )
        costs = (
            measure_stages(source, self.seconds * parts["open"], self.replay.batches[0])
            if opens
            else None
        )
        jpegs, others = jpegs_of(costs.paths, costs.encoded) if costs else ([], 0)
        decode = (
            time_fastload_decode(jpegs, image_size(self.replay.batches[0]))
            if jpegs and not others
            else None
        )
        if (
            others
        ):  # a PNG takes several times as long as a JPEG: the JPEGs alone would promise too much
            self.notes.append(
                f"{others} of {others + len(jpegs)} images looked at are no JPEGs: what fastload would gain is not told; "
                "measure it: fastload pack, then fastload bench load"
            )
        self._note(alone, together, costs)
        return self._diagnosis(alone, step_timing, together, costs, decode)

    def _diagnosis(
        self,
        alone: LoaderTiming,
        step: BatchTiming | None,
        together: LoaderTiming | None,
        costs: StageCosts | None,
        decode: FastloadDecode | None,
    ) -> Diagnosis[LoaderFigures]:
        source = self.source
        batch = self.replay.batches[0]
        size = count_samples(batch) or 0
        workers = source.workers
        stages: tuple[StageShare, ...] = ()
        stages_from = ""
        if costs:
            stages, stages_from = of_torch(costs, workers or 0)
        elif source.kind == "fastload":
            stages, stages_from = of_fastload(source.loader, size)
        facts = LoaderCosts(
            loader_s=alone.timing.seconds,
            cores=available_cpus(),
            step_s=step.seconds if step else None,
            together_s=together.timing.seconds if together else None,
            workers=workers if source.kind == "torch" else None,
            threads=source.fixed_threads,
            start_s=alone.start_s,
            epoch_batches=source.length,
            persistent=bool(getattr(source.loader, "persistent_workers", True)),
            float_images=float_images(batch),
            **(_worker_costs(costs) if costs else {}),
            fastload_s=decode.seconds * size if decode and size else None,
            fastload_backend=decode.backend if decode else "",
        )
        figures = LoaderFigures(
            loader_kind=source.kind,
            batch_size=size,
            cores=facts.cores,
            workers=workers,
            loader=alone.timing,
            step=step,
            together=together.timing if together else None,
            wait_share=_wait_share(alone, step, together, background=workers not in (0, None)),
            on_gpu=gpu_in_use(),
            start_s=alone.start_s,
            stages=stages,
            stages_from=stages_from,
        )
        return diagnosis_of(figures, suggestions(facts), self.notes)

    def _note(
        self, alone: LoaderTiming, together: LoaderTiming | None, costs: StageCosts | None
    ) -> None:
        source = self.source
        if not alone.settled:
            self.notes.append(
                "the loader gives one batch a pass: its start could not be told from its work"
            )
        if source.once:
            taken = alone.timing.batches
            self.notes.append(
                f"the loader is an iterator: the batches it gave (more than {taken}) are gone"
                if taken
                else ""
            )
        if self.step is not None and together is None:
            self.notes.append("the loader ended before it could be run together with the step")
        if source.kind == "torch" and costs is None:
            self.notes.append(
                "the dataset is a stream that cannot be opened without taking from it: no stages"
            )
        if costs is not None:
            queued = costs.shown.queued_s / costs.shown.wall_s if costs.shown.wall_s else 0.0
            if queued > _CROWDED:
                own = (source.workers or 0) > available_cpus()
                why = (
                    f"{source.workers} workers are more than this job's {count(available_cpus(), 'core')}"
                    if own
                    else "other work is using them"
                )
                who = "each worker" if costs.there else "loading"
                self.notes.append(f"{who} waits {100 * queued:.0f} % of its time for a core: {why}")
            if costs.whole_calls:
                self.notes.append(
                    f"{', '.join(sorted(costs.whole_calls))} reads and decodes in one call: counted as decode"
                )
            if gpu_in_use() and not source.loader.pin_memory:
                self.notes.append(
                    "pin_memory is off: copies to the GPU block; pin_memory=True and non_blocking=True overlap them"
                )


def _worker_costs(costs: StageCosts) -> dict[str, float]:
    """What one batch costs one worker when it is alone: the model itself brings in how many there are."""
    here = costs.here
    wall = here.wall_s - here.queued_s + here.collate_s + costs.ipc_s
    return {
        "wall_s": wall,
        "cpu_s": min(wall, here.cpu_s + here.collate_s + costs.ipc_s),
        "collate_ipc_s": here.collate_s + costs.ipc_s,
    }


def _wait_share(
    alone: LoaderTiming,
    step: BatchTiming | None,
    together: LoaderTiming | None,
    *,
    background: bool,
) -> float | None:
    """Measured together: on a GPU what the step does not need, else what next() took. Else as the timings alone say."""
    if step is None:
        return None
    if together is None:
        loader_s = alone.timing.seconds
        return (
            max(0.0, 1 - step.seconds / loader_s)
            if background
            else loader_s / (loader_s + step.seconds)
        )
    if gpu_in_use():
        return max(0.0, 1 - step.seconds / together.timing.seconds)
    return min(1.0, together.wait_s / together.timing.seconds)
