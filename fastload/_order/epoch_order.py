"""The order of one epoch: a sequence of sample ids that is computed on demand.

Positions count from the start of the epoch. Memory is O(window), even for 10^9 samples.

- ``BlockOrder`` permutes blocks of K neighboring records and shuffles the samples inside a window
  of blocks. The disk reads sequentially, and the model still sees a random order, because ``pack``
  shuffled all samples once. Every block except the last has K samples, so the position of a block
  is computed without a table.
- ``full_order`` is one permutation of all samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastload._order.permutation import Indices, Permutation, mixed_key
from fastload.errors import ConfigError

WINDOW = 8  # blocks of about 8 MiB, so 64 MiB are shuffled together
EpochOrder = Callable[[int, int], Indices]  # returns the ids at positions start..stop-1
_BLOCKS, _TAIL, _INSIDE, _FULL = range(4)  # last argument of mixed_key: one per use of randomness


class BlockOrder:
    """Permutes blocks and shuffles the samples inside each window of ``window`` blocks."""

    def __init__(self, n: int, *, block: int, seed: int, epoch: int, window: int = WINDOW) -> None:
        if n < 0 or block < 1 or window < 1:
            raise ConfigError(
                f"n={n}, block={block}, window={window}: expected n >= 0, block >= 1, window >= 1"
            )
        self.n = n
        self.block = block
        self.window = window
        self._key = (seed, epoch)
        n_full, self._rest = divmod(n, block)
        self._n_slots = n_full + (self._rest > 0)
        self._order = Permutation(n_full, seed=mixed_key(seed, epoch, _BLOCKS))
        # The short last block gets a random slot. Without a short block, this is the slot after
        # the last one.
        self._tail = mixed_key(seed, epoch, _TAIL) % self._n_slots if self._rest else self._n_slots
        self._cached: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def ids(self, start: int, stop: int) -> Indices:
        pieces: list[Indices] = []
        while start < stop:
            number = self._window_at(start)
            first = self._slot_start(number * self.window)
            piece = self._window_ids(number)[start - first : stop - first]
            if not len(piece):
                raise IndexError(f"position {start} is outside an epoch of {self.n} samples")
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _slot_start(self, slot: int) -> int:
        """Returns the first position of a slot. Slots after the short block start earlier."""
        missing = self.block - self._rest if slot > self._tail else 0
        return min(slot * self.block - missing, self.n)

    def _window_at(self, position: int) -> int:
        span = self.window * self.block
        with_tail = self._tail // self.window
        if position < self._slot_start((with_tail + 1) * self.window):
            return min(position // span, with_tail)
        return (position + self.block - self._rest) // span

    def _window_ids(self, number: int) -> Indices:
        if self._cached[0] != number:
            slots = np.arange(number * self.window, min((number + 1) * self.window, self._n_slots))
            short_block = len(self._order)
            blocks = np.full(len(slots), short_block, np.int64)
            full = slots != self._tail
            blocks[full] = self._order(slots[full] - (slots[full] > self._tail))
            ids = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
            ids = ids[ids < self.n]
            inside = Permutation(len(ids), seed=mixed_key(*self._key, _INSIDE, number))
            self._cached = (number, ids[inside(np.arange(len(ids)))])
        return self._cached[1]


def full_order(n: int, *, seed: int, epoch: int) -> EpochOrder:
    """Permutes all samples. Disk reads are random as well."""
    order = Permutation(n, seed=mixed_key(seed, epoch, _FULL))
    return lambda start, stop: order(np.arange(start, stop))
