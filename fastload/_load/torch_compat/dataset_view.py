"""``loader.dataset``: samples with the transform of the loader applied.

Accelerate and Lightning may build a plain torch DataLoader from ``dataset``, ``batch_sampler`` and
``collate_fn`` of a loader. ``__getitems__`` therefore decodes a whole batch natively and returns
the same pixels and labels as the loader.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from fastload._load.batch import Failed, PendingBatch, split_samples, unwrap
from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.pipeline import Driver, Pipeline
from fastload._load.spec import LoadSpec, SampleOptions
from fastload._load.stats import StatsCollector
from fastload._load.torch_compat.samplers import Lookahead, SampleIndex
from fastload._load.transfer import Stay
from fastload._order.saved_state import whole_number
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.joined import join

_INSPECTED = 8  # batches that may be requested without a warning, to inspect the data
Key = tuple[int, tuple[int, ...]]  # epoch and draw ids of a batch
Sample = Any  # a dict, or (image, label)


class EpochSource(Protocol):
    """The part of the order that the view needs."""

    latest_epoch: int
    epoch_was_set: bool


class LoaderDataset(torch.utils.data.Dataset[Sample]):
    """A map-style torch dataset of the samples of a loader. Indices count through its split.

    It also has the attributes of ``selected``: the packed dataset, limited to the split.
    """

    def __init__(
        self,
        selected: Dataset,
        pipeline: Pipeline,
        order: EpochSource,
        lookahead: Lookahead,
        samples: SampleOptions,
    ) -> None:
        self.selected = selected
        self.packed = pipeline.dataset
        self.samples = samples
        self._pipeline = pipeline.on_cpu()
        self._order = order
        self._lookahead = lookahead
        self._pid = os.getpid()
        self._in_flight: dict[Key, PendingBatch | Failed] = {}
        self._passes = PassCounter(len(self))
        self._n_foreign = 0  # batches requested by a sampler that is not fastload's

    def __len__(self) -> int:
        return len(self.selected)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of samples that another sampler draws.

        Accelerate and the Trainer of transformers call it.
        """
        self._order.latest_epoch = whole_number("set_epoch", epoch)
        self._order.epoch_was_set = True

    def __getitem__(self, index: int) -> Sample:
        """Returns a sample as in the newest epoch."""
        return self._samples([index], lambda _: self._order.latest_epoch)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Returns the samples of a batch for a plain DataLoader.

        Ids of a sampler that is not fastload's have no epoch. Unless one was set, a sample that is
        requested again belongs to the next epoch.
        """
        return self._samples(indices, self._foreign_epoch)

    def _foreign_epoch(self, ids: Sequence[int]) -> int:
        self._n_foreign += 1
        if self._n_foreign == _INSPECTED and torch.utils.data.get_worker_info() is None:
            warnings.warn(
                "fastload: another sampler draws from loader.dataset in the training process, so "
                "the trainer waits for every batch. Pass the loader or loader.batch_sampler, or "
                "set num_workers of that DataLoader (transformers: dataloader_num_workers)",
                UserWarning,
                stacklevel=4,
            )
        return self._order.latest_epoch + (0 if self._order.epoch_was_set else self._passes.of(ids))

    def _samples(
        self, indices: Sequence[int], epoch_of: Callable[[Sequence[int]], int]
    ) -> list[Sample]:
        count = len(self)
        for index in indices:
            if not -count <= index < count:
                raise IndexError(f"index {index}: expected -{count} to {count - 1}")
        if not len(indices):
            return []
        self._adapt_to_worker()
        requested = self._key(indices, epoch_of)
        upcoming = [self._key(batch, epoch_of) for batch in self._lookahead.after(indices)]
        # Several threads may run this. Each takes the batches in flight and finishes its own batch.
        in_flight = self._in_flight
        self._in_flight = {}
        driver = Driver(self._pipeline, send=False)
        for key in (requested, *upcoming):
            if key in in_flight:
                driver.in_flight.append(in_flight[key])
            else:
                epoch, ids = key
                driver.start(np.asarray(ids, np.int64), epoch)
        self._in_flight = dict(zip(upcoming, islice(driver.in_flight, 1, None), strict=True))
        batch = unwrap(driver.finish_oldest())
        return split_samples(batch.data, batch.n_samples, as_tuple=self._pipeline.spec.as_tuple)

    def _key(self, indices: Sequence[int], epoch_of: Callable[[Sequence[int]], int]) -> Key:
        first = indices[0]
        epoch = first.epoch if isinstance(first, SampleIndex) else epoch_of(indices)
        return epoch, tuple(
            index.draw_id if isinstance(index, SampleIndex) else self.selected.ids[int(index)]
            for index in indices
        )

    def _adapt_to_worker(self) -> None:
        """In a worker process of torch, uses its part of the threads and no lookahead."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._in_flight = {}
        self._lookahead = Lookahead(0)  # only the parent knows the batches; workers prefetch anyway
        worker = torch.utils.data.get_worker_info()
        backend = self._pipeline.backend
        self._passes = PassCounter(len(self), worker.seed if worker else 0)
        backend.threads = max(1, backend.budget // (worker.num_workers if worker else 1))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "selected":
            raise AttributeError(name)
        return getattr(self.selected, name)

    def __reduce__(self) -> tuple[object, ...]:
        pipeline = self._pipeline
        faults = (pipeline.faults.on_error, pipeline.faults.max_bad)
        epoch = _Epoch(self._order.latest_epoch, self._order.epoch_was_set)
        arguments = (self.selected, pipeline.spec, pipeline.backend, pipeline.seed, faults)
        return _rebuilt, arguments, {"samples": self.samples, "_order": epoch}


class PassCounter:
    """Counts the passes of a foreign sampler. A pass ends when a sample is requested again.

    torch starts worker processes in every epoch with another seed. ``seed`` makes their passes
    different.
    """

    def __init__(self, n_samples: int, seed: int = 0) -> None:
        self._n_samples = n_samples
        self._first = (seed << 16) % 2**62
        self._pass = 1
        self._last_pass = np.empty(0, np.int32)  # sample -> the last pass that contained it

    def of(self, ids: Sequence[int]) -> int:
        """Returns the pass of a batch, counted from 0."""
        if not len(self._last_pass):
            self._last_pass = np.zeros(self._n_samples, np.int32)
        numbers = np.asarray(ids, np.int64)
        self._pass += bool((self._last_pass[numbers] == self._pass).any())
        self._last_pass[numbers] = self._pass
        return self._first + self._pass - 1


@dataclass(slots=True)
class _Epoch:
    latest_epoch: int = 0
    epoch_was_set: bool = False


def _rebuilt(
    selected: Dataset,
    spec: LoadSpec,
    backend: Decoder,
    seed: int,
    faults: tuple[str, int | None],
) -> LoaderDataset:
    pipeline = Pipeline(
        selected.with_split(None),
        spec,
        backend,
        seed=seed,
        buffers=BufferPool(2),
        stats=StatsCollector(),
        faults=FaultPolicy(*faults),
        transfer=Stay(pin=False),
    )
    view = LoaderDataset(selected, pipeline, _Epoch(), Lookahead(0), SampleOptions())
    view._pid = 0  # another process than that of the loader, so it uses a part of the threads
    return view


class Collate:
    """Collates the samples of ``__getitems__`` to a batch like that of the loader."""

    def __init__(self, spec: LoadSpec) -> None:
        self._as_tuple = spec.as_tuple
        self._lists = {
            each.name
            for each in spec.fields
            if each.ragged == "list" and not each.decoded_by_pool and not each.in_column
        }

    def __call__(self, samples: list[Sample]) -> Any:
        if self._as_tuple:
            return tuple(torch.stack(values) for values in zip(*samples, strict=True))
        return {
            name: self._column(name, [sample[name] for sample in samples]) for name in samples[0]
        }

    def _column(self, name: str, values: list[Any]) -> Any:
        listed = name.partition(".")[0] in self._lists and not name.endswith(".matrix")
        return torch.stack(values) if isinstance(values[0], torch.Tensor) and not listed else values


def opened(dataset: object) -> Dataset:
    """Opens a path, returns the packed dataset of ``dataset``, or joins a list of them.

    Raises TypeError for other objects.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = open_dataset(dataset)
    if isinstance(dataset, LoaderDataset):
        dataset = dataset.selected
    if isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, torch.utils.data.Subset) and isinstance(
        dataset.dataset, Dataset | LoaderDataset
    ):
        raise TypeError(
            "fastload.DataLoader loads packed datasets, not a Subset of one. Pass a sampler: "
            "fastload.DataLoader(subset.dataset, "
            "sampler=torch.utils.data.SubsetRandomSampler(subset.indices), ...)"
        )
    if isinstance(dataset, list | tuple) and all(
        isinstance(each, str | os.PathLike | Dataset | LoaderDataset) for each in dataset
    ):
        return join([opened(each) for each in dataset])
    raise TypeError(
        f"fastload.DataLoader loads packed datasets, not a {type(dataset).__name__}. Pack it once: "
        "fastload.pack(dataset, 'packed'), then fastload.DataLoader('packed', ...)"
    )
