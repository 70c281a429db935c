"""What a batch costs: in wall, processor and queue time of a thread, inside the loader's own worker processes, and on its way here."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastload._common.nested import map_tensors
from fastload._tools.doctor.loader.instrument import Instruments
from fastload._tools.doctor.loader.timing import Source

_SCHEDSTAT = Path(
    "/proc/thread-self/schedstat"
)  # nanoseconds on a core, nanoseconds ready but waiting for one, turns


def queued_s() -> float:
    """Seconds that this thread was ready to run while all cores were busy; 0 where the kernel does not tell."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Meter:
    """Counts from its making on. Without the queue, a busy machine would look like a slow disk."""

    def __init__(self) -> None:
        self._queued = queued_s()
        self._cpu = time.thread_time()
        self._wall = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Wall, processor and queue seconds."""
        wall = time.perf_counter() - self._wall
        cpu = time.thread_time() - self._cpu
        return wall, cpu, min(queued_s() - self._queued, wall)


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch cost where it was made."""

    items: int
    wall_s: float  # of all items, without collate
    cpu_s: float
    queued_s: float  # of the wall time: ready to run, but no core was free
    stages: Mapping[str, float]
    collate_s: float


def mean_of(works: Sequence[Work], size: int) -> Work:
    """A batch of ``size``, from all items together: some batches may have been cut short by the clock."""
    n = sum(each.items for each in works)
    scale = size / max(n, 1)
    names = {name for each in works for name in each.stages}
    return Work(
        size,
        scale * sum(each.wall_s for each in works),
        scale * sum(each.cpu_s for each in works),
        scale * sum(each.queued_s for each in works),
        {name: scale * sum(each.stages.get(name, 0.0) for each in works) for name in sorted(names)},
        scale * sum(each.collate_s for each in works),
    )


_ECHOES = 12  # batches sent to measure the way between processes


class WatchedDataset:
    """Wraps the dataset in a worker process and times it there; attributes are those of the dataset."""

    def __init__(self, inner: Any) -> None:
        self.__dict__.update(_inner=inner, _instruments=None, _spent=[0.0, 0.0, 0.0], _items=0)

    def _counted(self, function: Callable[..., Any], *args: Any) -> Any:
        mine = self.__dict__
        if mine["_instruments"] is None:  # never left: the process ends with its work
            mine["_instruments"] = Instruments(mine["_inner"]).__enter__()
        clock = mine["_instruments"].clock
        meter = Meter()
        clock.start()
        try:
            return function(*args)
        finally:
            clock.stop()
            mine["_spent"] = [
                before + more for before, more in zip(mine["_spent"], meter.read(), strict=True)
            ]

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
        work = Work(
            mine["_items"],
            wall,
            cpu,
            queued,
            instruments.clock.taken() if instruments else {},
            collate_s,
        )
        mine.update(_spent=[0.0, 0.0, 0.0], _items=0)
        if instruments:
            instruments.refresh()
        return work


class WatchedCollate:
    """The loader's collate function, which also tells what the batch cost."""

    def __init__(self, inner: Callable[[Any], Any], dataset: WatchedDataset) -> None:
        self._inner = inner
        self._dataset = dataset

    def __call__(self, items: Any) -> tuple[Any, Work]:
        """The batch and its cost."""
        began = time.perf_counter()
        batch = self._inner(items)
        collate_s = time.perf_counter() - began
        info = torch.utils.data.get_worker_info()
        watched = (
            info.dataset
            if info is not None and isinstance(info.dataset, WatchedDataset)
            else self._dataset
        )
        return batch, watched.taken(collate_s)


def in_workers(source: Source, seconds: float) -> Work | None:
    """Batches made by the loader's own workers, each with what it cost there; None for streams."""
    if isinstance(source.loader.dataset, torch.utils.data.IterableDataset):
        return None
    loader = copy.copy(source.loader)
    dataset = WatchedDataset(loader.dataset)
    loader.__dict__.update(
        dataset=dataset,
        collate_fn=WatchedCollate(loader.collate_fn, dataset),
        pin_memory=False,
        _iterator=None,
    )
    watched = Source.of(loader)
    works: list[Work] = []
    warm = watched.group
    deadline = time.perf_counter() + seconds
    try:
        for _, work in watched.batches():
            works.append(work)
            if time.perf_counter() >= deadline and len(works) > warm:
                break
    finally:
        watched.close()
    works = works[warm:] or works
    sizes = [each.items for each in works]
    return mean_of(works, max(sizes, default=1))


class Echo(torch.utils.data.Dataset[Any]):
    """Gives the same batch again and again, each time in memory of its own."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _ECHOES

    def __getitem__(self, _: int) -> Any:
        return map_tensors(self._batch, torch.Tensor.clone)


def ipc_seconds(loader: Any, batch: Any) -> float:
    """Seconds that a ready batch needs from a worker to this process, without the copy that was made of it before."""
    here = map_tensors(batch, lambda tensor: tensor.cpu())
    clones = []
    for _ in range(4):
        began = time.perf_counter()
        map_tensors(here, torch.Tensor.clone)
        clones.append(time.perf_counter() - began)
    plain = torch.utils.data.DataLoader(
        Echo(here),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=loader.multiprocessing_context,
    )
    source = Source.of(plain)
    came = []
    try:
        for _ in source.batches():
            came.append(time.perf_counter())
    finally:
        source.close()
    return max(
        0.0,
        statistics.median(later - earlier for earlier, later in itertools.pairwise(came[2:]))
        - min(clones),
    )
