"""Encoded samples for the packer: loaded from a listed source, or read back from the spool of a stream.

``ordered_map`` runs these jobs in threads.
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
from typing import TypedDict, TypeVar, cast

from fastload._common.files import NewFile
from fastload._pack.listing import Listing
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample, SampleEncoder
from fastload._pack.sources.base import Json, Ref, Sample, Source
from fastload._pack.state import damaged
from fastload._store.fields import Field
from fastload._store.record import encode_record, parse_record
from fastload.errors import BadImage, RecordError

SPOOL = "spool.records"
Item = TypeVar("Item")
Result = TypeVar("Result")

# A row of the listing → the encoded sample, or why there is none. Called from several threads.
Job = Callable[[int], "EncodedSample | BadImage"]


def load_listed(source: Source, listing: Listing, options: PackOptions) -> Job:
    """Loads row by row from the source and encodes."""
    encoder = SampleEncoder(source.fields, options)
    turn = nullcontext() if source.thread_safe else threading.Lock()

    def job(row: int) -> EncodedSample | BadImage:
        try:
            with turn:
                sample = source.load(listing[row])
            return encoder(sample)
        except BadImage as error:
            return error

    return job


def spool(
    samples: Iterable[Sample | BadImage],
    fields: Sequence[Field],
    folder: Path,
    options: PackOptions,
    jobs: int,
) -> Generator[Ref, None, None]:
    """Encodes a stream once, in its own order, into one file; yields what finds each sample there again."""
    encoder = SampleEncoder(fields, options)

    def encode(sample: Sample | BadImage) -> EncodedSample | BadImage:
        if isinstance(sample, BadImage):
            return sample
        try:
            return encoder(sample)
        except BadImage as error:
            return error

    with (
        NewFile(folder / SPOOL) as file,
        closing(ordered_map(encode, samples, jobs=jobs)) as results,
    ):
        for row, encoded in enumerate(results):
            if isinstance(encoded, BadImage):
                yield {"bad": encoded.why or "bad", "source": encoded.source}
                continue
            at = file.size
            record = encode_record(row, encoded.parts)
            file.write(record)
            converted: list[Json] = list(encoded.converted)
            yield {
                "bad": "",
                "at": at,
                "size": len(record),
                "source": encoded.source,
                "bytes_in": encoded.bytes_in,
                "converted": converted,
            }
        file.publish()


class _Spooled(TypedDict):
    bad: str  # why it cannot be used; of such a sample only this and its source are kept
    at: int
    size: int
    source: str
    bytes_in: int
    converted: list[str]


class Spool:
    """Reads samples back that ``spool`` has encoded; a Job. Close it: the file's space is free only then."""

    def __init__(self, folder: Path, listing: Listing) -> None:
        self._path = folder / SPOOL
        self._listing = listing
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise damaged(self._path, str(error)) from None

    def __call__(self, row: int) -> EncodedSample | BadImage:
        """One sample; raises StoreError where the spool is damaged."""
        ref = cast("_Spooled", self._listing[row])  # written by ``spool``, and behind a checksum
        if ref["bad"]:
            return BadImage(ref["bad"], source=ref["source"])
        record = os.pread(self._file, ref["size"], ref["at"])
        try:
            return EncodedSample(
                parse_record(memoryview(record), row),
                ref["source"],
                ref["bytes_in"],
                tuple(ref["converted"]),
            )
        except RecordError as error:
            raise damaged(self._path, f"sample {row}: {error}") from None

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)


def some_samples(source: Source, listing: Listing, count: int) -> Iterator[Sample]:
    """About ``count`` samples, spread over the whole list; bad ones are left to their turn."""
    for row in range(0, len(listing), max(1, len(listing) // count)):
        with suppress(BadImage):
            yield source.load(listing[row])


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    together: Callable[[], int] = lambda: 1,
) -> Generator[Result, None, None]:
    """``map(function, items)`` on ``jobs`` threads; at most 2 * jobs + 2 items are under way or waiting to be taken.

    What ``function`` raises is raised here, in its turn; the items behind it are dropped. Closing the iterator early
    waits for the calls that have begun, and starts no other. ``together`` says how many items a thread takes at a time
    (the bound is then on these): handing over costs as much for one as for eight.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="fastload-pack")
    pending: deque[tuple[Future[None], list[Result]]] = deque()
    left = iter(items)

    def taken() -> Generator[Result, None, None]:
        future, results = pending.popleft()
        future.exception()  # waits
        yield from results
        future.result()  # raises

    try:
        while chunk := list(itertools.islice(left, together())):
            results: list[Result] = []
            pending.append((pool.submit(_each, function, chunk, results), results))
            if len(pending) > 2 * jobs + 1:
                yield from taken()
        while pending:
            yield from taken()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _each(function: Callable[[Item], Result], items: Sequence[Item], results: list[Result]) -> None:
    for item in items:
        results.append(function(item))
