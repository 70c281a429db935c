"""The packing order: which row of the listing is packed at each position.

The rows are grouped by split and shuffled within each split. A split is therefore a range of
sample ids, and a loader of one split reads only its own blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastload._order.permutation import Indices, Permutation
from fastload.errors import ConfigError

_CHUNK = 4096  # positions computed at a time


class PackingOrder:
    """Maps positions to rows.

    Args:
        n: Number of rows.
        splits: Number of the split of each row; None without splits.
        order: ``"shuffle"`` or ``"source"``, which keeps the order of the rows within each split.
        seed: Seed of the shuffle.
    """

    def __init__(
        self, n: int, *, splits: NDArray[np.uint16] | None = None, order: str, seed: int
    ) -> None:
        self.n = n
        # Rows in the order of their splits, 8 bytes per row; None if the listing has that order.
        self._grouped: Indices | None = None
        counts = [n]
        if splits is not None:
            counts = np.bincount(splits).tolist()
            if (splits[1:] < splits[:-1]).any():
                self._grouped = np.argsort(splits, kind="stable")
        self._ends = np.cumsum(counts).tolist()
        self._shuffles = (
            [Permutation(count, seed=seed) for count in counts] if order == "shuffle" else None
        )

    def rows(self, start: int, stop: int) -> Indices:
        """Returns the rows at positions start..stop-1."""
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"packing positions {start} to {stop}: expected 0 to {self.n}")
        positions = np.arange(start, stop)
        if self._shuffles is not None:
            first = 0
            for end, shuffle in zip(self._ends, self._shuffles, strict=True):
                low, high = max(first, start), min(end, stop)
                if low < high:
                    inside = positions[low - start : high - start]
                    inside[:] = first + shuffle(inside - first)
                first = end
        return positions if self._grouped is None else self._grouped[positions]

    def iterate(self, positions: range) -> Iterator[int]:
        """Yields the rows at consecutive positions."""
        for first in range(positions.start, positions.stop, _CHUNK):
            yield from self.rows(first, min(first + _CHUNK, positions.stop)).tolist()
