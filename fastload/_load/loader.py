"""``fastload.DataLoader``: a torch DataLoader whose batches are decoded by native threads of this process."""

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
from fastload._load.backend_measure import USUAL_BATCH, Bench, learn_step, measured_choice
from fastload._load.buffers import BufferPool
from fastload._load.decoder import BackendChoice, Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.iterator import Collator, LoaderIterator
from fastload._load.options import LoaderOptions, Ranks, make_order
from fastload._load.pipeline import Pipeline
from fastload._load.scaling import DepthScaler, ThreadScaler
from fastload._load.spec import LoadSpec, SampleOptions, load_spec
from fastload._load.stats import StatsCollector
from fastload._load.torch_compat.accelerate import (
    AcceleratedIterator,
    CollateOnto,
    PreparedBatches,
    PreparedFlag,
    check_device,
)
from fastload._load.torch_compat.dataset_view import Collate, LoaderDataset
from fastload._load.torch_compat.lookahead import Lookahead
from fastload._load.torch_compat.samplers import RankBatches, RankSampler
from fastload._load.transfer import Transfer, make_transfer
from fastload._order.epoch_order import WINDOW
from fastload._order.partition import Partition
from fastload._order.rank_order import RankOrder
from fastload._order.sampler_order import SamplerOrder
from fastload._order.saved_state import check_same, check_version
from fastload._plan.rows import PlanRow
from fastload._store.dataset import Dataset
from fastload.errors import ConfigError

_MAX_SHOWN = 200  # characters of the transforms in repr(loader)


