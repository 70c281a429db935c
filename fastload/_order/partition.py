"""Splits the positions of an epoch among ranks and computes what is left when a run stops.

Each rank takes one interval of the remaining positions, so it reads whole blocks. After k batches
the remaining positions are again a short list of intervals. A run that stopped on 4 ranks can
therefore resume on 2 or 8, and no sample is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fastload.errors import ConfigError

Interval = tuple[int, int]  # positions start..stop-1 of an epoch
LAST_BATCH_MODES = ("drop", "pad", "partial")


@dataclass(frozen=True, slots=True)
class Partition:
    """Rank and world size of this process, and the ``last_batch`` mode."""

    rank: int
    world: int
    last_batch: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world}: expected 0 to {self.world - 1}")


@dataclass(frozen=True, slots=True)
class RankPartition:
    """Splits the intervals ``left`` among ``world`` ranks in batches of ``batch_size``.

    Every rank has the same number of batches. ``last_batch`` selects what happens at the end:

    - ``drop`` omits samples that do not fill a batch on every rank.
    - ``pad`` repeats samples from the start until every rank has equally many, like torch's
      DistributedSampler.
    - ``partial`` repeats no sample; the last batches are smaller. One exception: with batch_size 1,
      or with fewer samples than ranks, a rank without a sample for its last batch repeats one.
    """

    left: tuple[Interval, ...]
    world: int
    batch_size: int
    last_batch: str = "partial"
    n_left: int = field(init=False, repr=False, compare=False)  # positions in ``left``

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_left", sum(stop - start for start, stop in self.left))
        if self.world < 1 or self.batch_size < 1 or self.last_batch not in LAST_BATCH_MODES:
            raise ConfigError(
                f"world_size={self.world}, batch_size={self.batch_size}, "
                f"last_batch={self.last_batch!r}: expected 1 or more, 1 or more, "
                f"one of {', '.join(LAST_BATCH_MODES)}"
            )

    @property
    def n_batches(self) -> int:
        """Batches per rank."""
        if self.last_batch == "drop":
            return self.n_left // self.world // self.batch_size
        return _ceil_div(_ceil_div(self.n_left, self.world), self.batch_size)

    def share(self, rank: int) -> Interval:
        """Returns the interval of a rank, in positions of the concatenated ``left``.

        With ``pad`` it may extend beyond the end of ``left``.
        """
        if self.last_batch == "pad":
            size = _ceil_div(self.n_left, self.world)
            return rank * size, (rank + 1) * size
        return rank * self.n_left // self.world, (rank + 1) * self.n_left // self.world

    def batch(self, rank: int, number: int) -> list[Interval]:
        """Returns the intervals of the epoch that make up one batch of a rank."""
        if not (0 <= rank < self.world and 0 <= number < self.n_batches):
            raise ConfigError(
                f"batch {number} of rank {rank}: expected a batch below {self.n_batches} "
                f"and a rank below {self.world}"
            )
        start, stop = self.share(rank)
        begin = min(start + self._taken(stop - start, number), stop)
        end = min(start + self._taken(stop - start, number + 1), stop)
        if begin == end:  # ``partial``, and no sample is left for this rank
            begin = max(begin - 1, 0)
            end = begin + 1
        return list(self._intervals(begin, end))

    def _taken(self, size: int, n_batches: int) -> int:
        """Returns how many samples of a share of ``size`` the first ``n_batches`` batches use."""
        taken = n_batches * self.batch_size
        # Another rank has one more batch. Keep a sample per missing batch so that none is empty.
        if (
            self.last_batch == "partial"
            and taken >= size
            and n_batches < self.n_batches
            and self.batch_size > 1
        ):
            return max(size - (self.n_batches - n_batches), 0)
        return min(taken, size)

    def after(self, n_batches: int) -> tuple[Interval, ...]:
        """Returns the positions that are left after every rank has completed ``n_batches``."""
        if n_batches >= self.n_batches:
            return ()
        shares = map(self.share, range(self.world))
        rest = merged(
            [
                (
                    min(start + self._taken(stop - start, n_batches), self.n_left),
                    min(stop, self.n_left),
                )
                for start, stop in shares
            ]
        )
        return merged(list(self._in_epoch(rest)))

    def _in_epoch(self, rest: Sequence[Interval]) -> Iterator[Interval]:
        """Converts sorted intervals of the concatenated ``left``, without wrapping around.

        Passes over both lists once: a saved state may have many ranks and intervals.
        """
        offset = number = 0
        for start, stop in self.left:
            end = offset + stop - start
            while number < len(rest) and rest[number][0] < end:
                low, high = rest[number]
                if low < end and high > offset:
                    yield start + max(low, offset) - offset, start + min(high, end) - offset
                if high > end:
                    break  # continues in the next interval of ``left``
                number += 1
            offset = end

    def _intervals(self, begin: int, end: int) -> Iterator[Interval]:
        """Converts positions begin..end-1 of the concatenated ``left`` to intervals of the epoch.

        Positions beyond the end wrap around to the start.
        """
        total = self.n_left
        while begin < end:
            round_start = begin - begin % total
            offset = round_start
            for start, stop in self.left:
                low = max(begin, offset)
                high = min(end, offset + stop - start)
                if low < high:
                    yield start + low - offset, start + high - offset
                offset += stop - start
            begin = round_start + total


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Joins adjacent intervals and removes empty ones."""
    result: list[Interval] = []
    for start, stop in intervals:
        if start >= stop:
            continue
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)
