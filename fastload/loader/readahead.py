"""Asks the kernel for records before they are needed, so that a cold disk streams instead of waiting for one page fault after another.

The samples of a block lie together in their shard, so the bytes from the first record of a block to the end of its last are one run of
the file. Shards are mapped by LMDB without the kernel's own reading ahead (samples come in random order), so it has to be told:
``madvise(WILLNEED)`` on the map itself starts the reading and returns. Whatever goes wrong here is of no consequence.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import lmdb
import numpy as np
from numpy.typing import NDArray

from fastload.errors import FastloadError
from fastload.store.dataset import Dataset

Ids = NDArray[np.int64]
Advise = Callable[[int, int], None]         # address, length in bytes
Wanted = queue.SimpleQueue["Ids | weakref.ref[ReadAhead]"]

# The kernel cuts a longer request to what a device reads ahead by itself, 128 KiB by default, and forgets the rest.
PIECE = 128 << 10
MAX_RUN = 256 << 20             # of one block; records that lie further apart are no run
MAX_SAMPLES = 1 << 16           # looked ahead, however small they are
_REMEMBERED = 4096              # blocks asked for lately
_QUEUE = 64                     # batches; when the disk is that far behind, asking for more is of no use


def willneed(address: int, length: int) -> None:
    """Asks for the pages of a map; raises OSError."""
    page = mmap.PAGESIZE
    start, end = address - address % page, address + length
    for first in range(start, end, PIECE):
        if _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(min(PIECE, end - first)), mmap.MADV_WILLNEED):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_LIBC = ctypes.CDLL(None, use_errno=True)


class ReadAhead:
    """A thread that asks for what it is told: asking may wait for the disk, and nobody shall wait for that.

    ``whole_blocks``: all samples of a block are going to be used soon, so ask for all of it when the first is.
    """

    def __init__(self, dataset: Dataset, *, whole_blocks: bool, advise: Advise = willneed) -> None:
        self._wanted: Wanted = queue.SimpleQueue()
        asker = Asker(dataset, whole_blocks=whole_blocks, advise=advise)
        # The reference goes into the queue when this is dropped and ends the thread. All C: see fastload.loader.feeder.
        dropped = weakref.ref(self, self._wanted.put)
        threading.Thread(target=_ask, name="fastload-readahead", daemon=True, args=(asker, self._wanted, dropped)).start()

    def want(self, ids: Ids) -> None:
        """These samples come soon; returns at once."""
        if self._wanted.qsize() < _QUEUE:
            self._wanted.put(ids)

    def before(self, batches: Iterator[Ids], horizon: int) -> Iterator[Ids]:
        """The same batches, each asked for about ``horizon`` samples before its turn. At the start two are asked for with each one
        that goes out, so that the first does not stand in a queue behind all the others."""
        ahead: deque[Ids] = deque()
        n_ahead, horizon = 0, min(horizon, MAX_SAMPLES)
        more = True
        while True:
            for _ in range(2):
                if more and (n_ahead <= horizon or not ahead):
                    ids = next(batches, None)
                    more = ids is not None
                    if ids is not None:
                        self.want(ids)
                        ahead.append(ids)
                        n_ahead += len(ids)
            if not ahead:
                return
            oldest = ahead.popleft()
            n_ahead -= len(oldest)
            yield oldest


class Asker:
    """Turns samples into runs of bytes, and asks for each once."""

    def __init__(self, dataset: Dataset, *, whole_blocks: bool, advise: Advise = willneed) -> None:
        self._dataset, self._whole, self._advise = dataset, whole_blocks, advise
        self._firsts, self._counts = (np.ascontiguousarray(column) for column in dataset.column("_blocks").T)
        self._lately: deque[int] = deque(maxlen=_REMEMBERED)
        self._known: set[int] = set()

    def ask(self, ids: Ids) -> None:
        """For the blocks these samples are in, or for their records."""
        if self._whole:
            for block in np.unique(np.searchsorted(self._firsts, ids, side="right") - 1).tolist():
                if block not in self._known:
                    self._remember(block)
                    self._run(int(self._firsts[block]), int(self._firsts[block] + self._counts[block]) - 1)
        else:
            ordered = np.unique(ids)
            for run in np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1):
                self._run(int(run[0]), int(run[-1]))

    def _remember(self, block: int) -> None:
        if len(self._lately) == self._lately.maxlen:
            self._known.discard(self._lately[0])
        self._lately.append(block)
        self._known.add(block)

    def _run(self, first: int, last: int) -> None:
        """The bytes from the start of one record to the end of another; of each shard, where they are in several."""
        while first <= last:
            reader = self._dataset.reader(first)
            end = min(last, reader.shard.first + reader.shard.records - 1)
            head = np.frombuffer(reader.find(first), np.uint8)
            tail = head if end == first else np.frombuffer(reader.find(end), np.uint8)
            start, length = _address(head), _address(tail) + len(tail) - _address(head)
            if 0 < length <= MAX_RUN:
                self._advise(start, length)
            first = end + 1


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


def _ask(asker: Asker, wanted: Wanted, dropped: weakref.ref[ReadAhead]) -> None:
    while dropped() is not None:
        ids = wanted.get()
        if isinstance(ids, weakref.ref):
            return
        try:
            asker.ask(ids)
        except (FastloadError, OSError, lmdb.Error):
            continue            # whoever reads the record will say what is wrong
