"""The part being written: its records, blocks, column rows, properties and events.

A part becomes one shard. It becomes none if all its samples are bad, and several if its records
take more than ``MAX_GROWTH`` times the shard size. A file has another name until it is complete.
``publish`` renames it and then records the part in the pack's state, in this order, so a recorded
shard always exists.

With a journal (journal.py), an unfinished part stays in the pack's state, and ``take_over``
continues it: it reads each record back, checks it and adds it again, so the result cannot differ
from that of an uninterrupted run. Without a journal, ``abort`` deletes an unfinished part.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fastload._common.native import core
from fastload._pack.journal import Journal, Packed, Skipped
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample
from fastload._pack.state import Done, Event, PackState
from fastload._store.fields import Field
from fastload._store.manifest import Shard, expected_columns
from fastload._store.properties import PropertyCounter
from fastload._store.record import CRC_FROM, DATA, Part, encode_record, parse_record
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import RecordError

MAX_GROWTH = 2  # largest size of a shard, in shard sizes


def as_record(key: int, parts: Sequence[Part]) -> bytes:
    """``encode_record`` in one native call if possible."""
    module = core()
    record: bytes | None = module.encode_record(key, parts) if module is not None else None
    return encode_record(key, parts) if record is None else record


class PartBuilder:
    """Collects the records of one part in order until ``publish`` or ``abort``."""

    def __init__(
        self,
        dest: Path,
        number: int,
        positions: range,
        fields: Sequence[Field],
        options: PackOptions,
        *,
        journal: Journal | None = None,
    ) -> None:
        self.number = number
        self.positions = positions
        self.events: list[Event] = []
        self.records = 0
        self.skipped = 0
        self._dest = dest
        self._options = options
        self._journal = journal
        self._writer: ShardWriter | None = None
        # ThreadPoolExecutor does not wait for a thread whose start was interrupted by Ctrl-C, so
        # `abort` may be called while `publish` runs.
        self._ending = threading.RLock()
        # Records of an earlier run that are still to be added; None except in ``take_over``.
        self._earlier: Iterator[bytes] | None = None
        self._shard_bytes = 0  # of the records in the current shard
        self._shards: list[Shard] = []  # complete
        self.bytes_in = 0
        self.bytes_out = 0
        self._block_bytes = 0
        self._block_split = 0
        self._blocks: list[tuple[int, int]] = []  # first record in the part, number of records
        self._properties = PropertyCounter(fields)
        self._in_columns = {i: each for i, each in enumerate(fields) if not each.list}
        self._missing: dict[str, float] = {}
        for each in self._in_columns.values():
            self._missing |= each.kind.column_values(each, None)
        self._dtypes = expected_columns(tuple(fields))
        self._rows: dict[str, list[float]] = {
            name: [] for name in self._dtypes if name != "_blocks"
        }

    @property
    def next_key(self) -> int:
        """The key of the next record."""
        return self.positions.start + self.records

    @property
    def remaining(self) -> range:
        """The positions whose samples are neither added nor skipped."""
        return self.positions[self.records + self.skipped :]

    def take_over(self, rows: Iterable[int]) -> Iterator[int]:
        """Adds the samples that an earlier run left, up to the first missing or damaged one.

        ``rows`` are those of the part. Yields the row of each sample.
        """
        if self._journal is None:
            return
        self._earlier = iter(())
        for row, sample in zip(rows, self._journal.earlier(), strict=False):
            if not self._add_again(row, sample):
                break
            yield row
        self._journal.commit()
        self._earlier = None

    def _add_again(self, row: int, sample: Packed | Skipped) -> bool:
        """Adds a sample of the journal. Returns whether it is the next one and intact."""
        if sample.row != row:
            return False
        if isinstance(sample, Skipped):
            self.skip(row, Event("skipped", sample.source, sample.why))
            return True
        self._writer_for(sample.size)
        record = next(self._earlier or iter(()), b"")
        if len(record) != sample.size or record[4:CRC_FROM].hex() != sample.crc:
            return False
        try:
            parts = parse_record(memoryview(record), self.next_key)
        except RecordError:
            return False
        encoded = EncodedSample(
            parts, sample.source, sample.bytes_in, sample.converted, sample.split
        )
        self.add(row, encoded, record)
        return True

    def skip(self, row: int, event: Event) -> None:
        """Counts source sample ``row`` as bad."""
        self.events.append(event)
        if self._journal is not None:
            self._journal.add(Skipped(row, event.source, event.why))
        self.skipped += 1

    def add(self, row: int, encoded: EncodedSample, record: bytes) -> None:
        """Writes the record of source sample ``row``."""
        writer = self._writer_for(len(record))
        writer.add(self.next_key, record)
        if (
            not self._shard_bytes  # a block never spans two shards
            or self._block_bytes + len(record) > self._options.block_size
            or encoded.split != self._block_split
        ):
            self._blocks.append((self.records, 0))
            self._block_bytes = 0
            self._block_split = encoded.split
        first, count = self._blocks[-1]
        self._blocks[-1] = (first, count + 1)
        self._block_bytes += len(record)
        self._shard_bytes += len(record)
        self.bytes_out += len(record)
        self.bytes_in += encoded.bytes_in
        self._add_row(row, encoded.parts)
        self._properties.add(encoded.parts)
        self.events += [Event("converted", encoded.source, why) for why in encoded.converted]
        if self._journal is not None:
            self._journal.add(Packed.of(row, encoded, record), len(record))
        self.records += 1

    def publish(self, state: PackState) -> Done:
        """Publishes the shard and records the part in ``state``, or discards it on failure."""
        with self._ending:
            return self._publish(state)

    def _publish(self, state: PackState) -> Done:
        try:
            state.check_running()
            self._end_shard()
            done = Done(
                (self.positions.start, self.positions.stop),
                self._shards,
                self._blocks,
                list(self._properties.found),
                self.events,
                self.bytes_in,
                self.bytes_out,
            )
            state.record(
                self.number,
                done,
                {name: np.array(values, self._dtypes[name]) for name, values in self._rows.items()},
            )
        except BaseException:
            self.abort()
            raise
        if self._journal is not None:
            self._journal.remove()
        return done.summary()

    def abort(self) -> None:
        """Ends an unpublished part. Has no effect after ``publish`` or a previous ``abort``.

        With a journal, its samples are kept for the next run.
        """
        with self._ending:
            self._abort()

    def _abort(self) -> None:
        if self._journal is not None and self._earlier is None:
            # On a full disk, the samples that were written before are kept.
            with contextlib.suppress(OSError):
                if self._writer is not None:
                    self._writer.write_unfinished()
                self._journal.flush()
        if self._writer is not None:
            self._writer.abort()
        if self._journal is not None:
            self._journal.close()

    def _writer_for(self, n_bytes: int) -> ShardWriter:
        """Returns the writer of the next record, after starting the next shard if necessary."""
        if (
            self._shard_bytes
            and self._shard_bytes + n_bytes > MAX_GROWTH * self._options.shard_size
        ):
            self._end_shard()
        if self._writer is None:
            self._writer = self._new_writer()
        return self._writer

    def _new_writer(self) -> ShardWriter:
        name = shard_name(self.number, len(self._shards))
        if self._journal is None:
            return ShardWriter(self._dest, name, base=self.next_key)
        unfinished = self._journal.path.with_name(name)
        if self._earlier is None:
            unfinished.unlink(missing_ok=True)
        elif not unfinished.exists() and (self._dest / name).exists():
            (self._dest / name).rename(unfinished)  # published, but the part was not recorded
        writer = ShardWriter(self._dest, name, base=self.next_key, unfinished=unfinished)
        if self._earlier is not None:
            self._earlier = writer.earlier_records()
        return writer

    def _end_shard(self) -> None:
        if self._writer is not None:
            first = self._writer.base - self.positions.start
            self._shards.append(self._writer.publish(first))
            self._writer = None
            self._shard_bytes = 0

    def _add_row(self, row: int, parts: Sequence[Part]) -> None:
        values: dict[str, float] = {**self._missing, "_source_index": row}
        for part in parts:
            each = self._in_columns.get(part.field)
            if each is not None and part.role == DATA:
                values |= each.kind.column_values(each, part)
        for name, column in self._rows.items():
            column.append(values[name])
