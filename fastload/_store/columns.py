"""Columns (columns/NAME.npy): memory-mapped arrays with one number per sample.

Samplers and class counts read columns instead of records.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload._common import files
from fastload._store.manifest import COLUMN_HEADER, Column
from fastload.errors import ConfigError, CorruptShard

FOLDER = "columns"
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

    def __init__(self, dataset: Path, name: str, dtype: str, *, width: int = 1) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)
        self.width = width  # numbers per row
        self.path = dataset / FOLDER / f"{name}.npy"
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
        return Column(self.name, self.dtype.str, shape, size, crc)

    def abort(self) -> None:
        """Deletes the temporary file; does nothing after ``finish``."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


def open_column(dataset: Path, column: Column) -> npt.NDArray[Any]:
    """Checks size, header and checksum of a column and maps it read-only; raises CorruptShard."""
    try:
        return map_column(dataset, column)
    except ValueError as error:
        name = f"{FOLDER}/{column.name}.npy"
        raise CorruptShard(
            f"opening {dataset / name}: {error}. Run 'fastload verify {dataset}' to list the "
            "damaged files; restore the file from a copy, or pack again from the source",
            shard=name,
        ) from None


def map_column(dataset: Path, column: Column) -> npt.NDArray[Any]:
    """Does the work of ``open_column``; raises ValueError with the bare reason."""
    folder = dataset / FOLDER
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise ValueError(f"{folder} is not a folder (links are not followed)")
        descriptor, size = files.open_regular(folder / f"{column.name}.npy")
    except OSError as error:
        raise ValueError(error.strerror) from None
    try:
        # All checks use read(2): a file that is truncated while it is mapped kills the process.
        if size != column.size:
            raise ValueError(f"{size} bytes, expected {column.size}")
        crc = files.crc32c_of(descriptor)
        if crc != column.crc32c:
            raise ValueError(f"checksum 0x{crc}, expected 0x{column.crc32c}")
        if os.pread(descriptor, COLUMN_HEADER, 0) != npy_header(column.dtype, column.shape):
            raise ValueError(f"the header differs from that of {column.dtype} {column.shape}")
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ValueError(error.strerror) from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, column.dtype, offset=COLUMN_HEADER).reshape(column.shape)
