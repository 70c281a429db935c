"""Reads the records of a batch in one native call, with their part tables as one NumPy array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._store.dataset import Dataset
from fastload._store.record import (
    DATA,
    PART_ROW,
    RESTART_INDEX,
    SOURCE_FIELD,
    Part,
    RecordHeader,
    parse_record,
    part_offsets,
    salvage_source,
)
from fastload.errors import CorruptShard, RecordError

if TYPE_CHECKING:
    from fastload import _core


@dataclass(slots=True)
class BatchRecords:
    """The records of some samples as views, and all rows of their part tables."""

    ids: NDArray[np.int64]
    views: Sequence[memoryview]  # the records, read completely when they are first indexed
    table: NDArray[np.void]  # like ``rows``, but ``sample`` starts at ``first``
    starts: NDArray[np.int64]  # the first row of each sample, and the end
    rows_per_sample: int  # 0 unless all samples have the same fields, items and roles
    faults: dict[int, CorruptShard]  # place in the batch -> error of its record
    first: int = 0
    _rows: NDArray[np.void] | None = None
    _by_field: dict[tuple[int, int], NDArray[np.void]] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> NDArray[np.void]:
        """PART_ROW, sorted by sample, field, item, role.

        Computed on demand, because NumPy copies structured rows field by field.
        """
        if not self.first:
            return self.table
        if self._rows is None:
            self._rows = self.table.copy()
            self._rows["sample"] -= self.first
        return self._rows

    def part_rows(self, field: int, role: int = DATA) -> NDArray[np.void]:
        """Returns the rows of one field, sorted by sample and item. The result is cached."""
        found = self._by_field.get((field, role))
        if found is None:
            rows = self.rows
            n = self.rows_per_sample
            some = rows[:n] if n else rows
            # Indices are faster than a boolean mask on rows of 28 bytes.
            which = np.flatnonzero((some["field"] == field) & (some["role"] == role))
            found = rows.reshape(-1, n)[:, which].reshape(-1) if n else rows.take(which)
            self._by_field[field, role] = found
        return found

    def slice(self, first: int, last: int) -> BatchRecords:
        """Returns one of several batches that were read together without faults."""
        starts = self.starts[first : last + 1]
        return BatchRecords(
            self.ids[first:last],
            self.views[first:last],
            self.table[starts[0] : starts[-1]],
            starts - starts[0],
            self.rows_per_sample,
            {},
            self.first + first,
        )

    def verify(self, place: int) -> None:
        """Raises RecordError if the checksum of a record is wrong."""
        header = RecordHeader.parse(self.views[place])
        header.check(self.views[place], header.sample_id)  # reading it compared the id

    def source(self, place: int) -> str:
        """Returns the original path of a sample; "" if it was not packed."""
        rows = self.rows[self.starts[place] : self.starts[place + 1]]
        rows = rows[rows["field"] == SOURCE_FIELD]
        if not len(rows):
            return ""
        offset = int(rows["offset"][-1])  # the last one, as in ``source_of``
        length = int(rows["length"][-1])
        return bytes(self.views[place][offset : offset + length]).decode("utf-8", "replace")

    def part(self, row: tuple[int, ...]) -> Part:
        """Returns the part that a row of ``rows`` describes."""
        sample, offset, length, field, item, width, height, interval = row[:8]
        codec, role, channels, bits, orientation, _ = row[8:]
        data = self.views[sample][offset : offset + length]
        return Part(
            field, data, item, codec, role, channels, bits, width, height, interval, orientation
        )

    def field_parts(self, field: int) -> list[list[Part]]:
        """Returns the parts of a field for each sample."""
        found: list[list[Part]] = [[] for _ in self.views]
        for row in self.part_rows(field).tolist():
            found[row[0]].append(self.part(row))
        return found


def read_records(
    dataset: Dataset,
    ids: NDArray[np.int64],
    *,
    check_crc: bool,
    cache: _core.ChunkCache | None = None,
) -> BatchRecords:
    """Reads records. Without ``check_crc``, the decode threads verify the checksums.

    ``cache`` is for small records that are read in an order with locality.
    """
    module = core()
    if module is None:
        return _read_in_python(dataset, ids)
    ids = np.ascontiguousarray(ids, np.int64)
    files, shards, keys, closed = dataset.files(ids)
    found = module.read_records(files, shards, keys, check_crc, cache)
    faults = {
        place: closed.get(int(shards[place]))
        or damaged(dataset, int(ids[place]), found.records[place], why)
        for place, why in found.faults.items()
    }
    return BatchRecords(
        ids,
        found.records,
        np.frombuffer(found.rows, PART_ROW),
        np.frombuffer(found.starts, np.int64),
        found.rows_per_sample,
        faults,
    )


def damaged(dataset: Dataset, sample_id: int, record: memoryview, why: str) -> CorruptShard:
    """Returns an error that names sample, shard and, if readable, the original file."""
    source = salvage_source(record)
    return dataset.reader(sample_id).fault(
        sample_id, why + (f"; the original file was probably {source}" if source else "")
    )


def _read_in_python(dataset: Dataset, ids: NDArray[np.int64]) -> BatchRecords:
    """Does the same without the native core; always verifies the checksums."""
    views: list[memoryview] = []
    found: list[tuple[int, ...]] = []
    starts = [0]
    faults: dict[int, CorruptShard] = {}
    for place, sample_id in enumerate(ids.tolist()):
        record = memoryview(b"")
        try:
            reader = dataset.reader(sample_id)
            record = reader.get(sample_id)
            found += _rows_of(record, reader.shard.key(sample_id), place)
        except CorruptShard as error:
            faults[place] = error
        except RecordError as error:
            faults[place] = damaged(dataset, sample_id, record, str(error))
        views.append(record)
        starts.append(len(found))
    return BatchRecords(
        ids, views, np.array(found, PART_ROW), np.array(starts, np.int64), 0, faults
    )


def _rows_of(record: memoryview, key: int, place: int) -> Iterator[tuple[int, ...]]:
    parts = parse_record(record, key)
    for part, offset in zip(parts, part_offsets(parts), strict=True):
        yield (
            place,
            offset,
            len(part.data),
            part.field,
            part.item,
            part.width,
            part.height,
            part.interval,
            part.codec,
            part.role,
            part.channels,
            part.bits,
            part.orientation,
            0,
        )


def shown_sizes(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """Returns (height, width) after EXIF rotation: orientations 5 to 8 swap the stored sides."""
    swapped = rows["orientation"] >= 5
    height = rows["height"].astype(np.int64)
    width = rows["width"].astype(np.int64)
    return np.stack([np.where(swapped, width, height), np.where(swapped, height, width)], axis=1)


def restart_index_of(
    records: BatchRecords, field: int, images: NDArray[np.void]
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Returns offset and number of entries of the restart index of each image (0 without one)."""
    index = records.part_rows(field, RESTART_INDEX)
    if records.rows_per_sample and len(index) == len(images):
        return index["offset"], index["length"] // 4
    offset = np.zeros(len(images), np.int64)
    count = np.zeros(len(images), np.int64)
    if len(index):
        key = images["sample"].astype(np.int64) << 16 | images["item"]
        place = np.searchsorted(key, index["sample"].astype(np.int64) << 16 | index["item"])
        offset[place] = index["offset"]
        count[place] = index["length"] // 4
    return offset, count
