"""Measures how much CPU time reading the records of small samples takes.

    python benchmarks/small_reads.py PACKED [--rounds 7] [--batch 512]

PACKED is a dataset of small images. Each round reads every record once, in the order of
``shuffle=True``, in one thread without decoding:

- ``pread``: one system call per page or record,
- ``cache``: from chunks of a window, read with one system call each,
- ``cached``: from chunks that hold the whole dataset, without system calls,
- ``map``: the bytes of every record are copied from a memory map, with one call of Python per
  record. It does not search the tree or build part rows, and the places are known in advance.

The order of the four alternates, and the figures are CPU time of the thread per record. bc5b6b1 is
the last commit whose ``read_records`` used a map; before_after.py compares complete loaders with
it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.before_after import spread
from fastload._common.native import core
from fastload._load.chunk_cache import MAX_BYTES
from fastload._load.records import read_records
from fastload._order.epoch_order import WINDOW, BlockOrder
from fastload._store.dataset import Dataset, open_dataset


def window_order(dataset: Dataset) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    block = round(len(dataset) / len(dataset.blocks))
    return BlockOrder(len(dataset), block=block, seed=0, epoch=0).ids(0, len(dataset))


def map_copies(dataset: Dataset, ids: list[int]) -> Callable[[], None]:
    """Returns a function that copies all records from memory maps."""
    maps = {
        shard.name: np.memmap(dataset.reader(shard.first).path, np.uint8, "r")
        for shard in dataset.manifest.shards
    }
    places = [(maps[dataset.reader(i).shard.name], *dataset.reader(i).find(i)) for i in ids]
    views = [np.asarray(file)[offset : offset + size] for file, offset, size in places]

    def run() -> None:
        for view in views:
            view.tobytes()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packed", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=512, help="records per call")
    options = parser.parse_args()
    module = core()
    if module is None:
        raise SystemExit("the native core is missing")
    dataset = open_dataset(options.packed)
    ids = window_order(dataset)
    n_bytes = sum(shard.size for shard in dataset.manifest.shards)
    window = min(n_bytes, WINDOW * n_bytes // len(dataset.blocks))
    caches = {
        "pread": None,
        "cache": module.ChunkCache(min(MAX_BYTES, window + (WINDOW << 18))),
        "cached": module.ChunkCache(n_bytes + (1 << 20)),
    }

    def reading(name: str) -> Callable[[], None]:
        def run() -> None:
            for start in range(0, len(ids), options.batch):
                some = ids[start : start + options.batch]
                read_records(dataset, some, check_crc=False, cache=caches[name])

        return run

    runs = {**{name: reading(name) for name in caches}, "map": map_copies(dataset, ids.tolist())}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(options.rounds + 1):
        for name in sorted(runs, reverse=bool(turn % 2)):
            started = time.thread_time()
            runs[name]()
            if turn:  # the first round fills caches and page tables
                found[name].append((time.thread_time() - started) / len(ids) * 1e9)
    print(f"{len(ids)} records of {n_bytes / len(ids):.0f} bytes, {options.rounds} rounds")
    for name, figures in found.items():
        print(f"{name:8} {spread(figures, '.0f'):>20} ns of CPU time per record")
    ratios = [cache / pread for cache, pread in zip(found["cache"], found["pread"], strict=True)]
    print(f"cache / pread: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
