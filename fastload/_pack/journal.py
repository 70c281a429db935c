"""The samples of an unfinished part, so that the next run continues with the following sample.

The records are in the unfinished shard, and the journal has what they do not contain. A line is a
list of samples as JSON and its CRC-32C, which continues the CRC of the previous line. The first
line has the identity of the part instead: a journal of another plan or listing is not used.

Nothing is synced: after a power loss the journal or the shard may lack samples. A sample counts
only if its line has the right CRC and its record has the right size and CRC.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._pack.samples import EncodedSample
from fastload._store import writer
from fastload._store.record import CRC_FROM

_MAX_PENDING = 4096  # samples per line
_DAMAGED = (OSError, TypeError, ValueError, RecursionError)  # of a file with other content


class Packed(NamedTuple):
    """A sample whose record is in the unfinished shard."""

    row: int  # of the listing; reveals a line that is missing
    size: int  # of the record
    crc: str  # of the record, as 8 hex digits in the byte order of the record
    bytes_in: int
    split: int
    source: str = ""  # only of a converted sample
    converted: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: int, encoded: EncodedSample, record: bytes) -> Packed:
        values = (row, len(record), record[4:CRC_FROM].hex(), encoded.bytes_in, encoded.split)
        if not encoded.converted:
            return cls(*values)
        return cls(*values, encoded.source, encoded.converted)


class Skipped(NamedTuple):
    """A bad sample."""

    row: int
    source: str
    why: str


class Journal:
    """Writes the journal of one part. A journal without samples has no file."""

    def __init__(self, path: Path, identity: object) -> None:
        self.path = path
        self.samples = 0  # in the file
        self._identity = identity
        self._pending: list[Packed | Skipped] = []
        self._pending_bytes = 0  # of their records
        self._crc = 0
        self._file = -1
        self._temporary: Path | None = None  # name of the file until ``commit``

    def earlier(self) -> Iterator[Packed | Skipped]:
        """Yields the samples of an earlier run. Until ``commit``, its journal is not replaced."""
        self._temporary = files.temporary_path(self.path)
        return _entries(self.path, self._identity)

    def commit(self) -> None:
        """Replaces the journal of the earlier run by the samples that were added again."""
        self.flush()
        if self.samples and self._temporary is not None:
            self._temporary.replace(self.path)
        else:
            self.path.unlink(missing_ok=True)
        self._temporary = None

    def add(self, sample: Packed | Skipped, n_bytes: int = 0) -> None:
        """Adds the next sample, whose record has ``n_bytes``. Raises StoreError."""
        self._pending.append(sample)
        self._pending_bytes += n_bytes
        if self._pending_bytes >= writer.FLUSH_BYTES or len(self._pending) >= _MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Writes the samples to the file. Raises StoreError if that fails."""
        if not self._pending:
            return
        samples = self._pending
        self._pending = []  # first: after a Ctrl-C in the middle, they are not written twice
        self._pending_bytes = 0
        path = self._temporary or self.path
        with files.writing(self.path, needed=4096):
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(path, flags, 0o666)
                files.write_all(self._file, [self._line(self._identity)])
            files.write_all(self._file, [self._line(samples)])
        self.samples += len(samples)

    def close(self) -> None:
        """Closes the file without the samples that are not written."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._pending = []
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _line(self, value: object) -> bytes:
        data = json.dumps(value, separators=(",", ":")).encode()
        self._crc = crc32c(data, self._crc)
        return b"%s %08x\n" % (data, self._crc)


def count_samples(path: Path) -> int:
    """Returns the number of samples in a journal."""
    return sum(1 for _ in _entries(path))


def _entries(path: Path, identity: object = None) -> Iterator[Packed | Skipped]:
    """Yields the samples of a journal up to its first damaged line."""
    crc = 0
    with contextlib.suppress(*_DAMAGED), path.open("rb") as file:
        for number, line in enumerate(file):
            data, _, stored = line.rpartition(b" ")
            crc = crc32c(data, crc)
            if stored != b"%08x\n" % crc:
                return
            found = json.loads(data)
            if number:
                yield from map(_parse, found)
            elif identity is not None and found != identity:
                return


def _parse(value: object) -> Packed | Skipped:
    """Raises ValueError if the value is not a sample of a journal."""
    match value:
        case [int(row), str(source), str(why)]:
            return Skipped(row, source, why)
        case [int(row), int(size), str(crc), int(bytes_in), int(split), str(source), list(why)]:
            return Packed(row, size, crc, bytes_in, split, source, tuple(map(str, why)))
    raise ValueError(f"not a sample: {value!r:.80}")
