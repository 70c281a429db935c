"""NumPy arrays as bytes: type, shape and numbers in C order. The layout is in docs/FORMAT.md."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload._common.checksum import Bytes
from fastload._store.record import MAX_RECORD
from fastload.errors import ConfigError, RecordError

MAX_DIMENSIONS = 8
DTYPES = tuple(
    map(np.dtype, ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "?"))
)
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_HEADER_BYTES = 8  # type code, number of dimensions, 6 zeros; the shape follows, 8 bytes each


def encode_array(array: npt.NDArray[Any], *, what: str = "array") -> bytes:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _CODES or array.ndim > MAX_DIMENSIONS or array.nbytes > MAX_RECORD:
        raise ConfigError(
            f"{what}: {array.dtype} of {array.shape}: expected integers, floats or bools of at most "
            f"{MAX_DIMENSIONS} dimensions and {MAX_RECORD} bytes"
        )
    header = struct.pack(f"<BB6x{array.ndim}Q", _CODES[dtype], array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, dtype).tobytes()


def decode_array(data: Bytes) -> npt.NDArray[Any]:
    """A read-only view of a stored array; raises RecordError, whatever the header claims."""
    dtype, shape, start = _parse_header(data)
    n_bytes = len(data) - start
    # Python's integers do not overflow. An empty array must not hide a huge side either: NumPy
    # multiplies the other sides.
    if (
        math.prod(shape) * dtype.itemsize != n_bytes
        or math.prod(max(n, 1) for n in shape) > MAX_RECORD
        or any(data[2:_HEADER_BYTES])
    ):
        raise RecordError("array shape", f"{dtype} of {shape}", f"{n_bytes} bytes")
    array: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return array


def _parse_header(data: Bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """(type, shape, where the numbers begin)."""
    size = len(data)
    if (
        size < _HEADER_BYTES
        or data[0] >= len(DTYPES)
        or data[1] > MAX_DIMENSIONS
        or size < _HEADER_BYTES + 8 * data[1]
    ):
        raise RecordError(
            "array header",
            bytes(data[:_HEADER_BYTES]),
            f"type below {len(DTYPES)}, at most {MAX_DIMENSIONS} dimensions",
        )
    n_dims = data[1]
    shape = struct.unpack_from(f"<{n_dims}Q", data, _HEADER_BYTES)
    return DTYPES[data[0]], shape, _HEADER_BYTES + 8 * n_dims
