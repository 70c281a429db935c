"""``fastload.DataLoader``: a torch DataLoader to everybody who asks, fed by native threads of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fastload.errors import ConfigError
from fastload.loader.arguments import Ranks, batches_ahead, seed_from, thread_budget, warn_without_meaning
from fastload.loader.backends import BackendChoice, choose_backend
from fastload.loader.epochs import Epochs, OrderOptions, RankBatches, RankSampler, Segment
from fastload.loader.faults import FaultPolicy
from fastload.loader.feeder import Feeder
from fastload.loader.maker import BatchMaker, Begun
from fastload.loader.ring import Ring
from fastload.loader.spec import load_spec
from fastload.loader.stats import LoaderStats, StatsCollector
from fastload.loader.transfer import Transfer, make_transfer
from fastload.loader.userorder import UserOrder
from fastload.loader.view import LoaderDataset, samples_of
from fastload.native import warn_once_if_missing
from fastload.order.line import WINDOW
from fastload.plan.rows import PlanRow
from fastload.store.dataset import Dataset, open_dataset

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads a packed dataset: same arguments as torch's DataLoader, plus what is below.

    ``num_workers``: decode threads, None = decided for you. ``transform``: fastload.transforms, for all images or a dict by field.
    ``fields``: names to deliver (``id`` and ``source``, too). Datasets of image + label give ``(images, labels)``, others a dict.
    ``shuffle``: True (blocks), "full" (true permutation) or False (source order). ``ending``: "pad" or "partial" instead of the default
    (several ranks: pad, as DistributedSampler; one: partial). ``on_error``: "raise" or "substitute". ``exact``: never decode scaled.

    >>> loader = fastload.DataLoader("data/train", batch_size=256, shuffle=True, transform=[T.RandomResizedCrop(224)])  # doctest: +SKIP
    """

    def __init__(self, dataset: str | os.PathLike[str] | Dataset, batch_size: int | None = 1,  # noqa: PLR0917 - torch's own order
                 shuffle: bool | str | None = None,
                 sampler: Any = None, batch_sampler: Any = None, num_workers: int | None = None,
                 collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False, drop_last: bool = False, *,
                 timeout: float = 0, generator: torch.Generator | None = None, prefetch_factor: int | None = None,
                 transform: object = None, fields: Sequence[str] | None = None, device: str | torch.device | None = None,
                 backend: str = "auto", seed: int | None = None, rank: int | None = None, world_size: int | None = None,
                 ending: str | None = None, window: int = WINDOW, colour: str | None = None, ragged: str = "list", exact: bool = False,
                 return_matrix: bool = False, on_error: str = "raise", max_bad: int | None = None, **torch_arguments: object) -> None:
        warn_without_meaning(torch_arguments)
        packed = _opened(dataset)
        if len(packed) == 0:
            raise ConfigError(f"{packed.path}: a dataset without samples")
        self._ranks = Ranks.here(rank, world_size)
        self.seed = seed_from(seed, generator)
        self.threads_budget = thread_budget(num_workers, self._ranks.local_world)
        self.on_error, self.ahead, self.user_collate = on_error, batches_ahead(prefetch_factor), collate_fn
        self.stats_collector, self._ring, self._fault_policy = StatsCollector(), Ring(self.ahead + 2), FaultPolicy(on_error, max_bad)
        spec = load_spec(packed, fields=fields, transform=transform, colour=colour, ragged=ragged, exact=exact, return_matrix=return_matrix)
        warn_once_if_missing()
        self._choice, self._decoder = choose_backend(backend, threads=self.threads_budget)
        self._transfer = make_transfer(device, pin_memory=pin_memory)
        self._maker = BatchMaker(packed, spec, self._decoder, seed=self.seed, colour="bgr" if colour == "bgr" else "rgb", ring=self._ring,
                                 stats=self.stats_collector, faults=self._fault_policy, transfer=self._transfer)
        size = getattr(batch_sampler, "batch_size", None) or batch_size or 1
        ending = ending or ("drop" if drop_last else "pad" if self._ranks.world > 1 else "partial")
        self._epochs = self._make_epochs(packed, size, shuffle, ending=ending, window=window,
                                         custom=sampler is not None or batch_sampler is not None)
        self._user_order = UserOrder.of(sampler, batch_sampler, batch_size, drop_last, len(packed))
        self._segment: Segment | None = None
        self._delivered = 0
        view = LoaderDataset(packed, self._maker, self._epochs)
        our_sampler = RankSampler(self._epochs)
        super().__init__(view, batch_size=1, sampler=sampler if sampler is not None else our_sampler, num_workers=0,
                         collate_fn=collate_fn, pin_memory=False, timeout=0, generator=generator)
        # torch forbids changing these once it is made, but a loader is asked for what its user has given.
        ours = RankBatches(self._epochs, our_sampler, drop_last)
        self.__dict__.update(batch_size=None if batch_sampler is not None else batch_size, drop_last=drop_last, timeout=timeout,
                             num_workers=0, pin_memory=pin_memory,
                             batch_sampler=batch_sampler if batch_sampler is not None else
                             torch.utils.data.BatchSampler(sampler, size, drop_last) if sampler is not None else ours)

    def _make_epochs(self, packed: Dataset, batch_size: int, shuffle: bool | str | None, *, ending: str, window: int,
                     custom: bool) -> Epochs:
        if shuffle not in (None, True, False, "full"):
            raise ConfigError(f"shuffle={shuffle!r:.40}: expected True (blocks), 'full' or False")
        if shuffle and custom:
            raise ConfigError("shuffle and a sampler of your own: the sampler decides the order, leave shuffle out")
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r:.40}: expected a number of samples, 1 or more")
        block = max(1, round(len(packed) / max(1, len(packed.blocks))))
        options = OrderOptions(n_samples=len(packed), shuffle=shuffle or False, seed=self.seed, block=block, window=window,
                               content=packed.manifest.content[:16])
        return Epochs(options, batch_size=batch_size, rank=self._ranks.rank, world=self._ranks.world, ending=ending,
                      source_order=lambda: np.argsort(packed.column("_source_index"), kind="stable"))

    @property
    def packed(self) -> Dataset:
        """The packed dataset itself."""
        return self._maker.dataset

    @property
    def backend(self) -> BackendChoice:
        """Which decoder runs, and why."""
        return self._choice

    def __len__(self) -> int:
        return len(self._epochs) if self._user_order is None else self._user_order.n_batches()

    def __iter__(self) -> LoaderIterator:           # type: ignore[override]
        return LoaderIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without it epochs count by themselves."""
        self._epochs.set_epoch(epoch)

    def plan(self, sample_id: int, *, field: str | None = None, epoch: int | None = None) -> PlanRow:
        """What happens to a sample's image in an epoch (default: the coming one): print it, or ``draw`` it."""
        name = field or next(iter(self._maker.spec.plans), "")
        if name not in self._maker.spec.plans:
            raise ConfigError(f"plan of field {name!r:.40}: expected one of {', '.join(self._maker.spec.plans) or 'none (no image field)'}")
        begun = self._maker.begin(np.array([sample_id], np.int64), self._epochs.next_epoch if epoch is None else epoch)
        return begun.rows[name][0]

    def stats(self) -> LoaderStats:
        """What was delivered so far, and where the time went."""
        found = self.stats_collector.snapshot(threads=self._threads(), buffer_bytes=self._ring.n_bytes)
        return _with_bad(found, self._fault_policy.n_bad)

    def _threads(self) -> int:
        return int(getattr(self._decoder, "threads", self.threads_budget))

    def state_dict(self) -> dict[str, object]:
        """Where the newest iteration stands, as JSON of a few hundred bytes; ``load_state_dict`` goes on there."""
        if self._user_order is not None:
            return self._user_order.state(self._epochs.next_epoch, self._delivered)
        return {**self._epochs.state(self._segment, self._delivered), "transform": self._maker.spec.describe()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """The next iteration goes on where the state was saved, also with another world size, batch size or backend."""
        if self._user_order is not None:
            self._epochs.next_epoch = self._user_order.load(state)
            return
        found, expected = state.get("transform"), self._maker.spec.describe()
        if found != expected:
            raise ConfigError(f"loading a state of another transform:\n  in the state:  {found!r:.300}\n  in the loader: {expected!r:.300}"
                              "\nUse the transform of the saved run, or start anew")
        self._epochs.load(state)
        self._segment, self._delivered = None, 0

    def close(self) -> None:
        """Ends the decode threads; also done when the loader is dropped or Python exits."""
        self._decoder.close()


class LoaderIterator:
    """One pass over the data. Dropping it (an early ``break``) ends its work; several of one loader may run at once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._pid = loader, os.getpid()
        loader.stats_collector.asked()
        order = loader._user_order
        self._segment = loader._epochs.begin()
        batches: Iterator[Ids] = loader._epochs.batches(self._segment) if order is None else order.batches()
        maker = _EpochMaker(loader._maker, self._segment.epoch, loader._transfer, loader.user_collate)
        self._feeder: Feeder[Begun, tuple[Any, int]] = Feeder(maker, batches, ahead=loader.ahead, ready=max(1, loader.ahead - 1))
        self._delivered = self._segment.start if order is None else order.start
        self._publish()

    def _publish(self) -> None:
        """The newest iterator is the one that state_dict speaks of."""
        self._loader._segment, self._loader._delivered = self._segment, self._delivered

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise RuntimeError("this iterator belongs to the process that made it, before the fork: call iter(loader) in this one")
        started = time.perf_counter()
        ready = self._feeder.n_ready
        try:
            item = self._feeder.next(self._loader.timeout or None)
        except TimeoutError:
            raise self._late() from None
        if item is None:
            self._feeder.stop()
            raise StopIteration
        batch, n_samples = item
        self._delivered += 1
        self._publish()
        self._loader.stats_collector.delivered(n_samples, time.perf_counter() - started, ready)
        return self._loader._transfer.receive(batch)

    def _late(self) -> RuntimeError:
        """Says which samples the loader is waiting for."""
        ids = next(iter(self._feeder.under_way), np.empty(0, np.int64)).tolist()
        names = ", ".join(f"{i} ({self._loader.packed.source(i)})" for i in ids[:8])
        return RuntimeError(f"no batch within timeout={self._loader.timeout} s; being loaded: {len(ids)} samples: {names}"
                            + (" ..." if len(ids) > 8 else ""))


class _EpochMaker:
    """What the feeder needs of the loader, with the epoch fixed; it knows neither loader nor iterator."""

    def __init__(self, maker: BatchMaker, epoch: int, transfer: Transfer, collate: Callable[[list[Any]], Any] | None) -> None:
        self._maker, self._epoch, self._transfer, self._collate = maker, epoch, transfer, collate

    def begin(self, ids: Ids) -> Begun:
        """Starts work on a batch."""
        return self._maker.begin(ids, self._epoch)

    def finish(self, begun: Begun) -> tuple[Any, int]:
        """The batch as the user gets it, on its device, and how many samples it has."""
        values = self._maker.finish(begun)
        batch: Any = values
        if self._collate is not None:
            batch = self._collate(samples_of(values, len(begun.ids), self._maker.spec))
        elif self._maker.spec.as_tuple:
            batch = tuple(values.values())
        return self._transfer.send(batch), len(begun.ids)


def _opened(dataset: object) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, str | os.PathLike):
        return open_dataset(dataset)
    if isinstance(dataset, LoaderDataset):
        return dataset.packed
    raise TypeError(f"fastload.DataLoader loads packed datasets, not a {type(dataset).__name__}. Pack it once: "
                    "fastload.pack(dataset, 'packed'), then fastload.DataLoader('packed', ...)")


def _with_bad(stats: LoaderStats, bad: int) -> LoaderStats:
    from dataclasses import replace

    return replace(stats, bad=bad)

