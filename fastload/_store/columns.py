"""columns/NAME.npy: one number per sample, mapped, so that a sampler or a class count never touches an image."""

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
    """The first 128 bytes of a .npy file, version 1.0. Ours, not numpy's: its padding differs between versions."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    room = COLUMN_HEADER - len(_MAGIC) - 2
    if len(text) >= room:
        raise ConfigError(f"column of shape {shape}: its header does not fit {COLUMN_HEADER} bytes")
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"


class ColumnWriter:
    """Writes one column row by row, in any order, straight to a temporary file; holds no rows in memory.

    As a context manager it removes whatever was not finished.
    """

    def __init__(self, dataset: Path, name: str, dtype: str, *, width: int = 1) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)
        self.width = width  # numbers a row
        self.path = dataset / FOLDER / f"{name}.npy"
        self._rows = 0
        self._temporary = files.temporary_path(self.path)
        try:
            self.path.parent.mkdir(exist_ok=True)
            self._file = self._temporary.open("wb+", buffering=0)
        except OSError as error:
            raise files.write_error(error, self.path, needed=COLUMN_HEADER) from error

    def append(self, rows: npt.ArrayLike) -> None:
        """Writes rows behind the last ones."""
        self.put(self._rows, rows)

    def put(self, first: int, rows: npt.ArrayLike) -> None:
        """Writes rows from number ``first`` on."""
        found = np.asarray(rows)
        values = np.ascontiguousarray(found, dtype=self.dtype)
        n_rows = values.size // self.width
        same = np.array_equal(values, found, equal_nan=values.dtype.kind == "f")
        if values.size != n_rows * self.width or first < 0 or not same:
            raise ConfigError(
                f"column {self.name}: {found.dtype} {found.shape} at row {first} does not fit "
                f"{self.dtype} with {self.width} a row"
            )
        row_bytes = self.width * self.dtype.itemsize
        view = memoryview(values.tobytes())
        position = COLUMN_HEADER + first * row_bytes
        try:
            while view:  # a write may be short
                done = os.pwrite(self._file.fileno(), view, position)
                view = view[done:]
                position = position + done
        except OSError as error:
            raise files.write_error(error, self.path, needed=len(view)) from error
        self._rows = max(self._rows, first + n_rows)

    def finish(self) -> Column:
        """Publishes the column: header, fsync, checksum, rename; rows never written are 0."""
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
        """Drops what was written; harmless after finish."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


def open_column(dataset: Path, column: Column) -> npt.NDArray[Any]:
    """A column, mapped and read-only, after its size, header and checksum were found right; raises CorruptShard."""
    path = dataset / FOLDER / f"{column.name}.npy"
    try:
        if not stat.S_ISDIR(path.parent.lstat().st_mode):
            raise NotADirectoryError(f"{path.parent} is not a folder (links are not followed)")
        descriptor, size = files.open_regular(path)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error), column) from None
    try:
        # All of it by read(2): a file that is cut while it is mapped would end the process.
        if size != column.size:
            raise _damaged(path, f"{size} bytes, expected {column.size}", column)
        crc = files.crc32c_of(descriptor)
        if crc != column.crc32c:
            raise _damaged(path, f"checksum 0x{crc}, expected 0x{column.crc32c}", column)
        if os.pread(descriptor, COLUMN_HEADER, 0) != npy_header(column.dtype, column.shape):
            raise _damaged(path, f"its header is not that of {column.dtype} {column.shape}", column)
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except OSError as error:
        if isinstance(error, CorruptShard):
            raise
        raise _damaged(path, error.strerror or str(error), column) from error
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, column.dtype, offset=COLUMN_HEADER).reshape(column.shape)


def _damaged(path: Path, why: str, column: Column) -> CorruptShard:
    return CorruptShard(
        f"opening {path}: {why}. Run 'fastload verify {path.parent.parent}' to list what is damaged; "
        "restore the file from a copy, or pack again from the source",
        shard=f"{FOLDER}/{column.name}.npy",
    )
