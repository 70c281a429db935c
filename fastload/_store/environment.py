"""LMDB environments of published shards: one per file and process, shared by all readers.

``lmdb`` refuses to open a file twice in one process. It also refuses in a forked child, where the
parent's environment counts as open (measured with lmdb 3.0.0). Readers therefore share one
environment, and a child keeps using the inherited one. LMDB forbids that because of its lock file,
but an environment opened read-only with ``lock=False`` is only a memory map.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import threading
import time
import weakref
from typing import Any

import lmdb
import numpy as np

_CLOSE_TIMEOUT_S = 1.0  # longest wait for another thread that closes the same file
_PURGE_EVERY = 64  # opened files between two removals of dead entries from _open
Key = tuple[int, int]  # (device, inode): a shard that was replaced by a rename is another file


class Environment:
    """One open shard file. It stays mapped while this object or a view from ``lease`` exists."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._local = threading.local()
        self._env: Any = lmdb.open(
            # By descriptor: this maps the file that was checked, even if the path was replaced
            # since.
            f"/proc/self/fd/{descriptor}",
            map_size=size,
            subdir=False,
            readonly=True,
            create=False,
            lock=False,
            readahead=False,
            max_spare_txns=0,
        )
        self.entries = int(self._env.stat()["entries"])

    def get(self, key: bytes) -> memoryview | None:
        """Returns a view of the value; valid while this environment exists."""
        try:
            transaction = self._local.transaction
        except AttributeError:
            # One transaction per thread, because two threads must not share one. A lock around
            # `get` would make threads wait for each other's page faults.
            transaction = self._local.transaction = self._env.begin(buffers=True)
        value: memoryview | None = transaction.get(key)
        return value

    def lease(self, value: memoryview) -> memoryview:
        """Returns the same bytes as a view that keeps the file mapped. Takes 1.5 us."""
        leased = _Lease((len(value),), np.uint8, value)
        leased.environment = self
        return memoryview(leased)  # type: ignore[arg-type]


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A view that keeps its map alive. A view from lmdb does not: reading it later is a crash."""

    environment: Environment


_lock = threading.Lock()
_open: dict[Key, weakref.ref[Environment]] = {}


def open_environment(descriptor: int, key: Key, size: int) -> Environment:
    """Returns the environment of an open shard of ``size`` bytes; raises lmdb.Error."""
    with _lock:
        known = _open.get(key)
        environment = known() if known else None
        if environment is None:
            environment = _open_with_retry(descriptor, size)
            if len(_open) % _PURGE_EVERY == 0:
                for dead in [each for each, ref in _open.items() if ref() is None]:
                    del _open[dead]
            # Without a callback: a Ctrl-C that arrives inside a weakref callback is lost.
            _open[key] = weakref.ref(environment)
        return environment


def _open_with_retry(descriptor: int, size: int) -> Environment:
    """Opens a file.

    Raises the file limit if needed, and waits while another thread closes the file.

    That thread has dropped the last reference, but lmdb still counts the file as open.
    """
    deadline = time.monotonic() + _CLOSE_TIMEOUT_S
    while True:
        try:
            return Environment(descriptor, size)
        except (OSError, lmdb.Error) as error:
            closing = "already open" in str(error) and time.monotonic() <= deadline
            too_many = os.strerror(errno.EMFILE) in str(error)
            if not closing and not (too_many and raise_file_limit()):
                raise
        time.sleep(0.001)


def raise_file_limit() -> bool:
    """Raises the soft limit of open files to the hard limit; returns False if it cannot.

    Each shard needs one file, and a large dataset has thousands of shards.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def _keep_in_child() -> None:
    """Keeps inherited environments open in a forked child."""
    _lock.release()
    for known in list(_open.values()):
        environment = known()
        if environment is not None:
            # Closing waits for calls in flight, and a call of a parent's thread never ends in the
            # child. The extra reference prevents closing even at interpreter exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))


# The lock is held across the fork: a child never inherits a half-opened environment or a held lock.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_keep_in_child
)
