"""Statistics over the columns (classes, numbers, image sizes) and the records of a dataset.

Columns are read about a million rows at a time, so memory does not grow with the dataset. All
records of a small dataset are read, and an evenly spread subset of a large one, so that a dataset
of 10 million samples takes seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._store.column_file import AnyColumn
from fastload._store.dataset import Dataset
from fastload._store.fields import Field
from fastload._store.jpeg_header import JpegHeader, read_header
from fastload._store.record import CODEC_NAMES, JPEG, RESTART_INDEX, Part, shown_size
from fastload.errors import BadImage, StoreError

_ROWS_AT_A_TIME = 1 << 20
Ints = NDArray[np.int64]
LIMIT = 2000  # records to scan
Tick = Callable[[int, int], None]  # called with (records done, total)
# According to the nvJPEG documentation, section 1.5; 4:1:0 and 4:1:1 are not supported.
_ENGINE_SAMPLING = ("444", "422", "420", "440", "gray")


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
    for rows in _pieces(dataset.column_rows(field.name)):
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
    for rows in _pieces(dataset.column_rows(field.name)):
        valid = rows[~field.kind.is_missing(rows)]
        missing += len(rows) - len(valid)
        if len(valid):
            least = min(least, valid.min())
            most = max(most, valid.max())
            total += float(valid.astype(np.float64).sum())
            count += len(valid)
    return Numbers(field.name, float(least), float(most), total / count, missing) if count else None


def sizes_of(field: str, widths: AnyColumn, heights: AnyColumn) -> Sizes | None:
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


def _pieces(column: AnyColumn) -> Iterator[NDArray[Any]]:
    starts = range(0, len(column), _ROWS_AT_A_TIME)
    return (column[start : start + _ROWS_AT_A_TIME] for start in starts)


@dataclass(slots=True)
class RecordFacts:
    """Counts over the scanned records. Every image of a list field counts."""

    n_records: int = 0
    all_records: bool = True  # False: an evenly spread subset
    n_images: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    coding: Counter[str] = field(default_factory=Counter)  # of JPEGs: baseline, progressive ...
    subsampling: Counter[str] = field(default_factory=Counter)  # of JPEGs
    channels: Counter[int] = field(default_factory=Counter)
    bits: Counter[int] = field(default_factory=Counter)  # per channel
    # By field: (width, height) after EXIF orientation
    sizes: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    to_orient: int = 0  # images whose EXIF orientation is applied when they are loaded
    indexed: int = 0  # images with a restart index
    image_bytes: int = 0
    record_bytes: list[int] = field(default_factory=list)
    values: Counter[str] = field(default_factory=Counter)  # by field: records with a value
    # By field: items of lists, rows of boxes and points
    items: Counter[str] = field(default_factory=Counter)
    engine: int = 0  # images that the JPEG engine of a GPU can decode
    # Reasons why it cannot decode the others
    engine_refusals: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)


def spread(n: int, limit: int) -> NDArray[np.int64]:
    """At most ``limit`` evenly spread numbers of 0..n-1, including both ends."""
    return (
        np.arange(n)
        if n <= limit
        else np.unique(np.linspace(0, n - 1, limit).round().astype(np.int64))
    )


def scan_records(dataset: Dataset, *, limit: int = LIMIT, tick: Tick | None = None) -> RecordFacts:
    """Reads and verifies records and their image headers. Damaged records are listed."""
    facts = RecordFacts(all_records=len(dataset) <= limit)
    ids = spread(len(dataset), limit).tolist()
    for done, sample_id in enumerate(ids, 1):
        if tick is not None:
            tick(done, len(ids))
        try:
            parts = dataset.parts(sample_id)
        except StoreError as error:
            facts.damaged.append(str(error))
            continue
        facts.n_records += 1
        facts.record_bytes.append(sum(len(part.data) for part in parts))
        seen: set[str] = set()
        for part in parts:
            if part.field >= len(dataset.fields):
                continue
            each = dataset.fields[part.field]
            if part.role == RESTART_INDEX:
                facts.indexed += 1
                continue
            seen.add(each.name)
            facts.items[each.name] += _rows(each, part)
            if each.kind.is_image:
                _count_image(facts, each, part, sample_id)
        facts.values.update(seen)
    return facts


def engine_refusal(header: JpegHeader) -> str:
    """Why the JPEG engine of a GPU cannot decode this file; '' if it can.

    It decodes baseline JPEG with a single scan, except 4:1:1 and 4:1:0.
    """
    if header.sof != 0xC0 or header.precision != 8:
        return "progressive" if header.progressive else "not baseline"
    if header.n_scans != 1:
        return "several scans"
    return "" if header.subsampling in _ENGINE_SAMPLING else sampling_name(header.subsampling)


def sampling_name(subsampling: str) -> str:
    """``"420"`` → ``"4:2:0"``."""
    return ":".join(subsampling) if subsampling.isdecimal() else subsampling


def coding_name(header: JpegHeader) -> str:
    if header.arithmetic:
        return "arithmetic"
    if header.progressive:
        return "progressive"
    return "baseline" if header.sof == 0xC0 else "extended"


def _rows(each: Field, part: Part) -> int:
    """The number of rows of boxes and points, which is stored at byte 8; 1 for other kinds."""
    if each.kind.row_widths and not each.list and len(part.data) >= 16:
        return int.from_bytes(part.data[8:16], "little")
    return 1


def _count_image(facts: RecordFacts, each: Field, part: Part, sample_id: int) -> None:
    facts.n_images += 1
    facts.image_bytes += len(part.data)
    facts.codecs[CODEC_NAMES[part.codec]] += 1
    facts.channels[part.channels] += 1
    facts.bits[part.bits] += 1
    facts.sizes.setdefault(each.name, Counter())[shown_size(part)] += 1
    facts.to_orient += part.orientation > 1
    if part.codec != JPEG:
        facts.engine_refusals[CODEC_NAMES[part.codec]] += 1
        return
    try:
        header = read_header(memoryview(part.data))
    except BadImage as error:
        facts.damaged.append(f"sample {sample_id}, field {each.name!r}: {error.why}")
        return
    facts.coding[coding_name(header)] += 1
    facts.subsampling[sampling_name(header.subsampling)] += 1
    refusal = engine_refusal(header)
    facts.engine += not refusal
    if refusal:
        facts.engine_refusals[refusal] += 1
