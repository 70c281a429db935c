"""fastload's own order: the batches of one rank, epoch by epoch.

A saved state is JSON. It holds the epoch and a list of runs, which says how the epoch was split so
far: one run for each combination of world size and batch size that worked on it. A resume with the
same world size and batch size continues with identical batches. With others, the rest of the epoch
is split again, and no sample is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fastload._order.epoch_order import BlockOrder, EpochOrder, full_order
from fastload._order.epoch_state import EpochState
from fastload._order.partition import Interval, Partition, RankPartition
from fastload._order.permutation import Indices
from fastload._order.saved_state import STATE_VERSION, check_same, shortened, whole_number
from fastload._order.weighted_order import Share, WeightedOrder
from fastload._plan.draw_ids import draw_ids
from fastload._store.fields import ALL_SPLITS
from fastload.errors import ConfigError

_MAX_WORLD = 1 << 16  # ranks in a saved state, whose shares are computed one by one
_MAX_RUNS = 100  # per epoch; 35 bytes each, so a state stays below 4 kB


class Run(NamedTuple):
    """Part of an epoch that was loaded with one world size and batch size."""

    world: int
    batch_size: int
    last_batch: str
    done: int  # batches completed by every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """Everything that determines the order of the samples."""

    n_samples: int
    shuffle: bool | str  # True: blocks; "full": a random permutation; False: source order
    seed: int
    block: int  # samples per block
    window: int  # blocks that are shuffled together
    repeats: int = 1  # copies of each sample per epoch
    content: str = ""  # digest of the dataset, to reject the state of another dataset
    split: str = ALL_SPLITS
    first: int = 0  # id of the first sample of the split
    shares: tuple[Share, ...] = ()  # of the datasets, if they have weights

    def epoch_order(self, epoch: int, source_order: Callable[[], Indices]) -> EpochOrder:
        """Returns the order of the ids. ``source_order`` counts from the start of the split."""
        if self.shares:
            return WeightedOrder(
                self.shares,
                shuffle=self.shuffle,
                seed=self.seed,
                epoch=epoch,
                window=self.window,
                source_order=lambda: self._source_orders(source_order()),
            ).ids
        indices = self._index_order(epoch, source_order)
        return lambda start, stop: self.first + indices(start, stop)

    def _index_order(self, epoch: int, source_order: Callable[[], Indices]) -> EpochOrder:
        if self.shuffle == "full":
            return full_order(self.n_samples, seed=self.seed, epoch=epoch)
        if self.shuffle:
            return BlockOrder(
                self.n_samples, block=self.block, seed=self.seed, epoch=epoch, window=self.window
            ).ids
        table = source_order()
        return lambda start, stop: table[start:stop]

    def _source_orders(self, table: Indices) -> list[Indices]:
        """Returns the ids of each dataset. The source order has them one after the other."""
        ends = np.cumsum([each.n_samples for each in self.shares])
        return np.split(self.first + table, ends[:-1])

    @property
    def n_positions(self) -> int:
        """Positions of an epoch. The copies of a sample are at consecutive positions."""
        if self.shares:
            return sum(each.n_drawn for each in self.shares)
        return self.n_samples * self.repeats

    @property
    def horizon(self) -> int:
        """Number of samples to read ahead: those of a window."""
        block = max(each.block for each in self.shares) if self.shares else self.block
        return self.window * block * self.repeats

    @property
    def blocks(self) -> tuple[tuple[range, int], ...]:
        """Ranges of ids with the number of samples per block; none if the order has no blocks."""
        if self.shuffle is not True:
            return ()
        if not self.shares:
            return ((range(self.first, self.first + self.n_samples), self.block),)
        return tuple((ids, each.block) for each in self.shares for ids in each.ranges)

    def draw_ids(self, order: EpochOrder, start: int, stop: int) -> Indices:
        """Returns the sample ids and copy numbers at positions start..stop-1."""
        if self.repeats == 1:
            return order(start, stop)
        positions = np.arange(start, stop)
        first = start // self.repeats
        ids = order(first, -(-stop // self.repeats))
        return draw_ids(ids[positions // self.repeats - first], positions % self.repeats)

    def as_json(self) -> dict[str, object]:
        """Returns the options that this order depends on, for a saved state."""
        blocks = {"block": self.block, "window": self.window} if self.shuffle is True else {}
        drawn = [f"{each.n_drawn} of {each.n_samples}" for each in self.shares]
        return {
            "dataset": self.content,
            "split": self.split,
            "n_samples": self.n_samples,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "repeats": self.repeats,
            **blocks,
            **(shortened({"weights": ", ".join(drawn)}) if drawn else {}),
        }


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of an epoch that is loaded with one world size and batch size.

    That is the complete epoch, unless a run was resumed with another world size or batch size.
    """

    epoch: int
    partition: RankPartition
    start: int = 0  # batches completed before this pass
    past: tuple[Run, ...] = ()  # runs of the same epoch before this segment

    @property
    def continues(self) -> bool:
        return bool(self.start or self.past)

    @property
    def n_batches(self) -> int:
        """Batches per rank, counted from the start of the segment."""
        return self.partition.n_batches


