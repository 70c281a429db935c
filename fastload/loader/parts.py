"""The records of a batch: read, and their part tables as one numpy array, so that Python costs about 2 us a sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import CorruptShard
from fastload.native import core
from fastload.store.dataset import Dataset
from fastload.store.record import DATA, HEADER, RESTART_INDEX, ROW, SOURCE_FIELD, Part, RecordError, parse_record, salvage_source

# One row of a part table, and the place in the batch of the record it stands in. Kept equal to native/record.h by a test.
PART_ROW = np.dtype([
    ("sample", "<u4"), ("offset", "<u4"), ("length", "<u4"), ("field", "<u2"), ("item", "<u2"), ("width", "<u2"), ("height", "<u2"),
    ("interval", "<u2"), ("codec", "u1"), ("role", "u1"), ("channels", "u1"), ("bits", "u1"), ("orientation", "u1"), ("reserved", "u1")])


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The records of some samples, in place, and all rows of their part tables."""

    ids: NDArray[np.int64]
    records: Sequence[memoryview]           # views into the shards; valid while the dataset lives
    rows: NDArray[np.void]                  # PART_ROW, by sample, field, item, role
    faults: dict[int, CorruptShard]         # place in the batch → what is wrong with its record
    held: memoryview                        # whoever has this keeps the shards mapped
    _of: dict[tuple[int, int], NDArray[np.void]] = dataclasses.field(default_factory=dict)

    def of(self, field: int, role: int = DATA) -> NDArray[np.void]:
        """The rows of one field, sorted by sample and item; found once, asked for several times."""
        rows = self._of.get((field, role))
        if rows is None:
            rows = self._of[field, role] = self.rows[(self.rows["field"] == field) & (self.rows["role"] == role)]
        return rows

    def check(self, place: int) -> None:
        """Compares the checksum of one record; raises RecordError."""
        parse_record(self.records[place], int(self.ids[place]))

    def source(self, place: int) -> str:
        """The original path of a sample; '' if it was not kept."""
        rows = self.rows[(self.rows["field"] == SOURCE_FIELD) & (self.rows["sample"] == place)]
        if not len(rows):
            return ""
        offset, length = int(rows["offset"][0]), int(rows["length"][0])
        return bytes(self.records[place][offset:offset + length]).decode("utf-8", "replace")

    def parts(self, field: int) -> list[list[Part]]:
        """A field's parts, sample by sample, to be decoded in Python."""
        found: list[list[Part]] = [[] for _ in self.records]
        for row in self.of(field).tolist():
            sample, offset, length, number, item, width, height, interval, codec, role, channels, bits, orientation, _ = row
            data = self.records[sample][offset:offset + length]
            found[sample].append(Part(number, data, item, codec, role, channels, bits, width, height, interval, orientation))
        return found


def read_parts(dataset: Dataset, ids: NDArray[np.int64], *, check_crc: bool) -> BatchParts:
    """Reads records. Without ``check_crc`` the checksums are left to the decode threads: whoever uses other parts asks for it."""
    records, faults = _read(dataset, ids)
    module = core()
    if module is None:
        rows, wrong = _rows_in_python(records, ids)
    else:
        data, wrong = module.part_rows(records, np.ascontiguousarray(ids, np.int64), check_crc)
        rows = np.frombuffer(data, PART_ROW)
    for place, why in wrong.items():
        if place not in faults:
            faults[place] = damaged(dataset, int(ids[place]), records[place], why)
    return BatchParts(ids, records, rows, faults, _holding(dataset))


def _read(dataset: Dataset, ids: NDArray[np.int64]) -> tuple[list[memoryview], dict[int, CorruptShard]]:
    """The records, shard by shard: one call each instead of one a sample, 8 us a sample less."""
    records: list[memoryview] = [_NOTHING] * len(ids)
    faults: dict[int, CorruptShard] = {}
    shards = np.searchsorted(dataset.firsts, ids, side="right")
    for shard in np.unique(shards).tolist():
        places = np.flatnonzero(shards == shard)
        try:
            found = dataset.reader(int(ids[places[0]])).get_many(ids[places])
        except CorruptShard:
            found = None
        for number, place in enumerate(places.tolist()):
            try:
                records[place] = found[number] if found is not None else dataset.reader(int(ids[place])).get(int(ids[place]))
            except CorruptShard as error:
                faults[place] = error
    return records, faults


_NOTHING = memoryview(b"")


def damaged(dataset: Dataset, sample_id: int, record: memoryview, why: str) -> CorruptShard:
    """The error for a record: it names sample, shard and, where that can still be read, the original file."""
    source = salvage_source(record)
    return dataset.reader(sample_id).fault(sample_id, why + (f"; its original file seems to be {source}" if source else ""))


def _rows_in_python(records: Sequence[memoryview], ids: NDArray[np.int64]) -> tuple[NDArray[np.void], dict[int, str]]:
    """The same without the native core; the checksum is always checked."""
    found: list[tuple[int, ...]] = []
    wrong: dict[int, str] = {}
    for place, (record, sample_id) in enumerate(zip(records, ids.tolist(), strict=True)):
        try:
            parts = parse_record(record, sample_id)
        except RecordError as error:
            wrong[place] = str(error)
            continue
        offsets = (row[6] for row in ROW.iter_unpack(record[HEADER.size:HEADER.size + ROW.size * len(parts)]))
        for part, offset in zip(parts, offsets, strict=True):
            found.append((place, offset, len(part.data), part.field, part.item, part.width, part.height, part.interval, part.codec,
                          part.role, part.channels, part.bits, part.orientation, 0))
    return np.array(found, PART_ROW), wrong


def shown_sizes(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """(height, width) of images as they are shown: orientations 5 to 8 swap the stored sides."""
    turned = rows["orientation"] >= 5
    height, width = rows["height"].astype(np.int64), rows["width"].astype(np.int64)
    return np.stack([np.where(turned, width, height), np.where(turned, height, width)], axis=1)


def restart_index_of(parts: BatchParts, field: int, images: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(offset, entries) of the restart-segment index of each image row; 0 entries where there is none."""
    index = parts.of(field, RESTART_INDEX)
    offset, count = np.zeros(len(images), np.int64), np.zeros(len(images), np.int64)
    if len(index):
        key = images["sample"].astype(np.int64) << 16 | images["item"]
        place = np.searchsorted(key, index["sample"].astype(np.int64) << 16 | index["item"])
        offset[place], count[place] = index["offset"], index["length"] // 4
    return offset, count


class _Held(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that hold on to a dataset: lmdb's own views do not keep their map, and reading one later ends the process."""

    dataset: Dataset


def _holding(dataset: Dataset) -> memoryview:
    held = _Held((1,), np.uint8)
    held.dataset = dataset
    return memoryview(held)             # type: ignore[arg-type]   # numpy tells mypy of buffers from Python 3.12 on
