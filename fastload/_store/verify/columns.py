"""Checks the columns of a dataset: their files, blocks, splits, and the order of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastload._store.column_file import AnyColumn
from fastload._store.columns import read_column
from fastload._store.fields import SPLIT, splits_of
from fastload._store.manifest import Manifest
from fastload._store.verify.report import Fault

Columns = Mapping[str, AnyColumn]

_ROWS = 1 << 20  # rows of a column processed at a time
_POSITIONS = 1 << 26  # source positions tracked at a time: 64 MB for any size of the dataset


def open_columns(path: Path, manifest: Manifest) -> tuple[Columns, list[Fault]]:
    """Returns the intact columns and the faults of the others."""
    good: dict[str, AnyColumn] = {}
    faults: list[Fault] = []
    for column in manifest.columns:
        try:
            good[column.name] = read_column(path, column)
        except ValueError as error:
            what = f"{error}; the column was not compared with the records"
            faults.append(Fault(column.file, None, "", what))
    return good, faults


def check_structure(columns: Columns, manifest: Manifest) -> Iterator[Fault]:
    """Checks blocks and splits, and that source positions are unique."""
    checks = [("_blocks", _check_blocks), ("_source_index", _check_source_index)]
    if splits_of(manifest.fields):
        checks.append((SPLIT, _check_splits))
    for name, check in checks:
        if name in columns and (what := check(columns[name], manifest)):
            file = next(each.file for each in manifest.columns if each.name == name)
            yield Fault(file, None, "", what)


def _check_blocks(column: AnyColumn, manifest: Manifest) -> str:
    blocks = column[:]
    firsts = blocks[:, 0]
    counts = blocks[:, 1]
    starts = np.cumsum(counts) - counts
    wrong = np.flatnonzero((firsts != starts) | (counts <= 0))
    if wrong.size:
        block = wrong[0]
        return (
            f"{wrong.size} of {len(blocks)} blocks are wrong. The first is block {block}: "
            f"{counts[block]} samples, starting at sample {firsts[block]}; expected at least 1, "
            f"starting at sample {starts[block]}"
        )
    covered = counts.sum()
    if covered != manifest.n_samples:
        return f"the blocks cover {covered} samples, expected {manifest.n_samples}"
    crossed = np.flatnonzero(~np.isin([shard.first for shard in manifest.shards], firsts))
    if crossed.size:
        shard = manifest.shards[crossed[0]]
        return (
            f"a block contains the start of {shard.name} (sample {shard.first}), expected a new "
            "block"
        )
    return ""


def _check_splits(splits: AnyColumn, manifest: Manifest) -> str:
    """Checks that the samples of each split are together and that every sample has one."""
    before = 0
    for start in range(0, len(splits), _ROWS):
        rows = np.concatenate(([before], splits[start : start + _ROWS]))
        after = rows[1:]
        wrong = np.flatnonzero((after < rows[:-1]) | (after >= len(splits_of(manifest.fields))))
        if wrong.size:
            row = wrong[0]
            return (
                f"sample {start + row} has split {after[row]} after split {rows[row]}, expected "
                "all samples of a split together, in the order of the splits"
            )
        before = rows[-1]
    return ""


def _check_source_index(index: AnyColumn, manifest: Manifest) -> str:
    """Checks that positions in the source are unique and below the number of source samples."""
    n_source = manifest.n_samples + manifest.skipped
    count, first = _count_rows(index, lambda rows: (rows < 0) | (rows >= n_source))
    if count:
        return (
            f"{count} source positions are out of range. The first is {index[first]} of sample "
            f"{first}, expected 0 to {n_source - 1}"
        )
    # The manifest may state any number of skipped samples; only existing positions cost time.
    windows = {
        int(window)
        for start in range(0, len(index), _ROWS)
        for window in np.unique(index[start : start + _ROWS] // _POSITIONS)
    }
    repeats = [_count_repeats(index, window * _POSITIONS) for window in sorted(windows)]
    count = sum(found for found, _ in repeats)
    if count:
        first = min(where for found, where in repeats if found)
        return (
            f"{count} samples have the same source position as an earlier sample. The first is "
            f"sample {first} at position {index[first]}"
        )
    return ""


def _count_repeats(index: AnyColumn, low: int) -> tuple[int, int]:
    """Counts repeats among the _POSITIONS positions from ``low``; also returns the first row."""
    seen = np.zeros(_POSITIONS, np.bool_)

    def find_repeats(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        inside = np.flatnonzero((rows >= low) & (rows < low + _POSITIONS))
        values = rows[inside] - low
        repeated = np.zeros(len(rows), np.bool_)
        repeated[inside] = True
        repeated[inside[np.unique(values, return_index=True)[1]]] = False
        repeated[inside] |= seen[values]
        seen[values] = True
        return repeated

    return _count_rows(index, find_repeats)


def _count_rows(
    index: AnyColumn,
    find: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
) -> tuple[int, int]:
    """Returns how many rows ``find`` marks and the first of them, or (0, -1)."""
    count = 0
    first = -1
    for start in range(0, len(index), _ROWS):
        marked = np.flatnonzero(find(index[start : start + _ROWS]))
        if marked.size and not count:
            first = start + int(marked[0])
        count += marked.size
    return count, first
