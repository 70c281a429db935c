"""Splits the work of a torch DataLoader into read, decode, transform, collate and transfer.

Items are fetched in this process first, alone, which gives the cost of the work. They are then
fetched in the loader's own worker processes, all at once. The difference is how much the workers
slow each other down.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload._common import cuda
from fastload._common.native import core
from fastload._common.nested import map_tensors
from fastload._decode.backend import DecodeBatch, new_requests
from fastload._decode.registry import AUTO
from fastload._load.decoder import Decoder
from fastload._pack.files import is_image_name
from fastload._store.jpeg_header import read_header
from fastload._tools.doctor.loader.figures import StageShare
from fastload._tools.doctor.loader.instrument import Instruments, StageClock
from fastload._tools.doctor.loader.timing import Source, short
from fastload.errors import BadImage, ConfigError, FastloadError

_MAX_ITEMS = 4096  # fetched in this process
_ECHOES = 12  # batches sent to measure the transfer between processes
# Nanoseconds on a core, nanoseconds ready but waiting for a core, time slices.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_MAX_DECODED = 24  # images
_DECODE_RUNS = 2  # the faster run counts, because the first one touches fresh memory
_MAX_FILE_BYTES = 64 << 20


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


class Meter:
    """Adds up wall, CPU and queue time of this thread, and the stages of ``clock``.

    Queue time is the time in which the thread was ready to run but all cores were busy. Without
    it, a busy machine would appear as a slow disk.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._spent = np.zeros(3)

    @contextmanager
    def running(self) -> Iterator[None]:
        before = _thread_times()
        self._clock.start()
        try:
            yield
        finally:
            self._clock.stop()
            self._spent += _thread_times() - before

    def taken(self, items: int, collate_s: float) -> Work:
        """Returns the cost since the previous call."""
        wall, cpu, queued = map(float, self._spent)
        self._spent = np.zeros(3)
        return Work(items, wall, cpu, min(queued, wall), self._clock.taken(), collate_s)


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
    paths: list[str] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    whole_calls: set[str] = field(default_factory=set)

    @property
    def shown(self) -> Work:
        """The work that the stages are taken from."""
        return self.there or self.here


def measure_stages(source: Source, seconds: float, sample_batch: object) -> StageCosts | None:
    """Measures the loader's dataset; None if that would consume items of a stream."""
    loader = source.loader
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) and hasattr(
        loader.dataset, "__next__"
    ):
        return None
    threads = torch.get_num_threads()
    if not loader.num_workers:
        costs = _measure_here(loader, seconds)
    else:
        torch.set_num_threads(1)  # as in torch's workers
        try:
            costs = _measure_here(loader, 0.4 * seconds)
        finally:
            torch.set_num_threads(threads)
        costs.there = _measure_in_workers(source, 0.4 * seconds)
        costs.ipc_s = ipc_seconds(loader, sample_batch)
    if cuda.in_use():
        pin_s, costs.copy_s = cuda.pin_and_copy_s(map_tensors(sample_batch, torch.Tensor.cpu))
        costs.pin_s = pin_s if loader.pin_memory else 0.0
    return costs


def _measure_here(loader: Any, seconds: float) -> StageCosts:
    """Fetches items one after the other in this process and collates them."""
    deadline = time.perf_counter() + seconds
    works: list[Work] = []
    with Instruments(loader.dataset) as instruments:
        fetcher = Fetcher(loader, instruments)
        size = 0
        for indices in fetcher.batches():
            size = size or len(indices) or 1
            works.append(fetcher.fetch(indices, deadline))
            n_items = sum(each.items for each in works)
            if time.perf_counter() >= deadline or n_items >= _MAX_ITEMS:
                break
    if not any(each.items for each in works):
        raise ConfigError("diagnose: the loader's dataset returned no item; expected at least one")
    return StageCosts(
        mean_of(works, size),
        paths=instruments.paths,
        encoded=instruments.encoded,
        whole_calls=instruments.whole_calls,
    )


class Fetcher:
    """Fetches batches like torch's own fetcher and measures them."""

    def __init__(self, loader: Any, instruments: Instruments) -> None:
        self._loader = loader
        self._dataset = loader.dataset
        self._instruments = instruments
        self._meter = Meter(instruments.clock)
        self._streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self._batched = loader.batch_sampler is not None or (
            self._streams and loader.batch_size is not None
        )

    def batches(self) -> Iterator[Sequence[Any]]:
        """The indices of each batch; of a stream, the number of its items as a range."""
        if self._streams:
            self._stream = iter(self._dataset)
            yield from itertools.repeat(range(self._loader.batch_size or 1))
        elif self._batched:
            yield from map(list, self._loader.batch_sampler)
        else:
            yield from ([index] for index in self._loader.sampler)

    def fetch(self, indices: Sequence[Any], deadline: float) -> Work:
        """Fetches items until the deadline, at least one, and collates them."""
        items: list[Any] = []
        try:
            with self._meter.running():
                if hasattr(self._dataset, "__getitems__") and not self._streams and self._batched:
                    items += self._dataset.__getitems__(list(indices))
                else:
                    for index in indices:
                        items.append(next(self._stream) if self._streams else self._dataset[index])
                        if time.perf_counter() >= deadline:
                            break
        except StopIteration:
            pass
        except Exception as error:
            raise ConfigError(f"diagnose: the dataset raised {short(error)}") from error
        self._instruments.refresh()
        began = time.perf_counter()
        if self._batched and items:
            self._loader.collate_fn(items)
        return self._meter.taken(len(items), time.perf_counter() - began)


