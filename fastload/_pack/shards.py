"""The main loop of a pack: encodes samples in threads and writes them in packing order.

A background thread publishes each full shard (sync, digest, rename, record) while the main loop
fills the next one. It publishes one shard at a time and in order, so the recorded shards are always
the beginning of the dataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastload._order.permutation import Permutation
from fastload._pack.jobs import Job, ordered_map
from fastload._pack.options import PackOptions
from fastload._pack.result import PackProgress
from fastload._pack.shard import ShardBuilder, as_record
from fastload._pack.sources.base import AnySource
from fastload._pack.state import Done, Event, PackState
from fastload.errors import BadImage, ConfigError

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


class ShardSequence:
    """Packs the missing shards of a dataset. Calls ``on_sample`` after each sample."""

    def __init__(
        self,
        source: AnySource,
        dest: Path,
        options: PackOptions,
        progress: PackProgress,
        *,
        name: str,
        jobs: int,
        on_sample: Callable[[], None],
    ) -> None:
        self.source = source
        self.dest = dest
        self.options = options
        self.progress = progress
        self.name = name
        self.jobs = jobs
        self.on_sample = on_sample
        self.last_events: list[Event] = []  # bad samples after the last shard

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
