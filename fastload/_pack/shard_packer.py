"""The inner loop of a pack: samples in packing order, encoded in threads, written by one, shard after shard.

A shard that is full is published (synced, digested, named, remembered) by a thread of its own while the next one is packed:
one at a time and in order, so what is remembered is always the beginning of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastload._order.permutation import Permutation
from fastload._pack.jobs import Job
from fastload._pack.options import PackOptions
from fastload._pack.result import PackProgress
from fastload._pack.shards import OpenShard, as_record
from fastload._pack.sources.base import AnySource
from fastload._pack.state import Done, Event, PackState
from fastload._pack.threads import ordered_map
from fastload.errors import BadImage, ConfigError

_CHUNK = 4096  # positions of the packing order computed at a time
_TOGETHER = 8  # samples that a thread takes at a time, if
_TOGETHER_BYTES = 2 << 20  # what comes in and goes out for them is no more


class ShardPacker:
    """Packs what is missing of a dataset; ``on_sample`` is called behind each."""

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
        self.source, self.dest, self.options, self.progress = source, dest, options, progress
        self.name, self.jobs, self.on_sample = name, jobs, on_sample
        self.last_events: list[Event] = []  # of bad samples behind the last shard

    def run(self, state: PackState, job: Job, done: list[Done]) -> Generator[Done, None, None]:
        """Writes the shards that come after ``done``; yields each, without its events, when it is safe on disk."""
        publisher = ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-publish")
        position = done[-1].next_position if done else 0
        shard = self._open_shard(len(done), sum(each.shard.records for each in done))
        published: Future[Done] | None = None
        results = ordered_map(
            lambda row: (row, job(row)),
            self._order(position, self.progress.total or 0),
            jobs=self.jobs,
            together=self._together,
        )
        try:
            for row, encoded in results:
                if published is not None and published.done():
                    yield published.result()
                    published = None
                if isinstance(encoded, BadImage):
                    shard.events.append(self._skip(encoded))
                else:
                    record = as_record(shard.next_id, encoded.parts)
                    if shard.is_full_for(len(record)):
                        if published is not None:
                            yield published.result()
                        published = publisher.submit(_publish, shard, state, position)
                        shard = self._open_shard(shard.number + 1, shard.next_id)
                    shard.add(row, encoded, record)
                    self.progress.count(encoded.converted, encoded.bytes_in, len(record))
                position += 1
                self.progress.done = position
                self.on_sample()
            if published is not None:
                yield published.result()
            if shard.records:
                yield _publish(shard, state, position)
            elif shard.number == 0:
                raise ConfigError(
                    f"{self.name}: all {position} samples are bad, the last one: "
                    f"{shard.events[-1].source}: {shard.events[-1].why}"
                )
            else:
                self.last_events = shard.events
        finally:
            results.close()
            publisher.shutdown(
                wait=True
            )  # a full shard is finished whatever stops the pack: it need not be packed again
            shard.abort()

    def _order(self, start: int, n: int) -> Iterator[int]:
        """Rows of the listing in packing order, from position ``start`` on."""
        permutation = (
            Permutation(n, seed=self.options.seed) if self.options.order == "shuffle" else None
        )
        for first in range(start, n, _CHUNK):
            positions = np.arange(first, min(first + _CHUNK, n))
            yield from (positions if permutation is None else permutation(positions)).tolist()

    def _together(self) -> int:
        """How many samples a thread takes at a time: fewer of large ones, whose number decides the memory."""
        mean = (self.progress.bytes_in + self.progress.bytes_out) // max(1, self.progress.done)
        return max(1, min(_TOGETHER, _TOGETHER_BYTES // mean)) if mean else 1

    def _open_shard(self, number: int, first: int) -> OpenShard:
        return OpenShard(self.dest, number, first, self.source.fields, self.options)

    def _skip(self, error: BadImage) -> Event:
        """Counts a bad sample, or stops the pack where the options say so; what is done stays done."""
        if self.options.on_error == "stop":
            raise BadImage(
                f"{error.why}. Mend it and run the same command again, or add --on-error skip (in Python "
                "on_error='skip'): both go on from here",
                source=error.source,
            )
        if self.options.max_bad is not None and self.progress.skipped >= self.options.max_bad:
            raise BadImage(
                f"{error.why}. More than {self.options.max_bad} samples are bad (--max-bad)",
                source=error.source,
            )
        self.progress.skipped += 1
        return Event("skipped", error.source, error.why)


def _publish(shard: OpenShard, state: PackState, next_position: int) -> Done:
    try:
        done = shard.publish(state, next_position)
    except BaseException:
        shard.abort()
        raise
    return replace(done, events=[])  # they are on disk: a million of them need not stay in memory
