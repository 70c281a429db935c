"""A torch DataLoader opened up: what reading, decoding, transforms, collate and the way between processes cost.

Items run in this process first, alone (what the work costs), then in the loader's own worker processes, all at once (what it costs
there): the difference is what they take from each other.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastload.diagnose.instrument import Instruments
from fastload.diagnose.meter import Meter
from fastload.diagnose.source import Source, short
from fastload.errors import ConfigError
from fastload.loader.nested import mapped

_ECHOES = 12                    # batches sent to measure the way between processes
_ITEMS = 4096                   # at most, in this process


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch cost where it was made."""

    items: int
    wall_s: float               # of all items, without collate
    cpu_s: float
    queued_s: float             # of the wall time: ready to run, but no core was free
    stages: Mapping[str, float]
    collate_s: float


@dataclass(slots=True)
class Opened:
    """Means for one batch; ``here`` in this process alone, ``there`` in the workers (None without any)."""

    batch_size: int
    here: Work
    there: Work | None = None
    ipc_s: float = 0.0
    paths: list[str] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    whole_calls: set[str] = field(default_factory=set)

    @property
    def shown(self) -> Work:
        """What the stages are taken from."""
        return self.there or self.here


def open_up(source: Source, seconds: float, sample_batch: object) -> Opened | None:
    """Opens the loader's dataset; None where that cannot be done without taking from it."""
    loader = source.loader
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) and hasattr(dataset, "__next__"):
        return None
    workers = int(loader.num_workers)
    here_s = seconds * (0.4 if workers else 1.0)
    threads = torch.get_num_threads()
    if workers:
        torch.set_num_threads(1)            # as torch does in its workers
    try:
        opened = _here(loader, here_s)
    finally:
        torch.set_num_threads(threads)
    if workers:
        opened.there = _there(source, seconds * 0.4)
        opened.ipc_s = _ipc(loader, sample_batch)
    return opened


def _here(loader: Any, seconds: float) -> Opened:
    """Items in this process, one after the other, then their collate."""
    deadline, works, n = time.perf_counter() + seconds, [], 0
    with Instruments(loader.dataset) as instruments:
        fetch = Fetch(loader, instruments)
        size = 0
        for items in fetch.batches():
            size = size or len(items) or 1
            works.append(fetch.work(items, deadline))
            n += works[-1].items
            if time.perf_counter() >= deadline or n >= _ITEMS:
                break
    if not n:
        raise ConfigError("diagnose: the loader's dataset gave no item")
    return Opened(size, _mean(works, size), paths=instruments.paths, encoded=instruments.encoded, whole_calls=instruments.whole_calls)


class Fetch:
    """Does what torch's fetcher does for one batch, with a clock."""

    def __init__(self, loader: Any, instruments: Instruments) -> None:
        self._loader, self._dataset, self._instruments = loader, loader.dataset, instruments
        self._streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self._batched = loader.batch_sampler is not None or (self._streams and loader.batch_size is not None)

    def batches(self) -> Iterator[Sequence[Any]]:
        """What to fetch for each batch: indices, or so many items of a stream."""
        if self._streams:
            self._stream = iter(self._dataset)
            while True:
                yield range(self._loader.batch_size or 1)
        elif self._batched:
            for indices in self._loader.batch_sampler:
                yield list(indices)
        else:
            for index in self._loader.sampler:
                yield [index]

    def work(self, indices: Sequence[Any], deadline: float) -> Work:
        """Fetches items until the deadline (one at least) and collates them."""
        clock, got, meter = self._instruments.clock, [], Meter()
        clock.start()
        try:
            if hasattr(self._dataset, "__getitems__") and not self._streams and self._batched:
                got = list(self._dataset.__getitems__(list(indices)))
            else:
                for index in indices:
                    got.append(next(self._stream) if self._streams else self._dataset[index])
                    if time.perf_counter() >= deadline:
                        break
        except StopIteration:
            pass
        except Exception as error:
            raise ConfigError(f"diagnose: the dataset raised {short(error)}") from error
        finally:
            clock.stop()
        wall, cpu, queued = meter.read()
        self._instruments.refresh()
        return Work(len(got), wall, cpu, queued, clock.taken(), self._collated(got))

    def _collated(self, got: list[Any]) -> float:
        began = time.perf_counter()
        if self._batched and got:
            self._loader.collate_fn(got)
        return time.perf_counter() - began


