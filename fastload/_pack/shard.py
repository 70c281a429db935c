"""The shard being written. It owns its records, blocks, column rows and events.

::

    EMPTY ──add──► WRITING ──publish──► PUBLISHED
      └────────────────┴──abort───────► ABORTED

The first record creates the file under a temporary name. ``publish`` renames the file and then
records it in the pack's state, in this order, so a recorded shard always exists. After ``abort``,
nothing unfinished is left on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import numpy as np

from fastload._common.native import core
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample
from fastload._pack.state import Done, Event, PackState
from fastload._store.fields import Field
from fastload._store.manifest import expected_columns
from fastload._store.record import DATA, Part, encode_record
from fastload._store.writer import ShardWriter


def as_record(sample_id: int, parts: Sequence[Part]) -> bytes:
    """``encode_record`` in one native call if possible."""
    module = core()
    record: bytes | None = module.encode_record(sample_id, parts) if module is not None else None
    return encode_record(sample_id, parts) if record is None else record


class ShardStage(Enum):
    EMPTY = "empty"
    WRITING = "writing"
    PUBLISHED = "published"
    ABORTED = "aborted"


class ShardBuilder:
    """Collects records in order until ``publish`` or ``abort``."""

    def __init__(
        self, dest: Path, number: int, first: int, fields: Sequence[Field], options: PackOptions
    ) -> None:
        self.number = number
        self.first = first
        self.stage = ShardStage.EMPTY
        self.events: list[Event] = []
        self.records = 0
        self._dest = dest
        self._options = options
        self._fields = tuple(fields)
        self._writer: ShardWriter | None = None
        self._bytes_in = 0
        self._bytes_out = 0
        self._block_bytes = 0
        self._blocks: list[tuple[int, int]] = []
        self._missing: dict[str, float] = {}
        for each in fields:
            if not each.list:
                self._missing |= each.kind.column_values(each, None)
        self._dtypes = expected_columns(self._fields)
        self._rows: dict[str, list[float]] = {
            name: [] for name in self._dtypes if name != "_blocks"
        }

    @property
    def next_id(self) -> int:
        """The id of the next sample."""
        return self.first + self.records

    def is_full_for(self, n_bytes: int) -> bool:
        """Returns whether a record of this size belongs in the next shard."""
        return self.records > 0 and self._bytes_out + n_bytes > self._options.shard_size

    def add(self, row: int, encoded: EncodedSample, record: bytes) -> None:
        """Writes the record of source sample ``row``."""
        if self.stage is ShardStage.EMPTY:
            self._writer = ShardWriter(self._dest, self.number, first=self.first)
            self.stage = ShardStage.WRITING
        self._writing().add(self.next_id, record)
        if not self._blocks or self._block_bytes + len(record) > self._options.block_size:
            self._blocks.append((self.next_id, 0))
            self._block_bytes = 0
        first, count = self._blocks[-1]
        self._blocks[-1] = (first, count + 1)
        self._block_bytes += len(record)
        self._bytes_out += len(record)
        self._bytes_in += encoded.bytes_in
        self._add_row(row, encoded.parts)
        self.events += [Event("converted", encoded.source, why) for why in encoded.converted]
        self.records += 1

    def publish(self, state: PackState, next_position: int) -> Done:
        """Publishes the shard and records it in ``state``. Call ``abort`` if this raises."""
        done = Done(
            self._writing().publish(),
            next_position,
            self._blocks,
            self.events,
            self._bytes_in,
            self._bytes_out,
        )
        columns = {
            name: np.array(values, self._dtypes[name]) for name, values in self._rows.items()
        }
        state.record(self.number, done, columns)
        self.stage = ShardStage.PUBLISHED
        return done

    def abort(self) -> None:
        """Discards unpublished data. Has no effect after ``publish`` or a previous ``abort``."""
        if self._writer is not None:
            self._writer.abort()
        if self.stage is not ShardStage.PUBLISHED:
            self.stage = ShardStage.ABORTED

    def _writing(self) -> ShardWriter:
        if self.stage is not ShardStage.WRITING or self._writer is None:
            raise RuntimeError(f"shard {self.number} is {self.stage.value}, expected writing")
        return self._writer

    def _add_row(self, row: int, parts: Sequence[Part]) -> None:
        values: dict[str, float] = {**self._missing, "_source_index": row}
        for part in parts:
            if part.field >= len(self._fields) or part.role != DATA:
                continue
            each = self._fields[part.field]
            if not each.list:
                values |= each.kind.column_values(each, part)
        for name, column in self._rows.items():
            column.append(values[name])
