"""Several batches read and planned in one go: numpy's cost is per call, and between two batches its code has left the cache."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastload._load.builder import BatchMaker, Begun
from fastload._load.records import read_records
from fastload.errors import FastloadError

Ids = NDArray[np.int64]
SAMPLES = (
    512  # prepared at a time: more would hold the decode threads up, and be felt as a late batch
)
FEW = 4  # batches, however large they are
CHECKED = (
    4 << 20
)  # bytes, where checksums are compared here: so much is still in the processor's cache when its values are copied
ALONE = 64  # batches that are prepared one by one after some that could not be prepared together


class Together:
    """Prepares the batches of one epoch on their way to the maker; ``take`` hands each out once, in order."""

    def __init__(self, maker: BatchMaker, epoch: int) -> None:
        self._maker, self._epoch = maker, epoch
        self._prepared: deque[Begun] = deque()
        self.preparing: Sequence[Ids] = ()  # the batches that are being read at this moment
        shards = maker.dataset.manifest.shards
        self._record_bytes = (
            sum(shard.size for shard in shards) / max(1, len(maker.dataset))
            if maker.check_crc
            else 0.0
        )

    def at_once(self, batch_size: int) -> int:
        """How many batches are prepared at a time, but for the first ones."""
        if self._record_bytes:
            return max(1, int(min(SAMPLES, CHECKED / self._record_bytes)) // max(1, batch_size))
        return max(FEW, SAMPLES // max(1, batch_size))

    def passing(self, batches: Iterator[Ids]) -> Iterator[Ids]:
        """The same batches; few at a time at first, for the trainer waits for them."""
        together, alone = 1, 0
        while some := list(itertools.islice(batches, 1 if alone else together)):
            alone = max(0, alone - 1)
            if len(some) > 1:
                self.preparing = some
                self._prepared += prepare_together(self._maker, some, self._epoch)
                self.preparing = ()
                alone = 0 if self._prepared else ALONE
            together = min(2 * together, self.at_once(len(some[0])))
            yield from some

    def take(self, ids: Ids) -> Begun | None:
        """The batch that ``passing`` yielded last; None where it is still to be prepared."""
        return self._prepared.popleft() if self._prepared and self._prepared[0].ids is ids else None


def prepare_together(maker: BatchMaker, batches: Sequence[Ids], epoch: int) -> list[Begun]:
    """What ``maker.prepare`` would give for each. Nothing where one of them needs a closer look (damage, missing images, sizes that
    differ, a shard that does not open): ``maker.prepare`` has that, and an error then stands in the place of its own batch."""
    started = time.perf_counter()
    try:
        parts = read_records(maker.dataset, np.concatenate(batches), check_crc=maker.check_crc)
        if parts.faults or maker.incomplete(parts):
            return []
        rows = maker.rows(parts, epoch)
    except (FastloadError, OSError, MemoryError):
        return []
    if any(each.bad for each in rows.values()):
        return []
    plan_s = (time.perf_counter() - started) / len(batches)
    found, first = [], 0
    for ids in batches:
        last = first + len(ids)
        own_rows = {
            name: each.take(
                slice(first * maker.movers[name].items, last * maker.movers[name].items)
            )
            for name, each in rows.items()
        }
        found.append(Begun(ids, epoch, parts.slice(first, last), own_rows, {}, plan_s))
        first = last
    return found
