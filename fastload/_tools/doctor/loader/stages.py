"""Splits the work of a torch DataLoader into read, decode, transform, collate and transfer.

Items are fetched in this process first, alone, which gives the cost of the work. They are then
fetched in the loader's own worker processes, all at once. The difference is how much the workers
slow each other down.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload._common import cuda
from fastload._common.nested import map_tensors
from fastload._tools.doctor.loader.figures import StageShare
from fastload._tools.doctor.loader.instrument import Instruments
from fastload._tools.doctor.loader.timing import Source
from fastload._tools.monitor.batches import count_samples
from fastload.errors import ConfigError

_MAX_BATCHES = 4096
_ECHOES = 12  # batches sent to measure the transfer between processes
# Nanoseconds on a core, nanoseconds ready but waiting for a core, time slices.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of one batch in the thread that made it, in seconds."""

    items: int
    wall_s: float  # of all items, without collate
    cpu_s: float
    queued_s: float  # the part of wall_s in which no core was free
    stages: Mapping[str, float]
    collate_s: float


def mean_of(works: Sequence[Work], size: int) -> Work:
    """The mean cost of a batch of ``size`` items; some batches may have been cut short."""
    scale = size / max(sum(each.items for each in works), 1)
    names = sorted({name for each in works for name in each.stages})
    return Work(
        size,
        scale * sum(each.wall_s for each in works),
        scale * sum(each.cpu_s for each in works),
        scale * sum(each.queued_s for each in works),
        {name: scale * sum(each.stages.get(name, 0.0) for each in works) for name in names},
        scale * sum(each.collate_s for each in works),
    )


class TimeIsUp(BaseException):
    """Ends a measurement in the middle of a batch."""


class Meter:
    """Measures calls of a dataset in this thread, and the stages inside them.

    Queue time is the time in which the thread was ready to run but all cores were busy. Without
    it, a busy machine would appear as a slow disk.
    """

    def __init__(self, dataset: object, deadline: float) -> None:
        self.instruments = Instruments(dataset).__enter__()
        self.samples: list[list[str | bytes]] = []  # files and encoded images of each
        self._deadline = deadline
        self._items = 0
        self._spent = np.zeros(3)

    def call(self, n_items: int, function: Callable[[Any], Any], argument: Any) -> Any:
        """Fetches items. Raises ``TimeIsUp`` after the deadline if the batch has an item."""
        if self._items and time.perf_counter() >= self._deadline:
            raise TimeIsUp
        seen = self.instruments.images
        n_seen = len(seen)
        before = _thread_times()
        self.instruments.clock.start()
        try:
            found = function(argument)
        finally:
            self.instruments.clock.stop()
            self._spent += _thread_times() - before
        self._items += n_items
        if n_items == 1 and not self.instruments.is_full:
            self.samples.append(seen[n_seen:])
        return found

    def taken(self, collate_s: float) -> Work:
        """Returns the cost since the previous call."""
        wall, cpu, queued = map(float, self._spent)
        stages = self.instruments.clock.taken()
        work = Work(self._items, wall, cpu, min(queued, wall), stages, collate_s)
        self._items = 0
        self._spent = np.zeros(3)
        self.instruments.refresh()
        return work


def _thread_times() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Wall, CPU and queue seconds of this thread; queue is 0 if the kernel does not report it."""
    try:
        queued = int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        queued = 0.0
    return np.array([time.perf_counter(), time.thread_time(), queued])


@dataclass(slots=True)
class StageCosts:
    """Mean costs of one batch."""

    here: Work  # alone in this process
    there: Work | None = None  # in the workers, if there are any
    ipc_s: float = 0.0
    pin_s: float = 0.0  # if a GPU is in use
    copy_s: float = 0.0
    # files and encoded images of each sample, in this process
    samples: list[list[str | bytes]] = field(default_factory=list)
    whole_calls: set[str] = field(default_factory=set)

    @property
    def shown(self) -> Work:
        """The work that the stages are taken from."""
        return self.there or self.here


def measure_stages(source: Source, seconds: float, sample_batch: object) -> StageCosts | None:
    """Measures the loader's dataset; None if that would consume items of a stream."""
    loader = source.loader
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if is_stream and hasattr(loader.dataset, "__next__"):
        return None
    threads = torch.get_num_threads()
    if not loader.num_workers:
        costs = _measure_here(source, seconds, sample_batch)
    else:
        torch.set_num_threads(1)  # as in torch's workers
        try:
            costs = _measure_here(source, 0.4 * seconds, sample_batch)
        finally:
            torch.set_num_threads(threads)
        if not is_stream:
            works = _works(source, WatchedDataset(loader.dataset), 0.4 * seconds)
            works = works[loader.num_workers :] or works  # without the first of each worker
            costs.there = mean_of(works, max((each.items for each in works), default=1))
        costs.ipc_s = ipc_seconds(loader, sample_batch)
    if cuda.in_use():
        pin_s, costs.copy_s = cuda.pin_and_copy_s(map_tensors(sample_batch, torch.Tensor.cpu))
        costs.pin_s = pin_s if loader.pin_memory else 0.0
    return costs


