"""The model behind the suggestions (docs/diagnose.md states it). Pure: numbers in, suggestions out.

Per batch, with W workers and C cores: loader(W) = k * max(wall / W, cpu / C), where wall and cpu are what one batch costs a worker, and
k makes the formula agree with the loader as it was measured. Trainer and loader overlap: an iteration takes the longer of the two, times
what they were measured to take from each other. No suggestion goes beyond the step alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fastload._common import formatting as fmt
from fastload._tools.doctor.finding import Ceiling, Finding, severity_of

WORTH = 0.05  # a gain below this is not suggested: two measurements differ by as much
_MOST_WORKERS = 4  # times the cores (16 at least): each costs memory, whatever the model says


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """What was measured, in seconds per batch."""

    loader_s: float
    cores: int
    step_s: float | None = None
    together_s: float | None = None
    workers: int | None = None  # None: not a torch loader
    threads: int | None = None  # of a fastload loader, where the user has fixed them
    wall_s: float | None = None  # of one worker, with collate and the way between processes
    cpu_s: float | None = None
    collate_ipc_s: float = 0.0
    float_images: bool = False
    fastload_s: float | None = None  # fastload's decode of a batch, on one thread
    fastload_backend: str = ""
    start_s: float = 0.0
    epoch_batches: int | None = None
    persistent: bool = True

    @property
    def now_s(self) -> float:
        """An iteration as it is."""
        return self.together_s or self.overlapped(self.loader_s, background=self.workers != 0)

    def overlapped(self, loader_s: float, *, background: bool = True) -> float:
        """An iteration with another loader."""
        if self.step_s is None:
            return loader_s
        return max(loader_s, self.step_s) if background else loader_s + self.step_s

    @property
    def friction(self) -> float:
        """What loader and step take from each other (cores, mostly): measured together over what the formula says; 1 = nothing."""
        if self.together_s is None:
            return 1.0
        return max(
            1.0, self.together_s / self.overlapped(self.loader_s, background=self.workers != 0)
        )

    def with_workers(self, workers: int) -> float | None:
        """The loader's seconds with so many worker processes."""
        if self.wall_s is None or self.cpu_s is None or not workers:
            return None
        scale = 1.0
        if self.workers:
            scale = max(
                1.0, self.loader_s / max(self.wall_s / self.workers, self.cpu_s / self.cores)
            )
        return scale * max(self.wall_s / workers, self.cpu_s / self.cores)


def suggestions(facts: LoaderCosts) -> tuple[Finding, ...]:
    """The best first; none where nothing is expected to help by 5 % or more."""
    gains = {each: each.ceiling.gain for each in _all(facts) if each.ceiling is not None}
    return tuple(
        sorted((each for each in gains if gains[each] >= WORTH), key=lambda each: -gains[each])
    )


def _all(facts: LoaderCosts) -> Iterator[Finding]:
    if facts.workers is not None:
        yield from _workers(facts)
    if facts.threads is not None and facts.threads < facts.cores:
        yield _suggest(
            facts,
            facts.loader_s * facts.threads / facts.cores,
            "threads",
            f"{fmt.count(facts.threads, 'decode thread')} on {fmt.count(facts.cores, 'core')}",
            change=f"num_workers=None (now {facts.threads})",
            why="without num_workers the loader takes what this job has",
        )
    if facts.fastload_s is not None:
        loader_s = facts.fastload_s / facts.cores
        yield _suggest(
            facts,
            loader_s,
            "decoding",
            "a faster decoder does the same work",
            change="fastload.DataLoader on the packed dataset (fastload.migrate(loader) prints how)",
            why=f"its {facts.fastload_backend} decoder was measured on your own images: {1e3 * facts.fastload_s:.1f} ms a batch on one "
            f"thread, {fmt.count(facts.cores, 'core')}",
        )
    if facts.collate_ipc_s and facts.float_images and facts.wall_s and facts.workers:
        saved = 0.75 * facts.collate_ipc_s
        yield _suggest(
            facts,
            facts.loader_s * (facts.wall_s - saved) / facts.wall_s,
            "float-images",
            "images travel as float32",
            change="hand out uint8 images and normalize on the device",
            why="collate and the way between processes move four bytes a value where one would do",
        )
    if not facts.persistent and facts.workers and facts.epoch_batches:
        lost = facts.start_s / (facts.epoch_batches * facts.now_s)
        why = (
            f"each epoch begins with {facts.start_s:.1f} s of starting workers, for {facts.epoch_batches} batches: "
            f"{1 / facts.now_s / (1 + lost):.1f} it/s over an epoch as it is"
        )
        yield _finding(
            "worker-start",
            "workers are started again for every epoch",
            "persistent_workers=True",
            why,
            Ceiling(1.0 / facts.now_s, lost),
        )


def _workers(facts: LoaderCosts) -> Iterator[Finding]:
    """More workers, up to what the step or the cores ask for."""
    if facts.wall_s is None or facts.cpu_s is None:
        return
    most = max(_MOST_WORKERS * facts.cores, 16)
    # More would wait for the cores; a quarter of a worker is within the measurement's error.
    useful = math.ceil(facts.wall_s / max(facts.cpu_s / facts.cores, facts.wall_s / most) - 0.25)
    wanted = min(useful, most)
    for count in range(max(1, (facts.workers or 0) + 1), wanted + 1):
        loader_s = facts.with_workers(count)
        if facts.step_s is not None and loader_s is not None and loader_s <= 0.95 * facts.step_s:
            wanted = count
            break
    loader_s = facts.with_workers(wanted)
    if loader_s is None or wanted <= (facts.workers or 0):
        return
    why = (
        f"a batch costs one worker {1e3 * facts.wall_s:.0f} ms, {100 * min(1.0, facts.cpu_s / facts.wall_s):.0f} % of it on a core; "
        f"this job has {fmt.count(facts.cores, 'core')}"
    )
    if not facts.workers:
        why = "with num_workers=0 loading and training take turns; " + why
    title = f"{fmt.count(facts.workers or 0, 'worker')} cannot keep up"
    change = f"num_workers={wanted} (now {facts.workers})"
    yield _suggest(facts, loader_s, "workers", title, change=change, why=why)


def _suggest(
    facts: LoaderCosts, loader_s: float, kind: str, title: str, *, change: str, why: str
) -> Finding:
    expected_s = max(facts.friction * facts.overlapped(loader_s), facts.step_s or 0.0)
    ceiling = Ceiling(1.0 / expected_s, facts.now_s / expected_s - 1.0)
    return _finding(kind, title, change, why, ceiling)


def _finding(kind: str, title: str, change: str, why: str, ceiling: Ceiling) -> Finding:
    share = max(ceiling.gain, 0.0) / (1.0 + max(ceiling.gain, 0.0))
    severity = severity_of(share)
    return Finding(kind, title, (why,), change, share=share, ceiling=ceiling, severity=severity)
