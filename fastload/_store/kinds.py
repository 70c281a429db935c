"""Field kinds: what a value is, how it is stored, and which traits other packages rely on.

A new kind is one object here, one line in ``KINDS``, and one row in each table keyed by kind:
label transforms (``_plan``), collation (``_load``), display (``_tools``), and conversion from
Python objects and text (``_pack/sources``). Traits and stored bytes live here. Behavior that needs
more than NumPy lives in those tables. docs/FORMAT.md defines the byte layouts.

``pixels`` is imported inside functions because transforms use the kinds without Pillow or
simplejpeg.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from fastload._common import strict_json
from fastload._common.checksum import Bytes
from fastload._common.public import public
from fastload._store.record import (
    ARRAY,
    DEFLATED,
    JPEG,
    MAX_RECORD,
    PLAIN,
    PNG,
    RAW,
    Part,
    shown_size,
)
from fastload.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from fastload._store.fields import Field
    from fastload._store.pixels import Pixels

MAX_JSON_DEPTH = 64
MISSING_INT = -(1 << 63)  # value in an int column for a sample without the field
MAX_DIMENSIONS = 8
DTYPES = tuple(
    map(np.dtype, ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "?"))
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_ARRAY_HEADER_BYTES = 8  # dtype code, number of dimensions, 6 zeros; 8 bytes per dimension follow


@public()
class FieldKind:
    """One kind of field, such as ``image`` or ``int``.

    There is exactly one object per kind, so kinds are compared with ``is``. ``field.kind`` is a
    ``FieldKind``; ``str(kind)`` is its name.

    Examples:
        >>> [field.name for field in dataset.fields if field.kind.is_image]
        ['image']
    """

    is_image = False  # color pixels; masks, boxes, points and matrices may belong to it
    is_mask = False  # one integer per pixel; resized with nearest neighbor, never interpolated
    is_array = False  # decodes to a NumPy view of the record
    moves_with_image = False  # the values are coordinates in an image and follow its crop
    column_dtype = ""  # dtype of the column with a copy of the values; "" = no column
    missing: float = float("nan")  # value in that column for a sample without the field
    has_rows = False  # a value may have one entry per row of another field (``Field.along``)
    row_widths: tuple[int, ...] = ()  # allowed numbers per row if a value is a table of any length

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<FieldKind {self.name}>"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], FieldKind], tuple[str]]:
        return kind_named, (self.name,)  # copy and unpickle to the same object

    @property
    def decoded_by_pool(self) -> bool:
        """True for images and masks: the decode threads turn the stored file into pixels."""
        return self.is_image or self.is_mask

    @property
    def in_column(self) -> bool:
        """True if a column holds the values, so that the loader reads no record for them."""
        return bool(self.column_dtype)

    def is_missing(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the column values that mean "no such field in this sample"."""
        # NaN is the only value that differs from itself.
        missing: npt.NDArray[np.bool_] = (values == self.missing) | (values != values)  # noqa: PLR0124
        return missing

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        """Encodes one value as a part of field ``number``; raises ConfigError for a wrong value."""
        raise NotImplementedError

    def decode(self, field: Field, part: Part) -> Any:
        """Decodes a part; arrays are views of it. Raises RecordError or BadImage."""
        raise NotImplementedError

    def misfit(self, value: Any) -> str:
        """Returns why a decoded value cannot be of this kind, or "" if it can."""
        return ""

    def columns(self, name: str) -> dict[str, str]:
        """Returns {column name: dtype} for a field of this kind that is not a list."""
        return {name: self.column_dtype} if self.column_dtype else {}

    def column_values(self, field: Field, part: Part | None) -> dict[str, float]:
        """Returns the column values of a sample with this part; raises RecordError."""
        return {}


class PixelKind(FieldKind):
    codecs: tuple[int, ...]


