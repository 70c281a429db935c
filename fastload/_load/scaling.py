"""Adapts the number of decode threads and of prefetched batches while the consumer waits."""

from __future__ import annotations

from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload.errors import ConfigError

INITIAL_THREADS = 4  # enough for most training loops
PATIENCE = 3  # consecutive batches that the consumer waited for
RECENT = 32  # batches
MAX_DEPTH = 8  # batches, unless prefetch_factor is set
MAX_BUFFER_BYTES = 1 << 30


class ThreadScaler:
    """Doubles the decode threads, up to the budget, after PATIENCE consecutive waits.

    With ``fixed`` (the user set num_workers) the number does not change.
    """

    def __init__(self, backend: Decoder, *, fixed: bool) -> None:
        self._backend = backend
        self._fixed = fixed
        self._waits = 0

    @staticmethod
    def initial(budget: int, *, fixed: bool) -> int:
        """Returns the initial number of threads."""
        return budget if fixed else min(budget, INITIAL_THREADS)

    def delivered(self, *, waited: bool) -> None:
        """Records that the consumer received a batch, and whether it waited for it."""
        self._waits = self._waits + 1 if waited else 0
        if self._waits < PATIENCE or self._fixed:
            return
        self._waits = 0
        if self._backend.threads < self._backend.budget:
            try:
                self._backend.threads = min(2 * self._backend.threads, self._backend.budget)
            except ConfigError:  # the thread limit of the system; continue with the current threads
                self._fixed = True


class DepthScaler:
    """Adapts the number of prefetched batches.

    If the consumer waits although all batches were ready shortly before, the disk or another
    process caused a short stall, and one more prefetched batch hides the next stall. If the
    consumer always waits, the loader is too slow, and more batches would only use memory. With
    ``fixed`` (the user set prefetch_factor) the number does not change.
    """

    def __init__(self, depth: int, buffers: BufferPool, *, fixed: bool) -> None:
        self.depth = depth
        self._buffers = buffers
        self._fixed = fixed
        self.started()

    def started(self) -> None:
        """Starts a new pass. Waiting for its first batches is normal."""
        self._since_full = RECENT

    def delivered(self, n_ready: int) -> bool:
        """Records a delivered batch; returns True if one more batch is prefetched from now on."""
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
