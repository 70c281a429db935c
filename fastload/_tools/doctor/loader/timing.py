"""A loader, run without side effects (a private copy, random generators restored), and three timings.

The loader alone, the step alone on batches replayed from memory, both together; warm-up is left out. Worker processes deliver in
groups (all begin at once), so a window always holds whole groups: otherwise one with 5 of 2 x 4 batches would be wrong by a quarter.
"""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fastload._load.loader import DataLoader
from fastload._tools.doctor.loader.figures import BatchTiming
from fastload._tools.monitor.batches import n_bytes
from fastload.errors import ConfigError


def gpu_in_use() -> bool:
    """CUDA was initialized by this process: asking must not do that itself."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def synchronize() -> None:
    """Waits for the GPU, where one is in use."""
    if gpu_in_use():
        from fastload._common.cuda import wait

        wait()


class Source:
    """The user's loader, opened for timing. Iterations are ours; workers end with ``close``."""

    def __init__(self, loader: Iterable[Any]) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise ConfigError(
                f"diagnose: expected a loader to iterate over, found {type(loader).__name__}"
            )
        self.loader: Any = loader
        self.kind = "other"
        if isinstance(loader, DataLoader):
            self.kind = "fastload"
            self.loader = copy.copy(loader)  # a new loader with its own threads
        elif isinstance(loader, torch.utils.data.DataLoader):
            self.kind = "torch"
            self.loader = copy.copy(loader)
            # The persistent workers of the user's own iteration stay the user's.
            self.loader.__dict__["_iterator"] = None
        self._iterators: list[Any] = []
        self.once = self.kind == "other" and hasattr(loader, "__next__")

    @classmethod
    def of(cls, loader: Any) -> Source:
        """A loader that is ours already: not copied again."""
        made = cls([])
        made.kind = "torch"
        made.loader = loader
        made.once = False
        return made

    @property
    def workers(self) -> int | None:
        """Worker processes of torch, threads of fastload."""
        if self.kind == "fastload":
            return int(self.loader.stats().threads)
        return int(self.loader.num_workers) if self.kind == "torch" else None

    @property
    def fixed_threads(self) -> int | None:
        """Decode threads of a fastload loader whose user has given a number."""
        given = self.loader._options.num_workers if self.kind == "fastload" else None
        return None if given is None else max(1, int(given))

    @property
    def group(self) -> int:
        """Batches come in groups of as many as there are worker processes."""
        return max(1, (self.workers or 0) if self.kind == "torch" else 0)

    @property
    def length(self) -> int | None:
        """Batches of an epoch, where it is known."""
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError, AttributeError):
            return None

    def batches(self) -> Iterator[Any]:
        """A new pass; what the loader raises comes out as one ConfigError that names the batch."""
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
                f"diagnose: the loader raised {short(error)} (after {number} batches); run it alone to see more"
            ) from error

    def end_pass(self) -> None:
        """Ends iterations that were left in the middle."""
        for iterator in self._iterators:
            for name in ("_shutdown_workers", "close"):
                if self.kind != "other" and hasattr(iterator, name):
                    getattr(iterator, name)()
        self._iterators.clear()
        if self.kind == "torch":
            self.loader.__dict__["_iterator"] = None

    def close(self) -> None:
        """Ends workers and threads."""
        self.end_pass()
        if self.kind == "fastload":
            self.loader.close()


