"""A torch DataLoader opened up: what reading, decoding, transforms, collate and the way between processes cost.

Items run in this process first, alone (what the work costs), then in the loader's own worker processes, all at once (what it costs
there): the difference is what they take from each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastload._common.nested import map_tensors
from fastload._tools.diagnose.device import gpu_in_use
from fastload._tools.diagnose.instrument import Instruments
from fastload._tools.diagnose.inworkers import in_workers, ipc_seconds
from fastload._tools.diagnose.meter import Meter, Work, mean_of
from fastload._tools.diagnose.source import Source, short
from fastload.errors import ConfigError

_ITEMS = 4096  # at most, in this process


@dataclass(slots=True)
class Opened:
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
        torch.set_num_threads(1)  # as torch does in its workers
    try:
        opened = _here(loader, here_s)
    finally:
        torch.set_num_threads(threads)
    if workers:
        opened.there = in_workers(source, seconds * 0.4)
        opened.ipc_s = ipc_seconds(loader, sample_batch)
    if gpu_in_use():
        from fastload._common.cuda import pin_and_copy_s

        pin_s, opened.copy_s = pin_and_copy_s(map_tensors(sample_batch, torch.Tensor.cpu))
        opened.pin_s = pin_s if loader.pin_memory else 0.0
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
    return Opened(
        size,
        mean_of(works, size),
        paths=instruments.paths,
        encoded=instruments.encoded,
        whole_calls=instruments.whole_calls,
    )


class Fetch:
    """Does what torch's fetcher does for one batch, with a clock."""

    def __init__(self, loader: Any, instruments: Instruments) -> None:
        self._loader, self._dataset, self._instruments = loader, loader.dataset, instruments
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
