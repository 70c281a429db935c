"""Locks that a forked child finds open, whatever a thread of its parent was doing at the moment of the fork."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkSafeLock:
    """``with lock:``; in a forked child it begins anew, since the thread that may have held it is not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def renew(self) -> None:
        """Called in a forked child."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
