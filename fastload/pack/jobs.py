"""Where the packer gets its samples: loaded from a listed source, or read back from the spool of a stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from fastload.errors import BadImage
from fastload.pack.listing import Listing
from fastload.pack.options import PackOptions
from fastload.pack.samples import EncodedSample, SampleEncoder
from fastload.pack.sources.base import Json, Ref, Sample, Source
from fastload.pack.threads import ordered_map
from fastload.store.fields import Field
from fastload.store.record import encode_record, parse_record

SPOOL = "spool.records"

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


def spool(samples: Iterable[Sample | BadImage], fields: Sequence[Field], folder: Path, options: PackOptions, jobs: int) -> Iterator[Ref]:
    """Encodes a stream once, in its own order, into one file; yields what finds each sample there again."""
    encoder = SampleEncoder(fields, options)

    def encode(sample: Sample | BadImage) -> EncodedSample | BadImage:
        if isinstance(sample, BadImage):
            return sample
        try:
            return encoder(sample)
        except BadImage as error:
            return error

    with (folder / SPOOL).open("wb") as file:
        for row, encoded in enumerate(ordered_map(encode, samples, jobs=jobs)):
            if isinstance(encoded, BadImage):
                yield {"bad": encoded.why, "source": encoded.source}
                continue
            at = file.tell()
            record = encode_record(row, encoded.parts)
            file.write(record)
            converted: list[Json] = list(encoded.converted)
            yield {"at": at, "size": len(record), "source": encoded.source, "in": encoded.bytes_in, "converted": converted}
        file.flush()
        os.fsync(file.fileno())


def load_spooled(folder: Path, listing: Listing) -> Job:
    """Reads samples back that ``spool`` has encoded."""
    descriptor = os.open(folder / SPOOL, os.O_RDONLY | os.O_CLOEXEC)

    def job(row: int) -> EncodedSample | BadImage:
        ref = listing[row]
        if not isinstance(ref, dict):
            raise TypeError(f"row {row} of the spool's listing: {ref!r:.80}")
        if "bad" in ref:
            return BadImage(str(ref["bad"]), source=str(ref["source"]))
        record = os.pread(descriptor, int(str(ref["size"])), int(str(ref["at"])))
        converted = ref["converted"]
        return EncodedSample(parse_record(memoryview(record), row), str(ref["source"]), int(str(ref["in"])),
                             tuple(str(each) for each in converted) if isinstance(converted, list) else ())

    return job
