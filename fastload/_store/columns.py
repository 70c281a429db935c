"""Columns (columns/NAME.npy): read-only arrays with one number per sample.

Samplers and class counts read columns instead of records. A column is copied into memory, so that
the bytes that were checked are the bytes that are used. A column that is too large for a copy in
each process is read when its rows are needed (column_file.py).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload._common import files
from fastload._store.column_file import AnyColumn, ColumnFile, read_fully, scan_pages
from fastload._store.manifest import COLUMN_HEADER, Column
from fastload.errors import ConfigError, CorruptShard

FOLDER = "columns"
MAX_COPIED = 256 << 20  # bytes of a column that is copied; 32 million int64 numbers
_MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Returns the first 128 bytes of a .npy file, version 1.0.

    NumPy is not used for this because its padding differs between versions.
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    room = COLUMN_HEADER - len(_MAGIC) - 2
    if len(text) >= room:
        raise ConfigError(f"column shape {shape}: its header exceeds {COLUMN_HEADER} bytes")
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"


class ColumnWriter:
    """Writes the rows of one column, in any order, to a temporary file. Keeps no rows in memory.

    Leaving the context manager deletes an unfinished file.
    """

    def __init__(
        self, dataset: Path, name: str, dtype: str, *, width: int = 1, folder: str = FOLDER
    ) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)
        self.width = width  # numbers per row
        self.folder = folder
        self.path = dataset / folder / f"{name}.npy"
        self._rows = 0
        self._temporary = files.temporary_path(self.path)
        with files.writing(self.path, needed=COLUMN_HEADER):
            self.path.parent.mkdir(exist_ok=True)
            self._file = self._temporary.open("wb+", buffering=0)

    def append(self, rows: npt.ArrayLike) -> None:
        self.put(self._rows, rows)

    def put(self, first: int, rows: npt.ArrayLike) -> None:
        """Writes rows, starting at row number ``first``."""
        found = np.asarray(rows)
        values = np.ascontiguousarray(found, dtype=self.dtype)
        n_rows = values.size // self.width
        same = np.array_equal(values, found, equal_nan=values.dtype.kind == "f")
        if values.size != n_rows * self.width or first < 0 or not same:
            raise ConfigError(
                f"column {self.name}: {found.dtype} of {found.shape} at row {first}: expected "
                f"values that fit in {self.dtype}, {self.width} per row"
            )
        view = memoryview(values.tobytes())
        position = COLUMN_HEADER + first * self.width * self.dtype.itemsize
        with files.writing(self.path, needed=len(view)):
            while view:  # pwrite may write less than requested
                done = os.pwrite(self._file.fileno(), view, position)
                view = view[done:]
                position += done
        self._rows = max(self._rows, first + n_rows)

    def finish(self) -> Column:
        """Writes the header, syncs, computes the checksum and renames. Rows never written are 0."""
        shape = (self._rows,) if self.width == 1 else (self._rows, self.width)
        size = COLUMN_HEADER + self._rows * self.width * self.dtype.itemsize
        try:
            os.pwrite(self._file.fileno(), npy_header(self.dtype.str, shape), 0)
            os.ftruncate(self._file.fileno(), size)
            os.fsync(self._file.fileno())
            crc = files.crc32c_of(self._file.fileno())
            self._file.close()
            files.publish(self._temporary, self.path)
        except OSError as error:
            self.abort()
            raise files.write_error(error, self.path, needed=size) from error
        return Column(self.name, self.dtype.str, shape, size, crc, self.folder)

    def abort(self) -> None:
        """Deletes the temporary file; does nothing after ``finish``."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


def open_column(dataset: Path, column: Column) -> npt.NDArray[Any]:
    """Checks size, header and checksum of a column and copies it; raises CorruptShard."""
    found = open_rows(dataset, column)
    return found if isinstance(found, np.ndarray) else found[:]


def open_rows(dataset: Path, column: Column) -> AnyColumn:
    """Checks a column like ``open_column``; copies it only if it is not too large."""
    try:
        return read_column(dataset, column)
    except ValueError as error:
        raise CorruptShard(
            f"opening {dataset / column.file}: {error}. Run 'fastload verify {dataset}' to list "
            "the damaged files; restore the file from a copy, or pack again from the source",
            shard=column.file,
        ) from None


def read_column(dataset: Path, column: Column) -> AnyColumn:
    """Does the work of ``open_rows``; raises ValueError with the bare reason."""
    folder = dataset / column.folder
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise ValueError(f"{folder} is not a folder (links are not followed)")
        descriptor, size = files.open_regular(folder / f"{column.name}.npy")
    except OSError as error:
        raise ValueError(error.strerror) from None
    try:
        if size != column.size:
            raise ValueError(f"{size} bytes, expected {column.size}")
        copied = size <= MAX_COPIED
        copy = memoryview(bytearray(size if copied else COLUMN_HEADER))
        checksums: list[int] = []
        if copied:
            crc = files.crc32c_of(descriptor, copy=copy)
        else:
            crc, checksums = scan_pages(descriptor, size)
            read_fully(descriptor, copy, 0)
        if crc != column.crc32c:
            raise ValueError(f"checksum 0x{crc}, expected 0x{column.crc32c}")
        if copy[:COLUMN_HEADER] != npy_header(column.dtype, column.shape):
            raise ValueError(f"the header differs from that of {column.dtype} {column.shape}")
        if not copied:
            return ColumnFile(dataset / column.file, os.dup(descriptor), column, checksums)
    except OSError as error:
        raise ValueError(error.strerror) from None
    finally:
        os.close(descriptor)
    data = np.frombuffer(copy.toreadonly(), column.dtype, offset=COLUMN_HEADER)
    return data.reshape(column.shape)
