"""Who takes what of the line: equal shares for all ranks, batch by batch, and what is left when a run stops. Pure.

A rank takes one interval of what is left of the line, so it reads whole blocks. What is left after k batches is again a short
list of intervals: a run that stopped on 4 ranks goes on with 2 or 8, and no sample is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastload.errors import ConfigError

Interval = tuple[int, int]  # places start..stop-1 of the line
LAST_BATCH_MODES = ("drop", "pad", "partial")


@dataclass(frozen=True, slots=True)
class Shares:
    """How the intervals ``left`` are dealt to ``world`` ranks in batches of ``batch_size``.

    Endings, all with the same number of batches on every rank: ``drop`` leaves out what does not fill a batch on all ranks;
    ``pad`` gives every rank as many samples by repeating some from the start, as torch's DistributedSampler does; ``partial``
    repeats nothing: the last batches are smaller. (With batch_size 1, or fewer samples left than ranks, a rank that has none left for its
    last batch repeats one.)
    """

    left: tuple[Interval, ...]
    world: int
    batch_size: int
    last_batch: str = "partial"

    def __post_init__(self) -> None:
        if self.world < 1 or self.batch_size < 1 or self.last_batch not in LAST_BATCH_MODES:
            raise ConfigError(
                f"world size {self.world}, batch size {self.batch_size}, last_batch {self.last_batch!r}: "
                f"expected 1 or more, 1 or more, one of {', '.join(LAST_BATCH_MODES)}"
            )

    @property
    def n_left(self) -> int:
        """Samples in all intervals."""
        return sum(stop - start for start, stop in self.left)

    @property
    def n_batches(self) -> int:
        """Batches of every rank."""
        if self.last_batch == "drop":
            return self.n_left // self.world // self.batch_size
        return _up(_up(self.n_left, self.world), self.batch_size)

    def share(self, rank: int) -> Interval:
        """The rank's part of what is left, as places of the joined intervals; ``pad`` may point behind their end."""
        if self.last_batch == "pad":
            size = _up(self.n_left, self.world)
            return rank * size, (rank + 1) * size
        return rank * self.n_left // self.world, (rank + 1) * self.n_left // self.world

    def batch(self, rank: int, number: int) -> list[Interval]:
        """The places of the line that make up a rank's batch."""
        if not (0 <= rank < self.world and 0 <= number < self.n_batches):
            raise ConfigError(
                f"batch {number} of rank {rank}: expected below {self.n_batches} and {self.world}"
            )
        start, stop = self.share(rank)
        begin, end = (min(start + self._taken(stop - start, n), stop) for n in (number, number + 1))
        if (
            begin == end
        ):  # partial, with batch_size 1 or fewer samples than ranks: this one has none left
            begin = max(begin - 1, 0)
            end = begin + 1
        return list(self._places(begin, end))

    def _taken(self, size: int, n_batches: int) -> int:
        """Samples of a share of ``size`` that are gone after so many batches."""
        taken = n_batches * self.batch_size
        # Another rank has one batch more: the last sample is kept for it, so that no batch is empty.
        if (
            self.last_batch == "partial"
            and taken >= size
            and n_batches < self.n_batches
            and self.batch_size > 1
        ):
            return max(size - (self.n_batches - n_batches), 0)
        return min(taken, size)

    def after(self, n_batches: int) -> tuple[Interval, ...]:
        """What is left of the line when every rank has done so many batches; nothing after the last one."""
        if n_batches >= self.n_batches:
            return ()
        rest: list[Interval] = []
        for rank in range(self.world):
            start, stop = self.share(rank)
            rest += self._places(
                min(start + self._taken(stop - start, n_batches), self.n_left),
                min(stop, self.n_left),
            )
        return merged(rest)

    def _places(self, begin: int, end: int) -> Iterator[Interval]:
        """The joined intervals' places begin..end-1 as intervals of the line; behind the end it starts again."""
        total = self.n_left
        while begin < end:
            round_start = begin - begin % total
            offset = round_start
            for start, stop in self.left:
                low, high = max(begin, offset), min(end, offset + stop - start)
                if low < high:
                    yield start + low - offset, start + high - offset
                offset += stop - start
            begin = round_start + total


def _up(number: int, divisor: int) -> int:
    return -(-number // divisor)


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The same places with neighbours joined and nothing empty, in their order."""
    result: list[Interval] = []
    for start, stop in intervals:
        if start >= stop:
            continue
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)
