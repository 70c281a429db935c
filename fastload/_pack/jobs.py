"""Produces encoded samples for the packer, from a listed source or from the spool of a stream.

``ordered_map`` runs the jobs in threads.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from fastload._common.files import NewFile
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample, SampleEncoder
from fastload._pack.sources.base import Ref, Sample, Source
from fastload._pack.state import Listing, damaged
from fastload._store.fields import Field
from fastload._store.record import encode_record, parse_record
from fastload.errors import BadImage, ConfigError, RecordError

SPOOL = "spool.records"
Item = TypeVar("Item")
Result = TypeVar("Result")

# Maps rows of the listing to their encoded samples or errors. Called from several threads.
Job = Callable[[Sequence[int]], "Iterator[EncodedSample | BadImage]"]


def load_listed(source: Source, listing: Listing, options: PackOptions) -> Job:
    """Returns a job that loads rows from the source and encodes them."""
    encoder = SampleEncoder(source.fields, options)
    lock = nullcontext() if source.thread_safe else threading.Lock()

    def load(row: int) -> Sample | BadImage:
        try:
            with lock:
                return source.load(listing[row])
        except BadImage as error:
            return error

    def job(rows: Sequence[int]) -> Iterator[EncodedSample | BadImage]:
        for row, encoded in zip(rows, encoder.encode_all(map(load, rows)), strict=False):
            if (
                listing.splits is not None
                and not isinstance(encoded, BadImage)
                and encoded.split != listing.splits[row]
            ):
                raise ConfigError(
                    f"{encoded.source}: load() returned split {encoded.split}, but split_of() "
                    f"returned {listing.splits[row]}: expected the same number. Fix the "
                    f"{source.name} source"
                )
            yield encoded

    return job


def without_known(job: Job, known: dict[int, EncodedSample | BadImage]) -> Job:
    """Returns a job that encodes samples unless they are in ``known``, and removes those."""

    def remaining(rows: Sequence[int]) -> Iterator[EncodedSample | BadImage]:
        encoded = job([row for row in rows if row not in known])
        for row in rows:
            found = known.pop(row, None)
            yield next(encoded) if found is None else found

    return remaining


def load_in_order(source: Source) -> Iterator[Sample | BadImage]:
    """Yields all samples of a listed source like a stream."""
    for ref in source.refs():
        try:
            yield source.load(ref)
        except BadImage as error:
            yield error


def spool(
    samples: Iterable[Sample | BadImage],
    fields: Sequence[Field],
    folder: Path,
    options: PackOptions,
    jobs: int,
) -> Generator[Ref, None, None]:
    """Encodes a stream once, in order, into one file. Yields where each sample is stored."""
    encoder = SampleEncoder(fields, options)
    with (
        NewFile(folder / SPOOL) as file,
        closing(ordered_map(encoder.encode_all, samples, jobs=jobs)) as results,
    ):
        for row, encoded in enumerate(results):
            if isinstance(encoded, BadImage):
                yield {"bad": encoded.why or "bad", "source": encoded.source, "split": 0}
                continue
            at = file.size
            record = encode_record(row, encoded.parts)
            file.write(record)
            yield {
                "bad": "",
                "at": at,
                "size": len(record),
                "source": encoded.source,
                "bytes_in": encoded.bytes_in,
                "converted": [*encoded.converted],
                "split": encoded.split,
            }
        file.publish()


def spooled_split(ref: Ref) -> int:
    """Returns the split in a ref of ``spool``."""
    spooled: Any = ref
    return int(spooled["split"])


class Spool:
    """A job that reads the samples of ``spool`` back. The disk space is freed after ``close``."""

    def __init__(self, folder: Path, listing: Listing) -> None:
        self._path = folder / SPOOL
        self._listing = listing
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise damaged(self._path, str(error)) from None

    def __call__(self, rows: Sequence[int]) -> Iterator[EncodedSample | BadImage]:
        """Yields samples. Raises StoreError if the spool is damaged."""
        return map(self._read, rows)

    def _read(self, row: int) -> EncodedSample | BadImage:
        ref: Any = self._listing[row]  # ``spool`` wrote it, and the listing has a checksum
        if ref["bad"]:
            return BadImage(ref["bad"], source=ref["source"])
        record = os.pread(self._file, ref["size"], ref["at"])
        try:
            return EncodedSample(
                parse_record(memoryview(record), row),
                ref["source"],
                ref["bytes_in"],
                tuple(ref["converted"]),
                ref["split"],
            )
        except RecordError as error:
            raise damaged(self._path, f"sample {row}: {error}") from None

    def close(self) -> None:
        os.close(self._file)


def some_samples(source: Source, listing: Listing, count: int) -> Iterator[Sample]:
    """Yields about ``count`` samples spread over the whole list. Skips bad samples silently."""
    for row in range(0, len(listing), max(1, len(listing) // count)):
        with suppress(BadImage):
            yield source.load(listing[row])


def max_chunks(jobs: int) -> int:
    """Returns the number of chunks that ``ordered_map`` keeps in memory."""
    return 2 * jobs + 2


def ordered_map(
    function: Callable[[Sequence[Item]], Iterable[Result]],
    items: Iterable[Item],
    *,
    jobs: int,
    chunk_size: Callable[[], int] = lambda: 1,
) -> Generator[Result, None, None]:
    """Runs ``function``, which maps a chunk of items, on ``jobs`` threads and keeps the order.

    At most ``max_chunks(jobs)`` are in flight or wait for the consumer. An exception of
    ``function`` is raised at its position, and later items are dropped. Closing the iterator early
    waits for running calls and starts no others. ``chunk_size`` returns how many items a thread
    takes at a time: a handover costs the same for one item as for eight.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="fastload-pack")
    pending: deque[tuple[Future[None], list[Result]]] = deque()
    remaining = iter(items)

    def take_oldest() -> Generator[Result, None, None]:
        future, results = pending.popleft()
        future.exception()  # waits
        yield from results
        future.result()  # raises

    try:
        while chunk := list(itertools.islice(remaining, chunk_size())):
            results: list[Result] = []
            pending.append((pool.submit(_extend, results, function, chunk), results))
            if len(pending) == max_chunks(jobs):
                yield from take_oldest()
        while pending:
            yield from take_oldest()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _extend(
    results: list[Result], function: Callable[[Sequence[Item]], Iterable[Result]], chunk: list[Item]
) -> None:
    # The results before an error are kept.
    results.extend(function(chunk))
