"""Memory for batches, used again when nobody holds it any more.

A fresh 40 MB tensor costs the kernel 10,000 page faults; so buffers are kept. A batch stays valid as long as any tensor over its
memory lives (a slice of it, too): torch holds the numpy array under a tensor's storage, so the array's reference count tells.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.threads import ForkSafeLock

_ALIGN = 64  # bytes: what vector stores like
_LATELY = 256  # buffers handed out: one that was free all the while goes back to the system


class BufferPool:
    """Hands out tensors. Of sizes no longer asked for it keeps at most ``keep`` free buffers; of the others those that were used lately."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._buffers: list[NDArray[np.uint8]] = []
        self._starts: list[int] = []  # of each: its first aligned byte
        self._used: list[int] = []  # of each: which of all that were handed out it was last
        self._handed_out = 0
        self._lock = ForkSafeLock()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor that nobody else uses."""
        n_bytes = math.prod(shape) * dtype.itemsize
        with self._lock():
            buffer, start = self._free(n_bytes)
            view = buffer[start : start + n_bytes]  # holds the array from here on
        if dtype == torch.uint8:
            return torch.from_numpy(view.reshape(shape))
        return torch.from_numpy(view).view(dtype).view(shape)

    @property
    def n_bytes(self) -> int:
        """All memory held, in use or free."""
        with self._lock():
            return sum(buffer.nbytes for buffer in self._buffers)

    def _free(self, n_bytes: int) -> tuple[NDArray[np.uint8], int]:
        size = n_bytes + _ALIGN
        free = self._unused()
        self._handed_out += 1
        # Up to twice as large will do: the short last batch of an epoch takes the memory of a full one.
        fitting = [place for place in free if size <= self._buffers[place].nbytes <= 2 * size]
        if fitting:
            best = min(fitting, key=lambda place: self._buffers[place].nbytes)
            self._used[best] = self._handed_out
            return self._buffers[best], self._starts[best]
        self._drop(free[: max(0, len(free) - self.keep + 1)])  # of sizes no longer asked for
        self._buffers.append(np.empty(size, np.uint8))
        self._starts.append(-int(self._buffers[-1].__array_interface__["data"][0]) % _ALIGN)
        self._used.append(self._handed_out)
        return self._buffers[-1], self._starts[-1]

    def _unused(self) -> list[int]:
        """The places of buffers that nobody holds; now and then those that nobody needed lately are dropped before."""
        if self._handed_out % (_LATELY // 4) == 0:
            lately = max(
                _LATELY, 4 * len(self._buffers)
            )  # in a long ring each has its turn after as many as there are
            self._drop(
                [place for place in self._alone() if self._handed_out - self._used[place] > lately]
            )
        return self._alone()

    def _alone(self) -> list[int]:
        return [
            place
            for place in range(len(self._buffers))
            if sys.getrefcount(self._buffers[place]) == _ALONE
        ]

    def _drop(self, places: list[int]) -> None:
        for place in reversed(places):
            del self._buffers[place], self._starts[place], self._used[place]


def _count_when_alone() -> int:
    """What getrefcount says of an array that only a list holds; it differs between Python versions."""
    held = [np.empty(1, np.uint8)]
    return min(sys.getrefcount(held[place]) for place in range(1))


_ALONE = _count_when_alone()
