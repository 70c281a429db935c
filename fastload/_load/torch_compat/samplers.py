"""The loader's ``sampler`` and ``batch_sampler``, for frameworks that build a plain torch DataLoader from its parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fastload._load.torch_compat.lookahead import Lookahead
from fastload._order.rank_order import RankOrder
from fastload._order.saved_state import whole_number


class SampleIndex(int):
    """A sample id with its epoch, so that a worker process, started long before, draws the right crops."""

    epoch: int

    @classmethod
    def of(cls, number: int, epoch: int) -> SampleIndex:
        index = cls(number)
        index.epoch = epoch
        return index


class RankSampler(torch.utils.data.DistributedSampler[Any]):
    """The ids of this rank, one by one. Lightning adds no sampler of its own to a loader that has a DistributedSampler.

    All attributes of one are properties here: torch's constructor needs the process group, which may be initialized later.
    """

    def __init__(self, order: RankOrder, dataset: Any = None) -> None:
        self.order = order
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        for batch in _batches(self.order):
            yield from batch

    def __len__(self) -> int:
        return self.order.n_samples()

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The next epoch."""
        return self.order.next_epoch

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.order.partition.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        return self.order.partition.world

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of all ranks."""
        return self.num_replicas * len(self)

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        return bool(self.order.options.shuffle)

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.order.options.seed

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        return self.order.partition.last_batch == "drop"

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)


class RankBatches(torch.utils.data.BatchSampler):
    """Lists of ids. It has torch's arguments because Lightning makes it again: for predictions without ``drop_last``, for
    ``overfit_batches`` with another sampler.
    """

    def __init__(
        self,
        sampler: torch.utils.data.Sampler[int],
        batch_size: int,
        drop_last: bool,
        lookahead: Lookahead | None = None,
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._lookahead = lookahead or Lookahead(0)
        # None: batches are grouped from what the sampler yields.
        self._order = _matching_order(sampler, batch_size, drop_last)
        self._start = 0  # of such batches: where the next iteration resumes
        self._yielded = 0

    def __iter__(self) -> Iterator[list[int]]:
        if self._order is not None:
            recorded = self._lookahead.recorded(_batches(self._order))
            return _reported(self._order, recorded)
        start = self._start
        self._start = 0
        rest = itertools.islice(super().__iter__(), start, None)
        return self._counted(self._lookahead.recorded(rest), start)

    def __len__(self) -> int:
        return super().__len__() if self._order is None else len(self._order)

    def set_epoch(self, epoch: int) -> None:
        if self._order is not None:
            self._order.set_epoch(epoch)
        elif hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, object]:
        """For torchdata's StatefulDataLoader, which saves its batch sampler: the epoch and the batches yielded."""
        return {"batches": self._yielded} if self._order is None else self._order.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """The next iteration resumes there."""
        if self._order is None:
            self._start = whole_number("state_dict: batches", state.get("batches"))
        else:
            self._order.load(state)

    def _counted(self, batches: Iterator[list[int]], start: int) -> Iterator[list[int]]:
        for self._yielded, batch in enumerate(batches, start + 1):
            yield batch


def _matching_order(sampler: object, batch_size: int, drop_last: bool) -> RankOrder | None:
    """The order whose batches these arguments describe, if there is one."""
    if not isinstance(sampler, RankSampler):
        return None
    order = sampler.order
    if sampler.drop_last and not drop_last:
        return order.without_drop(batch_size)
    return order if (order.batch_size, sampler.drop_last) == (batch_size, drop_last) else None


def _reported(order: RankOrder, batches: Iterator[list[int]]) -> Iterator[list[int]]:
    """The same; the order learns how many were yielded, not how many were drawn in advance."""
    current = None
    for number, batch in enumerate(batches, 1):
        current = current or order.newest
        if current is not None:
            order.delivered(current, current.start + number)
        yield batch


def _batches(order: RankOrder) -> Iterator[list[int]]:
    # begin() at the first next(), not at iter(): torch calls iter() twice before it uses one of them.
    current = order.begin()
    for ids in order.batches(current):
        yield [SampleIndex.of(number, current.epoch) for number in ids.tolist()]