@public()
class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads a packed dataset: the arguments of torch's DataLoader, and those below.

    ``num_workers``: decode threads, None = chosen automatically. ``transform``: fastload.transforms, for all images or a dict by
    field. ``fields``: names to deliver (also ``id`` and ``source``). Datasets of image + label yield ``(images, labels)``, others a
    dict. ``shuffle``: True (blocks), "full" (a random permutation) or False (source order). ``last_batch``: "pad" or "partial"
    instead of the default (several ranks: pad, as DistributedSampler; one: partial). ``on_error``: "raise" or "substitute".
    ``exact``: never decode scaled. The page "The loader" (docs/loader.md) describes all of them.

        loader = fastload.DataLoader("data/train", batch_size=256, shuffle=True, transform=[T.RandomResizedCrop(224)])
    """

    # Every attribute that this class sets is declared here: a copy of a user's subclass takes along all others.
    seed: int
    timeout_s: float | None
    transfer: Transfer
    thread_scaler: ThreadScaler
    depth_scaler: DepthScaler
    stats_collector: StatsCollector
    pipeline: Pipeline
    images_per_sample: int
    collator: Collator
    order: RankOrder | SamplerOrder
    lookahead: Lookahead
    _options: LoaderOptions
    _ranks: Ranks
    _bench: Bench | None  # what backend="auto" measures, if it does
    _backend: Decoder
    _buffers: BufferPool
    _iterators: list[weakref.ref[LoaderIterator]]
    _closed: bool
    # The attributes of a loader that Accelerate has prepared.
    end_of_dataloader: bool
    remainder: int
    use_stateful_dataloader: bool
    _accelerated: bool

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
        self._options = options = LoaderOptions.resolve(
            dataset,
            SampleOptions(
                transform=transform,
                fields=fields,
                color=color,
                ragged=ragged,
                exact=exact,
                return_matrix=return_matrix,
            ),
            {
                "worker_init_fn": worker_init_fn,
                "multiprocessing_context": multiprocessing_context,
                **torch_arguments,
            },
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            generator=generator,
            prefetch_factor=prefetch_factor,
            device=device,
            backend=backend,
            seed=seed,
            rank=rank,
            world_size=world_size,
            last_batch=last_batch,
            window=window,
            on_error=on_error,
            max_bad=max_bad,
        )
        self.seed = options.order_seed
        self.timeout_s = options.timeout_s
        self._ranks = options.ranks()
        spec = load_spec(options.dataset, options.samples)
        warn_once_if_missing()
        self.transfer = make_transfer(options.device, pin_memory=options.pin_memory)
        self._init_backend(spec)
        self._init_pipeline(spec)
        loader = weakref.ref(self)  # weak: a loader is freed with its last user
        self.order = make_order(
            options, lambda: None if (alive := loader()) is None else alive._current_partition()
        )
        self._iterators = []  # not a WeakSet: see fastload._load.prefetch
        self._closed = False
        self._accelerated = False
        self.end_of_dataloader = False
        self.remainder = -1
        self.use_stateful_dataloader = True
        self._init_torch()

    def _init_backend(self, spec: LoadSpec) -> None:
        options = self._options
        budget = options.thread_budget(self._ranks)
        fixed = options.num_workers is not None
        bench = Bench(
            options.dataset,
            spec,
            self.transfer,
            batch_size=(options.batch_size or USUAL_BATCH)
            if options.batch_sampler is None
            else USUAL_BATCH,
            ahead=options.prefetch_depth,
            budget=budget,
        )
        choice = measured_choice(options.backend, bench)  # None but for "auto" on a GPU
        self._bench = None if choice is None else bench
        self._backend = Decoder(
            options.backend,
            threads=ThreadScaler.initial(budget, fixed=fixed),
            budget=budget,
            device=self.transfer.device,
            choice=choice,
        )
        self.thread_scaler = ThreadScaler(self._backend, fixed=fixed)

    def _init_pipeline(self, spec: LoadSpec) -> None:
        options = self._options
        depth = options.prefetch_depth
        self.stats_collector = StatsCollector()
        self._buffers = BufferPool(depth + 2)
        self.depth_scaler = DepthScaler(
            depth, self._buffers, fixed=options.prefetch_factor is not None
        )
        self.pipeline = Pipeline(
            options.dataset,
            spec,
            self._backend,
            seed=self.seed,
            buffers=self._buffers,
            stats=self.stats_collector,
            faults=FaultPolicy(options.on_error, options.max_bad),
            transfer=self.transfer,
        )
        self.images_per_sample = sum(each.items for each in spec.images)
        self.collator = Collator(spec, options.collate_fn, batched=options.batched)

    def _current_partition(self) -> Partition:
        """The part of this process as of now: the process group may be initialized after the loader was made."""
        ranks = self._options.ranks()
        if ranks != self._ranks:
            self._ranks = ranks
            self._backend.budget = self._options.thread_budget(ranks)
            self._backend.threads = min(self._backend.threads, self._backend.budget)
        return self._options.partition(ranks)

    def _init_torch(self) -> None:
        """Makes this a torch DataLoader with the parts that a plain one could be built from.

        It has no worker processes (``num_workers`` 0, no timeout), so a plain one built from it has none either.
        """
        options = self._options
        self.lookahead = Lookahead(self.ahead - 1)
        view = LoaderDataset(self.pipeline, self.order, self.lookahead, options.samples)
        sampler = options.sampler
        if sampler is None and isinstance(self.order, RankOrder):
            sampler = RankSampler(self.order, view)
        batches = options.batch_sampler
        if batches is None and options.batched:
            if isinstance(self.order, RankOrder):
                size = self.order.batch_size
                batches = RankBatches(sampler, size, options.drops_last, self.lookahead)
            else:
                batches = self.order.as_batches
        super().__init__(
            view,
            batch_size=1 if options.batched else None,
            sampler=sampler,
            collate_fn=options.collate_fn
            or (Collate(self.pipeline.spec) if options.batched else None),
            generator=options.generator,
        )
        # Lightning rebuilds a loader from the attributes that have the names of its arguments.
        _set_attributes(
            self,
            {
                **{
                    name: value
                    for name, value in options.arguments().items()
                    if name not in _TORCH_ARGUMENTS and name != "seed"
                },
                "batch_size": None if options.batch_sampler is not None else options.batch_size,
                "drop_last": options.drops_last,
                "pin_memory": options.pin_memory,
                "batch_sampler": batches,
            },
        )

    def __repr__(self) -> str:
        options = self._options
        parts = [
            f"{str(self.packed.path)!r}",
            f"{len(self.packed):,} samples",
            f"batch_size={self.batch_size}",
        ]
        if isinstance(self.order, RankOrder):
            parts.append(f"shuffle={self.order.options.shuffle!r}")
            parts.append(f"last_batch={self.order.partition.last_batch!r}")
        elif options.sampler is not None:
            parts.append(f"sampler={type(options.sampler).__name__}")
        else:
            parts.append(f"batch_sampler={type(options.batch_sampler).__name__}")
        transform = repr(options.samples.transform)
        if len(transform) > _MAX_SHOWN:
            transform = f"{transform[:_MAX_SHOWN]}..."
        parts += [
            f"transform={transform}",
            f"backend={self.backend.name!r}",
            f"rank {self._ranks.rank} of {self._ranks.world}",
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def ahead(self) -> int:
        """Batches in flight or ready; grows where that hides hiccups, unless prefetch_factor was given."""
        return self.depth_scaler.depth

    @property
    def packed(self) -> Dataset:
        """The packed dataset itself."""
        return self.pipeline.dataset

    @property
    def backend(self) -> BackendChoice:
        """Which decoder runs, and why."""
        return self._backend.choice

    @property
    def block_samples(self) -> int:
        """Samples per block of the order; 0: it has no blocks."""
        if isinstance(self.order, RankOrder) and self.order.options.shuffle is True:
            return self.order.options.block
        return 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        if self._closed:
            raise RuntimeError("this loader was closed: make a new one")
        if self._bench is not None:
            learn_step(self._bench, self.stats())
        iterator = LoaderIterator(self)
        alive = [each for each in self._iterators if each() is not None]
        self._iterators = [*alive, weakref.ref(iterator)]
        return AcceleratedIterator(self, iterator) if self._accelerated else iterator  # type: ignore[return-value]

    @property
    def _is_accelerate_prepared(self) -> PreparedFlag:
        return PreparedFlag(self._prepare_for_accelerate)

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        if prepared:
            self._prepare_for_accelerate()

    def _prepare_for_accelerate(self) -> bool:
        """False where Accelerate must rebuild the loader: a user's sampler does not know of ranks."""
        if isinstance(self.order, SamplerOrder) and self._ranks.world > 1:
            return self._accelerated
        check_device(torch.device(self._options.device or "cpu"))
        if not self._accelerated and self.batch_sampler is not None:
            _set_attributes(
                self,
                {
                    "batch_sampler": PreparedBatches(self, self.batch_sampler),
                    "collate_fn": CollateOnto(self.collate_fn, self.transfer.device),
                },
            )
        self._accelerated = True
        return True

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; without it epochs count by themselves."""
        self.order.set_epoch(epoch)

    def plan(
        self, sample_id: int, *, field: str | None = None, item: int = 0, epoch: int | None = None
    ) -> PlanRow:
        """What happens to the image of a sample in an epoch (default: the next one): print it, or ``draw`` it."""
        plans = self.pipeline.spec.plans
        name = next(iter(plans), "") if field is None else field
        if name not in plans:
            raise ConfigError(
                f"plan of field {name!r:.40}: expected one of {', '.join(plans) or 'none (no image field)'}"
            )
        if not 0 <= sample_id < len(self.packed):
            raise IndexError(f"sample {sample_id} of {len(self.packed)}")
        ids = np.array([sample_id], np.int64)
        epoch = self.order.next_epoch if epoch is None else epoch
        return self.pipeline.planner.plan(ids, epoch).rows[name][item]

    def stats(self) -> LoaderStats:
        """What was delivered so far, and where the time went."""
        return self.stats_collector.snapshot(
            threads=self._backend.threads,
            buffer_bytes=self._buffers.n_bytes,
            bad=self.pipeline.faults.n_bad,
        )

    @property
    def errors(self) -> list[Exception]:
        """The first bad samples that were substituted, as the errors that name them."""
        return list(self.pipeline.faults.errors)

    def state_dict(self) -> dict[str, object]:
        """The position of the newest iteration as JSON of a few hundred bytes; ``load_state_dict`` resumes there."""
        return {**self.order.state(), "transform": self.pipeline.spec.describe()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next iteration resumes after the state, also with another world size, batch size or backend."""
        checked = check_version(state)
        check_same("transform", checked.get("transform"), self.pipeline.spec.describe())
        self.order.load(checked)

    def close(self) -> None:
        """Ends all iterations and the decode threads; also done when the loader is dropped or Python exits."""
        self._closed = True
        for each in self._iterators:
            if (iterator := each()) is not None:
                iterator.close()
        self._backend.close()

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self._options.arguments()
        added: dict[str, Any] = {}
        if type(self) is not DataLoader:  # a user's subclass has attributes of its own
            ours = _TORCH_ATTRIBUTES | DataLoader.__annotations__.keys() | arguments.keys()
            added = {name: value for name, value in vars(self).items() if name not in ours}
        order = self.order
        return _rebuilt, (type(self), arguments, order.next_epoch, order.resume_state(), added)


_TORCH_ARGUMENTS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
_TORCH_ATTRIBUTES = frozenset(vars(torch.utils.data.DataLoader([])))  # type: ignore[arg-type]


def _set_attributes(loader: DataLoader, values: Mapping[str, Any]) -> None:
    """torch's DataLoader refuses ``loader.batch_size = ...`` and some others once it is initialized. But frameworks read what the
    user gave, not the values that torch's constructor needs here, so these are written past its ``__setattr__``."""
    vars(loader).update(values)


def _rebuilt(
    kind: type[DataLoader],
    arguments: dict[str, Any],
    epoch: int,
    resume_state: dict[str, object] | None,
    added: dict[str, Any],
) -> DataLoader:
    loader = kind.__new__(kind)  # the constructor of a user's subclass may have other arguments
    DataLoader.__init__(loader, **arguments)
    vars(loader).update(added)
    loader.order.next_epoch = epoch
    if resume_state is not None:
        loader.order.load(resume_state)
    return loader
