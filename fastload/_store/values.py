"""Field values to parts and back, for every kind of field. The byte layouts are in docs/FORMAT.md."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fastload._common import strict_json
from fastload._common.checksum import Bytes
from fastload._store.fields import Field
from fastload._store.pixels import decode_image, decode_mask, encode_mask, encode_pixels
from fastload._store.record import ARRAY, DATA, MAX_RECORD, PLAIN, SOURCE_FIELD, Part, RecordError
from fastload.errors import ConfigError

MAX_DIMENSIONS = 8
MAX_JSON_DEPTH = 64
DTYPES = tuple(
    map(np.dtype, ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "?"))
)
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_ARRAY_HEAD = 8
_NUMBERS = ("boxes", "points", "matrix", "array")
_SCALARS = {"int": struct.Struct("<q"), "float": struct.Struct("<d")}


def encode_value(number: int, field: Field, value: object) -> list[Part]:
    """The parts of field ``number``; none for None. Raises ConfigError for a value that is not of the field's kind.

    Images come as uint8 or uint16 arrays here and are stored raw; encoded files are the packer's business.
    """
    if value is None:
        return []
    encode = _ENCODERS[field.kind]
    what = f"field {field.name!r}"
    if not field.list:
        return [encode(number, 0, field, value)]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{what}: expected a list of {field.kind}, found {_shown(value)}")
    return [encode(number, item, field, each) for item, each in enumerate(value)]


def decode_value(field: Field, parts: list[Part], *, copy: bool = True) -> Any:
    """The value of a field from its parts, sorted by item; None, or [] for a list, where there are none.

    Without ``copy`` numbers stay where they are: read-only views, for who copies them anyway."""
    found = [part for part in parts if part.role == DATA]
    if not field.list and len(found) > 1:
        raise RecordError(
            f"number of parts of field {field.name!r}", len(found), "1, it is no list"
        )
    values = [_DECODERS[field.kind](field, part) for part in found]
    if copy and field.kind in _NUMBERS:
        values = [value.copy() for value in values]
    return values if field.list else values[0] if values else None


def source_part(path: str) -> Part:
    """The original path of a sample. A name that is not UTF-8 is kept readable, as ``caf\\xe9.jpg``."""
    return Part(SOURCE_FIELD, os.fsencode(path).decode("utf-8", "backslashreplace").encode())


def encode_array(array: npt.NDArray[Any], *, what: str = "array") -> bytes:
    """Type, shape and numbers in C order."""
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _CODES or array.ndim > MAX_DIMENSIONS or array.nbytes > MAX_RECORD:
        raise ConfigError(
            f"{what}: {array.dtype} of {array.shape}: expected integers, floats or bools of at most "
            f"{MAX_DIMENSIONS} dimensions and {MAX_RECORD} bytes"
        )
    head = struct.pack(f"<BB6x{array.ndim}Q", _CODES[dtype], array.ndim, *array.shape)
    return head + np.ascontiguousarray(array, dtype).tobytes()


def decode_array(data: Bytes) -> npt.NDArray[Any]:
    """A read-only view of a stored array; raises RecordError, whatever the shape claims."""
    size = len(data)
    if (
        size < _ARRAY_HEAD
        or data[0] >= len(DTYPES)
        or data[1] > MAX_DIMENSIONS
        or size < _ARRAY_HEAD + 8 * data[1]
    ):
        raise RecordError(
            "array header",
            bytes(data[:_ARRAY_HEAD]),
            f"type below {len(DTYPES)}, at most {MAX_DIMENSIONS} dimensions",
        )
    dtype, n_dims = DTYPES[data[0]], data[1]
    shape = struct.unpack_from(f"<{n_dims}Q", data, _ARRAY_HEAD)
    start = _ARRAY_HEAD + 8 * n_dims
    # Python's integers do not overflow. An empty array may not hide a huge side either: numpy multiplies the others.
    if (
        math.prod(shape) * dtype.itemsize != size - start
        or math.prod(max(n, 1) for n in shape) > MAX_RECORD
        or any(data[2:8])
    ):
        raise RecordError("array shape", f"{dtype} of {shape}", f"{size - start} bytes")
    array: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return array


def _encode_scalar(number: int, item: int, field: Field, value: object) -> Part:
    value = value.item() if isinstance(value, np.generic) else value
    allowed = (int,) if field.kind == "int" else (int, float)
    if not isinstance(value, allowed):
        raise ConfigError(f"field {field.name!r}: expected {field.kind}, found {_shown(value)}")
    if field.classes and not 0 <= value < len(field.classes):
        raise ConfigError(
            f"field {field.name!r}: class {value}, expected 0 to {len(field.classes) - 1}"
        )
    try:
        return Part(number, _SCALARS[field.kind].pack(value), item)
    except (struct.error, OverflowError):
        raise ConfigError(f"field {field.name!r}: {_shown(value)} does not fit 64 bits") from None


def _decode_scalar(field: Field, part: Part) -> int | float:
    layout = _SCALARS[field.kind]
    if len(part.data) != layout.size or part.codec != PLAIN:
        raise RecordError(
            f"{field.kind} {field.name!r}",
            f"{len(part.data)} bytes, codec {part.codec}",
            "8, codec 0",
        )
    return cast("int | float", layout.unpack(part.data)[0])


def _encode_str(number: int, item: int, field: Field, value: object) -> Part:
    if not isinstance(value, str):
        raise ConfigError(f"field {field.name!r}: expected str, found {_shown(value)}")
    try:
        return Part(number, value.encode(), item)
    except UnicodeEncodeError:
        raise ConfigError(f"field {field.name!r}: {_shown(value)} is not valid Unicode") from None


def _decode_str(field: Field, part: Part) -> str:
    try:
        return bytes(part.data).decode()
    except UnicodeDecodeError as error:
        raise RecordError(
            f"text of {field.name!r}", f"not UTF-8 at byte {error.start}", "UTF-8"
        ) from None


def _encode_json(number: int, item: int, field: Field, value: object) -> Part:
    try:
        data = strict_json.dumps(value, max_depth=MAX_JSON_DEPTH).encode()  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"field {field.name!r}: not JSON: {error}") from None
    return Part(number, data, item)


def _decode_json(field: Field, part: Part) -> Any:
    try:
        return strict_json.loads(bytes(part.data), max_depth=MAX_JSON_DEPTH)
    except ValueError as error:
        raise RecordError(f"JSON of {field.name!r}", str(error), "valid JSON") from None


def _encode_bytes(number: int, item: int, field: Field, value: object) -> Part:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(f"field {field.name!r}: expected bytes, found {_shown(value)}")
    return Part(number, bytes(value), item)


def _decode_bytes(_: Field, part: Part) -> bytes:
    return bytes(part.data)


def _encode_numbers(number: int, item: int, field: Field, value: object) -> Part:
    what = f"field {field.name!r}"
    try:
        array = np.asarray(value)
        array = _fitted(field.kind, array) if field.kind != "array" else array
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {field.kind}: {error}") from None
    return Part(number, encode_array(array, what=what), item, ARRAY)


def _fitted(kind: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Boxes (n, 4) and points (n, 2 or 3) as float32, a matrix as float64."""
    if kind == "matrix":
        array = array.astype(np.float64)
        if array.ndim != 2:
            raise ValueError(f"expected (rows, columns), found {array.shape}")
        return array
    array = array.astype(np.float32)
    columns = (4,) if kind == "boxes" else (2, 3)
    if not array.size and array.ndim < 2:
        array = array.reshape(0, columns[0])
    if array.ndim != 2 or array.shape[1] not in columns:
        raise ValueError(f"expected (n, {' or '.join(map(str, columns))}), found {array.shape}")
    return array


