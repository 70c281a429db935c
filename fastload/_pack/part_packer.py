"""Packs parts: takes over what earlier runs left, encodes in threads, writes shards in order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fastload._pack.jobs import Job, max_chunks, ordered_map
from fastload._pack.journal import Journal
from fastload._pack.layout import Layout
from fastload._pack.options import PackOptions, PackProgress
from fastload._pack.packing_order import PackingOrder
from fastload._pack.samples import EncodedSample
from fastload._pack.shard import PartBuilder, as_record
from fastload._pack.state import Done, Event, Listing, PackState
from fastload._store.fields import Field
from fastload._store.shard import verify_file
from fastload.errors import BadImage, StoreError

# A thread takes up to 64 samples at a time, as long as their input and output fit into 8 MiB. With
# many threads it takes fewer: all chunks together fit into _MEMORY. Large chunks save handovers,
# and the rewriter, which reads two JPEGs at a time, reads fewer of them alone.
_CHUNK_SAMPLES = 64
_CHUNK_BYTES = 8 << 20
_MEMORY = 256 << 20


class PartPacker:
    """Packs parts of one dataset in this process. Counts into ``progress``.

    ``plan`` and the listing decide whether the samples of an earlier run can be used. ``order`` is
    that of an earlier part of the same pack.
    Leaving the context manager ends the parts that are not published. Their samples are kept,
    unless other processes pack parts of the same dataset.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        options: PackOptions,
        state: PackState,
        listing: Listing,
        layout: Layout,
        *,
        plan: dict[str, object],
        order: PackingOrder | None = None,
        jobs: int,
        progress: PackProgress,
        say: Callable[[str], None],
    ) -> None:
        self._fields = fields
        self._options = options
        self._state = state
        self._layout = layout
        self._identity = {**plan, "listing": listing.checksum}
        self._jobs = jobs
        self._progress = progress
        self._say = say
        self.order = order or PackingOrder(
            len(listing), splits=listing.splits, order=options.order, seed=options.seed
        )
        self._builders: dict[int, PartBuilder] = {}  # of the parts that have begun

    def __enter__(self) -> PartPacker:
        return self

    def __exit__(self, *error: object) -> None:
        for builder in self._builders.values():
            builder.abort()

    def verified(self, parts: Iterable[int]) -> dict[int, Done]:
        """Returns the finished parts of earlier runs whose shards have the right digests."""
        good: dict[int, Done] = {}
        for part in parts:
            done = self._state.finished(part, self._layout.positions(part))
            try:
                for shard in done.shards if done else ():
                    verify_file(self._state.dest / shard.name, shard)
            except StoreError:
                continue
            if done is None:
                continue
            good[part] = done.summary()
            self._progress.done += len(self._layout.positions(part))
            self._count(done.events, done.bytes_in, done.bytes_out)
            self._say("checking")
        return good

    def take_over(self, parts: Sequence[int]) -> None:
        """Begins the unfinished parts of an earlier run with the samples that it packed."""
        if self._state.shared:
            return
        unfinished = self._state.unfinished()
        self._state.remove_unfinished(except_parts=unfinished & set(parts))
        for part in parts:
            if part in unfinished:
                builder = self._begin(part)
                for _ in builder.take_over(self.order.iterate(builder.positions)):
                    self._progress.done += 1
                    self._say("checking")
                self._count(builder.events, builder.bytes_in, builder.bytes_out)

    def pack(self, job: Job, parts: Sequence[int]) -> Generator[tuple[int, Done], None, None]:
        """Packs the rest of these parts. Yields the summary of each one once it is on disk.

        A background thread publishes each full part (sync, digest, rename, record) while the next
        one fills, one part at a time and in order. A part in flight is finished also after an
        error.
        """
        in_flight: list[tuple[int, Future[Done]]] = []  # at most one

        def encode(rows: Sequence[int]) -> Iterator[tuple[int, EncodedSample | BadImage]]:
            return zip(rows, job(rows), strict=False)  # an error of the job ends both

        def published() -> tuple[int, Done]:
            part, future = in_flight.pop()
            done = future.result()
            del self._builders[part]
            return part, done

        results = ordered_map(
            encode, self._rows(parts), jobs=self._jobs, chunk_size=self._chunk_size
        )
        with (
            ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-publish") as publisher,
            contextlib.closing(results),
        ):
            for part in parts:
                builder = self._builders.get(part) or self._begin(part)
                for row, encoded in itertools.islice(results, len(builder.remaining)):
                    if in_flight and in_flight[0][1].done():
                        yield published()
                    self._add(builder, row, encoded)
                if in_flight:
                    yield published()
                in_flight.append((part, publisher.submit(builder.publish, self._state)))
            if in_flight:
                yield published()

    def _begin(self, part: int) -> PartBuilder:
        positions = self._layout.positions(part)
        identity = {**self._identity, "positions": [positions.start, positions.stop]}
        self._builders[part] = PartBuilder(
            self._state.dest,
            part,
            positions,
            self._fields,
            self._options,
            journal=None if self._state.shared else Journal(self._state.journal(part), identity),
        )
        return self._builders[part]

    def _rows(self, parts: Iterable[int]) -> Iterator[int]:
        """Yields the row of the listing of each position that is not packed."""
        # Threads encode ahead, so this is decided before the first part grows or is published.
        begun = {part: builder.remaining for part, builder in self._builders.items()}
        positions = (begun.get(part, self._layout.positions(part)) for part in parts)
        return itertools.chain.from_iterable(map(self.order.iterate, positions))

    def _add(self, builder: PartBuilder, row: int, encoded: EncodedSample | BadImage) -> None:
        if isinstance(encoded, BadImage):
            builder.skip(row, self._skip(encoded))
        else:
            record = as_record(builder.next_key, encoded.parts)
            builder.add(row, encoded, record)
            self._progress.count(encoded.converted, encoded.bytes_in, len(record))
        self._progress.done += 1
        self._say("packing")

    def _count(self, events: Iterable[Event], bytes_in: int, bytes_out: int) -> None:
        """Counts samples of earlier runs."""
        reasons = [event.why for event in events if event.event != "skipped"]
        self._progress.skipped += sum(event.event == "skipped" for event in events)
        self._progress.count(reasons, bytes_in, bytes_out)

    def _chunk_size(self) -> int:
        """Returns the number of samples per chunk. Fewer large samples bound the memory."""
        progress = self._progress
        mean = (progress.bytes_in + progress.bytes_out) // max(1, progress.done)
        size = min(_CHUNK_BYTES, _MEMORY // max_chunks(self._jobs))
        return max(1, min(_CHUNK_SAMPLES, size // mean)) if mean else 1

    def _skip(self, error: BadImage) -> Event:
        """Counts a bad sample, or raises if ``on_error`` or ``max_bad`` ends the pack."""
        options = self._options
        if options.on_error == "stop":
            raise BadImage(
                f"{error.why}. Fix or remove the file and rerun the same command, or pass "
                "--on-error skip (on_error='skip' in Python). Packing resumes where it stopped",
                source=error.source,
            )
        if options.max_bad is not None and self._progress.skipped >= options.max_bad:
            raise BadImage(
                f"{error.why}. More than {options.max_bad} samples are bad (--max-bad)",
                source=error.source,
            )
        self._progress.skipped += 1
        return Event("skipped", error.source, error.why)
