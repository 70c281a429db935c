"""``fastload.DataLoader``: a torch DataLoader to everybody who asks, fed by native threads of this process."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastload._common.metrics import LoaderStats
from fastload._common.native import warn_once_if_missing
from fastload._common.public import public
from fastload._load.arguments import (
    Ranks,
    batches_ahead,
    checked_order,
    checked_timeout,
    last_batch_mode,
    seed_from,
    thread_budget,
    warn_without_meaning,
)
from fastload._load.backend_measure import USUAL_BATCH, Bench, learn_step, measured_choice
from fastload._load.buffers import BufferPool
from fastload._load.builder import BatchMaker
from fastload._load.decoder import BackendChoice, Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.iterator import Collating, LoaderIterator
from fastload._load.spec import load_spec
from fastload._load.stats import StatsCollector
from fastload._load.threads import DepthKeeper, ThreadKeeper
from fastload._load.torch_compat.accelerate import (
    AcceleratedIterator,
    CollateOnto,
    PreparedBatches,
    check_device,
)
from fastload._load.torch_compat.dataset_view import LOOKS, Collate, LoaderDataset, opened
from fastload._load.torch_compat.lookahead import Coming
from fastload._load.torch_compat.samplers import RankBatches, RankSampler
from fastload._load.transfer import make_transfer
from fastload._order.epoch_order import WINDOW
from fastload._order.partition import Partition
from fastload._order.rank_order import OrderOptions, RankOrder
from fastload._order.sampler_order import SamplerOrder
from fastload._order.saved_state import check_same, check_version
from fastload._plan.rows import PlanRow
from fastload._store.dataset import Dataset
from fastload.errors import ConfigError


@public()
class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads a packed dataset: same arguments as torch's DataLoader, plus what is below.

    ``num_workers``: decode threads, None = decided for you. ``transform``: fastload.transforms, for all images or a dict by field.
    ``fields``: names to deliver (``id`` and ``source``, too). Datasets of image + label give ``(images, labels)``, others a dict.
    ``shuffle``: True (blocks), "full" (true permutation) or False (source order). ``last_batch``: "pad" or "partial" instead of the default
    (several ranks: pad, as DistributedSampler; one: partial). ``on_error``: "raise" or "substitute". ``exact``: never decode scaled.
    The page "The loader" (docs/loader.md) has them all.

        loader = fastload.DataLoader("data/train", batch_size=256, shuffle=True, transform=[T.RandomResizedCrop(224)])
    """

    def __init__(  # noqa: PLR0917 - torch's own order
        self,
        dataset: str | os.PathLike[str] | Dataset,
        batch_size: int | None = 1,
        shuffle: bool | str | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: object = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        transform: object = None,
        fields: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        backend: str = "auto",
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        last_batch: str | None = None,
        window: int = WINDOW,
        color: str | None = None,
        ragged: str | Mapping[str, str] = "list",
        exact: bool = False,
        return_matrix: bool = False,
        on_error: str = "raise",
        max_bad: int | None = None,
        **torch_arguments: object,
    ) -> None:
        before = frozenset(vars(self))  # attributes that a class of the user's has set
        if isinstance(
            dataset, LoaderDataset
        ):  # somebody makes a loader anew out of the parts of one
            num_workers, collate_fn = (
                num_workers or None,
                None if isinstance(collate_fn, Collate) else collate_fn,
            )
            if (
                transform is None
                and fields is None
                and color is None
                and ragged == "list"
                and not exact
                and not return_matrix
            ):
                transform, fields, color, ragged, exact, return_matrix = (
                    dataset.made_with[name] for name in LOOKS
                )
        given = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__", "torch_arguments", "before")
        }
        warn_without_meaning(
            {
                "worker_init_fn": worker_init_fn,
                "multiprocessing_context": multiprocessing_context,
                **torch_arguments,
            },
            known=given,
        )
        checked_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        packed = opened(dataset)
        self._given = {
            **given,
            **torch_arguments,
            "dataset": packed,
        }  # what a copy in another process is made of
        self._ranks, self.seed = Ranks.here(rank, world_size), seed_from(seed, generator)
        ahead, self.timeout_s = batches_ahead(prefetch_factor), checked_timeout(timeout)
        spec = load_spec(
            packed,
            fields=fields,
            transform=transform,
            color=color,
            ragged=ragged,
            exact=exact,
            return_matrix=return_matrix,
        )
        warn_once_if_missing()
        budget, fixed = thread_budget(num_workers, self._ranks.local_world), num_workers is not None
        self.transfer = make_transfer(device, pin_memory=pin_memory)
        bench = Bench(
            packed,
            spec,
            self.transfer,
            batch_size=batch_size if batch_size and batch_sampler is None else USUAL_BATCH,
            ahead=ahead,
            budget=budget,
        )
        choice = measured_choice(backend, bench)  # None but for "auto" on a GPU
        self._bench = None if choice is None else bench
        self._backend = Decoder(
            backend,
            threads=ThreadKeeper.at_first(budget, fixed=fixed),
            budget=budget,
            device=self.transfer.device,
            choice=choice,
        )
        self.thread_keeper = ThreadKeeper(self._backend, fixed=fixed)
        self.stats_collector, self._ring = StatsCollector(), BufferPool(ahead + 2)
        self.depth_keeper = DepthKeeper(ahead, self._ring, fixed=prefetch_factor is not None)
        self.maker = BatchMaker(
            packed,
            spec,
            self._backend,
            seed=self.seed,
            ring=self._ring,
            stats=self.stats_collector,
            faults=FaultPolicy(on_error, max_bad),
            transfer=self.transfer,
        )
        self.images_per_sample = sum(each.items for each in spec.images)
        self.collating = Collating(
            self.maker, collate_fn, batched=batch_size is not None or batch_sampler is not None
        )
        self.order = (
            self._epochs(batch_size or 1, shuffle, window)
            if sampler is None and batch_sampler is None
            else self._user_order(sampler, batch_sampler, batch_size, drop_last)
        )
        self._iterators: list[
            weakref.ref[LoaderIterator]
        ] = []  # not a WeakSet: see fastload._load.prefetch
        self._closed = self._accelerated = self.end_of_dataloader = False
        self.remainder, self.use_stateful_dataloader = -1, True  # as accelerated.py says
        self._as_torch(collate_fn, generator, pin_memory)
        self._names = frozenset(vars(self)) - before | {"_names"}

    @property
    def ahead(self) -> int:
        """Batches begun or ready before they are asked for; grows where that hides hiccups and prefetch_factor was left open."""
        return self.depth_keeper.ahead

    def _user_order(
        self, sampler: Any, batch_sampler: Any, batch_size: int | None, drop_last: bool
    ) -> SamplerOrder:
        if self._given["last_batch"] is not None or self._given["window"] != WINDOW:
            raise ConfigError(
                "last_batch and window belong to fastload's own order: beside a sampler, which decides both, leave them out"
            )
        batches = (
            batch_sampler
            if batch_sampler is not None
            else sampler
            if batch_size is None
            else torch.utils.data.BatchSampler(sampler, batch_size, drop_last)
        )
        return SamplerOrder(
            sampler if sampler is not None else batch_sampler,
            batches,
            n_samples=len(self.packed),
            seed=self.seed,
            content=self.packed.manifest.content[:16],
            batch_size=None if batch_sampler is not None else batch_size or 1,
            drop_last=drop_last,
        )

    def _partition(self) -> Partition:
        """The part of this process as it is now: the process group may be younger than the loader."""
        given, ranks = self._given, Ranks.here(self._given["rank"], self._given["world_size"])
        if ranks != self._ranks:
            self._ranks, self._backend.budget = (
                ranks,
                thread_budget(given["num_workers"], ranks.local_world),
            )
            self._backend.threads = min(self._backend.threads, self._backend.budget)
        mode = last_batch_mode(given["last_batch"], given["drop_last"], ranks.world)
        return Partition(ranks.rank, ranks.world, mode)

    def _epochs(self, batch_size: int, shuffle: bool | str | None, window: int) -> RankOrder:
        packed, n = self.packed, len(self.packed)
        if type(window) is not int or window < 1:
            raise ConfigError(f"window={window!r:.40}: expected a number of blocks, 1 or more")
        options = OrderOptions(
            n_samples=n,
            shuffle=shuffle if shuffle == "full" else bool(shuffle),
            seed=self.seed,
            window=window,
            block=max(1, round(n / max(1, len(packed.column("_blocks"))))),
            content=packed.manifest.content[:16],
        )
        loader = weakref.ref(self)  # weak: a loader is freed with its last user
        return RankOrder(
            options,
            batch_size=batch_size,
            partition=self._partition(),
            current_partition=lambda: (
                alive._partition() if (alive := loader()) is not None else None
            ),
            source_order=lambda: np.argsort(packed.column("_source_index"), kind="stable"),
        )

    def _as_torch(
        self,
        collate_fn: Callable[[Any], Any] | None,
        generator: torch.Generator | None,
        pin_memory: bool,
    ) -> None:
        """Makes this a torch DataLoader, with the parts that one could build a plain one from.

        It says that it has no worker processes (``num_workers`` 0, no timeout): whoever builds a plain one gets none either.
        """
        given, order, self.coming = self._given, self.order, Coming(self.ahead - 1)
        view = LoaderDataset(self.maker, order, self.coming, given)
        batched = given["batch_size"] is not None or given["batch_sampler"] is not None
        sampler = given["sampler"]
        if sampler is None:
            sampler = (
                RankSampler(order, view)
                if isinstance(order, RankOrder)
                else torch.utils.data.SequentialSampler(view)
            )
        collate = collate_fn or (Collate(self.maker.spec) if batched else None)
        super().__init__(
            view,
            batch_size=1 if batched else None,
            sampler=sampler,
            collate_fn=collate,
            generator=generator,
        )
        # torch forbids changing these once it is made, but a loader is asked for what its user has given.
        batches, dropping = (
            given["batch_sampler"],
            given["drop_last"] or (batched and given["last_batch"] == "drop"),
        )
        if batches is None and batched:
            batches = (
                order.as_batches
                if isinstance(order, SamplerOrder)
                else RankBatches(sampler, order.batch_size, dropping, self.coming)
            )
        # Lightning, when it predicts, makes a loader anew out of the attributes that are named as the arguments.
        self.__dict__.update(
            {name: value for name, value in given.items() if name not in _TORCH_NAMES}
        )
        self.__dict__.update(
            batch_size=None if given["batch_sampler"] is not None else given["batch_size"],
            drop_last=dropping,
            pin_memory=pin_memory,
            batch_sampler=batches,
        )

    @property
    def packed(self) -> Dataset:
        """The packed dataset itself."""
        return self.maker.dataset

    @property
    def backend(self) -> BackendChoice:
        """Which decoder runs, and why."""
        return self._backend.choice

    @property
    def block_samples(self) -> int:
        """Samples come in blocks of so many; 0: they do not."""
        return (
            self.order.options.block
            if isinstance(self.order, RankOrder) and self.order.options.shuffle is True
            else 0
        )

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        if self._closed:
            raise RuntimeError("this loader was closed: make a new one")
        if self._bench is not None:
            learn_step(self._bench, self.stats())
        iterator = LoaderIterator(self)
        self._iterators = [each for each in self._iterators if each() is not None] + [
            weakref.ref(iterator)
        ]
        return AcceleratedIterator(self, iterator) if self._accelerated else iterator  # type: ignore[return-value]

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate asks before it would rebuild a loader; a user's own sampler does not know of ranks, so it may deal that out."""
        if isinstance(self.order, RankOrder) or self._ranks.world == 1:
            check_device(torch.device(self._given["device"] or "cpu"))
            if not self._accelerated and self.batch_sampler is not None:
                self.__dict__.update(
                    batch_sampler=PreparedBatches(self, self.batch_sampler),
                    collate_fn=CollateOnto(self.collate_fn, self.transfer.device),
                )
            self._accelerated = True
        return self._accelerated

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        """Accelerate marks what it has prepared."""

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without it epochs count by themselves."""
        self.order.set_epoch(epoch)

    def plan(
        self, sample_id: int, *, field: str | None = None, item: int = 0, epoch: int | None = None
    ) -> PlanRow:
        """What happens to a sample's image in an epoch (default: the coming one): print it, or ``draw`` it."""
        plans = self.maker.spec.plans
        name = next(iter(plans), "") if field is None else field
        if name not in plans:
            raise ConfigError(
                f"plan of field {name!r:.40}: expected one of {', '.join(plans) or 'none (no image field)'}"
            )
        if not 0 <= sample_id < len(self.packed):
            raise IndexError(f"sample {sample_id} of {len(self.packed)}")
        return self.maker.prepare(
            np.array([sample_id], np.int64), self.order.next_epoch if epoch is None else epoch
        ).rows[name][item]

    def stats(self) -> LoaderStats:
        """What was delivered so far, and where the time went."""
        return self.stats_collector.snapshot(
            threads=self._backend.threads,
            buffer_bytes=self._ring.n_bytes,
            bad=self.maker.faults.n_bad,
        )

    @property
    def errors(self) -> list[Exception]:
        """The first bad samples that were substituted, as the errors that name them."""
        return list(self.maker.faults.errors)

    def state_dict(self) -> dict[str, object]:
        """Where the newest iteration stands, as JSON of a few hundred bytes; ``load_state_dict`` goes on there."""
        return {**self.order.state(), "transform": self.maker.spec.describe()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next iteration goes on where the state was saved, also with another world size, batch size or backend."""
        checked = check_version(state)
        check_same("transform", checked.get("transform"), self.maker.spec.describe())
        self.order.load(checked)

    def close(self) -> None:
        """Ends all iterations and the decode threads; also done when the loader is dropped or Python exits."""
        self._closed = True
        for each in self._iterators:
            if (iterator := each()) is not None:
                iterator.close()
        self._backend.close()

    def __reduce__(self) -> tuple[object, ...]:
        own = (
            {name: value for name, value in vars(self).items() if name not in self._names}
            if type(self) is not DataLoader
            else {}
        )
        return _again, (
            type(self),
            self._given,
            self.order.next_epoch,
            self.order.resume_state(),
            own,
        )


# What torch's own DataLoader has as an attribute; ``seed`` is one of ours, always a number.
_TORCH_NAMES = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters) | {
    "seed"
}


def _again(
    kind: type[DataLoader],
    given: dict[str, Any],
    epoch: int,
    resumed: dict[str, object] | None,
    own: dict[str, Any],
) -> DataLoader:
    loader = kind.__new__(
        kind
    )  # a class of the user's may be made otherwise; what it has of its own comes along
    DataLoader.__init__(loader, **given)
    vars(loader).update(own)
    loader.order.next_epoch = epoch
    if resumed is not None:
        loader.order.load(resumed)
    return loader
