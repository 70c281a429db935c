"""One shard while it is being packed: its records, its blocks, its rows of the columns, and what happened on the way."""

from __future__ import annotations

from collections.abc import Sequence
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
    """``encode_record``, in one native call where that can be."""
    module = core()
    record: bytes | None = module.encode_record(sample_id, parts) if module is not None else None
    return encode_record(sample_id, parts) if record is None else record


class OpenShard:
    """Takes records in order; ``publish`` ends it, ``abort`` drops what was not published. The file appears with the first record."""

    def __init__(
        self, dest: Path, number: int, first: int, fields: Sequence[Field], options: PackOptions
    ) -> None:
        self.dest, self.number, self.first, self.options = dest, number, first, options
        self.events: list[Event] = []
        self.records = 0
        self._writer: ShardWriter | None = None
        self._bytes_in = self._bytes_out = self._block_bytes = 0
        self._blocks: list[tuple[int, int]] = []
        self._fields = dict(enumerate(fields))
        self._missing: dict[str, float] = {}
        for each in fields:
            if not each.list:
                self._missing |= each.kind.column_values(each, None)
        self._rows: dict[str, list[float]] = {
            name: [] for name in expected_columns(tuple(fields)) if name != "_blocks"
        }

    @property
    def next_id(self) -> int:
        """The number that the next sample gets."""
        return self.first + self.records

    def is_full_for(self, n_bytes: int) -> bool:
        """A record of this size belongs into the next shard."""
        return self.records > 0 and self._bytes_out + n_bytes > self.options.shard_size

    def add(self, row: int, encoded: EncodedSample, record: bytes) -> None:
        """Writes the record of the source's sample number ``row``."""
        if self._writer is None:
            self._writer = ShardWriter(self.dest, self.number, first=self.first)
        self._writer.add(self.next_id, record)
        if not self._blocks or self._block_bytes + len(record) > self.options.block_size:
            self._blocks.append((self.next_id, 0))
            self._block_bytes = 0
        first, count = self._blocks[-1]
        self._blocks[-1] = (first, count + 1)
        self._block_bytes += len(record)
        self._bytes_out += len(record)
        self._bytes_in += encoded.bytes_in
        self._take_row(row, encoded.parts)
        self.events += [Event("converted", encoded.source, why) for why in encoded.converted]
        self.records += 1

    def publish(self, state: PackState, next_position: int) -> Done:
        """Publishes the shard, then remembers that; in this order, so what is remembered is always there."""
        if self._writer is None:
            raise RuntimeError("a shard without records cannot be published")
        done = Done(
            self._writer.publish(),
            next_position,
            self._blocks,
            self.events,
            self._bytes_in,
            self._bytes_out,
        )
        dtypes = expected_columns(tuple(self._fields.values()))
        state.record(
            self.number,
            done,
            {name: np.array(values, dtypes[name]) for name, values in self._rows.items()},
        )
        return done

    def abort(self) -> None:
        """Drops what was not published; harmless otherwise."""
        if self._writer is not None:
            self._writer.abort()

    def _take_row(self, row: int, parts: Sequence[Part]) -> None:
        values: dict[str, float] = {**self._missing, "_source_index": row}
        for part in parts:
            each = self._fields.get(part.field)
            if each is None or each.list or part.role != DATA:
                continue
            values |= each.kind.column_values(each, part)
        for name, column in self._rows.items():
            column.append(values[name])
