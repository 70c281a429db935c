"""Which samples a rank loads, batch by batch, epoch by epoch; and the few numbers that let a run go on anywhere.

The state is JSON: the epoch, and how it was dealt out so far: a run of so many batches for each world size that worked on it. With
the same world and batch size the very same batches follow; with others what is left is dealt anew, nothing lost, nothing repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fastload._order.epoch_order import BlockLine, FullLine, Line, TableLine
from fastload._order.partition import Interval, Shares
from fastload._order.permutation import Indices
from fastload._order.state import STATE_VERSION, check_same, whole_number
from fastload.errors import ConfigError

Deal = tuple[int, int, str]  # rank, world size, last_batch
Run = tuple[int, int, str, int]  # world size, batch size, last_batch, batches done by every rank
_MAX_RUNS = 100  # of one epoch: 35 bytes each, and a state shall stay below 4 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What decides the order of the samples; equal options, equal order."""

    n_samples: int
    shuffle: bool | str  # True: blocks; "full": a true permutation; False: source order
    seed: int
    block: int  # samples per block
    window: int  # blocks mixed at a time
    content: str = ""  # of the dataset: a state of another one is refused

    def line(self, epoch: int, source_order: Callable[[], Indices]) -> Line:
        """The order of one epoch."""
        if self.shuffle == "full":
            return FullLine(self.n_samples, seed=self.seed, epoch=epoch)
        if self.shuffle:
            return BlockLine(
                self.n_samples, block=self.block, seed=self.seed, epoch=epoch, window=self.window
            )
        return TableLine(source_order())

    def as_json(self) -> dict[str, object]:
        """For the state. What the order does not depend on is left out."""
        shuffled: dict[str, object] = (
            {"block": self.block, "window": self.window} if self.shuffle is True else {}
        )
        return {
            "dataset": self.content,
            "n_samples": self.n_samples,
            "shuffle": self.shuffle,
            "seed": self.seed,
            **shuffled,
        }


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an epoch with one world size: an epoch has one, unless a run was resumed with another world size."""

    epoch: int
    shares: Shares
    start: int = 0  # batches done before
    past: tuple[Run, ...] = ()  # how the part of the epoch before this segment was dealt

    @property
    def n_batches(self) -> int:
        """Counted from the segment's own beginning, those done before included."""
        return self.shares.n_batches


