"""Requests records from the kernel before they are needed, so that a disk is read sequentially.

The samples of a block are neighbors in their shard, so a block is one contiguous range (a *run*) of
the file. Shards are opened without the kernel's own read-ahead, because samples are read in random
order. ``posix_fadvise(WILLNEED)`` starts reading and returns. Errors are ignored here: the reader
of the record reports them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._plan.draw_ids import sample_ids
from fastload._store.dataset import Dataset
from fastload._store.lmdb_tree import PAGE
from fastload.errors import FastloadError

Ids = NDArray[np.int64]
Runs = NDArray[np.int64]  # (n, 3): descriptor, offset, bytes
Advise = Callable[[Runs], None]
Blocks = Sequence[tuple[range, int]]  # ranges of ids, with the number of samples per block
_Requests = queue.SimpleQueue["Ids | weakref.ref[ReadAhead]"]

# Both as in native/shard/read_ahead.cpp, which explains them.
PIECE = 128 << 10
GAP = 32 << 10
MAX_SAMPLES = 1 << 16  # maximum number of samples to read ahead
_MAX_BLOCKS = 4096  # number of requested blocks to remember
_MAX_QUEUED = 64  # batches; if the disk is that slow, more requests do not help


class ReadAhead:
    """Requests records in a thread of its own, because a request may block on the disk.

    ``blocks`` has ranges of ids with the number of samples per block. All samples of a block are
    used soon, so the whole block is requested with its first sample. Without blocks, samples are
    requested individually.
    """

    def __init__(
        self, dataset: Dataset, *, blocks: Blocks = (), advise: Advise | None = None
    ) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        advisor = Advisor(dataset, blocks=blocks, advise=advise)
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
            self._requests.put(sample_ids(ids))

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

    def __init__(
        self, dataset: Dataset, *, blocks: Blocks = (), advise: Advise | None = None
    ) -> None:
        self._dataset = dataset
        self._advise = advise
        ordered = sorted(blocks, key=lambda each: each[0].start)
        self._starts = np.array([ids.start for ids, _ in ordered], np.int64)
        self._stops = np.array([ids.stop for ids, _ in ordered], np.int64)
        self._sizes = np.array([size for _, size in ordered], np.int64)
        self._recent: dict[int, None] = {}  # first ids of blocks already requested, oldest first

    def request(self, ids: Ids) -> None:
        """Requests the blocks of these samples, or the samples alone if there are no blocks."""
        if len(self._starts):
            ids = self._new_blocks(ids)
        request_records(self._dataset, ids, self._advise)

    def _new_blocks(self, ids: Ids) -> Ids:
        """Returns all samples of the blocks of ``ids`` that were not requested yet."""
        places = np.searchsorted(self._starts, ids, side="right") - 1
        firsts = set((ids - (ids - self._starts[places]) % self._sizes[places]).tolist())
        new = sorted(first for first in firsts if first not in self._recent)
        self._remember(new)
        places = np.searchsorted(self._starts, new, side="right") - 1
        ends = np.minimum(new + self._sizes[places], self._stops[places])
        found = np.array(new, np.int64)[:, None] + np.arange(self._sizes.max())
        blocks: Ids = found[found < ends[:, None]]
        return blocks

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
    with contextlib.suppress(FastloadError, OSError, RuntimeError):
        if len(ids):
            (read_ahead if advise is None else advise)(record_runs(dataset, ids))


def record_runs(dataset: Dataset, ids: Ids) -> Runs:
    """Returns the ranges of the records, by shard and offset; neighbors share a run."""
    module = core()
    if module is None:
        return _runs_in_python(dataset, ids)
    ids = np.ascontiguousarray(ids, np.int64)
    files, shards, keys, _ = dataset.files(ids)
    return np.frombuffer(module.record_runs(files, shards, keys), np.int64).reshape(-1, 3)


def _runs_in_python(dataset: Dataset, ids: Ids) -> Runs:
    runs: list[list[int]] = []
    for i in np.unique(ids).tolist():  # records are stored in the order of their ids
        offset, size = dataset.reader(i).find(i)
        descriptor = dataset.reader(i).file().descriptor
        last = runs[-1] if runs else [-1, 0, 0]
        if last[0] == descriptor and 0 <= offset - last[1] - last[2] <= GAP:
            last[2] = offset + size - last[1]
        else:
            runs.append([descriptor, offset, size])
    return np.array(runs, np.int64).reshape(-1, 3)


def read_ahead(runs: Runs) -> None:
    """Requests the pages of runs from the kernel; raises OSError or RuntimeError."""
    module = core()
    if module is None:
        _read_ahead_in_python(runs)
    else:
        module.read_ahead(runs)


def _read_ahead_in_python(runs: Runs) -> None:
    for descriptor, offset, size in runs.tolist():
        end = offset + size
        for first in range(offset - offset % PAGE, end, PIECE):
            os.posix_fadvise(descriptor, first, min(PIECE, end - first), os.POSIX_FADV_WILLNEED)
