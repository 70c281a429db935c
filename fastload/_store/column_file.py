"""Reads the rows of a large column from its file, without a copy of all rows in memory.

A map would be simpler, but truncating a mapped file kills its readers (SIGBUS). The checksum of
every page is kept, so that the bytes that were checked are the bytes that are used.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fastload._common.checksum import crc32c
from fastload._store.manifest import COLUMN_HEADER, Column
from fastload.errors import CorruptShard

PAGE = 4096  # bytes with one checksum; a row is never in two pages
_CHUNK = 256 * PAGE  # bytes read at once

Rows = npt.NDArray[np.int64]


class ColumnFile:
    """A column, or a range of its rows. Indexing with a number, a slice or an array reads rows.

    Reading raises CorruptShard if the file has changed since it was opened.
    """

    def __init__(
        self, path: Path, descriptor: int, column: Column, checksums: Sequence[int]
    ) -> None:
        """Takes ownership of the descriptor. ``checksums`` has one number per page."""
        self.path = path
        self.dtype = np.dtype(column.dtype)
        self._file = column.file
        self._size = column.size
        self._row_shape = column.shape[1:]
        self._row_bytes = self.dtype.itemsize * int(np.prod(self._row_shape, dtype=np.int64))
        self._rows = range(column.shape[0])
        self._checksums = np.array(checksums, np.uint32)
        self._descriptor = descriptor
        self._owner: ColumnFile | None = None  # keeps the descriptor open
        weakref.finalize(self, os.close, descriptor)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, rows: int) -> Any: ...
    @overload
    def __getitem__(self, rows: slice | Rows) -> npt.NDArray[Any]: ...
    def __getitem__(self, rows: int | slice | Rows) -> Any:
        if isinstance(rows, slice):
            chosen = self._rows[rows]
            if chosen.step != 1:
                raise ValueError(f"rows {rows}: expected a slice with step 1")
            return self._read_range(chosen)
        numbers = np.asarray(rows, np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(
                f"rows {numbers.min()} to {numbers.max()}: expected 0 to {len(self) - 1}"
            )
        found = self._read_rows(numbers.reshape(-1) + self._rows.start)
        return found.reshape(numbers.shape + self._row_shape)[()]

    def view(self, first: int, stop: int) -> ColumnFile:
        """Returns a range of rows without reading them."""
        view = copy.copy(self)
        view._rows = self._rows[first:stop]
        view._owner = self
        return view

    def _read_range(self, rows: range) -> npt.NDArray[Any]:
        first = COLUMN_HEADER + rows.start * self._row_bytes
        end = first + len(rows) * self._row_bytes
        pages = np.arange(first // PAGE, -(-end // PAGE) if len(rows) else first // PAGE)
        data = self._read_pages(pages)[first % PAGE :][: end - first]
        return data.view(self.dtype).reshape(len(rows), *self._row_shape)

    def _read_rows(self, rows: Rows) -> npt.NDArray[Any]:
        offsets = COLUMN_HEADER + rows * self._row_bytes
        pages, places = np.unique(offsets // PAGE, return_inverse=True)
        table = self._read_pages(pages).view(self.dtype).reshape(-1, *self._row_shape)
        found: npt.NDArray[Any] = table[
            (places.reshape(-1) * PAGE + offsets % PAGE) // self._row_bytes
        ]
        return found

    def _read_pages(self, pages: Rows) -> npt.NDArray[np.uint8]:
        """Returns the checked bytes of pages with increasing numbers; the last may be shorter."""
        found = np.zeros(len(pages) * PAGE, np.uint8)
        # Neighboring pages are read at once.
        for run in np.split(np.arange(len(pages)), np.flatnonzero(np.diff(pages) != 1) + 1):
            for start in range(0, len(run), _CHUNK // PAGE):
                some = run[start : start + _CHUNK // PAGE]
                into = found[some[0] * PAGE : (some[-1] + 1) * PAGE]
                self._read(int(pages[some[0]]), into.data)
        return found

    def _read(self, first: int, into: memoryview) -> None:
        """Reads and checks whole pages from page ``first`` on."""
        into = into[: self._size - first * PAGE]
        try:
            read_fully(self._descriptor, into, first * PAGE)
        except OSError as error:
            raise self._damaged(str(error.strerror)) from None
        except ValueError as error:
            raise self._damaged(str(error)) from None
        found = page_checksums(into)
        if found != self._checksums[first : first + len(found)].tolist():
            raise self._damaged("its content changed after it was opened")

    def _damaged(self, why: str) -> CorruptShard:
        return CorruptShard(
            f"reading {self.path}: {why}. Run 'fastload verify {self.path.parent.parent}' to list "
            "the damaged files; restore the file from a copy, or pack again from the source",
            shard=self._file,
        )


AnyColumn = npt.NDArray[Any] | ColumnFile  # both return rows when they are indexed


def scan_pages(descriptor: int, size: int) -> tuple[str, list[int]]:
    """Returns the CRC-32C of a file, as 8 hex digits, and of each page of it.

    Raises ValueError if the file is shorter, and OSError.
    """
    crc = 0
    checksums: list[int] = []
    buffer = memoryview(bytearray(_CHUNK))
    for position in range(0, size, _CHUNK):
        chunk = buffer[: size - position]
        read_fully(descriptor, chunk, position)
        crc = crc32c(chunk, crc)
        checksums += page_checksums(chunk)
    return f"{crc:08x}", checksums


def page_checksums(data: memoryview) -> list[int]:
    return [crc32c(data[start : start + PAGE]) for start in range(0, len(data), PAGE)]


def read_fully(descriptor: int, into: memoryview, position: int) -> None:
    """Fills ``into``; raises ValueError at the end of the file, and OSError."""
    while into:
        n_bytes = os.preadv(descriptor, [into], position)
        if not n_bytes:
            raise ValueError(f"the file ends at byte {position}: it was truncated")
        into = into[n_bytes:]
        position += n_bytes