def _measure_here(source: Source, seconds: float, sample_batch: object) -> StageCosts:
    """Fetches items one after the other in this process and collates them."""
    dataset = WatchedDataset(source.loader.dataset, time.perf_counter() + seconds)
    with dataset.meter.instruments as instruments:
        works = _works(source, dataset, seconds, num_workers=0, timeout=0)
    size = max((each.items for each in works), default=0)
    if not size:
        raise ConfigError("diagnose: the loader's dataset returned no item; expected at least one")
    if len(works) == 1:  # it may be cut short
        size = count_samples(sample_batch) or size
    return StageCosts(
        mean_of(works, size),
        samples=dataset.meter.samples,
        whole_calls=instruments.whole_calls,
    )


def _works(
    source: Source, dataset: WatchedDataset, seconds: float, **options: object
) -> list[Work]:
    """The cost of each batch of a copy of the loader, which has these options."""
    works: list[Work] = []
    deadline = time.perf_counter() + seconds
    with closing(Source(source.loader)) as watched:
        collate = functools.partial(measured_collate, dataset, source.loader.collate_fn)
        watched.loader.__dict__.update(
            options, dataset=dataset, collate_fn=collate, pin_memory=False
        )
        try:
            for _, work in watched.batches():
                works.append(work)
                is_warm = len(works) > watched.loader.num_workers
                if (time.perf_counter() >= deadline and is_warm) or len(works) >= _MAX_BATCHES:
                    break
        except TimeIsUp:
            works.append(dataset.meter.taken(0.0))
    return works


class WatchedDataset:
    """Measures a dataset in the process that uses it, and forwards its attributes."""

    def __init__(self, inner: Any, deadline: float = math.inf) -> None:
        self.__dict__.update(_inner=inner, _deadline=deadline)

    @functools.cached_property
    def meter(self) -> Meter:
        """Created on first use. In a worker it is never closed; the process ends with its work."""
        return Meter(self._inner, self._deadline)

    def __getitem__(self, index: Any) -> Any:
        return self.meter.call(1, self._inner.__getitem__, index)

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self._inner)
        with suppress(StopIteration):
            while True:
                yield self.meter.call(1, next, stream)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_inner"], name)
        if name == "__getitems__":
            return lambda indices: self.meter.call(len(indices), found, indices)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return WatchedDataset, (self._inner,)


def measured_collate(
    dataset: WatchedDataset, collate: Callable[[Any], Any], items: Any
) -> tuple[Any, Work]:
    """Returns the batch and its cost."""
    began = time.perf_counter()
    batch = collate(items)
    return batch, dataset.meter.taken(time.perf_counter() - began)


def ipc_seconds(loader: Any, batch: Any) -> float:
    """Seconds to transfer a ready batch from a worker to this process.

    The worker copies the batch each time, because memory that is shared once is not sent again.
    The time of that copy is subtracted.
    """
    clone = functools.partial(map_tensors, function=torch.Tensor.clone)
    ready = map_tensors(batch, torch.Tensor.cpu)
    clone_s = min(timeit.repeat(lambda: clone(ready), number=1, repeat=4))
    batches: Any = [ready] * _ECHOES
    plain = torch.utils.data.DataLoader[Any](
        batches,
        batch_size=None,
        collate_fn=clone,
        num_workers=1,
        multiprocessing_context=loader.multiprocessing_context,
    )
    with closing(Source(plain)) as source:
        arrived = [time.perf_counter() for _ in source.batches()]
    intervals = [later - earlier for earlier, later in itertools.pairwise(arrived[2:])]
    return max(0.0, statistics.median(intervals) - clone_s)


def of_torch(costs: StageCosts, workers: int) -> tuple[tuple[StageShare, ...], str]:
    """The stages of a torch loader, and how they were measured."""
    work = costs.shown
    seconds = {"read": 0.0, "decode": 0.0, "transform": 0.0}
    detail: dict[str, float] = {}
    for name, value in work.stages.items():
        stage, _, part = name.partition(".")
        seconds[stage] = seconds.get(stage, 0.0) + value
        if part:
            detail[part] = value
    seconds["other"] = max(0.0, work.wall_s - sum(seconds.values()))
    seconds["collate"] = work.collate_s
    if workers:
        seconds["ipc"] = costs.ipc_s
    transfers = {"pin": costs.pin_s, "copy": costs.copy_s}
    seconds |= {name: value for name, value in transfers.items() if value}
    largest = tuple(sorted(detail.items(), key=lambda each: -each[1])[:4])
    where = ", in one process"
    if costs.there:
        where = f" in one of {workers} worker{'s' * (workers != 1)}"
    return _shares(seconds, {"transform": largest}), f"one batch of {work.items}{where}"


def of_fastload(loader: Any, size: int) -> tuple[tuple[StageShare, ...], str]:
    """The stages of a fastload loader from its own statistics."""
    stats = loader.stats()
    per_batch = max(1, size) * loader.images_per_sample
    seconds = {
        name: each.mean * (1 if name in ("plan", "copy") else per_batch)
        for name, each in stats.stages.items()
        if name != "wait"
    }
    where = f"one batch of {size} in one of {stats.threads} threads, from loader.stats()"
    return _shares(seconds, {}), where


def _shares(
    seconds: Mapping[str, float], detail: Mapping[str, tuple[tuple[str, float], ...]]
) -> tuple[StageShare, ...]:
    total = sum(seconds.values()) or 1.0
    return tuple(
        StageShare(name, value, value / total, detail.get(name, ()))
        for name, value in seconds.items()
    )
