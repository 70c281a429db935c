"""Checks the arguments of a DataLoader, keeps them in a frozen object, and makes the order.

Every argument of torch's DataLoader either has an effect or causes a warning that explains why not.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fastload._common.cpus import available_cpus
from fastload._load.spec import SampleOptions
from fastload._load.torch_compat.dataset_view import Collate, LoaderDataset, opened
from fastload._order.epoch_order import WINDOW
from fastload._order.partition import Partition
from fastload._order.rank_order import OrderOptions, RankOrder
from fastload._order.sampler_order import SamplerOrder
from fastload._order.weighted_order import Share, drawn_counts
from fastload._plan.draw_ids import check_fits
from fastload._store.dataset import Dataset
from fastload._store.fields import ALL_SPLITS
from fastload._store.joined import JoinedDataset
from fastload.errors import ConfigError

MAX_THREADS = 1024
MAX_PREFETCH = 1024  # batches
MAX_REPEATS = 1024
# One batch is delivered, one is finished, and one keeps the decode threads busy in the meantime.
DEFAULT_PREFETCH = 3
_NO_PROCESSES = "there are no worker processes: images are decoded by threads of this process"


@dataclass(frozen=True, slots=True)
class Unused:
    """A torch argument without effect. ``defaults`` are accepted without a warning."""

    reason: str
    defaults: tuple[object, ...]


UNUSED = {
    "worker_init_fn": Unused(_NO_PROCESSES, (None,)),
    "multiprocessing_context": Unused(_NO_PROCESSES, (None,)),
    "persistent_workers": Unused(
        "the decode threads always live as long as the loader", (False, True)
    ),
    "pin_memory_device": Unused("pass device= instead", ("",)),
    "in_order": Unused("batches are always delivered in order", (True,)),
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process, the world size, and the number of ranks on this machine."""

    rank: int
    world: int
    local_world: int

    @staticmethod
    def here(rank: int | None = None, world: int | None = None) -> Ranks:
        """Fills in missing values from torch.distributed or from the environment of torchrun."""
        found_rank = 0
        found_world = 1
        if dist.is_available() and dist.is_initialized():
            found_rank = dist.get_rank()
            found_world = dist.get_world_size()
        elif "TORCHELASTIC_RUN_ID" in os.environ:
            found_rank = int(os.environ.get("RANK", "0"))
            found_world = int(os.environ.get("WORLD_SIZE", "1"))
        rank = found_rank if rank is None else rank
        world = found_world if world is None else world
        if type(rank) is not int or type(world) is not int or not 0 <= rank < world:
            raise ConfigError(
                f"rank={rank!r:.40}, world_size={world!r:.40}: "
                "expected a rank from 0 to world_size - 1"
            )
        return Ranks(rank, world, max(1, min(_local_world() or world, world)))


