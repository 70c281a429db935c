"""The order of several datasets that are mixed with given weights.

Each dataset is an endless stream: one shuffled pass over its samples after the other. An epoch
takes the next ``n_drawn`` samples of each stream, so a dataset that is larger than its share is
seen completely over several epochs, and one that is smaller is repeated. The streams are
interleaved evenly: any stretch of the epoch has the same shares, up to rounding. With shuffling,
the positions inside each chunk are permuted, so that the datasets do not alternate in a fixed
pattern.

Everything is computed from the epoch and the position, so ranks and resumed runs need no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fastload._order.epoch_order import BlockOrder, EpochOrder, full_order
from fastload._order.permutation import Indices, mixed_array, mixed_key
from fastload._plan.draw_ids import draw_ids
from fastload.errors import ConfigError

CHUNK = 64  # positions that are permuted together; small, so that each batch has the given shares
_STREAM, _CHUNKS = range(2)  # last argument of mixed_key: one per use of randomness


@dataclass(frozen=True, slots=True)
class Share:
    """One of the datasets."""

    ranges: tuple[range, ...]  # ids of its samples; with one split, it is one range
    n_drawn: int  # samples per epoch
    block: int  # samples per block

    @property
    def n_samples(self) -> int:
        return sum(map(len, self.ranges))

    def ids(self, indices: Indices) -> Indices:
        """Returns the ids of samples that are counted within the dataset."""
        if len(self.ranges) == 1:
            return self.ranges[0].start + indices
        ends = np.cumsum([len(each) for each in self.ranges])
        shifts = np.array([each.stop for each in self.ranges], np.int64) - ends
        ids: Indices = indices + shifts[np.searchsorted(ends, indices, side="right")]
        return ids


def drawn_counts(weights: object, sizes: Sequence[int]) -> list[int]:
    """Returns how many samples of each dataset an epoch has; raises ConfigError.

    An epoch has as many samples as the datasets together. The counts are rounded by the largest
    remainders, so their sum is exact.
    """
    expected = f"expected {len(sizes)} numbers, 0 or more, one per dataset"
    try:
        found = [float(each) for each in weights]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigError(f"weights={weights!r:.100}: {expected}") from None
    valid = not isinstance(weights, str) and all(0 <= each < math.inf for each in found)
    if not valid or len(found) != len(sizes):
        raise ConfigError(f"weights={weights!r:.100}: {expected}")
    if not any(found):
        raise ConfigError(f"weights={weights!r:.100}: expected at least one weight above 0")
    # As whole numbers, so that every machine computes the same counts.
    ratios = [each.as_integer_ratio() for each in found]
    common = max(denominator for _, denominator in ratios)  # all are powers of two
    whole = [numerator * (common // denominator) for numerator, denominator in ratios]
    n = sum(sizes)
    exact = [divmod(each * n, sum(whole)) for each in whole]
    counts = [quotient for quotient, _ in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -exact[i][1])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    for weight, count in zip(found, counts, strict=True):
        if weight and not count:
            raise ConfigError(
                f"weights={weights!r:.100}: {weight} is less than one of the {n} samples of an "
                "epoch. Pass 0 to omit the dataset, or a larger weight"
            )
    return counts


class WeightedOrder:
    """The order of one epoch. ``source_order`` has the ids of each dataset without shuffling."""

    def __init__(
        self,
        shares: Sequence[Share],
        *,
        shuffle: bool | str,
        seed: int,
        epoch: int,
        window: int,
        source_order: Callable[[], Sequence[Indices]],
    ) -> None:
        self._n = sum(each.n_drawn for each in shares)
        self._key = mixed_key(seed, epoch, _CHUNKS) if shuffle else None
        tables = [None] * len(shares) if shuffle else source_order()
        self._streams = [
            _Stream(
                share,
                table,
                shuffle=shuffle,
                seed=mixed_key(seed, number, _STREAM),
                epoch=epoch,
                window=window,
            )
            for number, (share, table) in enumerate(zip(shares, tables, strict=True))
        ]

    def ids(self, start: int, stop: int) -> Indices:
        """Returns the sample ids with copy numbers at positions start..stop-1."""
        if self._key is None:
            return self._interleaved(start, stop)
        low = start - start % CHUNK
        high = min(stop + -stop % CHUNK, self._n)
        positions = np.arange(low, high)
        keys = mixed_array(positions.astype(np.uint64) ^ np.uint64(self._key))
        order = np.lexsort((keys, positions // CHUNK))
        return self._interleaved(low, high)[order][start - low : stop - low]

    def _interleaved(self, start: int, stop: int) -> Indices:
        """Spreads the samples of the first dataset evenly, then those of the second, and so on.

        Each dataset takes ``count`` of the ``n`` positions that the previous ones have left: those
        where ``position * count // n`` increases.
        """
        found = np.empty(stop - start, np.int64)
        places = np.arange(stop - start)
        n = self._n
        for stream in self._streams:
            if not len(places):
                break
            count = stream.n_drawn
            first, rest = divmod(start * count, n)
            taken = (rest + np.arange(len(places) + 1) * count) // n
            own = taken[1:] > taken[:-1]
            found[places[own]] = stream.draw(first, first + int(taken[-1]))
            places = places[~own]
            start -= first
            n -= count
        return found


class _Stream:
    """The samples of one dataset in one epoch."""

    def __init__(
        self,
        share: Share,
        table: Indices | None,
        *,
        shuffle: bool | str,
        seed: int,
        epoch: int,
        window: int,
    ) -> None:
        self.n_drawn = share.n_drawn
        self._share = share
        self._table = table
        self._shuffle = shuffle
        self._seed = seed
        self._window = window
        self._first = epoch * share.n_drawn  # samples drawn in earlier epochs
        self._cached: tuple[int, EpochOrder] | None = None

    def draw(self, start: int, stop: int) -> Indices:
        """Returns ids with copy numbers. A sample of the next pass has the next copy number."""
        n = self._share.n_samples
        pieces = [np.empty(0, np.int64)]
        while start < stop:
            number, offset = divmod(self._first + start, n)
            end = min(n, offset + stop - start)
            pieces.append(draw_ids(self._pass(number)(offset, end), number - self._first // n))
            start += end - offset
        return np.concatenate(pieces)

    def _pass(self, number: int) -> EpochOrder:
        if self._cached is None or self._cached[0] != number:
            self._cached = (number, self._order(number))
        return self._cached[1]

    def _order(self, number: int) -> EpochOrder:
        share = self._share
        if self._table is not None:
            table = self._table
            return lambda start, stop: table[start:stop]
        if self._shuffle == "full":
            order = full_order(share.n_samples, seed=self._seed, epoch=number)
        else:
            order = BlockOrder(
                share.n_samples,
                block=share.block,
                seed=self._seed,
                epoch=number,
                window=self._window,
            ).ids
        return lambda start, stop: share.ids(order(start, stop))
