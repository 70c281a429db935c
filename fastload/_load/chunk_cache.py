"""Decides whether a loader reads small records through a cache of chunks.

One system call per record would cost as much as loading it. ``native/shard/chunk_cache.h`` reads
64 KiB with one call and keeps them until all their records are used. That needs an order with
locality: a window of blocks, the order in which the records are stored, or a small dataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastload._common.native import core
from fastload._order.rank_order import OrderOptions, RankOrder
from fastload._order.sampler_order import SamplerOrder
from fastload._store.dataset import Dataset
from fastload._store.joined import JoinedDataset
from fastload._store.manifest import Shard

if TYPE_CHECKING:
    from fastload import _core

# Mean size of a record with its pages. Records of 8 kB take 0.7 times the CPU time of one call each
# (benchmarks/small_reads.py), but decoding them takes much longer than that.
MAX_RECORD = 4 << 10
MAX_BYTES = 96 << 20  # per loader; the usual window has 64 MiB
CHUNK = 64 << 10  # kChunk of native/shard/chunk_cache.h
_SEQUENTIAL = 4 << 20  # the current chunk, the tree pages, and prefetched records
# Two ends of a block and two of its tree pages, each in a chunk that other blocks share.
_PER_BLOCK = 4 * CHUNK
# A rank whose share is a smaller part of a window would read many bytes that it does not use.
_LEAST_SHARE = 0.25


class RecordCache:
    """The cache of one loader. ``chunks`` is None if its reads go to the file."""

    def __init__(self, order: RankOrder | SamplerOrder | None, dataset: Dataset) -> None:
        shards = _shards(dataset)
        n_bytes = sum(shard.size for shard in shards) + CHUNK * len(shards)
        self.fits = n_bytes <= MAX_BYTES
        capacity = n_bytes if self.fits else _ordered_bytes(order, dataset, shards)
        self.chunks: _core.ChunkCache | None = None
        self.damaged = False  # whether a record was damaged in this epoch
        module = core()
        small = sum(shard.size for shard in shards) <= MAX_RECORD * sum(
            shard.records for shard in shards
        )
        if module is not None and small and order is not None and 0 < capacity <= MAX_BYTES:
            with contextlib.suppress(MemoryError):  # then every record is read from the file
                self.chunks = module.ChunkCache(capacity)

    def chunks_for(self, *, in_order: bool) -> _core.ChunkCache | None:
        """Returns the cache for samples in the order of an epoch, or for any other samples."""
        return self.chunks if in_order or self.fits else None

    def begin(self) -> None:
        """Starts an epoch. After damage, it reads the shards again: they may be repaired."""
        if self.damaged and self.chunks is not None:
            self.chunks.clear()
        self.damaged = False


def _shards(dataset: Dataset) -> list[Shard]:
    """Returns the shards with samples of the dataset."""
    ids = dataset.ids
    return [
        shard
        for shard in dataset.manifest.shards
        if shard.first < ids.stop and shard.first + shard.records > ids.start
    ]


def _ordered_bytes(
    order: RankOrder | SamplerOrder | None, dataset: Dataset, shards: Sequence[Shard]
) -> int:
    """Returns the bytes that the order uses at a time; 0 without locality."""
    if not isinstance(order, RankOrder) or order.options.shares:
        return 0  # datasets with other weights advance at another speed and replace each other
    if order.options.shuffle is True:
        return _window_bytes(order.options, order.partition.world, shards)
    parts = dataset.datasets if isinstance(dataset, JoinedDataset) else (dataset,)
    stored = all(part.manifest.order == "source" for part in parts)
    return _SEQUENTIAL if order.options.shuffle is False and stored else 0


def _window_bytes(options: OrderOptions, world: int, shards: Sequence[Shard]) -> int:
    n_samples = options.window * options.block
    # A rank loads a contiguous part of the epoch, so only its first and its last window are shared.
    if options.n_samples / world < _LEAST_SHARE * n_samples:
        return 0
    record = max(shard.size / max(1, shard.records) for shard in shards)
    return int(n_samples * record) + options.window * _PER_BLOCK
