"""Statistics over the columns of a dataset: classes, numbers and image sizes of all samples.

Columns are read about a million rows at a time, so memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._store.dataset import Dataset
from fastload._store.fields import Field

_ROWS_AT_A_TIME = 1 << 20
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """The number of samples in each class of an int field."""

    field: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    missing: int  # samples without a class

    def ranked(self) -> list[tuple[str, int]]:
        """Names and counts, most frequent first. Equal counts keep the class order."""
        return sorted(zip(self.names, self.counts, strict=True), key=lambda row: -row[1])


@dataclass(frozen=True, slots=True)
class Numbers:
    """The range of an int or float field without classes."""

    field: str
    least: float
    most: float
    mean: float
    missing: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Image sizes (width, height) of a field after its EXIF orientation is applied.

    ``smallest``, ``median`` and ``largest`` are by area.
    """

    field: str
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[tuple[tuple[int, int], int], ...]  # the most frequent sizes and their counts
    n_sizes: int
    n_images: int


def class_counts(dataset: Dataset, field: Field) -> ClassCounts:
    counts = np.zeros(len(field.classes), np.int64)
    missing = 0
    for rows in _pieces(dataset.column(field.name)):
        valid = rows[(rows >= 0) & (rows < len(counts))]
        counts += np.bincount(valid, minlength=len(counts))
        missing += len(rows) - len(valid)
    return ClassCounts(field.name, field.classes, tuple(counts.tolist()), missing)


def numbers(dataset: Dataset, field: Field) -> Numbers | None:
    """The range of a numeric field; None if no sample has a value."""
    least = np.inf
    most = -np.inf
    total = 0.0
    count = 0
    missing = 0
    for rows in _pieces(dataset.column(field.name)):
        valid = rows[~field.kind.is_missing(rows)]
        missing += len(rows) - len(valid)
        if len(valid):
            least = min(least, valid.min())
            most = max(most, valid.max())
            total += float(valid.astype(np.float64).sum())
            count += len(valid)
    return Numbers(field.name, float(least), float(most), total / count, missing) if count else None


def sizes_of(field: str, widths: NDArray[np.uint16], heights: NDArray[np.uint16]) -> Sizes | None:
    """Summarizes the width and height columns of an image field, without missing images."""
    keys = np.zeros(0, np.int64)
    counts = np.zeros(0, np.int64)
    for wide, high in zip(_pieces(widths), _pieces(heights), strict=True):
        found, times = np.unique(wide.astype(np.int64) << 16 | high, return_counts=True)
        keys, inverse = np.unique(np.concatenate((keys, found)), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate((counts, times))).astype(np.int64)
    return summarize(field, keys[keys > 0] >> 16, keys[keys > 0] & 0xFFFF, counts[keys > 0])


def summarize(field: str, widths: Ints, heights: Ints, counts: Ints) -> Sizes | None:
    """Summarizes sizes that have been counted."""
    if not counts.sum():
        return None
    by_area = np.lexsort((widths, widths * heights))
    widths = widths[by_area]
    heights = heights[by_area]
    counts = counts[by_area]
    middle = int(np.searchsorted(np.cumsum(counts), (counts.sum() + 1) // 2))
    frequent = np.argsort(-counts, kind="stable")[:5]

    def size(i: int) -> tuple[int, int]:
        return int(widths[i]), int(heights[i])

    return Sizes(
        field,
        size(0),
        size(middle),
        size(-1),
        tuple((size(i), int(counts[i])) for i in frequent.tolist()),
        len(counts),
        int(counts.sum()),
    )


def _pieces(column: NDArray[Any]) -> Iterator[NDArray[Any]]:
    starts = range(0, len(column), _ROWS_AT_A_TIME)
    return (column[start : start + _ROWS_AT_A_TIME] for start in starts)
