"""Time and memory to open a dataset of ten million samples.

    python -m benchmarks.open [--samples 10000000] [--shards 2200]

Manifest and columns are generated, and shards are sparse files.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe, spread
from fastload._store.columns import ColumnWriter
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.manifest import NAME, Manifest, Shard, dump, expected_columns
from fastload._store.properties import Properties

FIELDS = (
    Field("image", "image"),
    Field("label", "int", classes=tuple(f"class {i}" for i in range(1000))),
)
PER_BLOCK = 76  # photographs of 110 kB in 8 MiB


def make(folder: Path, n: int, n_shards: int) -> None:
    """Writes a dataset that can be opened but not read."""
    edges = np.linspace(0, n, n_shards + 1).astype(int).tolist()
    shards = []
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        path = folder / f"shard-{number:05}.lmdb"
        path.touch()
        os.truncate(path, 512 << 20)
        shards.append(
            Shard(
                path.name,
                512 << 20,
                end - first,
                first,
                first,
                4096,
                "0" * 8,
                "0" * 64,
                "0" * 64,
            )
        )
    columns = []
    for name, dtype in expected_columns(FIELDS).items():
        with ColumnWriter(folder, name, dtype, width=2 if name == "_blocks" else 1) as writer:
            starts = np.arange(0, n, PER_BLOCK)
            writer.append(
                np.stack([starts, np.minimum(PER_BLOCK, n - starts)], 1)
                if name == "_blocks"
                else np.zeros(n, dtype)
            )
            columns.append(writer.finish())
    manifest = Manifest(
        n_samples=n,
        fields=FIELDS,
        properties=tuple(Properties() for _ in FIELDS),
        shards=tuple(shards),
        columns=tuple(columns),
        content="0" * 64,
    )
    (folder / NAME).write_bytes(dump(manifest))


def anonymous_mb() -> float:
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=2200)
    options = parser.parse_args()
    for key, value in describe().items():
        print(f"{key:>12}: {value}")
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), options.samples, options.shards)
        before = anonymous_mb()
        times = []
        for _ in range(9):
            started = time.perf_counter()
            dataset = open_dataset(name)
            times.append(1e3 * (time.perf_counter() - started))
        print(
            f"{len(dataset)} samples in {options.shards} shards: {spread(times)} ms (n = 9), "
            f"{anonymous_mb() - before:.1f} MB"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