def short(error: BaseException) -> str:
    """Class and first line of an error; the last one where torch has put a worker's whole traceback into the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    has_traceback = any(
        each.startswith("Traceback ") or "Original Traceback" in each for each in lines
    )
    line = lines[-1 if has_traceback else 0]
    return line if line.startswith(f"{name}:") else f"{name}: {line}"


class RandomState:
    """Restores the random generators of torch, numpy and Python on exit."""

    def __init__(self, loader: object = None) -> None:
        places = [
            loader,
            *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")),
        ]
        places.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
        found = (getattr(place, "generator", None) for place in places if place is not None)
        self._generators = [each for each in found if isinstance(each, torch.Generator)]

    def __enter__(self) -> RandomState:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda: list[torch.Tensor] = []
        if gpu_in_use():
            from fastload._common.cuda import random_states

            self._cuda = random_states()
        self._states = [each.get_state() for each in self._generators]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            from fastload._common.cuda import restore_random

            restore_random(self._cuda)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)


REPLAY_BATCHES = 8  # batches kept to be replayed
REPLAY_BYTES = 512 << 20
Step = Callable[[Any], object]
WARM_STEPS = 3  # of a step alone: compilation, autotuning, first allocations
_PATIENCE = 3.0  # so many times the given time may pass until there is a steady state to measure


@dataclass(slots=True)
class Pass:
    """One iteration over the loader: when it began, when each batch came, and how long the caller had waited for it."""

    began: float
    came: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """The loader alone, or together with the step."""

    timing: BatchTiming
    wait_s: float  # in next(), per batch
    start_s: float  # to the first batch of a pass, mean
    settled: bool  # False: too few batches to leave a warm-up out
    ended: bool  # the loader has no more


def time_loader(
    source: Source, seconds: float, *, replay: ReplayBuffer | None = None, step: Step | None = None
) -> LoaderTiming | None:
    """Runs passes for about ``seconds``, with ``step`` on each batch; None where no batch comes."""
    deadline = time.perf_counter() + seconds
    limit = time.perf_counter() + _PATIENCE * seconds
    passes: list[Pass] = []
    group = source.group
    ended = False
    try:
        while not ended and not _enough(passes, group, deadline, limit):
            passes.append(Pass(time.perf_counter()))
            ended = not _run_pass(
                source, passes, replay, step, lambda: _enough(passes, group, deadline, limit)
            )
    finally:
        synchronize()
        source.end_pass()
    measured = _steady([each for each in passes if each.came], group)
    if measured is None:
        return None
    timing, wait_s, settled = measured
    starts = [each.came[0] - each.began for each in passes if each.came]
    return LoaderTiming(timing, wait_s, sum(starts) / len(starts), settled, ended)


def _run_pass(
    source: Source,
    passes: Sequence[Pass],
    replay: ReplayBuffer | None,
    step: Step | None,
    enough: Callable[[], bool],
) -> bool:
    """One pass, until ``enough``; whether the loader could begin another one."""
    current = passes[-1]
    asked = current.began
    for batch in source.batches():
        came = time.perf_counter()
        current.came.append(came)
        current.waited.append(came - asked)
        if replay is not None:
            replay.offer(batch)
        if step is not None:
            run_step(step, batch)
        if enough():
            return True
        asked = time.perf_counter()
    return bool(current.came) and not source.once


def _enough(passes: Sequence[Pass], group: int, deadline: float, limit: float) -> bool:
    now = time.perf_counter()
    if now < deadline:
        return False
    counted = sum(max(0, len(each.came) - 1 - _warm(len(each.came), group)) for each in passes)
    return counted >= max(group, 2) or now >= limit


def _warm(n: int, group: int) -> int:
    """Batches to leave out at a pass's beginning: each worker's first, and two in any case; less where there are few."""
    return min(max(group, 2), max(0, n - 1 - group))


def _steady(passes: Sequence[Pass], group: int) -> tuple[BatchTiming, float, bool] | None:
    seconds = 0.0
    waited = 0.0
    count = 0
    for each in passes:
        first = _warm(len(each.came), group)
        n = len(each.came) - 1 - first
        n = n // group * group or n
        if n > 0:
            seconds += each.came[first + n] - each.came[first]
            waited += sum(each.waited[first + 1 : first + n + 1])
            count += n
    if count:
        return BatchTiming(seconds / count, count), waited / count, True
    if not passes:
        return None
    batches = sum(
        len(each.came) for each in passes
    )  # one batch a pass: its start cannot be told from the rest
    seconds = sum(each.came[-1] - each.began for each in passes)
    return (
        BatchTiming(seconds / batches, batches),
        sum(sum(each.waited) for each in passes) / batches,
        False,
    )


def time_step(step: Step, batches: Sequence[object], seconds: float) -> BatchTiming:
    """The step alone, over and over on the same batches; the GPU is waited for at the ends of the window only."""
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
    """Calls it; what it raises comes out as one ConfigError."""
    try:
        step(batch)
    except Exception as error:
        raise ConfigError(
            f"diagnose: the step raised {short(error)}. It is called as step(batch), with what the loader gives"
        ) from error


class ReplayBuffer:
    """Keeps the first batches, within bounds, for the step to be run on alone."""

    def __init__(self) -> None:
        self.batches: list[object] = []
        self._bytes = 0

    def offer(self, batch: object) -> None:
        """Takes it while there is room; the first one always."""
        size = n_bytes(batch)
        if not self.batches or (
            len(self.batches) < REPLAY_BATCHES and self._bytes + size <= REPLAY_BYTES
        ):
            self.batches.append(batch)
            self._bytes += size
