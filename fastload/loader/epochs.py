"""Which samples a rank loads, batch by batch, epoch by epoch; and the few numbers that let a run go on anywhere.

The state is JSON: what is left of the epoch's line as intervals, how that was dealt out, and how many batches are done. With the
same world and batch size the very same batches follow; with others what is left is dealt anew, nothing lost, nothing repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fastload.errors import ConfigError
from fastload.order.line import BlockLine, FullLine, Line, TableLine
from fastload.order.permute import Indices
from fastload.order.shares import Interval, Shares

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What decides the order of the samples; equal options, equal order."""

    n_samples: int
    shuffle: bool | str                 # True: blocks; "full": a true permutation; False: source order
    seed: int
    block: int                          # samples per block
    window: int                         # blocks mixed at a time
    content: str = ""                   # of the dataset: a state of another one is refused

    def line(self, epoch: int, source_order: Callable[[], Indices]) -> Line:
        """The order of one epoch."""
        if self.shuffle == "full":
            return FullLine(self.n_samples, seed=self.seed, epoch=epoch)
        if self.shuffle:
            return BlockLine(self.n_samples, block=self.block, seed=self.seed, epoch=epoch, window=self.window)
        return TableLine(source_order())

    def as_json(self) -> dict[str, object]:
        """For the state."""
        return {"n_samples": self.n_samples, "shuffle": self.shuffle, "seed": self.seed, "block": self.block, "window": self.window,
                "content": self.content}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an epoch with one world size: an epoch has one, unless a run was resumed with another world size."""

    epoch: int
    shares: Shares
    start: int = 0                      # batches done before

    def as_json(self, done: int) -> dict[str, object]:
        """With ``done`` batches of it delivered."""
        return {"epoch": self.epoch, "left": [list(each) for each in self.shares.left], "world": self.shares.world,
                "batch_size": self.shares.batch_size, "ending": self.shares.ending, "batches": done}


class Epochs:
    """The epochs of one loader on one rank. Sampler, batch sampler, dataset and loader share it, so all agree on the epoch."""

    def __init__(self, options: OrderOptions, *, batch_size: int, rank: int, world: int, ending: str,
                 source_order: Callable[[], Indices]) -> None:
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} of {world}: expected 0 to {world - 1}")
        self.options, self.batch_size, self.rank, self.world, self.ending = options, batch_size, rank, world, ending
        self._source_order = source_order
        self.next_epoch = 0
        self._resumed: Segment | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its start; a resumed one in the middle of this very epoch stays there."""
        if type(epoch) is not int or epoch < 0:
            raise ConfigError(f"set_epoch({epoch!r:.40}): expected 0, 1, 2 ...")
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        self.next_epoch = epoch

    def begin(self) -> Segment:
        """What the next iteration goes through; the one after it is the next epoch."""
        segment = self.peek()
        self._resumed = None
        self.next_epoch = segment.epoch + 1
        return segment

    def peek(self) -> Segment:
        """What ``begin`` would return."""
        if self._resumed is not None:
            return self._resumed
        whole: tuple[Interval, ...] = ((0, self.options.n_samples),)
        return Segment(self.next_epoch, Shares(whole, self.world, self.batch_size, self.ending))

    def batches(self, segment: Segment) -> Iterator[Indices]:
        """The ids of each batch of this rank."""
        line = self.options.line(segment.epoch, self._source_order)
        for number in range(segment.start, segment.shares.n_batches):
            yield np.concatenate([line.ids(*places) for places in segment.shares.batch(self.rank, number)])

    def __len__(self) -> int:
        """Batches of the next iteration."""
        segment = self.peek()
        return segment.shares.n_batches - segment.start

    def state(self, segment: Segment | None, done: int) -> dict[str, object]:
        """The state after ``done`` batches of a segment (counted from the segment's own start of shares)."""
        if segment is None or done >= segment.shares.n_batches:
            segment, done = (self.peek(), self.peek().start) if segment is None else (self._whole(segment.epoch + 1), 0)
        return {"version": STATE_VERSION, "order": self.options.as_json(), **segment.as_json(done)}

    def _whole(self, epoch: int) -> Segment:
        return Segment(epoch, Shares(((0, self.options.n_samples),), self.world, self.batch_size, self.ending))

    def load(self, state: dict[str, object]) -> None:
        """Goes on from a state in the next iteration; raises ConfigError where it is not a state of this order."""
        order, expected = state.get("order"), self.options.as_json()
        if state.get("version") != STATE_VERSION or not isinstance(order, dict):
            raise ConfigError(f"loading a state: version {state.get('version')!r:.40}, expected {STATE_VERSION} and an order")
        if order != expected:
            changed = [key for key in expected if order.get(key) != expected[key]]
            raise ConfigError("loading a state of another order:\n"
                              + "\n".join(f"  {key} in the state: {order.get(key)!r:.80}\n  {key} in the loader: {expected[key]!r:.80}"
                                          for key in changed)
                              + "\nUse the dataset and options of the saved run, or start anew")
        try:
            left = tuple((int(start), int(stop)) for start, stop in state["left"])         # type: ignore[attr-defined]
            saved = Shares(left, int(str(state["world"])), int(str(state["batch_size"])), str(state["ending"]))
            epoch, done = int(str(state["epoch"])), int(str(state["batches"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"loading a state: {error}: it is damaged or not one of ours") from None
        if not all(0 <= start < stop <= self.options.n_samples for start, stop in left) or not 0 <= done <= saved.n_batches:
            raise ConfigError(f"loading a state: {done} batches of {left!r:.100} do not fit {self.options.n_samples} samples")
        now = Shares(left, self.world, self.batch_size, self.ending)
        if now == saved:
            self._resumed = Segment(epoch, saved, done)
        else:
            rest = saved.after(done)
            self._resumed = Segment(epoch, replace(now, left=rest)) if rest else None
        self.next_epoch = epoch if self._resumed is not None else epoch + 1


class RankBatches:
    """The loader's ``batch_sampler``: lists of ids for anybody who rebuilds a plain torch DataLoader out of it."""

    def __init__(self, epochs: Epochs, sampler: RankSampler, drop_last: bool) -> None:
        self._epochs = epochs
        self.sampler, self.drop_last, self.batch_size = sampler, drop_last, epochs.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for ids in self._epochs.batches(self._epochs.begin()):
            yield ids.tolist()

    def __len__(self) -> int:
        return len(self._epochs)

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it."""
        self._epochs.set_epoch(epoch)


class RankSampler:
    """The loader's ``sampler``: this rank's ids of the epoch, one by one, as DistributedSampler gives them."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[int]:
        for ids in self._epochs.batches(self._epochs.begin()):
            yield from ids.tolist()

    def __len__(self) -> int:
        start, stop = self._epochs.peek().shares.share(self._epochs.rank)
        return stop - start

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""
        return self._epochs.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it: another order each epoch."""
        self._epochs.set_epoch(epoch)
