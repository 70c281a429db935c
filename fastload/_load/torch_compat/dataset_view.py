"""The dataset as the loader sees it: samples with the loader's transform applied, for whoever takes loader.dataset apart.

Accelerate and Lightning may rebuild a plain torch DataLoader out of ``dataset``, ``batch_sampler`` and ``collate_fn``:
``__getitems__`` therefore decodes a whole batch natively and gives the same pixels and labels as the loader would.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fastload._load.buffers import BufferPool
from fastload._load.builder import BatchMaker, Begun
from fastload._load.decoder import Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.spec import LoadSpec
from fastload._load.stats import StatsCollector
from fastload._load.torch_compat.lookahead import Coming
from fastload._load.transfer import Stay
from fastload._order.saved_state import whole_number
from fastload._store.dataset import Dataset, open_dataset
from fastload.errors import ConfigError, FastloadError

_LOOKING = 8  # so many batches may be somebody who looks at the data
Key = tuple[int, tuple[int, ...]]  # epoch and ids of a batch
Sample = Any  # a dict, or (image, label): what torch's collate functions take
LOOKS = (
    "transform",
    "fields",
    "color",
    "ragged",
    "exact",
    "return_matrix",
)  # a loader's arguments for what samples look like


class KnowsEpoch(Protocol):
    """The loader's order."""

    latest_epoch: int
    epoch_was_set: bool  # somebody has called set_epoch


