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

from fastload._order.epoch_order import BlockOrder, EpochOrder, FullOrder, TableOrder
from fastload._order.epoch_state import EpochState
from fastload._order.partition import Interval, Partition, RankPartition
from fastload._order.permutation import Indices
from fastload._order.saved_state import STATE_VERSION, check_same, whole_number
from fastload.errors import ConfigError

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
    content: str = ""  # digest of the dataset, to reject the state of another dataset

    def epoch_order(self, epoch: int, source_order: Callable[[], Indices]) -> EpochOrder:
        if self.shuffle == "full":
            return FullOrder(self.n_samples, seed=self.seed, epoch=epoch)
        if self.shuffle:
            return BlockOrder(
                self.n_samples, block=self.block, seed=self.seed, epoch=epoch, window=self.window
            )
        return TableOrder(source_order())

    def as_json(self) -> dict[str, object]:
        """Returns the options that this order depends on, for a saved state."""
        blocks = {"block": self.block, "window": self.window} if self.shuffle is True else {}
        return {
            "dataset": self.content,
            "n_samples": self.n_samples,
            "shuffle": self.shuffle,
            "seed": self.seed,
            **blocks,
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
        self.horizon = options.window * options.block
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
            yield np.concatenate([order.ids(start, stop) for start, stop in intervals])

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
        left: tuple[Interval, ...] = ((0, self.options.n_samples),)
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
        return Segment(epoch, self._split(((0, self.options.n_samples),)))

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
            whole_number("state_dict: world size", world, 1),
            whole_number("state_dict: batch size", size, 1),
            str(last_batch),
            whole_number("state_dict: batches", done),
        )
        for world, size, last_batch, done in found
    ]
