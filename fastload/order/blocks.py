"""The order of an epoch: blocks in random order, samples shuffled inside a window of blocks. Pure.

Reading stays sequential for the disk (whole blocks) while the model sees a shuffle: pack has mixed all samples once, the
blocks come in another order each epoch, and the samples of ``window`` blocks are mixed anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastload.order.permute import Indices, Permutation, mixed_key

WINDOW = 8          # blocks of about 8 MiB: 64 MiB being read while the window is mixed


def epoch_order(blocks: NDArray[np.int64], *, seed: int, epoch: int, window: int = WINDOW) -> Iterator[Indices]:
    """Sample ids of one epoch, a window of blocks at a time; ``blocks`` has rows (first sample, number of samples)."""
    n_blocks = len(blocks)
    order = Permutation(n_blocks, seed=mixed_key(seed, epoch))
    for start in range(0, n_blocks, window):
        chosen = blocks[order(np.arange(start, min(start + window, n_blocks)))]
        ids = np.concatenate([np.arange(first, first + count) for first, count in chosen])
        yield ids[Permutation(len(ids), seed=mixed_key(seed, epoch, start))(np.arange(len(ids)))]