class LoaderDataset(torch.utils.data.Dataset[Sample]):
    """A map-style torch dataset over a packed one. What is not asked for here is the packed dataset's: ``column``, ``classes`` ..."""

    def __init__(
        self, maker: BatchMaker, order: KnowsEpoch, coming: Coming, made_with: Mapping[str, Any]
    ) -> None:
        self.packed = maker.dataset
        self.made_with: dict[str, Any] = {name: made_with.get(name) for name in LOOKS}
        self._maker, self._order, self._coming, self._pid = (
            maker.on_cpu(),
            order,
            coming,
            os.getpid(),
        )
        self._begun: dict[Key, Begun] = {}
        self._passes, self._foreign = Passes(len(self.packed)), 0

    def __len__(self) -> int:
        return len(self.packed)

    def set_epoch(self, epoch: int) -> None:
        """Whose crops come where a sampler of somebody else's draws. Accelerate calls it, and so does the Trainer of transformers."""
        self._order.latest_epoch, self._order.epoch_was_set = whole_number("set_epoch", epoch), True

    def __getitem__(self, index: int) -> Sample:
        """As it is in the newest epoch."""
        return self._samples([index], lambda _: self._order.latest_epoch)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """A batch of a plain DataLoader's. Numbers of another sampler than ours know no epoch: unless somebody has named it, what comes
        again is drawn anew."""
        return self._samples(indices, self._foreign_epoch)

    def _foreign_epoch(self, ids: Sequence[int]) -> int:
        self._foreign += 1
        if self._foreign == _LOOKING and torch.utils.data.get_worker_info() is None:
            warnings.warn(
                "fastload: batches of loader.dataset are asked for by a sampler that is not fastload's, in the training process: "
                "each is decoded while the trainer waits. Hand over the loader itself, or loader.batch_sampler with the dataset; "
                "else give that DataLoader num_workers (transformers: dataloader_num_workers)",
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
                raise IndexError(f"sample {index} of {count}")
        if not len(indices):
            return []
        self._share_processors()
        kept, self._begun = self._begun, {}
        wanted, *coming = (
            self._key(batch, epoch_of) for batch in (indices, *self._coming.after(indices))
        )
        begun = kept[wanted] if wanted in kept else self._begin(wanted)
        for key in coming:
            with contextlib.suppress(FastloadError):  # raised when that batch is asked for
                self._begun[key] = kept[key] if key in kept else self._begin(key)
        return samples_of(self._maker.finish(begun), len(indices), self._maker.spec)

    def _key(self, indices: Sequence[int], epoch_of: Callable[[Sequence[int]], int]) -> Key:
        known = getattr(indices[0], "epoch", None)  # our samplers' numbers know theirs
        return epoch_of(indices) if known is None else known, tuple(int(index) for index in indices)

    def _begin(self, key: Key) -> Begun:
        epoch, ids = key
        return self._maker.begin(np.asarray(ids, np.int64) % len(self), epoch)

    def _share_processors(self) -> None:
        """In a worker process of torch: as many threads as this worker's part of the budget."""
        if self._pid != os.getpid():
            self._coming, self._begun = (
                Coming(0),
                {},
            )  # what comes next is known in the parent; torch's workers are ahead anyway
            self._pid, worker, backend = (
                os.getpid(),
                torch.utils.data.get_worker_info(),
                self._maker.backend,
            )
            self._passes = Passes(len(self.packed), worker.seed if worker else 0)
            backend.threads = max(1, backend.budget // (worker.num_workers if worker else 1))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "packed":
            raise AttributeError(name)
        return getattr(self.packed, name)

    def __reduce__(self) -> tuple[object, ...]:
        made, order = self._maker, self._order
        draws, faults = (
            (made.seed, order.latest_epoch, order.epoch_was_set),
            (made.faults.on_error, made.faults.max_bad),
        )
        return (
            _again,
            (self.packed, made.spec, made.backend, draws, faults),
            {"made_with": self.made_with},
        )


class Passes:
    """Counts the passes of a sampler that is not ours: a new one begins with the first batch in which a sample comes again.

    Worker processes begin anew in every epoch, with another seed of torch's each time: ``seed`` keeps their passes apart.
    """

    def __init__(self, n_samples: int, seed: int = 0) -> None:
        self._n_samples, self._first, self._pass, self._seen = (
            n_samples,
            (seed << 16) % 2**62,
            1,
            np.empty(0, np.int32),
        )

    def of(self, ids: Sequence[int]) -> int:
        """The pass that a batch belongs to, from 0 on."""
        if not len(self._seen):
            self._seen = np.zeros(self._n_samples, np.int32)  # in which pass each sample came last
        numbers = np.asarray(ids, np.int64)
        self._pass += bool((self._seen[numbers] == self._pass).any())
        self._seen[numbers] = self._pass
        return self._first + self._pass - 1


class _Epoch:
    def __init__(self, latest_epoch: int, named: bool) -> None:
        self.latest_epoch, self.epoch_was_set = latest_epoch, named


def _again(
    packed: Dataset,
    spec: LoadSpec,
    backend: Decoder,
    draws: tuple[int, int, bool],
    faults: tuple[str, int | None],
) -> LoaderDataset:
    seed, epoch, named = draws
    maker = BatchMaker(
        packed,
        spec,
        backend,
        seed=seed,
        ring=BufferPool(2),
        stats=StatsCollector(),
        faults=FaultPolicy(*faults),
        transfer=Stay(pin=False),
    )
    view = LoaderDataset(maker, _Epoch(epoch, named), Coming(0), {})
    view._pid = 0  # another process than the loader's: it shares the processors with it
    return view


def samples_of(batch: dict[str, Any], n: int, spec: LoadSpec) -> list[Sample]:
    """A batch taken apart: one dict, or tuple, a sample."""
    samples = [{name: value[place] for name, value in batch.items()} for place in range(n)]
    return [tuple(each.values()) for each in samples] if spec.as_tuple else list(samples)


class Collate:
    """Puts the samples of one ``__getitems__`` together again, as the loader's batches are."""

    def __init__(self, spec: LoadSpec) -> None:
        self._as_tuple = spec.as_tuple
        self._lists = {
            each.name
            for each in spec.fields
            if each.ragged == "list" and not each.pictured and not each.in_column
        }

    def __call__(self, samples: list[Sample]) -> Any:
        """One batch."""
        if self._as_tuple:
            return tuple(torch.stack(values) for values in zip(*samples, strict=True))
        return {
            name: self._column(name, [sample[name] for sample in samples]) for name in samples[0]
        }

    def _column(self, name: str, values: list[Any]) -> Any:
        listed = name.partition(".")[0] in self._lists and not name.endswith(".matrix")
        return torch.stack(values) if isinstance(values[0], torch.Tensor) and not listed else values


def opened(dataset: object) -> Dataset:
    """The packed dataset that a path, a packed dataset or a loader's dataset stands for; raises TypeError with the way out for others."""
    if isinstance(dataset, str | os.PathLike):
        dataset = open_dataset(dataset)
    if isinstance(dataset, LoaderDataset):
        dataset = dataset.packed
    if isinstance(dataset, Dataset):
        if len(dataset) == 0:
            raise ConfigError(f"{dataset.path}: a dataset without samples")
        return dataset
    if isinstance(dataset, torch.utils.data.Subset) and isinstance(
        dataset.dataset, Dataset | LoaderDataset
    ):
        raise TypeError(
            "fastload.DataLoader loads packed datasets, not a Subset of one. Say which samples by a sampler: "
            "fastload.DataLoader(subset.dataset, sampler=torch.utils.data.SubsetRandomSampler(subset.indices), ...)"
        )
    raise TypeError(
        f"fastload.DataLoader loads packed datasets, not a {type(dataset).__name__}. Pack it once: "
        "fastload.pack(dataset, 'packed'), then fastload.DataLoader('packed', ...)"
    )
