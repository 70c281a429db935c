"""Converts JSON and Python values to checked arrays. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._store.kinds import BOXES, MATRIX, POINTS, FieldKind
from fastload.errors import BadImage

_NPY = re.compile(
    rb"\{'descr': '([<>|](?:[iu][1248]|f[248]|b1))', 'fortran_order': (True|False), "
    rb"'shape': \(([0-9, ]{0,200})\), \}\s*"
)


def float_array(
    value: object,
    *,
    shape: tuple[int | None, ...],
    what: str,
    source: str,
    dtype: type[np.floating] = np.float32,
    finite: bool = True,
) -> NDArray[np.floating]:
    """Returns an array of this shape (None = any length). A BadImage names ``what``."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise BadImage(f"{what}: expected numbers, found {value!r:.60}", source=source) from None
    if array.size == 0 and 0 in (0 if side is None else side for side in shape):
        array = array.reshape([0 if side is None else side for side in shape])
    if array.ndim != len(shape) or any(
        want not in (None, side) for want, side in zip(shape, array.shape, strict=True)
    ):
        expected = " x ".join("n" if side is None else str(side) for side in shape)
        found = " x ".join(map(str, array.shape)) or "one"
        raise BadImage(f"{what}: expected {expected} numbers, found {found}", source=source)
    if finite and not np.isfinite(array).all():
        raise BadImage(
            f"{what}: expected finite numbers, found NaN, infinity or null", source=source
        )
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def points_array(value: object, *, what: str, source: str) -> NDArray[np.floating]:
    """Returns an (N, 2) or (N, 3) array. NaN marks a missing point."""
    first = value[0] if isinstance(value, (list, tuple, np.ndarray)) and len(value) else ()
    width = 3 if isinstance(first, (list, tuple, np.ndarray)) and len(first) == 3 else 2
    return float_array(value, shape=(None, width), what=what, source=source, finite=False)


def int_array(value: object, *, what: str, source: str) -> NDArray[np.int64]:
    """Returns a one-dimensional int64 array. Refuses fractions instead of truncating them."""
    if isinstance(value, list) and all(
        type(item) is int and -(2**63) <= item < 2**63 for item in value
    ):
        return np.asarray(value, dtype=np.int64)
    raise BadImage(f"{what}: expected a list of integers, found {value!r:.60}", source=source)


def int_value(
    row: Mapping[str, object], key: str, source: str, *, default: int | None = None
) -> int:
    """Returns the 64-bit integer of a key. Raises BadImage for other values."""
    value = row.get(key, default)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise BadImage(f"{key}: expected an integer, found {value!r:.40}", source=source)
    return value


def rigid(
    translation: object, quaternion: object, *, what: str, source: str
) -> NDArray[np.floating]:
    """Returns the 4 x 4 matrix of a rotation (quaternion w, x, y, z) and a translation."""
    shift = float_array(
        translation, shape=(3,), what=f"{what} translation", source=source, dtype=np.float64
    )
    rotation = float_array(
        quaternion, shape=(4,), what=f"{what} rotation", source=source, dtype=np.float64
    )
    length = float(np.linalg.norm(rotation))
    if not 0.9 < length < 1.1:
        raise BadImage(
            f"{what} rotation: expected a unit quaternion, found length {length:.3g}", source=source
        )
    w, x, y, z = rotation / length
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = shift
    return matrix


def parse_npy(data: bytes, source: str) -> NDArray[np.generic]:
    """Returns the array of a .npy file that contains numbers.

    The size must match the data, since a header can claim terabytes. The header is Python text that
    NumPy evaluates. A regular expression suffices for numbers and is safe.
    """
    start = 12 if data[6:7] in (b"\2", b"\3") else 10
    end = start + int.from_bytes(data[8:start], "little")
    found = _NPY.fullmatch(data[start:end]) if data.startswith(b"\x93NUMPY") else None
    if found is None:
        raise BadImage("not a .npy array of numbers (pickled objects are not read)", source=source)
    dtype = np.dtype(found[1].decode())
    shape = tuple(int(side) for side in found[3].replace(b",", b" ").split())
    if len(shape) > 8 or math.prod(shape) * dtype.itemsize != len(data) - end:
        raise BadImage(
            f".npy array: {max(0, len(data) - end)} bytes of data do not match {dtype} {shape}",
            source=source,
        )
    array = np.frombuffer(data, dtype=dtype, offset=end).reshape(
        shape, order="F" if found[2] == b"True" else "C"
    )
    return array.astype(dtype.newbyteorder("="), order="C", copy=False)


# Checks and converts values of kinds with rows and columns: called with (value, what=, source=).
TABLES: dict[FieldKind, Callable[..., NDArray[Any]]] = {
    BOXES: partial(float_array, shape=(None, 4)),
    POINTS: points_array,
    MATRIX: partial(float_array, shape=(None, None), dtype=np.float64),
}
