"""LMDB environments of published shards: one per file and process, shared by all who read it.

``lmdb`` refuses to open a file twice in one process, and keeps refusing in a forked child, where the parent's
environment counts as open (lmdb 3.0.0, measured). So readers share, and a child goes on with what it inherited. LMDB
forbids that because of its lock file; opened read-only with ``lock=False`` an environment is a memory map and no more.
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

_CLOSING_S = 1.0  # how long a close in another thread may take
_TIDY = 64  # files opened before those closed are forgotten
Key = tuple[int, int]  # device and inode: a shard replaced by rename is another file


class Environment:
    """One open shard file. It stays mapped as long as anybody holds this object, or bytes from ``lease``."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._local = threading.local()
        # Through the descriptor: the file that was checked is the file that is mapped, whatever the path names by now.
        path = f"/proc/self/fd/{descriptor}"
        self._env: Any = lmdb.open(
            path,
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
        """The value, in place; valid as long as this environment is."""
        try:
            transaction = self._local.transaction
        except AttributeError:
            # One for each thread, kept: a transaction must not be used by two at once, and a lock around `get` would
            # make threads wait for each other's page faults.
            transaction = self._local.transaction = self._env.begin(buffers=True)
        value: memoryview | None = transaction.get(key)
        return value

    def lease(self, value: memoryview) -> memoryview:
        """The same bytes, but keeping the file mapped as long as they are used. Costs 1.5 us."""
        leased = _Lease((len(value),), np.uint8, value)
        leased.environment = self
        return memoryview(leased)  # type: ignore[arg-type]


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that hold on to their map: a view made by lmdb does not, and reading it later ends the process."""

    environment: Environment


_lock = threading.Lock()
_open: dict[Key, weakref.ref[Environment]] = {}


def open_environment(descriptor: int, key: Key, size: int) -> Environment:
    """The environment of an open file, which must be a shard of ``size`` bytes; raises lmdb.Error."""
    with _lock:
        known = _open.get(key)
        environment = known() if known else None
        if environment is None:
            environment = _after_closing(descriptor, size)
            for gone in (
                [] if len(_open) % _TIDY else [each for each, ref in _open.items() if ref() is None]
            ):
                del _open[gone]
            _open[key] = weakref.ref(
                environment
            )  # without a callback: a Ctrl-C that comes inside one is lost
        return environment


def _after_closing(descriptor: int, size: int) -> Environment:
    """Another thread may be closing the last environment of this file at this moment: gone for us, still open for lmdb."""
    deadline = time.monotonic() + _CLOSING_S
    while True:
        try:
            return _with_more_files(descriptor, size)
        except lmdb.Error as error:
            if "already open" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.001)


def _with_more_files(descriptor: int, size: int) -> Environment:
    try:
        return Environment(descriptor, size)
    except (OSError, lmdb.Error) as error:
        if os.strerror(errno.EMFILE) not in str(error) or not raise_file_limit():
            raise
    return Environment(descriptor, size)


def raise_file_limit() -> bool:
    """Lifts the soft limit of open files to the hard one: a shard takes one, a large dataset has thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def _keep_in_child() -> None:
    """After a fork: nothing that was inherited is ever closed here."""
    _lock.release()
    for known in list(_open.values()):
        environment = known()
        if environment is not None:
            # Closing waits for calls in flight; one that another thread of the parent was in would never end here.
            # A reference that nobody gives back, so that not even the interpreter's end closes it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))


# The lock is taken across the fork: a child never sees an environment half opened, nor the lock held by nobody.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_keep_in_child
)
