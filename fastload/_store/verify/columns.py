"""The columns of a dataset: whole, and what they say about blocks and the source's order is possible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload._store.columns import FOLDER, open_column
from fastload._store.manifest import Manifest
from fastload._store.verify.report import Fault
from fastload.errors import CorruptShard

Columns = dict[str, npt.NDArray[Any]]

_ROWS = 1 << 20  # of a column looked at at a time
_POSITIONS = 1 << 26  # of the source marked as seen at a time: 64 MB, whatever the dataset's size


def open_columns(path: Path, manifest: Manifest) -> tuple[Columns, list[Fault]]:
    """The columns whose size, header and checksum are right, and what is wrong with the others."""
    good: Columns = {}
    faults: list[Fault] = []
    for column in manifest.columns:
        name = f"{FOLDER}/{column.name}.npy"
        try:
            good[column.name] = open_column(path, column)
        except CorruptShard as error:
            # The reader's advice is to run this command; the bare reason is what is wanted here.
            why = (
                str(error)
                .removeprefix(f"opening {path / name}: ")
                .partition(". Run 'fastload verify")[0]
            )
            faults.append(
                Fault(name, None, "", f"{why}; its rows were not compared with the records")
            )
    return good, faults


def check_structure(columns: Columns, manifest: Manifest) -> Iterator[Fault]:
    """Blocks cover all samples in order and end where shards end; every sample has its own place in the source."""
    if "_blocks" in columns and (why := _wrong_blocks(columns["_blocks"], manifest)):
        yield Fault(f"{FOLDER}/_blocks.npy", None, "", why)
    if "_source_index" in columns and (why := _no_permutation(columns["_source_index"], manifest)):
        yield Fault(f"{FOLDER}/_source_index.npy", None, "", why)


def _wrong_blocks(blocks: npt.NDArray[np.int64], manifest: Manifest) -> str:
    firsts = blocks[:, 0]
    counts = blocks[:, 1]
    ends = np.cumsum(counts)
    starts = ends - counts
    wrong = np.flatnonzero((firsts != starts) | (counts <= 0))
    if wrong.size:
        block = int(wrong[0])
        return (
            f"{wrong.size} of {len(blocks)} blocks are wrong, the first is block {block}: {counts[block]} samples from sample "
            f"{firsts[block]} on, expected at least 1 from sample {starts[block]} on"
        )
    covered = int(ends[-1]) if len(ends) else 0
    if covered != manifest.n_samples:
        return f"the blocks cover {covered} samples, expected {manifest.n_samples}"
    crossed = np.flatnonzero(~np.isin([shard.first for shard in manifest.shards], firsts))
    if crossed.size:
        shard = manifest.shards[int(crossed[0])]
        return f"a block runs across the start of {shard.name} (sample {shard.first}); a block lies in one shard"
    return ""


def _no_permutation(index: npt.NDArray[np.int64], manifest: Manifest) -> str:
    """Positions in the source: all different, and none beyond the samples that were packed or skipped."""
    most = manifest.n_samples + manifest.skipped
    outside, outside_first = _outside(index, most)
    if outside:
        return (
            f"{outside} samples stand outside the source, the first is sample {outside_first} at position "
            f"{index[outside_first]}, expected 0 to {most - 1}"
        )
    twice = 0
    first = -1
    for low in range(0, most, _POSITIONS):
        count, where = _repeats(index, low, min(low + _POSITIONS, most))
        twice += count
        first = where if count and (first < 0 or where < first) else first
    if twice:
        return (
            f"no permutation: {twice} samples stand where another one stands already, the first is sample {first} at position "
            f"{index[first]} of the source"
        )
    return ""


def _repeats(index: npt.NDArray[np.int64], low: int, high: int) -> tuple[int, int]:
    """How many samples have a position in low..high-1 that an earlier one has, and the first of them."""
    seen = np.zeros(high - low, np.bool_)
    count = 0
    first = -1
    for start in range(0, len(index), _ROWS):
        rows = index[start : start + _ROWS]
        places = np.flatnonzero((rows >= low) & (rows < high))
        values = rows[places] - low
        repeated = np.ones(len(values), np.bool_)
        repeated[np.unique(values, return_index=True)[1]] = False
        repeated |= seen[values]
        seen[values] = True
        if repeated.any():
            count += int(repeated.sum())
            first = start + int(places[repeated][0]) if first < 0 else first
    return count, first


def _outside(index: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
    count = 0
    first = -1
    for start in range(0, len(index), _ROWS):
        rows = index[start : start + _ROWS]
        found = np.flatnonzero((rows < 0) | (rows >= most))
        if found.size:
            count += found.size
            first = start + int(found[0]) if first < 0 else first
    return count, first
