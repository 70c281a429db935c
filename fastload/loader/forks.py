"""Locks that a forked child finds open, whatever a thread of its parent was doing at the moment of the fork."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """``with lock():``; in a forked child it begins anew, since the thread that may have held it is not there.

    A call that hands out the lock itself, not ``__enter__`` here: Ctrl-C could come between taking the lock and saying so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __call__(self) -> threading.Lock:
        """The lock of this process."""
        return self._lock

    def renew(self) -> None:
        """Called in a forked child."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
