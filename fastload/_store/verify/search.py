"""Scans a damaged shard for its records without its tree, which may be damaged.

Every record is contiguous, starts with its magic, and holds its id and checksum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fastload._store.manifest import Shard
from fastload._store.record import (
    HEADER,
    MAGIC,
    MAX_RECORD,
    RecordHeader,
    parse_record,
    salvage_source,
)
from fastload.errors import RecordError

_CHUNK = 1 << 20
_MAX_BROKEN = 10_000  # damaged records described; further ones count as missing


@dataclass(slots=True)
class FoundRecords:
    """The result of scanning a shard for its records."""

    n_intact: int = 0
    # Record number → (fault, original file).
    broken: dict[int, tuple[str, str]] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)  # all other record numbers
    finished: bool = True  # False if the scan stopped early; `missing` is then meaningless


def search_records(descriptor: int, size: int, shard: Shard) -> FoundRecords:
    """Scans an open file for the records of ``shard``.

    Memory: one record, and one byte per record.
    """
    found = FoundRecords()
    if shard.records > size // HEADER.size:  # the manifest is wrong: do not allocate that much
        found.finished = False
        return found
    intact = np.zeros(shard.records, np.bool_)
    wasted = 0
    position = 0
    while (position := _next_magic(descriptor, position)) >= 0:
        number, data = _candidate(descriptor, position, size, shard)
        try:
            if data:
                parse_record(memoryview(data), shard.base + number)
                intact[number] = True
                position += len(data)
                continue
        except RecordError as error:
            if len(found.broken) < _MAX_BROKEN:
                found.broken[number] = (str(error), salvage_source(memoryview(data)))
            wasted += len(data)
            if wasted > 2 * size:  # limits the time for a file full of false record headers
                found.finished = False
                break
        position += 1
    found.n_intact = int(intact.sum())
    found.broken = {number: what for number, what in found.broken.items() if not intact[number]}
    found.missing = [
        number for number in np.flatnonzero(~intact).tolist() if number not in found.broken
    ]
    return found


def _next_magic(descriptor: int, position: int) -> int:
    for start, chunk in _chunks(descriptor, position):
        place = chunk.find(MAGIC)
        if place >= 0:
            return start + place
    return -1


def _chunks(descriptor: int, position: int) -> Iterator[tuple[int, bytes]]:
    """Yields (position, bytes); chunks overlap by 3 bytes so that no magic is split."""
    step = 4096  # the next record usually starts on the next page
    while chunk := os.pread(descriptor, step, position):
        yield position, chunk
        if len(chunk) < len(MAGIC):
            return
        position += len(chunk) - len(MAGIC) + 1
        step = _CHUNK


def _candidate(descriptor: int, position: int, size: int, shard: Shard) -> tuple[int, bytes]:
    """Returns (record number, its bytes) if a record of this shard may start here, else (-1, b"").

    Checks only what is needed to find the end of the record; ``parse_record`` checks the rest.
    """
    start = os.pread(descriptor, HEADER.size, position)
    if len(start) < HEADER.size:
        return -1, b""
    header = RecordHeader.parse(start)
    number = header.sample_id - shard.base
    fits = HEADER.size <= header.length <= min(MAX_RECORD, size - position)
    if not fits or not 0 <= number < shard.records:
        return -1, b""
    return number, os.pread(descriptor, header.length, position)
