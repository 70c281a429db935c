"""The loader's ``sampler`` and ``batch_sampler``, for who takes the loader apart and builds a plain torch DataLoader out of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fastload._load.torch_compat.lookahead import Coming
from fastload._order.rank_order import RankOrder
from fastload._order.saved_state import whole_number


class SampleIndex(int):
    """A sample's number that knows its epoch, so that a worker process, forked or spawned long before, draws the right crops."""

    epoch: int

    @classmethod
    def of(cls, number: int, epoch: int) -> SampleIndex:
        """The number, in an epoch."""
        index = cls(number)
        index.epoch = epoch
        return index


class RankSampler(torch.utils.data.DistributedSampler[Any]):
    """This rank's ids of the epoch, one by one. A DistributedSampler to who asks: Lightning does, and then puts in none of its own.

    It has all that one has, as properties: torch's own would ask for the process group, which may come later.
    """

    def __init__(self, epochs: RankOrder, dataset: Any = None) -> None:
        self.epochs, self.dataset = epochs, dataset

    def __iter__(self) -> Iterator[int]:
        for batch in _batches(self.epochs):
            yield from batch

    def __len__(self) -> int:
        return self.epochs.n_samples()

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that comes next."""
        return self.epochs.next_epoch

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Of this process."""
        return self.epochs.partition.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Processes that share an epoch."""
        return self.epochs.partition.world

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Of all ranks."""
        return self.num_replicas * len(self)

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        """Another order in each epoch."""
        return bool(self.epochs.options.shuffle)

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The loader's."""
        return self.epochs.options.seed

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """What does not fill a batch is left out."""
        return self.epochs.partition.last_batch == "drop"

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it: another order each epoch."""
        self.epochs.set_epoch(epoch)


class RankBatches(torch.utils.data.BatchSampler):
    """Lists of ids. Its arguments are those of torch's: Lightning makes it anew for predictions, maybe without ``drop_last``, and
    for ``overfit_batches`` with a sampler of its own.
    """

    def __init__(
        self,
        sampler: torch.utils.data.Sampler[int],
        batch_size: int,
        drop_last: bool,
        coming: Coming | None = None,
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._coming, dealt = (
            coming or Coming(0),
            sampler.epochs if isinstance(sampler, RankSampler) else None,
        )
        if dealt is not None and dealt.partition.last_batch == "drop" and not drop_last:
            dealt = dealt.without_drop(batch_size)
        as_dealt = (
            dealt is not None
            and batch_size == dealt.batch_size
            and drop_last == (dealt.partition.last_batch == "drop")
        )
        self._dealt = (
            dealt if as_dealt else None
        )  # None: batches are made of what the sampler gives
        self._start = self._given = 0  # of these

    def __iter__(self) -> Iterator[list[int]]:
        if self._dealt is None:
            start, self._start = self._start, 0
            return self._counted(
                self._coming.noted(itertools.islice(super().__iter__(), start, None)), start
            )
        return _told(self._dealt, self._coming.noted(_batches(self._dealt)))

    def __len__(self) -> int:
        return super().__len__() if self._dealt is None else len(self._dealt)

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it."""
        if self._dealt is not None:
            self._dealt.set_epoch(epoch)
        elif hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, object]:
        """For torchdata's StatefulDataLoader, which asks its batch sampler: the epoch, and the batches that were given."""
        return {"batches": self._given} if self._dealt is None else self._dealt.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next iteration goes on there."""
        if self._dealt is None:
            self._start = whole_number("loading a state: batches", state.get("batches"))
        else:
            self._dealt.load(state)

    def _counted(self, batches: Iterator[list[int]], start: int) -> Iterator[list[int]]:
        for self._given, batch in enumerate(batches, start + 1):
            yield batch


def _told(epochs: RankOrder, batches: Iterator[list[int]]) -> Iterator[list[int]]:
    """The same; the order knows how many were given, not how many were looked at in advance."""
    segment = None
    for number, batch in enumerate(batches, 1):
        segment = segment or epochs.newest
        if segment is not None:
            epochs.delivered(segment, segment.start + number)
        yield batch


def _batches(epochs: RankOrder) -> Iterator[list[int]]:
    # At the first next(), not at iter(): torch calls iter() twice before it uses one of them.
    segment = epochs.begin()
    for ids in epochs.batches(segment):
        yield [SampleIndex.of(number, segment.epoch) for number in ids.tolist()]