class RankOrder(EpochState[Segment]):
    """The epochs of one rank.

    ``current_partition`` returns rank and world size at the time of the call, or None if they are
    unknown. It is called before each use, because many trainers create the loader before the
    process group.
    """

    draws_in_trainer = False  # a pure computation, safe in any thread

    def __init__(
        self,
        options: OrderOptions,
        *,
        batch_size: int,
        partition: Partition,
        source_order: Callable[[], Indices],
        current_partition: Callable[[], Partition | None] = lambda: None,
    ) -> None:
        super().__init__()
        self.options = options
        self.batch_size = batch_size
        self.partition = partition
        self.horizon = options.horizon
        self._source_order = source_order
        self._current_partition = current_partition
        self._loaded: Mapping[str, object] = {}
        self._whole(0)  # raises ConfigError for an invalid batch size or last_batch

    def without_drop(self, batch_size: int) -> RankOrder:
        """Returns the same order with ``last_batch="partial"``: predictions need every sample."""

        def current_partition() -> Partition | None:
            found = self._current_partition()
            return found and replace(found, last_batch="partial")

        kept = RankOrder(
            self.options,
            batch_size=batch_size,
            partition=replace(self.partition, last_batch="partial"),
            source_order=self._source_order,
            current_partition=current_partition,
        )
        kept.set_epoch(self.next_epoch)
        return kept

    def batches(self, current: Segment) -> Iterator[Indices]:
        order = self.options.epoch_order(current.epoch, self._source_order)
        for number in range(current.start, current.n_batches):
            intervals = current.partition.batch(self.partition.rank, number)
            yield np.concatenate(
                [self.options.draw_ids(order, start, stop) for start, stop in intervals]
            )

    def n_batches(self, current: Segment) -> float:
        return current.n_batches

    def __len__(self) -> int:
        self._update_partition()
        return self._whole(0).n_batches

    def n_samples(self) -> int:
        """Returns the samples of this rank in a complete epoch."""
        self._update_partition()
        split = self._whole(0).partition
        n_full = max(0, split.n_batches - 2)  # only the last two batches may be smaller
        last = [split.batch(self.partition.rank, i) for i in range(n_full, split.n_batches)]
        return n_full * self.batch_size + sum(
            stop - start for intervals in last for start, stop in intervals
        )

    def load(self, state: Mapping[str, object]) -> None:
        self._update_partition()
        check_same("order", state.get("order"), self.options.as_json())
        epoch = whole_number("state_dict: epoch", state.get("epoch"))
        *past, last = _checked_runs(state.get("runs"))
        left: tuple[Interval, ...] = ((0, self.options.n_positions),)
        for run in past:
            left = _replayed(left, run).after(run.done)
        saved = _replayed(left, last)
        if saved == self._split(left):
            segment = Segment(epoch, saved, last.done, tuple(past))
        else:
            runs = (*past, last) if last.done else tuple(past)
            segment = Segment(epoch, self._split(saved.after(last.done)), 0, runs)
        over = segment.start >= segment.n_batches
        self._loaded = state
        self.restore(
            segment if segment.continues and not over else None,
            epoch + 1 if segment.continues and over else epoch,
        )

    def _peek(self) -> Segment:
        self._update_partition()
        return self._resume_at or self._whole(self.next_epoch)

    def _update_partition(self) -> None:
        found = self._current_partition()
        if found is None or found == self.partition:
            return
        self.partition = found
        if self._resume_at is not None:
            self.load(self._loaded)

    def _saved(self, current: Segment, done: int) -> dict[str, object]:
        split = current.partition
        run = Run(split.world, split.batch_size, split.last_batch, done)
        return {
            "version": STATE_VERSION,
            "order": self.options.as_json(),
            "epoch": current.epoch,
            "runs": [list(each) for each in (*current.past, run)],
        }

    def _whole(self, epoch: int) -> Segment:
        return Segment(epoch, self._split(((0, self.options.n_positions),)))

    def _split(self, left: tuple[Interval, ...]) -> RankPartition:
        return RankPartition(left, self.partition.world, self.batch_size, self.partition.last_batch)


def _replayed(left: tuple[Interval, ...], run: Run) -> RankPartition:
    split = RankPartition(left, run.world, run.batch_size, run.last_batch)
    if not left or run.done > split.n_batches:
        raise ConfigError(
            f"state_dict is invalid: {run.done} batches completed, "
            f"but the epoch has only {split.n_batches}"
        )
    return split


def _checked_runs(found: object) -> list[Run]:
    listed = isinstance(found, list | tuple) and all(
        isinstance(run, list | tuple) and len(run) == 4 for run in found
    )
    if not isinstance(found, list | tuple) or not listed or not 1 <= len(found) <= _MAX_RUNS:
        raise ConfigError(
            f"state_dict is invalid: runs={found!r:.60}: expected 1 to {_MAX_RUNS} lists of "
            "world size, batch size, last_batch and completed batches"
        )
    return [
        Run(
            _world_size(world),
            whole_number("state_dict: batch size", size, 1),
            str(last_batch),
            whole_number("state_dict: batches", done),
        )
        for world, size, last_batch, done in found
    ]


def _world_size(found: object) -> int:
    world = whole_number("state_dict: world size", found, 1)
    if world > _MAX_WORLD:
        raise ConfigError(f"state_dict is invalid: {world} ranks, expected at most {_MAX_WORLD}")
    return world
