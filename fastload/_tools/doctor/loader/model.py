"""The model that predicts the gain of a change (docs/diagnose.md describes it). Pure.

Per batch, with W workers and C cores: loader(W) = k * max(wall / W, cpu / C). ``wall`` and ``cpu``
are the costs of one batch in one worker, and k makes the formula agree with the measured loader.
Trainer and loader overlap: an iteration takes the longer of the two, times the measured slowdown
that they cause each other. No prediction exceeds the speed of the step alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fastload._common import formatting as fmt
from fastload._tools.doctor.finding import Ceiling, Finding, severity_of

MIN_GAIN = 0.05  # two measurements differ by as much, so a smaller gain is not suggested
# Times the number of cores, and at least 16: each worker costs memory, whatever the model predicts.
_MAX_WORKERS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """The measured costs in seconds per batch."""

    loader_s: float
    cores: int
    step_s: float | None = None
    together_s: float | None = None
    workers: int | None = None  # None: not a torch loader
    threads: int | None = None  # of a fastload loader, if the user fixed their number
    wall_s: float | None = None  # in one worker, with collate and the transfer between processes
    cpu_s: float | None = None
    collate_ipc_s: float = 0.0
    float_images: bool = False
    fastload_s: float | None = None  # fastload's decode of a batch in one thread
    fastload_backend: str = ""
    start_s: float = 0.0
    epoch_batches: int | None = None
    persistent: bool = True

    @property
    def now_s(self) -> float:
        """Seconds per iteration now."""
        return self.together_s or self._formula_s

    @property
    def slowdown(self) -> float:
        """How much loader and step slow each other down, mostly by sharing cores; 1 is none."""
        return max(1.0, (self.together_s or 0.0) / self._formula_s)

    @property
    def _formula_s(self) -> float:
        if self.workers == 0:
            return self.loader_s + (self.step_s or 0.0)
        return self.overlapped(self.loader_s)

    def overlapped(self, loader_s: float) -> float:
        """Seconds per iteration with a loader that works in the background."""
        return max(loader_s, self.step_s or 0.0)

    def with_workers(self, workers: int) -> float:
        """The loader's seconds per batch with so many worker processes."""
        wall_s = self.wall_s or 0.0
        cpu_s = (self.cpu_s or 0.0) / self.cores
        scale = 1.0
        if self.workers:
            scale = max(1.0, self.loader_s / max(wall_s / self.workers, cpu_s))
        return scale * max(wall_s / workers, cpu_s)


def suggestions(costs: LoaderCosts) -> tuple[Finding, ...]:
    """Changes that gain at least 5 %, the best first."""
    gains = {each: each.ceiling.gain for each in _all(costs) if each.ceiling is not None}
    return tuple(
        sorted(
            (each for each, gain in gains.items() if gain >= MIN_GAIN),
            key=lambda each: -gains[each],
        )
    )


def _all(costs: LoaderCosts) -> Iterator[Finding]:
    cores = fmt.count(costs.cores, "core")
    if costs.workers is not None:
        yield from _workers(costs)
    if costs.threads is not None and costs.threads < costs.cores:
        yield _suggest(
            costs,
            costs.loader_s * costs.threads / costs.cores,
            "threads",
            f"the loader uses {fmt.count(costs.threads, 'decode thread')} on {cores}",
            change=f"num_workers=None (now {costs.threads})",
            why="Without num_workers, the loader uses all cores of this job.",
        )
    if costs.fastload_s is not None:
        yield _suggest(
            costs,
            costs.fastload_s / costs.cores,
            "decoding",
            "a faster decoder can do the same work",
            change="fastload.DataLoader on the packed dataset "
            "(fastload.migrate(loader) prints the code)",
            why=f"The {costs.fastload_backend} decoder was measured on your own images: "
            f"{1e3 * costs.fastload_s:.1f} ms per batch in one thread, with {cores}.",
        )
    if costs.collate_ipc_s and costs.float_images and costs.wall_s and costs.workers:
        saved = 0.75 * costs.collate_ipc_s
        yield _suggest(
            costs,
            costs.loader_s * (costs.wall_s - saved) / costs.wall_s,
            "float-images",
            "workers send images as float32",
            change="return uint8 images from the dataset and normalize on the device",
            why="Collate and the transfer between processes move four bytes per value instead of "
            f"one, and take {1e3 * costs.collate_ipc_s:.1f} ms per batch.",
        )
    if not costs.persistent and costs.workers and costs.epoch_batches:
        lost = costs.start_s / (costs.epoch_batches * costs.now_s)
        yield _finding(
            "worker-start",
            "workers are restarted in every epoch",
            "persistent_workers=True",
            f"Each epoch of {costs.epoch_batches} batches starts with {costs.start_s:.1f} s of "
            f"starting workers, so it reaches {1 / costs.now_s / (1 + lost):.1f} it/s.",
            Ceiling(1.0 / costs.now_s, lost),
        )


def _workers(costs: LoaderCosts) -> Iterator[Finding]:
    """More workers, as many as the step or the cores can use."""
    if costs.wall_s is None or costs.cpu_s is None:
        return
    now = costs.workers or 0
    most = max(_MAX_WORKERS_PER_CORE * costs.cores, 16)
    # More workers would wait for cores. A quarter of a worker is within the measurement error.
    useful = math.ceil(costs.wall_s / max(costs.cpu_s / costs.cores, costs.wall_s / most) - 0.25)
    wanted = min(useful, most)
    if wanted <= now:
        return
    enough_s = 0.95 * (costs.step_s or 0.0)
    counts = range(now + 1, wanted + 1)
    wanted = next((n for n in counts if costs.with_workers(n) <= enough_s), wanted)
    why = (
        f"A batch costs one worker {1e3 * costs.wall_s:.0f} ms, "
        f"{100 * min(1.0, costs.cpu_s / costs.wall_s):.0f} % of it CPU time, and this job has "
        f"{fmt.count(costs.cores, 'core')}."
    )
    if not now:
        why = f"With num_workers=0, loading and training take turns. {why}"
    yield _suggest(
        costs,
        costs.with_workers(wanted),
        "workers",
        f"{fmt.count(now, 'worker')} cannot keep up",
        change=f"num_workers={wanted} (now {now})",
        why=why,
    )


def _suggest(
    costs: LoaderCosts, loader_s: float, kind: str, title: str, *, change: str, why: str
) -> Finding:
    expected_s = max(costs.slowdown * costs.overlapped(loader_s), costs.step_s or 0.0)
    ceiling = Ceiling(1.0 / expected_s, costs.now_s / expected_s - 1.0)
    return _finding(kind, title, change, why, ceiling)


def _finding(kind: str, title: str, change: str, why: str, ceiling: Ceiling) -> Finding:
    gain = max(ceiling.gain, 0.0)
    share = gain / (1.0 + gain)
    severity = severity_of(share)
    return Finding(kind, title, (why,), change, share=share, ceiling=ceiling, severity=severity)
