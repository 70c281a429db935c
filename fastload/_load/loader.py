"""``fastload.DataLoader``: a torch DataLoader that decodes batches in native threads."""

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
from fastload._load.chunk_cache import RecordCache
from fastload._load.collator import Collator
from fastload._load.decoder import BackendChoice, Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.iterator import LoaderIterator
from fastload._load.options import LoaderOptions, make_order
from fastload._load.pipeline import Pipeline
from fastload._load.scaling import DepthScaler, ThreadScaler
from fastload._load.spec import LoadSpec, SampleOptions, load_spec
from fastload._load.stats import StatsCollector
from fastload._load.torch_compat.accelerate import (
    AcceleratedIterator,
    CollateOnto,
    PreparedBatches,
    PrepareWhenTested,
    check_device,
)
from fastload._load.torch_compat.dataset_view import Collate, LoaderDataset
from fastload._load.torch_compat.samplers import Lookahead, RankBatches, RankSampler
from fastload._load.transfer import make_transfer
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
    """Loads batches from a packed dataset. Accepts the arguments of torch's DataLoader.

    Native threads of the training process read, decode, crop, resize, flip and normalize the
    images. There are no worker processes. A dataset with one image and one integer label yields
    ``(images, labels)``. Any other dataset yields a dict of field names and values.

    Args:
        dataset: Path of a packed dataset, or the result of ``fastload.open``. A list of them is
            loaded as one dataset, as if ``fastload.merge`` had joined them.
        batch_size: Samples per batch on each rank (default 1). None yields single samples.
        shuffle: True permutes blocks of about 8 MiB and shuffles the samples inside a window of
            blocks, so that the disk reads sequentially. "full" is a random permutation of all
            samples. False and None (default) keep the order of the source.
        sampler: torch sampler that decides the order instead of ``shuffle``.
        batch_sampler: torch batch sampler that decides batches and order. Excludes ``batch_size``,
            ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: Number of decode threads. None (default) starts with up to 4 threads and adds
            more while the trainer waits, up to the CPUs that this rank may use.
        collate_fn: Function that makes a batch from a list of samples. Its random numbers depend on
            the seed, the epoch and the first sample, and the trainer's generators are restored. It
            runs in ``next()``, or ahead in the background if it has a parameter ``generator=None``,
            which receives a torch generator. None (default) and torch's ``default_collate`` collate
            in the loader, which is faster.
        pin_memory: Return CPU tensors in pinned memory (default False).
        drop_last: Drop samples that do not fill a batch on every rank (default False).
        timeout: Seconds to wait for a batch before RuntimeError; 0 (default) waits forever.
        worker_init_fn: Has no effect, because there are no worker processes.
        multiprocessing_context: Has no effect, because there are no worker processes.
        generator: torch generator whose initial seed is used if ``seed`` is None.
        prefetch_factor: Number of batches to prefetch, for all threads together. None (default)
            starts with 3 and adds more, up to 8, if that hides short stalls.
        transform: List of ``fastload.transforms`` for all image fields, or a dict with a list per
            image field. None (default) requires images of one size.
        fields: Names of the fields to load; may include "id" (number of the sample) and "source"
            (path of the original file). None (default) loads all fields of the dataset.
        device: Device of the batches: None (default) and "cpu" for CPU tensors, or "cuda".
        backend: Decoder: "auto" (default), "native", "dali", "nvjpeg" or "reference". The attribute
            ``backend`` of the loader says which one runs and why.
        seed: Seed of the order and of random transforms. None (default) uses the seed of
            ``generator``, or 0.
        rank: Number of this process. None (default) takes it from torch.distributed or torchrun.
        world_size: Number of processes. None (default) takes it from torch.distributed or torchrun.
        last_batch: How an epoch ends: "drop" omits samples that do not fill a batch on every rank,
            "pad" repeats samples, and "partial" makes the last batches smaller. None (default) is
            "drop" with ``drop_last``, else "pad" with several ranks and "partial" with one.
        window: Number of blocks that are shuffled together with ``shuffle=True`` (default 8).
        repeats: Copies of each sample per epoch, each with its own random crop and colors (default
            1). The copies follow one another, so they share a batch (repeated augmentation).
        color: "rgb", "bgr" or "gray". None (default) is "gray" if all scanned images are grayscale,
            else "rgb".
        ragged: How to collate fields whose shape differs between samples: "list" (default) for a
            list of tensors, "pad" for a padded tensor and a mask, or a dict with a mode per field.
        exact: Never decode at a reduced scale, which is faster but changes pixels slightly (default
            False).
        return_matrix: Also return the 3x3 matrix from source pixels to output pixels of each image,
            as "image.matrix" (default False).
        min_visible: Smallest fraction of the area of a box, 0 to 1, that must remain visible after
            the transforms. Other boxes are dropped, together with the entries of fields that are
            along them. 0 (default) keeps every box that is visible at all.
        min_side: Smallest width and height of the visible part of a box, in pixels of the output
            (default 0). Smaller boxes are dropped.
        on_error: "raise" (default) raises an error in place of a batch with a bad sample.
            "substitute" replaces the sample by another one of the batch and counts it.
        split: Only the samples of this split, e.g. "train". A dataset with several splits requires
            it; "all" loads all of them. Samplers count from 0 within the split. Default None.
        max_bad: Maximum number of different bad samples with ``on_error="substitute"``. None
            (default) is no limit.
        weights: With a list of datasets: the share of samples from each, such as ``[0.7, 0.3]``.
            The sum may be any number. An epoch has as many samples as the datasets together. Each
            epoch continues where the last one stopped in a dataset, so that all its samples are
            used over several epochs, and starts over after the last one. Excludes ``sampler``,
            ``batch_sampler`` and ``repeats``. None (default) uses every sample once per epoch.
        **torch_arguments: ``persistent_workers``, ``pin_memory_device`` and ``in_order`` of torch,
            which have no effect.

    Raises:
        ConfigError: An argument is invalid, or contradicts another argument or the dataset.
        TypeError: ``dataset`` is not a packed dataset, or an argument is unknown.

    Examples:
        >>> import fastload
        >>> from fastload import transforms as T
        >>> loader = fastload.DataLoader(
        ...     "packed",
        ...     split="train",
        ...     batch_size=256,
        ...     shuffle=True,
        ...     transform=[T.RandomResizedCrop(224), T.HorizontalFlip(), T.Normalize(0.5, 0.25)],
        ... )
        >>> for images, labels in loader:
        ...     train_step(images, labels)
        >>> mixed = fastload.DataLoader(["day", "night"], weights=[0.7, 0.3], shuffle=True)
    """

    def __init__(  # noqa: PLR0917 - torch's own order
        self,
        dataset: str | os.PathLike[str] | Dataset | Sequence[str | os.PathLike[str] | Dataset],
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
        split: str | None = None,
        transform: object = None,
        fields: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        backend: str = "auto",
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        last_batch: str | None = None,
        window: int = WINDOW,
        repeats: int = 1,
        color: str | None = None,
        ragged: str | Mapping[str, str] = "list",
        exact: bool = False,
        return_matrix: bool = False,
        min_visible: float = 0.0,
        min_side: float = 0.0,
        on_error: str = "raise",
        max_bad: int | None = None,
        weights: Sequence[float] | None = None,
        **torch_arguments: object,
    ) -> None:
        inherited = set(vars(self))  # set by a user's subclass before this call
        self._options = options = LoaderOptions.resolve(
            dataset,
            SampleOptions(
                transform=transform,
                fields=fields,
                color=color,
                ragged=ragged,
                exact=exact,
                return_matrix=return_matrix,
                min_visible=min_visible,
                min_side=min_side,
            ),
            {
                "worker_init_fn": worker_init_fn,
                "multiprocessing_context": multiprocessing_context,
                **torch_arguments,
            },
            split=split,
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
            repeats=repeats,
            on_error=on_error,
            max_bad=max_bad,
            weights=weights,
        )
        self.seed = options.order_seed
        self.timeout_s = options.timeout_s
        self._ranks = options.ranks()
        packed = options.dataset.with_split(None)
        # Of all splits, so that their loaders deliver the same shapes and channels.
        spec = load_spec(packed, options.samples)
        warn_once_if_missing()
        self.transfer = make_transfer(options.device, pin_memory=options.pin_memory)
        self._init_backend(packed, spec)
        loader = weakref.ref(self)  # the order must not keep the loader alive
        self.order = make_order(
            options, lambda: None if (alive := loader()) is None else alive._current_partition()
        )
        self._init_pipeline(packed, spec)
        # A list instead of a WeakSet: fastload._load.prefetch explains why.
        self._iterators: list[weakref.ref[LoaderIterator]] = []
        self._closed = False
        self._accelerated = False
        self.end_of_dataloader = False
        self.remainder = -1
        self.use_stateful_dataloader = True  # read by Accelerate
        self._init_torch()
        self._own_attributes = {*vars(self), "_own_attributes"} - inherited

    def _init_backend(self, packed: Dataset, spec: LoadSpec) -> None:
        options = self._options
        budget = options.thread_budget(self._ranks)
        fixed = options.num_workers is not None
        bench = Bench(
            packed,
            spec,
            self.transfer,
            batch_size=(options.batch_size or USUAL_BATCH)
            if options.batch_sampler is None
            else USUAL_BATCH,
            ahead=options.prefetch_depth,
            budget=budget,
        )
        choice = measured_choice(options.backend, bench)  # None except for "auto" on a GPU
        self._bench = None if choice is None else bench
        self._backend = Decoder(
            options.backend,
            threads=ThreadScaler.initial(budget, fixed=fixed),
            budget=budget,
            device=self.transfer.device,
            choice=choice,
        )
        self.thread_scaler = ThreadScaler(self._backend, fixed=fixed)

    def _init_pipeline(self, packed: Dataset, spec: LoadSpec) -> None:
        options = self._options
        depth = options.prefetch_depth
        self.stats_collector = StatsCollector()
        self._buffers = BufferPool(depth + 2)
        self.depth_scaler = DepthScaler(
            depth, self._buffers, fixed=options.prefetch_factor is not None
        )
        self.pipeline = Pipeline(
            packed,
            spec,
            self._backend,
            seed=self.seed,
            buffers=self._buffers,
            stats=self.stats_collector,
            faults=FaultPolicy(options.on_error, options.max_bad),
            transfer=self.transfer,
            cache=RecordCache(self.order, options.dataset),
        )
        self.images_per_sample = sum(each.items for each in spec.images)
        self.collator = Collator(spec, options.collate_fn, batched=options.batched, seed=self.seed)

    def _current_partition(self) -> Partition:
        """Returns rank and world size now: the process group may start after the loader."""
        ranks = self._options.ranks()
        if ranks != self._ranks:
            self._ranks = ranks
            self._backend.budget = self._options.thread_budget(ranks)
            self._backend.threads = min(self._backend.threads, self._backend.budget)
        return self._options.partition(ranks)

    def _init_torch(self) -> None:
        """Sets the attributes of a torch DataLoader, from which frameworks build plain loaders.

        ``num_workers`` is 0 and there is no timeout, so that a plain loader has no worker
        processes.
        """
        options = self._options
        order = self.order
        self.lookahead = Lookahead(self.ahead - 1)
        view = LoaderDataset(options.dataset, self.pipeline, order, self.lookahead, options.samples)
        sampler = options.sampler
        batches = options.batch_sampler
        if isinstance(order, RankOrder):
            sampler = RankSampler(order, view)
            if options.batched:
                batches = RankBatches(sampler, order.batch_size, options.drops_last, self.lookahead)
        elif batches is None and options.batched:
            batches = order.as_batches
        super().__init__(
            view,
            batch_size=1 if options.batched else None,
            sampler=sampler,
            collate_fn=options.collate_fn
            or (Collate(self.pipeline.spec) if options.batched else None),
            generator=options.generator,
        )
        # Lightning rebuilds a loader from attributes with the names of constructor arguments.
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
        paths = [str(path) for path in self.packed.paths]
        parts = [
            repr(paths[0] if len(paths) == 1 else paths),
            *([] if options.weights is None else [f"weights={options.weights!r:.100}"]),
            *([] if options.split is None else [f"split={options.split!r}"]),
            f"{len(self.selected):,} samples",
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
        """Number of prefetched batches. Grows to hide short stalls if prefetch_factor is None."""
        return self.depth_scaler.depth

    @property
    def packed(self) -> Dataset:
        """The packed dataset with all splits. Its indices are the ids in ``batch["id"]``."""
        return self.pipeline.dataset

    @property
    def selected(self) -> Dataset:
        """The samples of this loader: ``packed``, limited to the split."""
        return self._options.dataset

    @property
    def classes(self) -> list[str]:
        """Class names in the order of their numbers, as in torchvision's ``ImageFolder``.

        See ``fastload.Dataset.classes``.
        """
        return self.packed.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Number of each class name, as in torchvision's ``ImageFolder``."""
        return self.packed.class_to_idx

    @property
    def backend(self) -> BackendChoice:
        """The decode backend that runs, and the reason for it."""
        return self._backend.choice

    @property
    def blocks(self) -> tuple[tuple[range, int], ...]:
        """Ranges of ids with the samples per block of the order; none if it has no blocks."""
        return self.order.options.blocks if isinstance(self.order, RankOrder) else ()

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        if self._closed:
            raise RuntimeError("the loader is closed: create a new one")
        if self._bench is not None:
            learn_step(self._bench, self.stats())
        iterator = LoaderIterator(self)
        alive = [each for each in self._iterators if each() is not None]
        self._iterators = [*alive, weakref.ref(iterator)]
        return AcceleratedIterator(self, iterator) if self._accelerated else iterator  # type: ignore[return-value]

    @property
    def _is_accelerate_prepared(self) -> PrepareWhenTested:
        return PrepareWhenTested(self._prepare_for_accelerate)

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        if prepared:
            self._prepare_for_accelerate()

    def _prepare_for_accelerate(self) -> bool:
        """Returns whether Accelerate may use the loader without rebuilding it."""
        # A user's sampler does not split among ranks: Accelerate must do it.
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
        """Selects the epoch of the next iteration. Without this call, epochs are counted.

        Args:
            epoch: Number of the epoch, from 0. Order and random transforms depend on it.

        Examples:
            >>> for epoch in range(3, 10):
            ...     loader.set_epoch(epoch)
            ...     train(loader)
        """
        self.order.set_epoch(epoch)

    def plan(
        self, sample_id: int, *, field: str | None = None, item: int = 0, epoch: int | None = None
    ) -> PlanRow:
        """Returns the crop, size, flip and parameters of an image in one epoch.

        Args:
            sample_id: Number of the sample in the packed dataset.
            field: Name of an image field; None (default) is the first one.
            item: Index of the image in a list field (default 0).
            epoch: Number of the epoch; None (default) is the next one.

        Returns:
            The plan row. Print it, or call its ``draw``.

        Raises:
            ConfigError: ``field`` is not an image field of this loader.
            IndexError: ``sample_id`` is out of range.

        Examples:
            >>> print(loader.plan(17))
        """
        plans = self.pipeline.spec.plans
        name = next(iter(plans), "") if field is None else field
        if name not in plans:
            raise ConfigError(
                f"field={name!r:.40}: expected an image field that is loaded: "
                f"{', '.join(plans) or 'there is none'}"
            )
        if not 0 <= sample_id < len(self.packed):
            raise IndexError(f"sample_id={sample_id}: expected 0 to {len(self.packed) - 1}")
        ids = np.array([sample_id], np.int64)
        epoch = self.order.next_epoch if epoch is None else epoch
        return self.pipeline.planner.plan(ids, epoch).rows[name][item]

    def stats(self) -> LoaderStats:
        """Returns what the loader delivered since it was created, and where the time went.

        Examples:
            >>> print(loader.stats())
        """
        return self.stats_collector.snapshot(
            threads=self._backend.threads,
            buffer_bytes=self._buffers.n_bytes,
            bad=self.pipeline.faults.n_bad,
        )

    @property
    def errors(self) -> list[Exception]:
        """The errors of the first 100 samples that were substituted."""
        return list(self.pipeline.faults.errors)

    def state_dict(self) -> dict[str, object]:
        """Returns the position of the newest iteration as JSON of a few hundred bytes.

        Examples:
            >>> torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "run.pt")
        """
        return {**self.order.state(), "transform": self.pipeline.spec.describe()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next iteration resume after the last batch that was delivered.

        World size, batch size, number of threads and backend may differ from the saved run.

        Args:
            state: The result of ``state_dict``.

        Raises:
            ConfigError: The state is invalid, or belongs to another dataset, seed or transform.

        Examples:
            >>> loader.load_state_dict(torch.load("run.pt")["loader"])
        """
        checked = check_version(state)
        check_same("transform", checked.get("transform"), self.pipeline.spec.describe())
        self.order.load(checked)

    def close(self) -> None:
        """Stops all iterations and decode threads. Optional: dropping the loader does the same."""
        self._closed = True
        for each in self._iterators:
            if (iterator := each()) is not None:
                iterator.close()
        self._backend.close()

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self._options.arguments()
        added: dict[str, Any] = {}
        if type(self) is not DataLoader:  # keep the attributes of a user's subclass
            own = self._own_attributes
            added = {name: value for name, value in vars(self).items() if name not in own}
        order = self.order
        return _rebuilt, (type(self), arguments, order.next_epoch, order.resume_state(), added)


_TORCH_ARGUMENTS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)


def _set_attributes(loader: DataLoader, values: Mapping[str, Any]) -> None:
    """Sets attributes that torch's ``__setattr__`` rejects after initialization.

    Frameworks must read the values of the user instead of the values for torch's constructor.
    """
    vars(loader).update(values)


def _rebuilt(
    kind: type[DataLoader],
    arguments: dict[str, Any],
    epoch: int,
    resume_state: dict[str, object] | None,
    added: dict[str, Any],
) -> DataLoader:
    loader = kind.__new__(kind)  # a user's subclass may have another constructor
    DataLoader.__init__(loader, **arguments)
    vars(loader).update(added)
    loader.order.next_epoch = epoch
    if resume_state is not None:
        loader.order.load(resume_state)
    return loader
