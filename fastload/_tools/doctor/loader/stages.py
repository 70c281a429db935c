"""A torch DataLoader, stage by stage: what reading, decoding, transforms, collate and the way between processes cost.

Items run in this process first, alone (what the work costs), then in the loader's own worker processes, all at once (what it costs
there): the difference is what they take from each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload._common.native import core
from fastload._common.nested import map_tensors
from fastload._decode.backend import DecodeBatch, new_requests
from fastload._decode.registry import AUTO
from fastload._load.decoder import Decoder
from fastload._pack.files import is_image_name
from fastload._store.jpeg_header import read_header
from fastload._tools.doctor.loader.figures import StageShare
from fastload._tools.doctor.loader.instrument import Instruments
from fastload._tools.doctor.loader.timing import Source, gpu_in_use, short
from fastload._tools.doctor.loader.workers import Meter, Work, in_workers, ipc_seconds, mean_of
from fastload.errors import BadImage, ConfigError, FastloadError

_ITEMS = 4096  # at most, in this process


@dataclass(slots=True)
class StageCosts:
    """Means for one batch; ``here`` in this process alone, ``there`` in the workers (None without any)."""

    batch_size: int
    here: Work
    there: Work | None = None
    ipc_s: float = 0.0
    pin_s: float = 0.0  # where a GPU is in use
    copy_s: float = 0.0
    paths: list[str] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    whole_calls: set[str] = field(default_factory=set)

    @property
    def shown(self) -> Work:
        """What the stages are taken from."""
        return self.there or self.here


def measure_stages(source: Source, seconds: float, sample_batch: object) -> StageCosts | None:
    """Opens the loader's dataset; None where that cannot be done without taking from it."""
    loader = source.loader
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) and hasattr(dataset, "__next__"):
        return None
    workers = int(loader.num_workers)
    here_s = seconds * (0.4 if workers else 1.0)
    threads = torch.get_num_threads()
    if workers:
        torch.set_num_threads(1)  # as torch does in its workers
    try:
        costs = _here(loader, here_s)
    finally:
        torch.set_num_threads(threads)
    if workers:
        costs.there = in_workers(source, seconds * 0.4)
        costs.ipc_s = ipc_seconds(loader, sample_batch)
    if gpu_in_use():
        from fastload._common.cuda import pin_and_copy_s

        pin_s, costs.copy_s = pin_and_copy_s(map_tensors(sample_batch, torch.Tensor.cpu))
        costs.pin_s = pin_s if loader.pin_memory else 0.0
    return costs


def _here(loader: Any, seconds: float) -> StageCosts:
    """Items in this process, one after the other, then their collate."""
    deadline = time.perf_counter() + seconds
    works = []
    n = 0
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
    return StageCosts(
        size,
        mean_of(works, size),
        paths=instruments.paths,
        encoded=instruments.encoded,
        whole_calls=instruments.whole_calls,
    )


class Fetch:
    """Does what torch's fetcher does for one batch, with a clock."""

    def __init__(self, loader: Any, instruments: Instruments) -> None:
        self._loader = loader
        self._dataset = loader.dataset
        self._instruments = instruments
        self._streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self._batched = loader.batch_sampler is not None or (
            self._streams and loader.batch_size is not None
        )

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
        clock = self._instruments.clock
        got = []
        meter = Meter()
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
        began = time.perf_counter()
        if self._batched and got:
            self._loader.collate_fn(got)
        collate_s = time.perf_counter() - began
        return Work(len(got), wall, cpu, queued, clock.taken(), collate_s)


