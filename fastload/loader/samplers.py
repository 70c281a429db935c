"""The loader's ``sampler`` and ``batch_sampler``, for who takes the loader apart and builds a plain torch DataLoader out of it."""

from __future__ import annotations

from collections.abc import Iterator

from fastload.loader.epochs import Epochs


class SampleIndex(int):
    """A sample's number that knows its epoch, so that a worker process, forked or spawned long before, draws the right crops."""

    epoch: int

    @classmethod
    def of(cls, number: int, epoch: int) -> SampleIndex:
        """The number, in an epoch."""
        index = cls(number)
        index.epoch = epoch
        return index


class RankSampler:
    """This rank's ids of the epoch, one by one, as DistributedSampler gives them."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[int]:
        # The epoch begins here, not at the first next(): torch starts its workers in between.
        return (index for batch in _batches(self._epochs) for index in batch)

    def __len__(self) -> int:
        return self._epochs.n_samples()

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""
        return self._epochs.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it: another order each epoch."""
        self._epochs.set_epoch(epoch)


class RankBatches:
    """Lists of ids."""

    def __init__(self, epochs: Epochs, sampler: RankSampler, drop_last: bool) -> None:
        self._epochs = epochs
        self.sampler, self.drop_last, self.batch_size = sampler, drop_last, epochs.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return _batches(self._epochs)

    def __len__(self) -> int:
        return len(self._epochs)

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler has it."""
        self._epochs.set_epoch(epoch)


def _batches(epochs: Epochs) -> Iterator[list[int]]:
    segment = epochs.begin()
    return ([SampleIndex.of(number, segment.epoch) for number in ids.tolist()] for ids in epochs.batches(segment))
