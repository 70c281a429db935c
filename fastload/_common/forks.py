"""Locks that a forked child finds open, whatever a thread of its parent was doing at the moment of the fork."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """``with lock():``; a forked child gets another one, since the thread that may have held it is not there.

    A call that hands out the lock itself, not ``__enter__`` here: Ctrl-C could come between taking the lock and saying so.
    """

    def __init__(self) -> None:
        self._by_process = {_forks[0]: threading.Lock()}

    def __call__(self) -> threading.Lock:
        """The lock of this process."""
        lock = self._by_process.get(_forks[0])
        return (
            lock if lock is not None else self._by_process.setdefault(_forks[0], threading.Lock())
        )


_forks = [0]  # between the first process and this one


def _count() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count)
