"""Memory for batches that is reused as soon as no tensor refers to it.

A new 40 MB tensor costs 10,000 page faults, so buffers are kept. A batch stays valid as long as any
tensor on its memory exists, even a slice: the storage of a tensor holds a reference to the NumPy
array, so the reference count of the array shows whether the buffer is free.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.threads import ForkSafeLock

_ALIGN = 64  # bytes, for vector stores
_UNUSED_AFTER = 256  # requests; a buffer that is not used during so many requests is released


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: NDArray[np.uint8]
    start: int  # first aligned byte
    last_used: int  # number of the last request that it served


class BufferPool:
    """Allocates tensors from reusable buffers.

    The pool keeps at most ``keep`` free buffers of sizes that are no longer requested. Of the other
    sizes it keeps recently used buffers.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._buffers: list[_Buffer] = []
        self._n_requests = 0
        self._lock = ForkSafeLock()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialized tensor on memory that nothing else uses."""
        n_bytes = math.prod(shape) * dtype.itemsize
        with self._lock():
            buffer = self._take(n_bytes)
            # The view references the memory, which marks the buffer as used.
            view = buffer.memory[buffer.start : buffer.start + n_bytes]
        if dtype == torch.uint8:
            return torch.from_numpy(view.reshape(shape))
        return torch.from_numpy(view).view(dtype).view(shape)

    @property
    def n_bytes(self) -> int:
        """Total size of all buffers, used or free."""
        with self._lock():
            return sum(buffer.memory.nbytes for buffer in self._buffers)

    def _take(self, n_bytes: int) -> _Buffer:
        size = n_bytes + _ALIGN
        if self._n_requests % (_UNUSED_AFTER // 4) == 0:
            self._release_unused()
        free = _free(self._buffers)
        self._n_requests += 1
        # A buffer may be twice as large: the short last batch reuses the memory of a full one.
        fitting = [buffer for buffer in free if size <= buffer.memory.nbytes <= 2 * size]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.memory.nbytes)
            best.last_used = self._n_requests
            return best
        self._release(free[: max(0, len(free) - self.keep + 1)])  # their sizes are not requested
        memory = np.empty(size, np.uint8)
        start = -int(memory.__array_interface__["data"][0]) % _ALIGN
        self._buffers.append(_Buffer(memory, start, self._n_requests))
        return self._buffers[-1]

    def _release_unused(self) -> None:
        # Buffers are used in turn, so in a large pool each one waits for more requests.
        oldest = self._n_requests - max(_UNUSED_AFTER, 4 * len(self._buffers))
        self._release([buffer for buffer in _free(self._buffers) if buffer.last_used < oldest])

    def _release(self, unused: list[_Buffer]) -> None:
        self._buffers = [buffer for buffer in self._buffers if buffer not in unused]


def _free(buffers: list[_Buffer]) -> list[_Buffer]:
    return [buffer for buffer in buffers if sys.getrefcount(buffer.memory) == _REFERENCES_WHEN_FREE]


# Reference count of memory that only its buffer refers to. It differs between Python versions.
_REFERENCES_WHEN_FREE = min(
    sys.getrefcount(buffer.memory) for buffer in [_Buffer(np.empty(1, np.uint8), 0, 0)]
)
