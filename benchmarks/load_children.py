"""The parts of benchmarks/load.py that need their own processes: cold reads, a billion samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.load_rows import Row, middle
from benchmarks.loads import pack_blobs
from fastload._tools.bench.io import evict

EPOCH = """import fastload, sys, time
make = fastload.DataLoader           # imports torch
started = time.perf_counter()
loader = make(sys.argv[1], 32, shuffle={shuffle}, seed={seed}, num_workers={threads})
began = time.perf_counter()
n = first = 0
for batch in loader:
    n += sum(map(len, batch['data']))
    first = first or time.perf_counter()
print(n / (time.perf_counter() - began) / 1e6, 1e3 * (began - started), 1e3 * (first - began))
"""
BILLION = """import time
from fastload._order.partition import Partition
from fastload._order.rank_order import OrderOptions, RankOrder
def anonymous():
    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) / 1024
before, began = anonymous(), time.perf_counter()
options = OrderOptions(n_samples=10**9, shuffle={shuffle}, seed=0, block=80, window=64)
partition = Partition(3, 8, 'pad')
order = RankOrder(options, batch_size=256, partition=partition, source_order=lambda: None)
next(order.batches(order.begin()))
print(1e3 * (time.perf_counter() - began), anonymous() - before)
"""


def cold(folder: Path, args: Any) -> list[Row]:
    """MB/s from a cold page cache, with enough data that the start of an epoch hardly counts."""
    epochs, left = _cold_epochs(folder, args)
    note = f"{args.cold_mb} MB; {left:.1%} of the pages were still cached"
    rows = [
        Row(f"cold: {name}, {what}", *middle([found[place] for found in each]), "", note)
        for place, what in enumerate(("MB/s", "ms to create the loader", "ms to the first batch"))
        for name, each in epochs.items()
    ]
    for name, bar in (("block-shuffled", ">= 0.9"), ("random", "")):
        ratios = [
            one[0] / other[0] for one, other in zip(epochs[name], epochs["sequential"], strict=True)
        ]
        rows.append(
            Row(f"cold: {name} / sequential", *middle(ratios), bar, f"{len(ratios)} rounds")
        )
    return rows


def _cold_epochs(folder: Path, args: Any) -> tuple[dict[str, list[list[float]]], float]:
    """MB/s, ms to create the loader and ms to the first batch, by order and round.

    Also returns the share of pages that stayed in memory. Each epoch runs in its own process,
    because mapped pages cannot be dropped.
    """
    shuffled = pack_blobs(folder, args.cold_mb, "shuffle")
    plain = pack_blobs(folder, args.cold_mb, "source")
    ways = {
        "sequential": (plain, "False"),
        "block-shuffled": (shuffled, "True"),
        "random": (shuffled, "'full'"),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    left = []
    for turn in range(args.rounds):
        for name in list(ways) if turn % 2 else reversed(list(ways)):
            packed, shuffle = ways[name]
            left.append(evict(sorted(packed.glob("*.lmdb"))))
            found[name].append(
                _printed(
                    EPOCH.format(shuffle=shuffle, seed=turn, threads=args.threads), str(packed)
                )
            )
    return found, max(left)


def order(_: Path, args: Any) -> list[Row]:
    """The first batch of a billion samples: milliseconds and anonymous memory."""
    rows = []
    for shuffle in ("True", "'full'"):
        found = [_printed(BILLION.format(shuffle=shuffle)) for _ in range(max(3, args.rounds // 2))]
        rows.append(
            Row(
                f"10^9 samples, shuffle={shuffle}: first batch, ms",
                *middle([each[0] for each in found]),
                "<= 100",
            )
        )
        rows.append(
            Row(
                f"10^9 samples, shuffle={shuffle}: MB",
                *middle([each[1] for each in found]),
                "<= 100",
            )
        )
    return rows


def _printed(program: str, *words: str) -> list[float]:
    """Runs a program and returns the numbers that it prints."""
    output = subprocess.run(
        [sys.executable, "-c", program, *words], check=True, capture_output=True, text=True
    ).stdout
    return [float(each) for each in output.split()]