def _mean(works: Sequence[Work], size: int) -> Work:
    """A batch of ``size``, from all items together: some batches may have been cut short by the clock."""
    n = sum(each.items for each in works)
    scale = size / max(n, 1)
    names = {name for each in works for name in each.stages}
    return Work(size, scale * sum(each.wall_s for each in works), scale * sum(each.cpu_s for each in works),
                scale * sum(each.queued_s for each in works),
                {name: scale * sum(each.stages.get(name, 0.0) for each in works) for name in sorted(names)},
                scale * sum(each.collate_s for each in works))


class WatchedDataset:
    """The dataset inside a worker process, counted there. It is that dataset to whoever asks for, or sets, an attribute."""

    def __init__(self, inner: Any) -> None:
        self.__dict__.update(_inner=inner, _instruments=None, _spent=[0.0, 0.0, 0.0], _items=0)

    def _counted(self, function: Callable[..., Any], *args: Any) -> Any:
        mine = self.__dict__
        if mine["_instruments"] is None:            # never left: the process ends with its work
            mine["_instruments"] = Instruments(mine["_inner"]).__enter__()
        clock, meter = mine["_instruments"].clock, Meter()
        clock.start()
        try:
            return function(*args)
        finally:
            clock.stop()
            mine["_spent"] = [before + more for before, more in zip(mine["_spent"], meter.read(), strict=True)]

    def __getitem__(self, index: Any) -> Any:
        self.__dict__["_items"] += 1
        return self._counted(self._inner.__getitem__, index)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":
            found = self.__dict__["_inner"].__getitems__
            return lambda indices: self._counted_many(found, indices)
        return getattr(self.__dict__["_inner"], name)

    def _counted_many(self, function: Callable[..., Any], indices: list[Any]) -> Any:
        self.__dict__["_items"] += len(indices)
        return self._counted(function, indices)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return WatchedDataset, (self._inner,)

    def taken(self, collate_s: float) -> Work:
        """What was counted since the last batch."""
        mine = self.__dict__
        instruments = mine["_instruments"]
        wall, cpu, queued = mine["_spent"]
        work = Work(mine["_items"], wall, cpu, queued, instruments.clock.taken() if instruments else {}, collate_s)
        mine.update(_spent=[0.0, 0.0, 0.0], _items=0)
        if instruments:
            instruments.refresh()
        return work


class WatchedCollate:
    """The loader's collate function, which also tells what the batch cost."""

    def __init__(self, inner: Callable[[Any], Any], dataset: WatchedDataset) -> None:
        self._inner, self._dataset = inner, dataset

    def __call__(self, items: Any) -> tuple[Any, Work]:
        """The batch and its cost."""
        began = time.perf_counter()
        batch = self._inner(items)
        collate_s = time.perf_counter() - began
        info = torch.utils.data.get_worker_info()
        watched = info.dataset if info is not None and isinstance(info.dataset, WatchedDataset) else self._dataset
        return batch, watched.taken(collate_s)


def _there(source: Source, seconds: float) -> Work | None:
    """Batches made by the loader's own workers, each with what it cost there; None for streams."""
    if isinstance(source.loader.dataset, torch.utils.data.IterableDataset):
        return None
    loader = copy.copy(source.loader)
    dataset = WatchedDataset(loader.dataset)
    loader.__dict__.update(dataset=dataset, collate_fn=WatchedCollate(loader.collate_fn, dataset), pin_memory=False, _iterator=None)
    watched = Source.of(loader)
    works: list[Work] = []
    warm, deadline = watched.group, time.perf_counter() + seconds
    try:
        for _, work in watched.batches():
            works.append(work)
            if time.perf_counter() >= deadline and len(works) > warm:
                break
    finally:
        watched.close()
    works = works[warm:] or works
    sizes = [each.items for each in works]
    return _mean(works, max(sizes, default=1))


class Echo(torch.utils.data.Dataset[Any]):
    """Gives the same batch again and again, each time in memory of its own."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _ECHOES

    def __getitem__(self, _: int) -> Any:
        return mapped(self._batch, torch.Tensor.clone)


def _ipc(loader: Any, batch: Any) -> float:
    """Seconds that a ready batch needs from a worker to this process, without the copy that was made of it before."""
    here = mapped(batch, lambda tensor: tensor.cpu())
    clones = []
    for _ in range(4):
        began = time.perf_counter()
        mapped(here, torch.Tensor.clone)
        clones.append(time.perf_counter() - began)
    plain = torch.utils.data.DataLoader(Echo(here), batch_size=None, num_workers=1, multiprocessing_context=loader.multiprocessing_context)
    source = Source.of(plain)
    came = []
    try:
        for _ in source.batches():
            came.append(time.perf_counter())
    finally:
        source.close()
    return max(0.0, statistics.median(later - earlier for earlier, later in itertools.pairwise(came[2:])) - min(clones))