def of_torch(costs: StageCosts, workers: int) -> tuple[tuple[StageShare, ...], str]:
    """Read, decode, transform, the rest of the items' time, collate, the way between processes and, where one is in use, to the GPU."""
    work = costs.shown
    seconds = {"read": 0.0, "decode": 0.0, "transform": 0.0}
    detail: dict[str, float] = {}
    for name, value in work.stages.items():
        stage, _, part = name.partition(".")
        seconds[stage] = seconds.get(stage, 0.0) + value
        if part:
            detail[part] = value
    seconds["other"] = max(0.0, work.wall_s - sum(seconds.values()))
    seconds |= (
        {"collate": work.collate_s, "ipc": costs.ipc_s} if workers else {"collate": work.collate_s}
    )
    seconds |= {
        name: value for name, value in (("pin", costs.pin_s), ("copy", costs.copy_s)) if value
    }
    largest = tuple(sorted(detail.items(), key=lambda each: -each[1])[:4])
    where = f"one batch of {work.items}" + (
        f" in one of {workers} worker{'s' * (workers != 1)}" if costs.there else ", in one process"
    )
    return _shares(seconds, {"transform": largest}), where


def of_fastload(loader: Any, size: int) -> tuple[tuple[StageShare, ...], str]:
    """As the loader's own statistics say; stages of an image times the images of a batch."""
    stats = loader.stats()
    per_batch = max(1, size) * loader.images_per_sample
    seconds = {
        name: each.mean * (1 if name in ("plan", "copy") else per_batch)
        for name, each in stats.stages.items()
        if name != "wait"
    }
    return _shares(
        seconds, {}
    ), f"one batch of {size} on one of {stats.threads} threads, from loader.stats()"


def _shares(
    seconds: Mapping[str, float], detail: Mapping[str, tuple[tuple[str, float], ...]]
) -> tuple[StageShare, ...]:
    total = sum(seconds.values()) or 1.0
    return tuple(
        StageShare(name, value, value / total, detail.get(name, ()))
        for name, value in seconds.items()
    )


_MOST = 24  # images
_RUNS = 2  # the faster one counts: the first also touches fresh memory
_LARGEST = 64 << 20  # bytes of a file that is read for this


@dataclass(frozen=True, slots=True)
class FastloadDecode:
    """Seconds of one thread for one image, decoded whole and resized to the size the batches have."""

    seconds: float
    images: int
    backend: str


def jpegs_of(paths: Sequence[str], encoded: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The JPEGs among the files and bytes that the dataset was seen to use, and how many other images stand among them."""
    found = [each for each in encoded if each[:3] == b"\xff\xd8\xff"]
    others = len(encoded) - len(found)
    for path in dict.fromkeys(paths):
        if len(found) >= _MOST:
            break
        try:
            if Path(path).is_file() and Path(path).stat().st_size <= _LARGEST:
                content = Path(path).read_bytes()
                is_jpeg = content[:3] == b"\xff\xd8\xff"
                found += [content] if is_jpeg else []
                others += not is_jpeg and is_image_name(path)
        except OSError:  # gone since, or not ours to read
            continue
    return found[:_MOST], others


def time_fastload_decode(
    jpegs: Sequence[bytes], size: tuple[int, int] | None
) -> FastloadDecode | None:
    """None where there is nothing to decode, or nothing that can be."""
    seconds: list[float] = []
    backend = Decoder(AUTO, threads=1, budget=1)
    try:
        for each in jpegs:
            try:
                seconds.append(_one(backend, each, size))
            except FastloadError:  # not every JPEG can be read; pack would name it
                continue
    finally:
        backend.close()
    return (
        FastloadDecode(float(np.mean(seconds)), len(seconds), backend.choice.name)
        if seconds
        else None
    )


def _one(backend: Decoder, jpeg: bytes, size: tuple[int, int] | None) -> float:
    module = core()
    if module is not None:
        try:
            jpeg = module.rewrite(jpeg).jpeg
        except ValueError as error:  # BadJpeg
            raise BadImage(str(error)) from None
    header = read_header(jpeg)
    height, width = size or (header.height, header.width)
    requests = new_requests(1)
    requests["out_w"], requests["out_h"] = width, height
    output = np.empty((1, height, width, 3), np.uint8)
    best = float("inf")
    for _ in range(_RUNS):
        result = backend.collect(backend.submit(DecodeBatch([jpeg], requests, output)))
        result.raise_first()
        best = min(best, float(result.times_ns.sum()) / 1e9)
    return best
