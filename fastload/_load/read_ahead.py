"""Requests records from the kernel before they are needed, so that a disk is read sequentially.

The samples of a block are neighbors in their shard, so a block is one contiguous range (a *run*) of
the file. Shards are mapped without the kernel's own read-ahead, because samples are read in random
order. ``madvise(WILLNEED)`` starts reading and returns. Errors are ignored here: the reader of the
record reports them.
"""

from __future__ import annotations

import contextlib
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

from fastload._common.native import core
from fastload._store.dataset import Dataset
from fastload.errors import FastloadError

Ids = NDArray[np.int64]
Runs = NDArray[np.int64]  # (n, 2): address, bytes
Advise = Callable[[Runs], None]
_Requests = queue.SimpleQueue["Ids | weakref.ref[ReadAhead]"]

# Both as in native/shard/read_ahead.cpp, which explains them.
PIECE = 128 << 10
GAP = 32 << 10
MAX_SAMPLES = 1 << 16  # maximum number of samples to read ahead
_MAX_BLOCKS = 4096  # number of requested blocks to remember
_MAX_QUEUED = 64  # batches; if the disk is that slow, more requests do not help


class ReadAhead:
    """Requests records in a thread of its own, because a request may block on the disk.

    ``block`` is the number of samples per block. All samples of a block are used soon, so the whole
    block is requested with its first sample. With 0, samples are requested individually.
    """

    def __init__(self, dataset: Dataset, *, block: int = 0, advise: Advise | None = None) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        advisor = Advisor(dataset, block=block, advise=advise)
        # Dropping this object puts the reference into the queue, which ends the thread. No Python
        # code runs for that; prefetch.py explains why.
        dropped = weakref.ref(self, self._requests.put)
        threading.Thread(
            target=_run,
            name="fastload-readahead",
            daemon=True,
            args=(advisor, self._requests, dropped),
        ).start()

    def request(self, ids: Ids) -> None:
        """Requests samples without waiting."""
        if self._requests.qsize() < _MAX_QUEUED:
            self._requests.put(ids)

    def ahead_of(
        self, batches: Iterator[Ids], horizon: int, group_size: Callable[[int], int] = lambda _: 0
    ) -> Iterator[Ids]:
        """Yields the batches and requests each one about ``horizon`` samples in advance.

        At the start, two batches are requested for each batch that is yielded, so that the request
        of the first batch does not wait for all others. ``group_size`` returns how many batches of
        a size are planned together; all of them are needed at the time of the first.
        """
        ahead: deque[Ids] = deque()
        n_ahead = 0
        more = True
        while True:
            for _ in range(2):
                if ahead:
                    batch_size = len(ahead[0])
                    limit = min(horizon + group_size(batch_size) * batch_size, MAX_SAMPLES)
                    if n_ahead > limit:
                        break
                ids = next(batches, None) if more else None
                if ids is None:
                    more = False
                    break
                self.request(ids)
                ahead.append(ids)
                n_ahead += len(ids)
            if not ahead:
                return
            oldest = ahead.popleft()
            n_ahead -= len(oldest)
            yield oldest


class Advisor:
    """Turns samples into runs of bytes and requests each of them once."""

    def __init__(self, dataset: Dataset, *, block: int = 0, advise: Advise | None = None) -> None:
        self._dataset = dataset
        self._block = block
        self._advise = advise
        self._recent: dict[int, None] = {}  # blocks already requested, oldest first

    def request(self, ids: Ids) -> None:
        """Requests the blocks of these samples, or the samples alone if there are no blocks."""
        if self._block:
            blocks = [
                block
                for block in sorted(set((ids // self._block).tolist()))
                if block not in self._recent
            ]
            self._remember(blocks)
            first = np.array(blocks, np.int64)[:, None] * self._block
            ids = (first + np.arange(self._block)).ravel()
            ids = ids[ids < len(self._dataset)]
        request_records(self._dataset, ids, self._advise)

    def _remember(self, blocks: list[int]) -> None:
        for block in blocks:
            if len(self._recent) == _MAX_BLOCKS:
                del self._recent[next(iter(self._recent))]
            self._recent[block] = None


def _run(advisor: Advisor, requests: _Requests, dropped: weakref.ref[ReadAhead]) -> None:
    while dropped() is not None:
        ids = requests.get()
        if isinstance(ids, weakref.ref):
            return
        advisor.request(ids)


def request_records(dataset: Dataset, ids: Ids, advise: Advise | None = None) -> None:
    """Requests records from the kernel; may block while the disk is busy."""
    # Errors are reported when the record is read.
    with contextlib.suppress(FastloadError, OSError, RuntimeError, lmdb.Error):
        if len(ids):
            (read_ahead if advise is None else advise)(record_runs(dataset, ids))


def record_runs(dataset: Dataset, ids: Ids) -> Runs:
    """Returns the memory ranges of the records, by shard and address; neighbors share a run."""
    module = core()
    if module is None:
        return _runs_in_python(dataset, ids)
    ids = np.ascontiguousarray(ids, np.int64)
    maps, shards, _ = dataset.maps(ids)
    return np.frombuffer(module.record_runs(maps, shards, ids), np.int64).reshape(-1, 2)


def _runs_in_python(dataset: Dataset, ids: Ids) -> Runs:
    runs: list[list[int]] = []
    shard = ""
    for i in np.unique(ids).tolist():  # records are stored in the order of their ids
        reader = dataset.reader(i)
        record = np.frombuffer(reader.lease(i), np.uint8)
        start = int(record.__array_interface__["data"][0])
        if reader.shard.name == shard and runs and 0 <= start - sum(runs[-1]) <= GAP:
            runs[-1][1] = start + len(record) - runs[-1][0]
        else:
            runs.append([start, len(record)])
        shard = reader.shard.name
    return np.array(runs, np.int64).reshape(-1, 2)


def read_ahead(runs: Runs) -> None:
    """Requests the pages of runs from the kernel; raises OSError or RuntimeError."""
    module = core()
    if module is None:
        _read_ahead_in_python(runs)
    else:
        module.read_ahead(runs)


def _read_ahead_in_python(runs: Runs) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for address, length in runs.tolist():
        start = address - address % mmap.PAGESIZE
        end = address + length
        for first in range(start, end, PIECE):
            if libc.madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(min(PIECE, end - first)), mmap.MADV_WILLNEED
            ):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
