"""Runs a loader without side effects and times it.

Three timings are taken: the loader alone, the step alone on batches replayed from memory, and both
together. Warm-up is excluded. Worker processes deliver in groups, because they all start at once.
A measurement therefore always covers whole groups; 5 of 2 x 4 batches would be wrong by a quarter.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fastload._common import cuda
from fastload._load.collator import process_generators, restoring
from fastload._load.loader import DataLoader
from fastload._tools.doctor.loader.figures import BatchTiming
from fastload._tools.monitor.batches import n_bytes
from fastload.errors import ConfigError

Step = Callable[[Any], object]
REPLAY_BATCHES = 8
REPLAY_BYTES = 512 << 20
WARM_STEPS = 3  # of a step alone: compilation, autotuning, first allocations
_PATIENCE = 3.0  # times the given seconds until a steady state must be reached


def synchronize() -> None:
    """Waits for the GPU if this process uses one."""
    if cuda.in_use():
        cuda.wait()


class Source:
    """A private copy of the user's loader. ``close`` ends its workers."""

    def __init__(self, loader: Iterable[Any]) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise ConfigError(
                f"diagnose: loader={type(loader).__name__}: expected an iterable of batches"
            )
        self.loader: Any = loader
        self.kind = "other"
        if isinstance(loader, torch.utils.data.DataLoader):
            self.kind = "fastload" if isinstance(loader, DataLoader) else "torch"
            self.loader = copy.copy(loader)
        self._iterators: list[Any] = []
        self.once = self.kind == "other" and hasattr(loader, "__next__")
        self._drop_iterator()

    def _drop_iterator(self) -> None:
        """Detaches persistent workers, which belong to the user's own loader or have ended."""
        if self.kind == "torch":
            self.loader.__dict__["_iterator"] = None

    @property
    def workers(self) -> int | None:
        """Worker processes of torch, threads of fastload."""
        if self.kind == "fastload":
            return int(self.loader.stats().threads)
        return int(self.loader.num_workers) if self.kind == "torch" else None

    @property
    def fixed_threads(self) -> int | None:
        """Decode threads of a fastload loader if the user set their number."""
        given = self.loader._options.num_workers if self.kind == "fastload" else None
        return None if given is None else max(1, int(given))

    @property
    def group(self) -> int:
        """Number of batches that arrive together: one per worker process."""
        return max(1, (self.workers or 0) if self.kind == "torch" else 0)

    @property
    def length(self) -> int | None:
        """Batches per epoch, if the loader knows it."""
        with suppress(TypeError, NotImplementedError, AttributeError):
            return len(self.loader)
        return None

    def batches(self) -> Iterator[Any]:
        """Starts a new pass; an error of the loader becomes one ConfigError with the batch."""
        number = 0
        try:
            iterator = iter(self.loader)
            self._iterators.append(iterator)
            for number, batch in enumerate(iterator, 1):  # noqa: B007 - for the message
                yield batch
        except (ConfigError, GeneratorExit):
            raise
        except Exception as error:
            raise ConfigError(
                f"diagnose: the loader raised {short(error)} (after {number} batches). "
                "Iterate over the loader alone to see the traceback."
            ) from error

    def end_pass(self) -> None:
        """Ends passes that were left in the middle."""
        for iterator in self._iterators if self.kind != "other" else ():
            for name in ("_shutdown_workers", "close"):
                if hasattr(iterator, name):
                    getattr(iterator, name)()
        self._iterators.clear()
        self._drop_iterator()

    def close(self) -> None:
        self.end_pass()
        if self.kind == "fastload":
            self.loader.close()


