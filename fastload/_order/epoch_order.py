"""An epoch as a line of sample ids, computed piece by piece: O(window) memory, also for 10^9 samples. Pure.

``blocks``: samples that lie together on disk, K at a time, form a block. Blocks are permuted, and the samples of a window of
blocks are shuffled among each other: sequential for the disk, random for the model (pack has mixed all samples once). All
blocks have K samples but the last, so where a block stands in the line follows from arithmetic, without a table.
``full``: one permutation of all samples. ``source``: ids in the order given by a table.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastload._order.permutation import Indices, Permutation, mixed_key
from fastload.errors import ConfigError

WINDOW = 8  # blocks; of about 8 MiB each, so 64 MiB are mixed at a time
_BLOCKS, _TAIL, _INSIDE, _FULL = range(4)  # what a key is for


class Line(Protocol):
    """The order of one epoch: a sequence of sample ids that can be read from any place."""

    def __len__(self) -> int: ...

    def ids(self, start: int, stop: int) -> Indices:
        """The ids at the places start..stop-1 of the line."""


class BlockLine:
    """Blocks in random order, samples shuffled inside a window of blocks."""

    def __init__(self, n: int, *, block: int, seed: int, epoch: int, window: int = WINDOW) -> None:
        if n < 0 or block < 1 or window < 1:
            raise ConfigError(
                f"order of {n} samples in blocks of {block}, window {window}: expected 0, 1, 1 or more"
            )
        self.n, self.block, self.window, self._key = n, block, window, (seed, epoch)
        n_full, self._rest = divmod(n, block)
        self._n_slots = n_full + (self._rest > 0)
        self._order = Permutation(n_full, seed=mixed_key(seed, epoch, _BLOCKS))
        # The short last block stands at a random place, too; without one, behind the end.
        self._tail = mixed_key(seed, epoch, _TAIL) % self._n_slots if self._rest else self._n_slots
        self._cached: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.n

    def ids(self, start: int, stop: int) -> Indices:
        """The ids at the places start..stop-1 of the line."""
        pieces: list[Indices] = []
        while start < stop:
            number = self._window_at(start)
            first = self._slot_start(number * self.window)
            window_ids = self._window_ids(number)
            piece = window_ids[start - first : stop - first]
            if not len(piece):
                raise IndexError(f"place {start} of a line of {self.n}")
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _slot_start(self, slot: int) -> int:
        """Where a slot begins in the line; the short block moves all behind it forward."""
        return min(
            slot * self.block - (self.block - self._rest if slot > self._tail else 0), self.n
        )

    def _window_at(self, place: int) -> int:
        span = self.window * self.block
        with_tail = self._tail // self.window
        if place < self._slot_start((with_tail + 1) * self.window):
            return min(place // span, with_tail)
        return (place + self.block - self._rest) // span

    def _window_ids(self, number: int) -> Indices:
        if self._cached[0] != number:
            slots = np.arange(number * self.window, min((number + 1) * self.window, self._n_slots))
            blocks = np.full(len(slots), len(self._order), np.int64)  # the short block's number
            full = slots != self._tail
            blocks[full] = self._order(slots[full] - (slots[full] > self._tail))
            ids = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
            ids = ids[ids < self.n]
            inside = Permutation(len(ids), seed=mixed_key(*self._key, _INSIDE, number))
            self._cached = (number, ids[inside(np.arange(len(ids)))])
        return self._cached[1]


class FullLine:
    """A true random permutation of all samples: the disk reads at random, too."""

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        self._order = Permutation(n, seed=mixed_key(seed, epoch, _FULL))

    def __len__(self) -> int:
        return len(self._order)

    def ids(self, start: int, stop: int) -> Indices:
        """The ids at the places start..stop-1 of the line."""
        return self._order(np.arange(start, stop))


class TableLine:
    """The order that a table gives: source order, or ids chosen by the user."""

    def __init__(self, ids: Indices) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, start: int, stop: int) -> Indices:
        """The ids at the places start..stop-1 of the line."""
        return np.asarray(self._ids[start:stop], np.int64)