class _ImageKind(PixelKind):
    is_image = True
    codecs = (JPEG, PNG, RAW, DEFLATED)

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        from fastload._store.pixels import encode_pixels

        return encode_pixels(number, item, np.asarray(value), what=f"field {field.name!r}")

    def decode(self, field: Field, part: Part) -> Pixels:
        from fastload._store.pixels import decode_image

        return decode_image(part)

    def columns(self, name: str) -> dict[str, str]:
        return {f"{name}.width": "<u2", f"{name}.height": "<u2"}

    def column_values(self, field: Field, part: Part | None) -> dict[str, float]:
        width, height = shown_size(part) if part is not None else (0, 0)
        return {f"{field.name}.width": width, f"{field.name}.height": height}


class _MaskKind(PixelKind):
    is_mask = True
    moves_with_image = True
    codecs = (PNG, RAW, DEFLATED)

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        from fastload._store.pixels import encode_mask

        return encode_mask(number, item, np.asarray(value), what=f"field {field.name!r}")

    def decode(self, field: Field, part: Part) -> Pixels:
        from fastload._store.pixels import decode_mask

        return decode_mask(part)


class _ArrayKind(FieldKind):
    is_array = True
    has_rows = True

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        what = f"field {field.name!r}"
        try:
            array = self.fitted(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what}: {self}: {error}") from None
        return Part(number, encode_array(array, what=what), item, ARRAY)

    def decode(self, field: Field, part: Part) -> npt.NDArray[Any]:
        if part.codec != ARRAY:
            raise RecordError(f"codec of {self} {field.name!r}", part.codec, ARRAY)
        return decode_array(part.data)

    def fitted(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Converts to the stored dtype and shape; raises ValueError if that is impossible."""
        return array


class _TableKind(_ArrayKind):
    """Two dimensions of one dtype; the size of the second is one of ``row_widths``, () = any."""

    moves_with_image = True

    def __init__(
        self, name: str, dtype: npt.DTypeLike, shape: str, row_widths: tuple[int, ...] = ()
    ) -> None:
        super().__init__(name)
        self.dtype = np.dtype(dtype)
        self.row_widths = row_widths
        self.has_rows = bool(row_widths)
        self._shape = shape

    def fitted(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = array.astype(self.dtype)
        if self.row_widths and not array.size and array.ndim < 2:
            array = array.reshape(0, self.row_widths[0])
        if not self._fits(array):
            raise ValueError(f"expected {self._shape}, found {array.shape}")
        return array

    def misfit(self, value: Any) -> str:
        if value.dtype == self.dtype and self._fits(value):
            return ""
        return f"{value.dtype} of {value.shape}, expected {self.dtype} of {self._shape}"

    def _fits(self, array: npt.NDArray[Any]) -> bool:
        return array.ndim == 2 and (not self.row_widths or array.shape[1] in self.row_widths)


class ScalarKind(FieldKind):
    def __init__(
        self, name: str, column_dtype: str, types: tuple[type, ...], missing: float
    ) -> None:
        super().__init__(name)
        self.column_dtype = column_dtype
        self.missing = missing
        self._types = types
        self._layout = struct.Struct("<q" if np.dtype(column_dtype).kind == "i" else "<d")

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, self._types):
            raise _wrong_type(field, value)
        if field.classes and not 0 <= cast(float, value) < len(field.classes):
            raise ConfigError(
                f"field {field.name!r}: class {value}, expected 0 to {len(field.classes) - 1}"
            )
        try:
            return Part(number, self._layout.pack(value), item)
        except (struct.error, OverflowError):
            raise ConfigError(
                f"field {field.name!r}: {describe_value(value)}: expected a 64-bit number"
            ) from None

    def decode(self, field: Field, part: Part) -> int | float:
        if len(part.data) != self._layout.size or part.codec != PLAIN:
            raise RecordError(
                f"{self} {field.name!r}",
                f"{len(part.data)} bytes, codec {part.codec}",
                f"8 bytes, codec {PLAIN}",
            )
        return cast("int | float", self._layout.unpack(part.data)[0])

    def column_values(self, field: Field, part: Part | None) -> dict[str, float]:
        return {field.name: self.missing if part is None else self.decode(field, part)}


class _StrKind(FieldKind):
    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        if not isinstance(value, str):
            raise _wrong_type(field, value)
        try:
            return Part(number, value.encode(), item)
        except UnicodeEncodeError:
            raise ConfigError(
                f"field {field.name!r}: {describe_value(value)}: expected valid Unicode"
            ) from None

    def decode(self, field: Field, part: Part) -> str:
        try:
            return bytes(part.data).decode()
        except UnicodeDecodeError as error:
            raise RecordError(
                f"text of {field.name!r}", f"not UTF-8 at byte {error.start}", "UTF-8"
            ) from None


class _JsonKind(FieldKind):
    has_rows = True

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        try:
            data = strict_json.dumps(value, max_depth=MAX_JSON_DEPTH).encode()  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"field {field.name!r}: expected valid JSON: {error}") from None
        return Part(number, data, item)

    def decode(self, field: Field, part: Part) -> Any:
        try:
            return strict_json.loads(bytes(part.data), max_depth=MAX_JSON_DEPTH)
        except ValueError as error:
            raise RecordError(f"JSON of {field.name!r}", str(error), "valid JSON") from None


class _BytesKind(FieldKind):
    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _wrong_type(field, value)
        return Part(number, bytes(value), item)

    def decode(self, field: Field, part: Part) -> bytes:
        return bytes(part.data)


def encode_array(array: npt.NDArray[Any], *, what: str = "array") -> bytes:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _DTYPE_CODES or array.ndim > MAX_DIMENSIONS or array.nbytes > MAX_RECORD:
        raise ConfigError(
            f"{what}: {array.dtype} of {array.shape}: expected integers, floats or bools of at "
            f"most {MAX_DIMENSIONS} dimensions and {MAX_RECORD} bytes"
        )
    header = struct.pack(f"<BB6x{array.ndim}Q", _DTYPE_CODES[dtype], array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, dtype).tobytes()


def decode_array(data: Bytes) -> npt.NDArray[Any]:
    """Returns a read-only view of a stored array; raises RecordError for any malformed header."""
    size = len(data)
    n_dims = data[1] if size >= _ARRAY_HEADER_BYTES else 0
    start = _ARRAY_HEADER_BYTES + 8 * n_dims
    if size < start or data[0] >= len(DTYPES) or n_dims > MAX_DIMENSIONS:
        raise RecordError(
            "array header",
            bytes(data[:_ARRAY_HEADER_BYTES]),
            f"a dtype code below {len(DTYPES)} and at most {MAX_DIMENSIONS} dimensions",
        )
    dtype = DTYPES[data[0]]
    shape = struct.unpack_from(f"<{n_dims}Q", data, _ARRAY_HEADER_BYTES)
    # Python integers do not overflow. The second condition rejects an empty array with huge other
    # dimensions, because NumPy multiplies these.
    if (
        math.prod(shape) * dtype.itemsize != size - start
        or math.prod(max(n, 1) for n in shape) > MAX_RECORD
        or any(data[2:_ARRAY_HEADER_BYTES])
    ):
        raise RecordError("array shape", f"{dtype} of {shape}", f"{size - start} bytes")
    array: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return array


def describe_value(value: object) -> str:
    """Returns the type and the first characters of a value, for messages."""
    return f"{type(value).__name__} {value!r:.60}"


def _wrong_type(field: Field, value: object) -> ConfigError:
    return ConfigError(
        f"field {field.name!r}: expected {field.kind}, found {describe_value(value)}"
    )


IMAGE = _ImageKind("image")
MASK = _MaskKind("mask")
BOXES = _TableKind("boxes", np.float32, "(n, 4)", (4,))
POINTS = _TableKind("points", np.float32, "(n, 2 or 3)", (2, 3))
MATRIX = _TableKind("matrix", np.float64, "(rows, columns)")
NUMBERS = _ArrayKind("array")
INT = ScalarKind("int", "<i8", (int,), MISSING_INT)
FLOAT = ScalarKind("float", "<f8", (int, float), float("nan"))
STR = _StrKind("str")
JSON = _JsonKind("json")
BYTES = _BytesKind("bytes")
KINDS: dict[str, FieldKind] = {
    kind.name: kind
    for kind in (IMAGE, MASK, BOXES, POINTS, MATRIX, NUMBERS, INT, FLOAT, STR, JSON, BYTES)
}


def kind_named(name: str) -> FieldKind:
    return KINDS[name]