def _decode_numbers(field: Field, part: Part) -> npt.NDArray[Any]:
    if part.codec != ARRAY:
        raise RecordError(f"codec of {field.kind} {field.name!r}", part.codec, ARRAY)
    return decode_array(part.data)


def _encode_image(number: int, item: int, field: Field, value: object) -> Part:
    encode = encode_pixels if field.kind == "image" else encode_mask
    return encode(number, item, np.asarray(value), what=f"field {field.name!r}")


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


_ENCODERS: dict[str, Callable[[int, int, Field, object], Part]] = {
    "image": _encode_image,
    "mask": _encode_image,
    "boxes": _encode_numbers,
    "points": _encode_numbers,
    "matrix": _encode_numbers,
    "array": _encode_numbers,
    "int": _encode_scalar,
    "float": _encode_scalar,
    "str": _encode_str,
    "json": _encode_json,
    "bytes": _encode_bytes,
}
_DECODERS: dict[str, Callable[[Field, Part], Any]] = {
    "image": lambda _, part: decode_image(part),
    "mask": lambda _, part: decode_mask(part),
    "boxes": _decode_numbers,
    "points": _decode_numbers,
    "matrix": _decode_numbers,
    "array": _decode_numbers,
    "int": _decode_scalar,
    "float": _decode_scalar,
    "str": _decode_str,
    "json": _decode_json,
    "bytes": _decode_bytes,
}
