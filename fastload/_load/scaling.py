"""The number of decode threads and of prefetched batches: both grow only while the consumer waits."""

from __future__ import annotations

from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload.errors import ConfigError

INITIAL_THREADS = 4  # most training loops never wait for four
PATIENCE = 3  # consecutive batches that the consumer waited for
RECENT = 32  # batches
MAX_DEPTH = 8  # batches, unless prefetch_factor is given
MAX_BUFFER_BYTES = 1 << 30


class ThreadScaler:
    """Doubles the decode threads, up to the budget, when the consumer waited for several batches in a row.

    ``fixed``: num_workers was given.
    """

    def __init__(self, backend: Decoder, *, fixed: bool) -> None:
        self._backend = backend
        self._fixed = fixed
        self._waits = 0

    @staticmethod
    def initial(budget: int, *, fixed: bool) -> int:
        """Threads at the start."""
        return budget if fixed else min(budget, INITIAL_THREADS)

    def delivered(self, *, waited: bool) -> None:
        """Called for each batch that the consumer received."""
        self._waits = self._waits + 1 if waited else 0
        if self._waits < PATIENCE or self._fixed:
            return
        self._waits = 0
        if self._backend.threads < self._backend.budget:
            try:
                self._backend.threads = min(2 * self._backend.threads, self._backend.budget)
            except ConfigError:  # the system's limit of threads: continue with the present ones
                self._fixed = True


class DepthScaler:
    """The number of batches in flight or ready.

    A consumer that waits although all batches were ready shortly before has met a hiccup, of the disk or of another process: one
    more batch hides the next one. If it always waits, the loader is too slow, and more batches would only take memory.
    ``fixed``: prefetch_factor was given.
    """

    def __init__(self, depth: int, buffers: BufferPool, *, fixed: bool) -> None:
        self.depth = depth
        self._buffers = buffers
        self._fixed = fixed
        self.started()

    def started(self) -> None:
        """A new pass: its first batches are always waited for."""
        self._since_full = RECENT

    def delivered(self, n_ready: int) -> bool:
        """Called for each batch that the consumer received; True: keep one more in flight from now on."""
        self._since_full = 0 if n_ready >= self.depth - 1 else self._since_full + 1
        if (
            n_ready
            or self._fixed
            or self._since_full >= RECENT
            or self.depth >= MAX_DEPTH
            or self._buffers.n_bytes // self.depth * (self.depth + 1) > MAX_BUFFER_BYTES
        ):
            return False
        self.started()
        self.depth += 1
        self._buffers.keep += 1
        return True