class WatchedDataset:
    """Wraps the dataset in a worker process, measures it there and forwards its attributes."""

    def __init__(self, inner: Any) -> None:
        self.__dict__.update(_inner=inner, _instruments=None, _items=0)

    @property
    def _running_meter(self) -> Meter:
        own = self.__dict__
        if own["_instruments"] is None:  # never exited, because the process ends with its work
            instruments = Instruments(own["_inner"]).__enter__()
            own.update(_instruments=instruments, _meter=Meter(instruments.clock))
        meter: Meter = own["_meter"]
        return meter

    def _counted(self, n_items: int, function: Callable[..., Any], argument: Any) -> Any:
        self.__dict__["_items"] += n_items
        with self._running_meter.running():
            return function(argument)

    def __getitem__(self, index: Any) -> Any:
        return self._counted(1, self._inner.__getitem__, index)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_inner"], name)
        if name == "__getitems__":
            return lambda indices: self._counted(len(indices), found, indices)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return WatchedDataset, (self._inner,)

    def taken(self, collate_s: float) -> Work:
        """Returns the cost since the previous batch."""
        own = self.__dict__
        work = self._running_meter.taken(own["_items"], collate_s)
        own["_items"] = 0
        own["_instruments"].refresh()
        return work


class WatchedCollate:
    """The loader's collate function, which also returns the cost of the batch."""

    def __init__(self, inner: Callable[[Any], Any], dataset: WatchedDataset) -> None:
        self._inner = inner
        self._dataset = dataset

    def __call__(self, items: Any) -> tuple[Any, Work]:
        began = time.perf_counter()
        batch = self._inner(items)
        collate_s = time.perf_counter() - began
        info = torch.utils.data.get_worker_info()
        dataset = info.dataset if info is not None else None
        watched = dataset if isinstance(dataset, WatchedDataset) else self._dataset
        return batch, watched.taken(collate_s)


def _measure_in_workers(source: Source, seconds: float) -> Work | None:
    """Cost of batches in the loader's own workers; None for streams."""
    if isinstance(source.loader.dataset, torch.utils.data.IterableDataset):
        return None
    works: list[Work] = []
    deadline = time.perf_counter() + seconds
    with closing(Source(source.loader)) as watched:
        dataset = WatchedDataset(source.loader.dataset)
        watched.loader.__dict__.update(
            dataset=dataset,
            collate_fn=WatchedCollate(source.loader.collate_fn, dataset),
            pin_memory=False,
        )
        warm = watched.group
        for _, work in watched.batches():
            works.append(work)
            if time.perf_counter() >= deadline and len(works) > warm:
                break
    works = works[warm:] or works
    return mean_of(works, max((each.items for each in works), default=1))


class Echo(torch.utils.data.Dataset[Any]):
    """Returns a new copy of the same batch each time."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _ECHOES

    def __getitem__(self, _: int) -> Any:
        return map_tensors(self._batch, torch.Tensor.clone)


def ipc_seconds(loader: Any, batch: Any) -> float:
    """Seconds to transfer a ready batch from a worker to this process.

    The time of the copy that ``Echo`` makes is subtracted.
    """
    echo = Echo(map_tensors(batch, torch.Tensor.cpu))
    clones = []
    for _ in range(4):
        began = time.perf_counter()
        _ = echo[0]
        clones.append(time.perf_counter() - began)
    plain = torch.utils.data.DataLoader(
        echo,
        batch_size=None,
        num_workers=1,
        multiprocessing_context=loader.multiprocessing_context,
    )
    with closing(Source(plain)) as source:
        arrived = [time.perf_counter() for _ in source.batches()]
    intervals = [later - earlier for earlier, later in itertools.pairwise(arrived[2:])]
    return max(0.0, statistics.median(intervals) - min(clones))


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


def jpegs_of(paths: Sequence[str], encoded: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The JPEGs that the dataset used, and the number of other images."""
    found = [each for each in encoded if _is_jpeg(each)]
    others = len(encoded) - len(found)
    for path in map(Path, dict.fromkeys(paths)):
        if len(found) >= _MAX_DECODED:
            break
        try:
            if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
                content = path.read_bytes()
                found += [content] if _is_jpeg(content) else []
                others += not _is_jpeg(content) and is_image_name(str(path))
        except OSError:  # removed meanwhile, or not readable
            continue
    return found[:_MAX_DECODED], others


def _is_jpeg(content: bytes) -> bool:
    return content[:3] == b"\xff\xd8\xff"


def time_fastload_decode(
    jpegs: Sequence[bytes], size: tuple[int, int] | None
) -> tuple[float, str] | None:
    """Seconds per image in one thread and the backend's name; None if nothing can be decoded.

    Whole images are decoded and resized to the size of the batches.
    """
    seconds: list[float] = []
    with closing(Decoder(AUTO, threads=1, budget=1)) as backend:
        for each in jpegs:
            try:
                seconds.append(_decode_seconds(backend, each, size))
            except FastloadError:  # fastload pack would report this image
                continue
        return (float(np.mean(seconds)), backend.choice.name) if seconds else None


def _decode_seconds(backend: Decoder, jpeg: bytes, size: tuple[int, int] | None) -> float:
    module = core()
    if module is not None:
        try:
            jpeg = module.rewrite(jpeg).jpeg
        except ValueError as error:  # BadJpeg
            raise BadImage(str(error)) from None
    header = read_header(jpeg)
    height, width = size or (header.height, header.width)
    requests = new_requests(1)
    requests["out_w"] = width
    requests["out_h"] = height
    output = np.empty((1, height, width, 3), np.uint8)
    best = float("inf")
    for _ in range(_DECODE_RUNS):
        result = backend.collect(backend.submit(DecodeBatch([jpeg], requests, output)))
        result.raise_first()
        best = min(best, float(result.times_ns.sum()) / 1e9)
    return best