def short(error: BaseException) -> str:
    """Class and first line of an error.

    The last line is used if the message contains the whole traceback of a torch worker.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    has_traceback = any(
        each.startswith("Traceback ") or "Original Traceback" in each for each in lines
    )
    line = lines[-1 if has_traceback else 0]
    return line if line.startswith(f"{name}:") else f"{name}: {line}"


@contextmanager
def restored_random(loader: object = None) -> Iterator[None]:
    """Restores the random generators of torch, NumPy, Python and the loader on exit."""
    names = ("sampler", "batch_sampler", "dataset")
    owners = [loader, *(getattr(loader, name, None) for name in names)]
    owners.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    generators = [each for each in found if isinstance(each, torch.Generator)]
    restore = restoring([*process_generators(), *generators])
    try:
        yield
    finally:
        restore()


@dataclass(slots=True)
class Pass:
    """One iteration over the loader."""

    began: float
    arrived: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)  # seconds that the caller waited per batch


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """The loader alone, or together with the step."""

    timing: BatchTiming
    wait_s: float  # in next(), per batch
    start_s: float  # mean time to the first batch of a pass
    settled: bool  # False: too few batches to exclude a warm-up
    ended: bool  # the loader has no more batches


def time_loader(
    source: Source, seconds: float, *, replay: list[object] | None = None, step: Step | None = None
) -> LoaderTiming | None:
    """Runs passes for about ``seconds``, with ``step`` on each batch; None without a batch."""
    began = time.perf_counter()
    group = source.group
    passes: list[Pass] = []
    ended = False

    def is_enough() -> bool:
        elapsed = time.perf_counter() - began
        if elapsed < seconds:
            return False
        sizes = [len(each.arrived) for each in passes]
        counted = sum(max(0, n - 1 - _warm(n, group)) for n in sizes)
        return counted >= max(group, 2) or elapsed >= _PATIENCE * seconds

    try:
        while not ended and not is_enough():
            passes.append(Pass(time.perf_counter()))
            ended = not _run_pass(source, passes[-1], replay, step, is_enough)
    finally:
        synchronize()
        source.end_pass()
    passes = [each for each in passes if each.arrived]
    if not passes:
        return None
    timing, wait_s, settled = _steady(passes, group)
    start_s = sum(each.arrived[0] - each.began for each in passes) / len(passes)
    return LoaderTiming(timing, wait_s, start_s, settled, ended)


def _run_pass(
    source: Source,
    current: Pass,
    replay: list[object] | None,
    step: Step | None,
    is_enough: Callable[[], bool],
) -> bool:
    """Runs one pass until ``is_enough``; returns whether the loader can start another one."""
    requested = current.began
    for batch in source.batches():
        arrived = time.perf_counter()
        current.arrived.append(arrived)
        current.waited.append(arrived - requested)
        if replay is not None:
            keep_for_replay(replay, batch)
        if step is not None:
            run_step(step, batch)
        if is_enough():
            return True
        requested = time.perf_counter()
    return bool(current.arrived) and not source.once


def _warm(n: int, group: int) -> int:
    """Batches to exclude at the start of a pass of n batches.

    This is the first batch of each worker and at least two, or less if there are few.
    """
    return min(max(group, 2), max(0, n - 1 - group))


def _steady(passes: Sequence[Pass], group: int) -> tuple[BatchTiming, float, bool]:
    seconds = 0.0
    waited = 0.0
    count = 0
    for each in passes:
        first = _warm(len(each.arrived), group)
        n = len(each.arrived) - 1 - first
        n = n // group * group or n
        if n > 0:
            seconds += each.arrived[first + n] - each.arrived[first]
            waited += sum(each.waited[first + 1 : first + n + 1])
            count += n
    is_settled = count > 0
    if not is_settled:  # one batch per pass: its start cannot be separated from its work
        count = sum(len(each.arrived) for each in passes)
        seconds = sum(each.arrived[-1] - each.began for each in passes)
        waited = sum(sum(each.waited) for each in passes)
    return BatchTiming(seconds / count, count), waited / count, is_settled


def time_step(step: Step, batches: Sequence[object], seconds: float) -> BatchTiming:
    """Times the step alone on replayed batches; waits for the GPU only at both ends."""
    deadline = time.perf_counter() + seconds
    replay = itertools.cycle(batches)
    for _ in range(WARM_STEPS):
        run_step(step, next(replay))
    synchronize()
    began = time.perf_counter()
    count = 0
    while count < 2 or (time.perf_counter() < deadline and count < 1_000_000):
        run_step(step, next(replay))
        count += 1
    synchronize()
    return BatchTiming((time.perf_counter() - began) / count, count)


def run_step(step: Step, batch: object) -> None:
    try:
        step(batch)
    except Exception as error:
        raise ConfigError(
            f"diagnose: the step raised {short(error)}. "
            "It is called as step(batch) with a batch of the loader."
        ) from error


def keep_for_replay(kept: list[object], batch: object) -> None:
    """Keeps the batch, to time the step alone, while there is room. The first is always kept."""
    if not kept or (len(kept) < REPLAY_BATCHES and n_bytes([*kept, batch]) <= REPLAY_BYTES):
        kept.append(batch)
