"""fastload's own order: the batches of one rank, epoch by epoch.

A saved state is JSON: the epoch, and how it was split so far, as one run (world size, batch size,
last_batch, batches completed by every rank) per world size that worked on it. With the same world
and batch size the identical batches follow. With others the rest is split again; no sample is lost
or repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fastload._order.epoch_order import BlockOrder, EpochOrder, FullOrder, TableOrder
from fastload._order.epoch_state import EpochState
from fastload._order.partition import Interval, Partition, RankPartition
from fastload._order.permutation import Indices
from fastload._order.saved_state import STATE_VERSION, check_same, whole_number
from fastload.errors import ConfigError

Run = tuple[int, int, str, int]  # world size, batch size, last_batch, batches done by every rank
_MAX_RUNS = 100  # per epoch; 35 bytes each, so a state stays below 4 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """All that the order of the samples depends on."""

    n_samples: int
    shuffle: bool | str  # True: blocks; "full": a random permutation; False: source order
    seed: int
    block: int  # samples per block
    window: int  # blocks shuffled together
    content: str = ""  # digest of the dataset: a state of another dataset is refused

    def epoch_order(self, epoch: int, source_order: Callable[[], Indices]) -> EpochOrder:
        """The order of one epoch."""
        if self.shuffle == "full":
            return FullOrder(self.n_samples, seed=self.seed, epoch=epoch)
        if self.shuffle:
            return BlockOrder(
                self.n_samples, block=self.block, seed=self.seed, epoch=epoch, window=self.window
            )
        return TableOrder(source_order())

    def as_json(self) -> dict[str, object]:
        """For the state, without options that this order does not depend on."""
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
    """The part of an epoch that runs with one world size: all of it, unless a run was resumed with another."""

    epoch: int
    partition: RankPartition
    start: int = 0  # batches completed before this pass
    past: tuple[Run, ...] = ()  # how the epoch was split before this segment

    @property
    def continues(self) -> bool:
        return bool(self.start or self.past)

    @property
    def n_batches(self) -> int:
        """Counted from the beginning of the segment."""
        return self.partition.n_batches


class RankOrder(EpochState[Segment]):
    """The epochs of one rank.

    ``current_partition`` returns the part of this process as it is now, or None if it is unknown:
    many trainers make the loader before the process group, so the partition at the first use counts.
    """

    draws_in_trainer = False  # pure: any thread may draw

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
        """The same order, but every sample of an epoch is delivered, as predictions need it."""

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
        """The sample ids of each batch that a segment has left on this rank."""
        order = self.options.epoch_order(current.epoch, self._source_order)
        for number in range(current.start, current.n_batches):
            intervals = current.partition.batch(self.partition.rank, number)
            yield np.concatenate([order.ids(start, stop) for start, stop in intervals])

    def n_batches(self, current: Segment) -> float:
        """Batches of a segment, those before a resume included."""
        return current.n_batches

    def __len__(self) -> int:
        self._update_partition()
        return self._whole(0).n_batches

    def n_samples(self) -> int:
        """Samples of this rank in a whole epoch."""
        self._update_partition()
        split = self._whole(0).partition
        n_full = max(0, split.n_batches - 2)  # only the last two batches may be smaller
        last = [split.batch(self.partition.rank, i) for i in range(n_full, split.n_batches)]
        return n_full * self.batch_size + sum(
            stop - start for intervals in last for start, stop in intervals
        )

    def load(self, state: Mapping[str, object]) -> None:
        """Continues after a saved state; raises ConfigError if it belongs to another order."""
        self._update_partition()
        check_same("order", state.get("order"), self.options.as_json())
        epoch = whole_number("state_dict: epoch", state.get("epoch"))
        *past, last = _checked_runs(state.get("runs"))
        left: tuple[Interval, ...] = ((0, self.options.n_samples),)
        for run in past:
            left = _replayed(left, run).after(run[3])
        saved = _replayed(left, last)
        done = last[3]
        if saved == self._split(left):
            segment = Segment(epoch, saved, done, tuple(past))
        else:
            runs = (*past, last) if done else tuple(past)
            segment = Segment(epoch, self._split(saved.after(done)), 0, runs)
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
        run: Run = (split.world, split.batch_size, split.last_batch, done)
        return {
            "version": STATE_VERSION,
            "order": self.options.as_json(),
            "epoch": current.epoch,
            "runs": [list(each) for each in (*current.past, run)],
        }

    def _whole(self, epoch: int) -> Segment:
        return Segment(epoch, self._split(((0, self.options.n_samples),)))

    def _split(self, left: tuple[Interval, ...]) -> RankPartition:
        world = self.partition.world
        return RankPartition(left, world, self.batch_size, self.partition.last_batch)


def _replayed(left: tuple[Interval, ...], run: Run) -> RankPartition:
    world, batch_size, last_batch, done = run
    split = RankPartition(left, world, batch_size, last_batch)
    if not left or done > split.n_batches:
        raise ConfigError(
            f"state_dict is invalid: {done} batches completed, but the epoch has only {split.n_batches}"
        )
    return split


def _checked_runs(found: object) -> list[Run]:
    listed = isinstance(found, list | tuple) and all(
        isinstance(run, list | tuple) and len(run) == 4 for run in found
    )
    if not isinstance(found, list | tuple) or not listed or not 1 <= len(found) <= _MAX_RUNS:
        raise ConfigError(f"state_dict is invalid: runs {found!r:.60}")
    return [
        (
            whole_number("state_dict: world size", world, 1),
            whole_number("state_dict: batch size", size, 1),
            str(last_batch),
            whole_number("state_dict: batches", done),
        )
        for world, size, last_batch, done in found
    ]
