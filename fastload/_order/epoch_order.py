"""The order of one epoch: a sequence of sample ids, computed piece by piece. Pure.

Memory is O(window), also for 10^9 samples. Positions count from the start of the epoch.

- ``BlockOrder``: K neighboring samples on disk form a block. Blocks are permuted, and the samples of
  a window of blocks are shuffled: sequential for the disk, random for the model (``pack`` shuffled
  all samples once). All blocks but the last have K samples, so the position of a block follows from
  arithmetic, without a table.
- ``FullOrder``: one permutation of all samples.
- ``TableOrder``: the order of a table, such as the source order.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastload._order.permutation import Indices, Permutation, mixed_key
from fastload.errors import ConfigError

WINDOW = 8  # blocks of about 8 MiB: 64 MiB are shuffled together
_BLOCKS, _TAIL, _INSIDE, _FULL = range(4)  # purposes of a random key


class EpochOrder(Protocol):
    """A sequence of sample ids that can be read from any position."""

    def __len__(self) -> int: ...

    def ids(self, start: int, stop: int) -> Indices:
        """The ids at the positions start..stop-1."""


class BlockOrder:
    """Blocks in random order, samples shuffled inside a window of blocks."""

    def __init__(self, n: int, *, block: int, seed: int, epoch: int, window: int = WINDOW) -> None:
        if n < 0 or block < 1 or window < 1:
            raise ConfigError(
                f"order of {n} samples in blocks of {block}, window {window}: expected 0, 1, 1 or more"
            )
        self.n = n
        self.block = block
        self.window = window
        self._key = (seed, epoch)
        n_full, self._rest = divmod(n, block)
        self._n_slots = n_full + (self._rest > 0)
        self._order = Permutation(n_full, seed=mixed_key(seed, epoch, _BLOCKS))
        # The short last block has a random slot, too; without one, a slot after the last.
        self._tail = mixed_key(seed, epoch, _TAIL) % self._n_slots if self._rest else self._n_slots
        self._cached: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.n

    def ids(self, start: int, stop: int) -> Indices:
        pieces: list[Indices] = []
        while start < stop:
            number = self._window_at(start)
            first = self._slot_start(number * self.window)
            window_ids = self._window_ids(number)
            piece = window_ids[start - first : stop - first]
            if not len(piece):
                raise IndexError(f"position {start} of an epoch of {self.n} samples")
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _slot_start(self, slot: int) -> int:
        """The position where a slot begins; slots after the short block begin earlier."""
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
            blocks = np.full(
                len(slots), len(self._order), np.int64
            )  # the number of the short block
            full = slots != self._tail
            blocks[full] = self._order(slots[full] - (slots[full] > self._tail))
            ids = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
            ids = ids[ids < self.n]
            inside = Permutation(len(ids), seed=mixed_key(*self._key, _INSIDE, number))
            self._cached = (number, ids[inside(np.arange(len(ids)))])
        return self._cached[1]


class FullOrder:
    """A random permutation of all samples: disk reads are random, too."""

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        self._order = Permutation(n, seed=mixed_key(seed, epoch, _FULL))

    def __len__(self) -> int:
        return len(self._order)

    def ids(self, start: int, stop: int) -> Indices:
        return self._order(np.arange(start, stop))


class TableOrder:
    """The order of a table: source order, or ids chosen by the user."""

    def __init__(self, ids: Indices) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, start: int, stop: int) -> Indices:
        return np.asarray(self._ids[start:stop], np.int64)
