"""How many decode threads, and how many batches ahead: more only while the consumer waits, never beyond the budget."""

from __future__ import annotations

from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload.errors import ConfigError

FIRST_THREADS = 4  # most training loops never wait for four
PATIENCE = 3  # batches in a row that the consumer had to wait for
LATELY = 32  # batches
MOST_AHEAD = 8  # batches, where the user has not said how many
MOST_BYTES = 1 << 30  # of their buffers


class ThreadKeeper:
    """Told at each batch whether the consumer waited; doubles the threads when it did, several times in a row.

    ``fixed``: the user has said how many.
    """

    def __init__(self, backend: Decoder, *, fixed: bool) -> None:
        self._backend, self._fixed, self._waits = backend, fixed, 0

    @staticmethod
    def at_first(budget: int, *, fixed: bool) -> int:
        """Threads to begin with."""
        return budget if fixed else min(budget, FIRST_THREADS)

    def delivered(self, *, waited: bool) -> None:
        """A batch went to the consumer."""
        self._waits = self._waits + 1 if waited else 0
        if self._waits < PATIENCE or self._fixed:
            return
        self._waits = 0
        if self._backend.threads < self._backend.budget:
            try:
                self._backend.threads = min(2 * self._backend.threads, self._backend.budget)
            except (
                ConfigError
            ):  # the system's limit of threads: those that decode are enough to go on
                self._fixed = True


class DepthKeeper:
    """How many batches are begun or ready. Told at each batch how many the consumer found.

    A consumer who has to wait although all batches were ready a moment ago has met a hiccup: the disk's, another process's. One batch more
    hides the next one. Who always waits has a loader that is too slow: more batches would only take memory. ``fixed``: the user has said.
    """

    def __init__(self, ahead: int, ring: BufferPool, *, fixed: bool) -> None:
        self.ahead, self._ring, self._fixed = ahead, ring, fixed
        self.started()

    def started(self) -> None:
        """A new pass: its first batches are always waited for."""
        self._since_full = LATELY

    def delivered(self, ready: int) -> bool:
        """A batch went to the consumer; True: begin one more from now on."""
        self._since_full = 0 if ready >= self.ahead - 1 else self._since_full + 1
        if (
            ready
            or self._fixed
            or self._since_full >= LATELY
            or self.ahead >= MOST_AHEAD
            or self._ring.n_bytes // self.ahead * (self.ahead + 1) > MOST_BYTES
        ):
            return False
        self.started()
        self.ahead += 1
        self._ring.keep += 1
        return True
