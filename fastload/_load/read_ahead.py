"""Asks the kernel for records before they are needed, so that a cold disk streams instead of waiting for one page fault after another.

The samples of a block lie together in their shard, so the bytes from the first record of a block to the end of its last are one run of
the file. Shards are mapped without the kernel's own reading ahead (samples come in random order), so it has to be told:
``madvise(WILLNEED)`` on the map itself starts the reading and returns. Whatever goes wrong here is of no consequence.
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
Wanted = queue.SimpleQueue["Ids | weakref.ref[ReadAhead]"]

# Both as in native/shard/read_ahead.cpp, which says why.
PIECE = 128 << 10
GAP = 32 << 10
MAX_SAMPLES = 1 << 16  # looked ahead, however small they are
_REMEMBERED = 4096  # blocks asked for lately
_QUEUE = 64  # batches; when the disk is that far behind, asking for more is of no use


class ReadAhead:
    """A thread that asks for what it is told: asking may wait for the disk, and nobody shall wait for that.

    ``block``: samples come in blocks of so many, and all of one are going to be used soon: ask for all of it when the first is.
    """

    def __init__(self, dataset: Dataset, *, block: int = 0, advise: Advise | None = None) -> None:
        self._wanted: Wanted = queue.SimpleQueue()
        asker = Advisor(dataset, block=block, advise=advise)
        # The reference goes into the queue when this is dropped and ends the thread. All C: see fastload._load.prefetch.
        dropped = weakref.ref(self, self._wanted.put)
        threading.Thread(
            target=_ask, name="fastload-readahead", daemon=True, args=(asker, self._wanted, dropped)
        ).start()

    def want(self, ids: Ids) -> None:
        """These samples come soon; returns at once."""
        if self._wanted.qsize() < _QUEUE:
            self._wanted.put(ids)

    def ahead_of(
        self, batches: Iterator[Ids], horizon: int, at_once: Callable[[int], int] = lambda _: 0
    ) -> Iterator[Ids]:
        """The same batches, each asked for about ``horizon`` samples before its turn. At the start two are asked for with each one
        that goes out, so that the first does not stand in a queue behind all the others. ``at_once``: of batches of a size, how many
        are taken together; their turn is that of the first of them."""
        ahead: deque[Ids] = deque()
        n_ahead, more = 0, True
        while True:
            for _ in range(2):
                if more and (
                    not ahead
                    or n_ahead <= min(horizon + at_once(len(ahead[0])) * len(ahead[0]), MAX_SAMPLES)
                ):
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


class Advisor:
    """Turns samples into runs of bytes, and asks for each once."""

    def __init__(self, dataset: Dataset, *, block: int = 0, advise: Advise | None = None) -> None:
        self._dataset, self._block, self._advise = dataset, block, advise
        self._lately: deque[int] = deque(maxlen=_REMEMBERED)
        self._known: set[int] = set()

    def ask(self, ids: Ids) -> None:
        """For the blocks these samples are in, or for their records."""
        if self._block:
            new = [
                block
                for block in sorted(set((ids // self._block).tolist()))
                if block not in self._known
            ]
            self._remember(new)
            ids = (np.array(new, np.int64)[:, None] * self._block + np.arange(self._block)).ravel()
            ids = ids[ids < len(self._dataset)]
        ask_for(self._dataset, ids, self._advise)

    def _remember(self, blocks: list[int]) -> None:
        for block in blocks:
            if len(self._lately) == self._lately.maxlen:
                self._known.discard(self._lately[0])
            self._lately.append(block)
            self._known.add(block)


def _ask(asker: Advisor, wanted: Wanted, dropped: weakref.ref[ReadAhead]) -> None:
    while dropped() is not None:
        ids = wanted.get()
        if isinstance(ids, weakref.ref):
            return
        asker.ask(ids)


def ask_for(dataset: Dataset, ids: Ids, advise: Advise | None = None) -> None:
    """Has the kernel read some records; may wait while the disk is behind."""
    with contextlib.suppress(
        FastloadError, OSError, RuntimeError, lmdb.Error
    ):  # whoever reads a record will say what is wrong
        if len(ids):
            (read_ahead if advise is None else advise)(record_runs(dataset, ids))


def record_runs(dataset: Dataset, ids: Ids) -> Runs:
    """Where samples lie in the maps, by shard and address; neighbours share a run."""
    module = core()
    if module is None:
        return _runs_in_python(dataset, ids)
    ids = np.ascontiguousarray(ids, np.int64)
    maps, shards, _ = dataset.maps(ids)
    return np.frombuffer(module.record_runs(maps, shards, ids), np.int64).reshape(-1, 2)


def _runs_in_python(dataset: Dataset, ids: Ids) -> Runs:
    runs: list[list[int]] = []
    shard = ""
    for i in np.unique(ids).tolist():  # samples lie in the order of their numbers
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
    """Asks for the pages of some runs; raises OSError, or RuntimeError."""
    module = core()
    if module is None:
        _ask_in_python(runs)
    else:
        module.read_ahead(runs)


def _ask_in_python(runs: Runs) -> None:
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    for address, length in runs.tolist():
        start, end = address - address % page, address + length
        for first in range(start, end, PIECE):
            if libc.madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(min(PIECE, end - first)), mmap.MADV_WILLNEED
            ):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