class Epochs:
    """The epochs of one loader on one rank. Sampler, batch sampler, dataset and loader share it, so all agree on the epoch."""

    draws_here = False  # pure: any thread may ask

    def __init__(
        self,
        options: OrderOptions,
        *,
        batch_size: int,
        rank: int,
        world: int,
        last_batch: str,
        source_order: Callable[[], Indices],
        deal: Callable[[], Deal | None] = lambda: None,
    ) -> None:
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} of {world}: expected 0 to {world - 1}")
        self.options, self.batch_size, self.rank, self.world, self.last_batch = (
            options,
            batch_size,
            rank,
            world,
            last_batch,
        )
        self._source_order, self._deal = source_order, deal
        self.next_epoch = 0
        self.latest_epoch, self.named = (
            0,
            False,
        )  # of the newest iteration, or as set: for who asks the dataset itself
        self._resumed: Segment | None = None
        self._loaded: Mapping[str, object] = {}
        self._newest: tuple[Segment, int] | None = (
            None  # and how many of its batches were delivered
        )
        self.withdrawn: Segment | None = (
            None  # of an iteration that is to begin again at its first batch
        )
        self._whole(0)  # raises ConfigError for a size or an last_batch that makes no sense

    def keeping_all(self, batch_size: int) -> Epochs:
        """The same order with nothing left out at an epoch's end, for predictions."""

        def deal() -> Deal | None:
            found = self._deal()
            return found and (*found[:2], "partial")

        kept = Epochs(
            self.options,
            batch_size=batch_size,
            rank=self.rank,
            world=self.world,
            last_batch="partial",
            source_order=self._source_order,
            deal=deal,
        )
        kept.set_epoch(self.next_epoch)
        return kept

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; a resumed one in the middle of this very epoch stays there.

        An iteration that has delivered nothing yet counts as not begun: Lightning calls iter() first, and torch's samplers, asked at the
        first batch, follow.
        """
        self.next_epoch = self.latest_epoch = whole_number("set_epoch", epoch)
        self.named = True
        newest, done = self._newest or (None, 0)
        if newest is not None and done == newest.start:
            self.withdrawn = newest
            self._resumed = newest if newest.start or newest.past else None
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        self._newest = None

    def forget_place(self) -> None:
        """The next iteration is a whole epoch, also where a state has put it into the middle of one."""
        self._resumed = None

    def begin(self) -> Segment:
        """What the next iteration goes through; the one after it is the next epoch."""
        segment = self.peek()
        self._resumed = self.withdrawn = None
        self.next_epoch, self.latest_epoch = segment.epoch + 1, segment.epoch
        self.delivered(segment, segment.start)
        return segment

    def peek(self) -> Segment:
        """What ``begin`` would return."""
        self._follow()
        return self._resumed or self._whole(self.next_epoch)

    def _follow(self) -> None:
        """Many trainers make the loader first and the process group then: the deal that counts is the one at the first use."""
        deal = self._deal()
        if deal is None or deal == (self.rank, self.world, self.last_batch):
            return
        self.rank, self.world, self.last_batch = deal
        if self._resumed is not None:
            self.load(self._loaded)

    @property
    def newest(self) -> Segment | None:
        """What the iteration that began last goes through."""
        return None if self._newest is None else self._newest[0]

    def delivered(self, segment: Segment, done: int) -> None:
        """The trainer has so many batches of a segment; ``state`` speaks of the segment that was told last."""
        self._newest = (segment, done)

    def ended(self, segment: Segment) -> None:
        """The trainer has seen the end of a segment."""
        self.delivered(segment, segment.n_batches)

    def batches(self, segment: Segment) -> Iterator[Indices]:
        """The ids of each batch of this rank."""
        line = self.options.line(segment.epoch, self._source_order)
        for number in range(segment.start, segment.n_batches):
            yield np.concatenate(
                [line.ids(*places) for places in segment.shares.batch(self.rank, number)]
            )

    def n_batches(self, segment: Segment) -> float:
        """Of a segment, those before a resume included."""
        return segment.n_batches

    @property
    def horizon(self) -> int:
        """Samples to read ahead of the order: those that are mixed at a time."""
        return self.options.window * self.options.block

    def __len__(self) -> int:
        """Batches of a whole epoch; an iteration that was resumed has fewer."""
        self._follow()
        return self._whole(0).n_batches

    def n_samples(self) -> int:
        """Samples of this rank in a whole epoch."""
        self._follow()
        shares = self._whole(0).shares
        return (
            sum(
                stop - start
                for number in range(max(0, shares.n_batches - 2), shares.n_batches)
                for start, stop in shares.batch(self.rank, number)
            )
            + max(0, shares.n_batches - 2) * self.batch_size
        )

    def state(self) -> dict[str, object]:
        """Where the newest iteration stands, or the next one begins."""
        segment, done = self._newest or (self.peek(), self.peek().start)
        if done >= segment.n_batches:
            segment, done = self.peek(), self.peek().start
        return self._state(segment, done)

    def resumed(self) -> dict[str, object] | None:
        """Where in an epoch the next iteration goes on; None where it begins one."""
        return None if self._resumed is None else self._state(self._resumed, self._resumed.start)

    def _state(self, segment: Segment, done: int) -> dict[str, object]:
        return {
            "version": STATE_VERSION,
            "order": self.options.as_json(),
            "epoch": segment.epoch,
            "runs": [list(run) for run in (*segment.past, self._run(segment.shares, done))],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Goes on from a state in the next iteration; raises ConfigError where it is not a state of this order."""
        self._follow()
        check_same("order", state.get("order"), self.options.as_json())
        epoch, runs = (
            whole_number("loading a state: epoch", state.get("epoch")),
            _runs(state.get("runs")),
        )
        left: tuple[Interval, ...] = ((0, self.options.n_samples),)
        for run in runs[:-1]:
            left = self._saved(left, run).after(run[3])
        saved, (*settings, done) = self._saved(left, runs[-1]), runs[-1]
        if settings == [self.world, self.batch_size, self.last_batch]:
            segment = Segment(epoch, saved, done, runs[:-1])
        else:
            shares = Shares(saved.after(done), self.world, self.batch_size, self.last_batch)
            segment = Segment(epoch, shares, 0, runs if done else runs[:-1])
        self._newest, self._loaded, self.withdrawn = None, state, None
        begun, over = bool(segment.start or segment.past), segment.start >= segment.n_batches
        self._resumed = segment if begun and not over else None
        self.next_epoch = epoch + 1 if begun and over else epoch

    def _saved(self, left: tuple[Interval, ...], run: Run) -> Shares:
        world, batch_size, last_batch, done = run
        shares = Shares(left, world, batch_size, last_batch)
        if not left or done > shares.n_batches:
            raise ConfigError(
                f"loading a state: {done} batches done of {shares.n_batches}: it is damaged or not one of ours"
            )
        return shares

    def _run(self, shares: Shares, done: int) -> Run:
        return shares.world, shares.batch_size, shares.last_batch, done

    def _whole(self, epoch: int) -> Segment:
        return Segment(
            epoch,
            Shares(((0, self.options.n_samples),), self.world, self.batch_size, self.last_batch),
        )


def _runs(found: object) -> tuple[Run, ...]:
    listed = isinstance(found, list | tuple) and all(
        isinstance(run, list | tuple) and len(run) == 4 for run in found
    )
    if not isinstance(found, list | tuple) or not listed or not 1 <= len(found) <= _MAX_RUNS:
        raise ConfigError(f"loading a state: runs {found!r:.60}: it is damaged or not one of ours")
    what = "loading a state: run"
    return tuple(
        (
            whole_number(what, world, 1),
            whole_number(what, size, 1),
            str(last_batch),
            whole_number(what, done),
        )
        for world, size, last_batch, done in found
    )
