"""Writes shards: the main loop of a pack, and the shard being written.

The main loop encodes samples in threads and adds them in packing order to a ``ShardBuilder``, which
owns its records, blocks, column rows and events::

    EMPTY ──add──► WRITING ──publish──► PUBLISHED
      └────────────────┴──abort───────► ABORTED

The first record creates the file under a temporary name. ``publish`` renames the file and then
records it in the pack's state, in this order, so a recorded shard always exists. After ``abort``,
nothing unfinished is left on disk.

A background thread publishes each full shard (sync, digest, rename, record) while the main loop
fills the next one. It publishes one shard at a time and in order, so the recorded shards are always
the beginning of the dataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import numpy as np

from fastload._common.native import core
from fastload._order.permutation import Permutation
from fastload._pack.jobs import Job, ordered_map
from fastload._pack.options import PackOptions, PackProgress
from fastload._pack.samples import EncodedSample
from fastload._pack.sources.base import AnySource
from fastload._pack.state import Done, Event, PackState
from fastload._store.fields import Field
from fastload._store.manifest import expected_columns
from fastload._store.record import DATA, Part, encode_record
from fastload._store.writer import ShardWriter
from fastload.errors import BadImage, ConfigError


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
        self._writer: ShardWriter | None = None
        self._bytes_in = 0
        self._bytes_out = 0
        self._block_bytes = 0
        self._blocks: list[tuple[int, int]] = []
        self._in_columns = {i: each for i, each in enumerate(fields) if not each.list}
        self._missing: dict[str, float] = {}
        for each in self._in_columns.values():
            self._missing |= each.kind.column_values(each, None)
        self._dtypes = expected_columns(tuple(fields))
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
        state.record(
            self.number,
            done,
            {name: np.array(values, self._dtypes[name]) for name, values in self._rows.items()},
        )
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
            each = self._in_columns.get(part.field)
            if each is not None and part.role == DATA:
                values |= each.kind.column_values(each, part)
        for name, column in self._rows.items():
            column.append(values[name])


_ORDER_CHUNK = 4096  # positions of the packing order computed at a time
# A thread takes up to 8 samples at a time, as long as their input and output fit into 2 MiB.
_CHUNK_SAMPLES = 8
_CHUNK_BYTES = 2 << 20


class ShardPublisher:
    """Publishes full shards in a background thread, one at a time and in order.

    Leaving the context finishes the shard in flight, also after an error, so that it need not be
    packed again.
    """

    def __init__(self, state: PackState) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-publish")
        self._in_flight: Future[Done] | None = None

    def submit(self, shard: ShardBuilder, next_position: int) -> None:
        """Starts to publish a shard. Call ``wait`` first: at most one shard is in flight."""
        self._in_flight = self._thread.submit(self.publish, shard, next_position)

    def finished(self) -> Iterator[Done]:
        """Yields the shard in flight if it is published."""
        if self._in_flight is not None and self._in_flight.done():
            yield from self.wait()

    def wait(self) -> Iterator[Done]:
        """Waits for the shard in flight and yields it."""
        if self._in_flight is not None:
            in_flight = self._in_flight
            self._in_flight = None
            yield in_flight.result()

    def publish(self, shard: ShardBuilder, next_position: int) -> Done:
        """Publishes a shard now. Discards it on failure."""
        try:
            done = shard.publish(self._state, next_position)
        except BaseException:
            shard.abort()
            raise
        # The events are on disk. A million of them need not stay in memory.
        return replace(done, events=[])

    def __enter__(self) -> ShardPublisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)


@dataclass(kw_only=True)
class ShardSequence:
    """Packs the missing shards of a dataset. Calls ``on_sample`` after each sample."""

    source: AnySource
    dest: Path
    options: PackOptions
    progress: PackProgress
    name: str
    jobs: int
    on_sample: Callable[[], None]
    last_events: list[Event] = field(default_factory=list)  # bad samples after the last shard

    def run(self, state: PackState, job: Job, done: list[Done]) -> Generator[Done, None, None]:
        """Writes the shards after ``done``. Yields each one, without events, once on disk."""
        position = done[-1].next_position if done else 0
        shard = self._new_shard(len(done), sum(each.shard.records for each in done))
        results = ordered_map(
            lambda row: (row, job(row)),
            self._order(position, self.progress.total or 0),
            jobs=self.jobs,
            chunk_size=self._chunk_size,
        )
        try:
            with ShardPublisher(state) as publisher, contextlib.closing(results):
                for row, encoded in results:
                    yield from publisher.finished()
                    if isinstance(encoded, BadImage):
                        shard.events.append(self._skip(encoded))
                    else:
                        record = as_record(shard.next_id, encoded.parts)
                        if shard.is_full_for(len(record)):
                            yield from publisher.wait()
                            publisher.submit(shard, position)
                            shard = self._new_shard(shard.number + 1, shard.next_id)
                        shard.add(row, encoded, record)
                        self.progress.count(encoded.converted, encoded.bytes_in, len(record))
                    position += 1
                    self.progress.done = position
                    self.on_sample()
                yield from publisher.wait()
                if shard.records:
                    yield publisher.publish(shard, position)
                    return
        finally:
            shard.abort()
        if shard.number == 0:
            last = shard.events[-1]
            raise ConfigError(
                f"{self.name}: all {position} samples are bad. "
                f"Last error: {last.source}: {last.why}"
            )
        self.last_events = shard.events

    def _order(self, start: int, n: int) -> Iterator[int]:
        """Yields rows of the listing in packing order, starting at position ``start``."""
        permutation = (
            Permutation(n, seed=self.options.seed) if self.options.order == "shuffle" else None
        )
        for first in range(start, n, _ORDER_CHUNK):
            positions = np.arange(first, min(first + _ORDER_CHUNK, n))
            yield from (positions if permutation is None else permutation(positions)).tolist()

    def _chunk_size(self) -> int:
        """Returns the number of samples per chunk. Fewer large samples bound the memory."""
        mean = (self.progress.bytes_in + self.progress.bytes_out) // max(1, self.progress.done)
        return max(1, min(_CHUNK_SAMPLES, _CHUNK_BYTES // mean)) if mean else 1

    def _new_shard(self, number: int, first: int) -> ShardBuilder:
        return ShardBuilder(self.dest, number, first, self.source.fields, self.options)

    def _skip(self, error: BadImage) -> Event:
        """Counts a bad sample, or raises if ``on_error`` or ``max_bad`` ends the pack."""
        if self.options.on_error == "stop":
            raise BadImage(
                f"{error.why}. Fix or remove the file and rerun the same command, or pass "
                "--on-error skip (on_error='skip' in Python). Packing resumes where it stopped",
                source=error.source,
            )
        if self.options.max_bad is not None and self.progress.skipped >= self.options.max_bad:
            raise BadImage(
                f"{error.why}. More than {self.options.max_bad} samples are bad (--max-bad)",
                source=error.source,
            )
        self.progress.skipped += 1
        return Event("skipped", error.source, error.why)
