"""How many decode threads: more only while the consumer waits, never beyond the budget."""

from __future__ import annotations

from fastload.loader.backends import Backend

FIRST_THREADS = 4           # most training loops never wait for four
PATIENCE = 3                # batches in a row that the consumer had to wait for


class ThreadKeeper:
    """Told at each batch whether the consumer waited; doubles the threads when it did, several times in a row.

    ``fixed``: the user has said how many.
    """

    def __init__(self, backend: Backend, *, fixed: bool) -> None:
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
            self._backend.threads = min(2 * self._backend.threads, self._backend.budget)
