"""Which records of a damaged shard are damaged? Found by searching the file without mapping it.

LMDB follows the page numbers in a file wherever they lead, so a shard with a wrong digest is never
opened. But every record lies in one piece, begins with its magic and has its number and checksum:
reading is enough to find it.
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
_MOST_BROKEN = 10_000  # damaged records described; those beyond are counted as not found


@dataclass(slots=True)
class FoundRecords:
    """What a search found of a shard's records."""

    whole: int = 0
    # record number → (what is wrong, original file)
    broken: dict[int, tuple[str, str]] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)  # the other record numbers
    finished: bool = True  # False: not searched to the end, `missing` says nothing


def search_records(descriptor: int, size: int, shard: Shard) -> FoundRecords:
    """Searches an open file for the records of ``shard``; memory for one record and one byte per record."""
    found = FoundRecords()
    if shard.records > size // HEADER.size:  # a false claim: allocate nothing for it
        found.finished = False
        return found
    whole = np.zeros(shard.records, np.bool_)
    wasted = 0
    position = 0
    while (position := _next_magic(descriptor, position)) >= 0:
        number, data = _candidate(descriptor, position, size, shard)
        try:
            if data:
                parse_record(memoryview(data), shard.first + number)
                whole[number] = True
                position += len(data)
                continue
        except RecordError as error:
            if len(found.broken) < _MOST_BROKEN:
                found.broken[number] = (str(error), salvage_source(memoryview(data)))
            wasted += len(data)
            if wasted > 2 * size:  # a file made of nothing but false starts would take forever
                found.finished = False
                break
        position += 1
    found.whole = int(whole.sum())
    found.broken = {number: what for number, what in found.broken.items() if not whole[number]}
    found.missing = [
        int(number) for number in np.flatnonzero(~whole) if int(number) not in found.broken
    ]
    return found


def _next_magic(descriptor: int, position: int) -> int:
    for start, chunk in _chunks(descriptor, position):
        place = chunk.find(MAGIC)
        if place >= 0:
            return start + place
    return -1


def _chunks(descriptor: int, position: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of the file, each repeating the last bytes of the one before, so that no magic is cut in two."""
    step = 4096  # the next record usually begins on the next page
    while chunk := os.pread(descriptor, step, position):
        yield position, chunk
        if len(chunk) < len(MAGIC):
            return
        position += len(chunk) - len(MAGIC) + 1
        step = _CHUNK


def _candidate(descriptor: int, position: int, size: int, shard: Shard) -> tuple[int, bytes]:
    """(record number, its bytes) if a record of this shard may begin here; else no bytes.

    Only what is needed to find its end is required of the header: ``parse_record`` names the rest.
    """
    start = os.pread(descriptor, HEADER.size, position)
    if len(start) < HEADER.size:
        return -1, b""
    header = RecordHeader.parse(start)
    number = header.sample_id - shard.first
    fits = HEADER.size <= header.length <= min(MAX_RECORD, size - position)
    if not fits or not 0 <= number < shard.records:
        return -1, b""
    return number, os.pread(descriptor, header.length, position)
