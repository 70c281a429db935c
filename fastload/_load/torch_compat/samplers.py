"""``loader.sampler`` and ``loader.batch_sampler``.

Frameworks may build a plain torch DataLoader from the parts of a fastload loader. It takes a list
of ids from the batch sampler, requests these samples from the dataset, and waits. The batch sampler
therefore records which lists follow (``Lookahead``), and the dataset view starts to decode them
while the trainer computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from fastload._order.rank_order import RankOrder
from fastload._order.saved_state import whole_number
from fastload._plan.draw_ids import sample_ids

_MAX_DEPTH = 64  # batches drawn in advance if only every n-th one is for this process


class SampleIndex(int):
    """An index of ``loader.dataset`` with its epoch, id and copy, which determine the crops."""

    epoch: int
    draw_id: int  # the sample id with its copy number

    @classmethod
    def of(cls, number: int, epoch: int, draw_id: int) -> SampleIndex:
        index = cls(number)
        index.epoch = epoch
        index.draw_id = draw_id
        return index


class RankSampler(torch.utils.data.DistributedSampler[Any]):
    """The ids of this rank, one by one.

    It is a DistributedSampler, so that Lightning does not replace it. All attributes of
    DistributedSampler are properties here, because its constructor needs the process group, which
    may be initialized later.
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

        return self.order.next_epoch

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.order.partition.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        return self.order.partition.world

    @property
    def num_samples(self) -> int:  # type: ignore[override]

        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]

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
    """The batches of this rank as lists of ids.

    It has the arguments of torch's BatchSampler, because Lightning creates it again: for
    predictions without ``drop_last``, for ``overfit_batches`` with another sampler.
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
        # None if batches are grouped from the ids of another sampler.
        self._order = _matching_order(sampler, batch_size, drop_last)
        self._start = 0  # first batch of the next iteration, only without an order
        self._yielded = 0

    def __iter__(self) -> Iterator[list[int]]:
        if self._order is not None:
            return _reported(self._order, self._lookahead.recorded(_batches(self._order)))
        start = self._start
        self._start = 0
        rest = islice(super().__iter__(), start, None)
        return self._counted(self._lookahead.recorded(rest), start)

    def __len__(self) -> int:
        return super().__len__() if self._order is None else len(self._order)

    def set_epoch(self, epoch: int) -> None:
        if self._order is not None:
            self._order.set_epoch(epoch)
        elif hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, object]:
        """Returns the position. StatefulDataLoader of torchdata saves it."""
        return {"batches": self._yielded} if self._order is None else self._order.state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:

        if self._order is None:
            self._start = whole_number("state_dict: batches", state.get("batches"))
        else:
            self._order.load(state)

    def _counted(self, batches: Iterator[list[int]], start: int) -> Iterator[list[int]]:
        for self._yielded, batch in enumerate(batches, start + 1):
            yield batch


def _matching_order(sampler: object, batch_size: int, drop_last: bool) -> RankOrder | None:
    """Returns the order that yields these batches, if there is one."""
    if not isinstance(sampler, RankSampler):
        return None
    order = sampler.order
    if sampler.drop_last and not drop_last:
        return order.without_drop(batch_size)
    return order if (order.batch_size, sampler.drop_last) == (batch_size, drop_last) else None


def _reported(order: RankOrder, batches: Iterator[list[int]]) -> Iterator[list[int]]:
    """Reports yielded batches to the order, not batches that were drawn in advance."""
    current = None
    for number, batch in enumerate(batches, 1):
        current = current or order.newest
        if current is not None:
            order.delivered(current, current.start + number)
        yield batch


def _batches(order: RankOrder) -> Iterator[list[int]]:
    # begin() runs at the first next(), because torch calls iter() twice before it uses one of them.
    current = order.begin()
    for ids in order.batches(current):
        indices = sample_ids(ids) - order.options.first
        numbers = zip(indices.tolist(), ids.tolist(), strict=True)
        yield [SampleIndex.of(number, current.epoch, draw_id) for number, draw_id in numbers]


class Lookahead:
    """Knows the batches that follow in the newest iteration of the batch sampler."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._newest = _Pass(0)

    def recorded(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        """Yields the batches; draws some of them in advance."""
        self._newest = _Pass(self._depth)
        return self._newest.recorded(enumerate(batches))

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        """Returns the next batches of this process; none if ``batch`` is of another sampler."""
        return self._newest.after(batch)


class _Pass:
    """Numbered batches of one iteration.

    Some loaders use only every n-th batch (shards of Accelerate). ``_step`` is learned from
    requests.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._step = 1
        self._last_requested = -1
        self._yielded: deque[tuple[int, list[int]]] = deque(maxlen=_MAX_DEPTH)
        self._upcoming: deque[tuple[int, list[int]]] = deque()

    def recorded(self, numbered: Iterator[tuple[int, list[int]]]) -> Iterator[list[int]]:
        while True:
            wanted = 1 + min(_MAX_DEPTH, self._depth * self._step)
            self._upcoming.extend(islice(numbered, max(0, wanted - len(self._upcoming))))
            if not self._upcoming:
                return
            self._yielded.append(self._upcoming.popleft())
            yield self._yielded[-1][1]

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        ids = list(batch)  # another batch sampler may yield arrays, which compare elementwise
        number = next((number for number, given in reversed(self._yielded) if given == ids), -1)
        if number < 0:
            return []
        if 0 <= self._last_requested < number:
            self._step = number - self._last_requested
        self._last_requested = number
        known = dict((*self._yielded, *self._upcoming))
        wanted = range(number + self._step, number + self._step * self._depth + 1, self._step)
        return [known[each] for each in wanted if each in known]