def _local_world() -> int:
    """Returns the ranks on this machine from torchrun, Open MPI or Slurm; 0 if unknown."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The arguments as passed, in torch's order. Properties derive further values from them."""

    dataset: Dataset
    split: str | None = None
    batch_size: int | None = 1
    shuffle: bool | str | None = None
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int | None = None
    collate_fn: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    device: str | torch.device | None = None
    backend: str = "auto"
    seed: int | None = None
    rank: int | None = None
    world_size: int | None = None
    last_batch: str | None = None
    window: int = WINDOW
    repeats: int = 1
    on_error: str = "raise"
    max_bad: int | None = None
    weights: Sequence[float] | None = None
    samples: SampleOptions = field(default_factory=SampleOptions)
    unused: Mapping[str, object] = field(default_factory=dict)  # torch arguments without effect

    @classmethod
    def resolve(
        cls,
        dataset: object,
        samples: SampleOptions,
        unused: Mapping[str, object],
        *,
        split: str | None,
        num_workers: int | None,
        collate_fn: Callable[[Any], Any] | None,
        **arguments: Any,
    ) -> LoaderOptions:
        """Checks the arguments, warns about unused ones, and opens the dataset."""
        _warn_unused(unused)
        if collate_fn is torch.utils.data.default_collate:  # the loader does the same, faster
            collate_fn = None
        if isinstance(dataset, LoaderDataset):  # a framework rebuilds a loader from its parts
            num_workers = num_workers or None
            collate_fn = None if isinstance(collate_fn, Collate) else collate_fn
            samples = dataset.samples if samples == SampleOptions() else samples
        selected = opened(dataset).select(split)
        return cls(
            dataset=selected,
            split=selected.split_name,
            samples=samples,
            unused=unused,
            num_workers=num_workers,
            collate_fn=collate_fn,
            **arguments,
        )

    def __post_init__(self) -> None:
        self._check_order()
        _check_range("num_workers", self.num_workers, 0, MAX_THREADS, " (decode threads)")
        _check_range("prefetch_factor", self.prefetch_factor, 1, MAX_PREFETCH, " (batches)")
        _check_range("seed", self.seed, 0, 2**63 - 1)
        if self.generator is not None and not hasattr(self.generator, "initial_seed"):
            raise ConfigError(
                f"generator={self.generator!r:.40}: expected None or a torch.Generator"
            )
        seconds = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not seconds or not 0 <= self.timeout < float("inf"):
            raise ConfigError(
                f"timeout={self.timeout!r:.40}: expected a number of seconds, or 0 for no timeout"
            )
        if type(self.window) is not int or self.window < 1:
            raise ConfigError(f"window={self.window!r:.40}: expected a number of blocks, 1 or more")
        if self.last_batch is not None and self.drop_last and self.last_batch != "drop":
            raise ConfigError(
                f"drop_last=True contradicts last_batch={self.last_batch!r:.40}: pass one of them"
            )
        if type(self.repeats) is not int or not 1 <= self.repeats <= MAX_REPEATS:
            raise ConfigError(
                f"repeats={self.repeats!r:.40}: expected the copies of each sample per epoch, "
                f"1 to {MAX_REPEATS}"
            )
        if self.has_sampler and (
            self.last_batch is not None or self.window != WINDOW or self.repeats != 1
        ):
            raise ConfigError(
                "last_batch, window and repeats have no effect with a sampler, which decides the "
                "order: omit them"
            )
        self._check_weights()

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if not isinstance(self.dataset, JoinedDataset):
            raise ConfigError(
                f"weights={self.weights!r:.100}: expected a list of datasets, found one dataset"
            )
        if self.has_sampler:
            raise ConfigError(
                "weights has no effect with a sampler or batch_sampler, which decides the order: "
                "pass one of them. Lightning passes one for predictions: use a loader without "
                "weights there"
            )
        if self.repeats != 1:
            raise ConfigError(
                f"repeats={self.repeats} contradicts weights: both decide how often a sample "
                "occurs in an epoch. Pass one of them"
            )
        self.shares()

    def shares(self) -> tuple[Share, ...]:
        """Returns what an epoch takes from each dataset; () without weights."""
        if self.weights is None or not isinstance(self.dataset, JoinedDataset):
            return ()
        ranges = self.dataset.ranges()
        sizes = [sum(map(len, own)) for own in ranges]
        starts = self.dataset.column("_blocks")[:, 0]
        shares = []
        drawn = drawn_counts(self.weights, sizes)
        for own, size, n_drawn in zip(ranges, sizes, drawn, strict=True):
            n_blocks = sum(
                int(np.count_nonzero((starts >= ids.start) & (starts < ids.stop))) for ids in own
            )
            shares.append(Share(own, n_drawn, max(1, round(size / max(1, n_blocks)))))
        return tuple(shares)

    def _check_order(self) -> None:
        """Raises ConfigError for contradictions, as torch does."""
        batch_size = self.batch_size
        shuffle = self.shuffle
        if shuffle not in (None, True, False, "full"):
            raise ConfigError(f"shuffle={shuffle!r:.40}: expected True, 'full' or False")
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise ConfigError(
                f"batch_size={batch_size!r:.40}: expected None (single samples) or a number of "
                "samples, 1 or more"
            )
        if self.sampler is not None and shuffle:
            raise ConfigError(
                f"shuffle={shuffle!r} contradicts sampler, which decides the order: omit shuffle"
            )
        if self.batch_sampler is not None and (
            batch_size not in (None, 1) or shuffle or self.sampler is not None or self.drop_last
        ):
            raise ConfigError(
                "batch_sampler decides batches and order: omit batch_size, shuffle, sampler and "
                "drop_last"
            )
        if batch_size is None and self.batch_sampler is None and self.drop_last:
            raise ConfigError(
                "drop_last=True: expected False with batch_size=None, which yields single samples"
            )

    @property
    def has_sampler(self) -> bool:
        """Whether a sampler or batch sampler of the user decides the order."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def batched(self) -> bool:
        """Whether the loader yields batches instead of single samples."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def order_seed(self) -> int:
        """The seed, or the initial seed of ``generator``, or 0."""
        if self.seed is not None:
            return self.seed
        return 0 if self.generator is None else int(self.generator.initial_seed()) % 2**63

    @property
    def prefetch_depth(self) -> int:
        """Initial number of prefetched batches, for all threads together."""
        return DEFAULT_PREFETCH if self.prefetch_factor is None else self.prefetch_factor

    @property
    def timeout_s(self) -> float | None:
        """Seconds to wait for a batch; None without a timeout."""
        return self.timeout or None

    @property
    def drops_last(self) -> bool:
        """Whether every batch is full."""
        return self.drop_last or (self.batched and self.last_batch == "drop")

    def ranks(self) -> Ranks:
        """Returns the ranks now: the process group may be initialized after the loader."""
        return Ranks.here(self.rank, self.world_size)

    def partition(self, ranks: Ranks) -> Partition:
        """Returns the partition for a rank. By default an epoch ends as with torch's samplers."""
        default = "pad" if ranks.world > 1 else "partial"
        last_batch = self.last_batch or ("drop" if self.drop_last else default)
        return Partition(ranks.rank, ranks.world, last_batch)

    def thread_budget(self, ranks: Ranks) -> int:
        """Returns the maximum number of decode threads: num_workers, or the CPUs of this rank."""
        if self.num_workers is None:
            return max(1, available_cpus() // ranks.local_world)
        return max(1, self.num_workers)

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments that make a DataLoader with the same options."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        del own["samples"], own["unused"]
        samples = {each.name: getattr(self.samples, each.name) for each in fields(self.samples)}
        return {**own, **samples, **self.unused}


def _check_range(name: str, value: object, least: int, most: int, unit: str = "") -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ConfigError(
            f"{name}={value!r:.40}: expected None or a whole number from {least} to {most}{unit}"
        )


def _warn_unused(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name not in UNUSED:
            raise TypeError(
                f"fastload.DataLoader got an unexpected argument {name!r}. {_hint(name)}"
            )
        # Compares identity, because 0 == False and 1 == True.
        if not any(
            value is default or (type(value) is str and value == default)
            for default in UNUSED[name].defaults
        ):
            warnings.warn(
                f"fastload.DataLoader: {name} has no effect: {UNUSED[name].reason}",
                UserWarning,
                stacklevel=4,
            )


def _hint(name: str) -> str:
    known = [each.name for each in (*fields(LoaderOptions), *fields(SampleOptions))]
    known = [each for each in known if each not in ("samples", "unused")]
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Expected one of {', '.join((*known, *sorted(UNUSED)))}"


def make_order(
    options: LoaderOptions, current_partition: Callable[[], Partition | None]
) -> RankOrder | SamplerOrder:
    """Makes fastload's own order, or the order of a user's sampler."""
    selected = options.dataset
    content = selected.manifest.content[:16]
    n_samples = len(selected)
    is_whole = n_samples == selected.manifest.n_samples
    split = ALL_SPLITS if is_whole or options.split is None else options.split
    check_fits(selected.ids.stop)
    if not options.has_sampler:
        n_blocks = max(1, len(selected.column("_blocks")))
        return RankOrder(
            OrderOptions(
                n_samples=n_samples,
                shuffle=options.shuffle if options.shuffle == "full" else bool(options.shuffle),
                seed=options.order_seed,
                window=options.window,
                repeats=options.repeats,
                block=max(1, round(n_samples / n_blocks)),
                content=content,
                split=split,
                first=selected.ids.start,
                shares=options.shares(),
            ),
            batch_size=options.batch_size or 1,
            partition=options.partition(options.ranks()),
            current_partition=current_partition,
            source_order=lambda: np.argsort(selected.column("_source_index"), kind="stable"),
        )
    sampler = options.batch_sampler if options.sampler is None else options.sampler
    batches = sampler
    if options.sampler is not None and options.batch_size is not None:
        batches = torch.utils.data.BatchSampler(sampler, options.batch_size, options.drop_last)
    return SamplerOrder(
        sampler,
        batches,
        batch_size=None if options.batch_sampler is not None else options.batch_size or 1,
        drop_last=options.drop_last,
        n_samples=n_samples,
        seed=options.order_seed,
        content=content,
        split=split,
        first=selected.ids.start,
        rank_and_world=lambda: _rank_and_world(options, sampler),
    )


def _rank_and_world(options: LoaderOptions, sampler: Any) -> tuple[int, int]:
    """Returns (0, 1) if the sampler gives each rank other samples."""
    inner = getattr(sampler, "sampler", None)
    if any(isinstance(each, torch.utils.data.DistributedSampler) for each in (sampler, inner)):
        return 0, 1
    ranks = options.ranks()
    return ranks.rank, ranks.world
