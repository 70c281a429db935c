"""The kinds of fields: what a value is, how it is stored, and what other packages may assume of it.

A new kind is one object here, one line in ``KINDS``, and one row in each table keyed by kind:
moving labels (``_plan``), collating (``_load``), showing (``_tools``), and reading it from Python
objects and text (``_pack/sources``). Behavior that needs more than NumPy lives in those tables;
traits and the stored bytes live here. docs/FORMAT.md has the byte layouts.

``pixels`` is imported where it is used: transforms need the kinds, but neither Pillow nor simplejpeg.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from fastload._common import strict_json
from fastload._common.public import public
from fastload._store.arrays import decode_array, encode_array
from fastload._store.record import ARRAY, DEFLATED, JPEG, PLAIN, PNG, RAW, Part, shown_size
from fastload.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from fastload._store.fields import Field
    from fastload._store.pixels import Pixels

MAX_JSON_DEPTH = 64
MISSING_INT = -(1 << 63)  # in an int column: the sample lacks the field


@public()
class FieldKind:
    """One kind of field. There is one object per kind: compare with ``is``, look up in ``KINDS``."""

    is_image = False  # pixels with colors; masks, boxes, points and matrices may belong to it
    is_mask = False  # one integer per pixel: resized by picking pixels, never by mixing them
    is_array = False  # decodes to a NumPy view of the record
    moves_with_image = False  # the values are places in an image and follow its crop
    column_dtype = ""  # of the column that repeats the values; "" = no such column
    missing: float = float("nan")  # in that column, for a sample without the field
    row_widths: tuple[int, ...] = ()  # numbers per row, where a value is a table of any length

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<FieldKind {self.name}>"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], FieldKind], tuple[str]]:
        return kind_named, (self.name,)  # copies and pickles are the same object

    @property
    def decoded_by_pool(self) -> bool:
        """The decode threads turn the stored file into pixels: images and masks."""
        return self.is_image or self.is_mask

    @property
    def in_column(self) -> bool:
        """A column holds the values: a loader needs no record for them."""
        return bool(self.column_dtype)

    def is_missing(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which values of a column stand for a sample without the field."""
        # NaN is the one value that differs from itself.
        missing: npt.NDArray[np.bool_] = (values == self.missing) | (values != values)  # noqa: PLR0124
        return missing

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        """One value as a part of field ``number``; raises ConfigError for a value of another kind."""
        raise NotImplementedError

    def decode(self, field: Field, part: Part) -> Any:
        """The value of a part, numbers as a view of it; raises RecordError or BadImage."""
        raise NotImplementedError

    def misfit(self, value: Any) -> str:
        """Why a decoded value cannot be of this kind; "" if it can."""
        return ""

    def columns(self, name: str) -> dict[str, str]:
        """Name and dtype of the columns that repeat a field of this kind, unless it is a list."""
        return {name: self.column_dtype} if self.column_dtype else {}

    def column_values(self, field: Field, part: Part | None) -> dict[str, float]:
        """What those columns hold for a sample with this part; raises RecordError."""
        return {}


class PixelKind(FieldKind):
    codecs: tuple[int, ...]

    def decode_pixels(self, part: Part) -> Pixels:
        raise NotImplementedError

    def decode(self, field: Field, part: Part) -> Pixels:
        return self.decode_pixels(part)


class _ImageKind(PixelKind):
    is_image = True
    codecs = (JPEG, PNG, RAW, DEFLATED)

    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        from fastload._store.pixels import encode_pixels

        return encode_pixels(number, item, np.asarray(value), what=f"field {field.name!r}")

    def decode_pixels(self, part: Part) -> Pixels:
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

    def decode_pixels(self, part: Part) -> Pixels:
        from fastload._store.pixels import decode_mask

        return decode_mask(part)


class _ArrayKind(FieldKind):
    """Numbers of any shape and type, as given."""

    is_array = True

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
        """The array in the type and shape that are stored; raises ValueError where it has another."""
        return array


class _TableKind(_ArrayKind):
    """Two axes of one type; the second has one of ``row_widths`` numbers, () = any number."""

    moves_with_image = True

    def __init__(
        self, name: str, dtype: npt.DTypeLike, shape: str, row_widths: tuple[int, ...] = ()
    ) -> None:
        super().__init__(name)
        self.dtype = np.dtype(dtype)
        self.row_widths = row_widths
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
                f"field {field.name!r}: {describe_value(value)} does not fit 64 bits"
            ) from None

    def decode(self, field: Field, part: Part) -> int | float:
        if len(part.data) != self._layout.size or part.codec != PLAIN:
            raise RecordError(
                f"{self} {field.name!r}",
                f"{len(part.data)} bytes, codec {part.codec}",
                "8, codec 0",
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
                f"field {field.name!r}: {describe_value(value)} is not valid Unicode"
            ) from None

    def decode(self, field: Field, part: Part) -> str:
        try:
            return bytes(part.data).decode()
        except UnicodeDecodeError as error:
            raise RecordError(
                f"text of {field.name!r}", f"not UTF-8 at byte {error.start}", "UTF-8"
            ) from None


class _JsonKind(FieldKind):
    def encode(self, number: int, item: int, field: Field, value: object) -> Part:
        try:
            data = strict_json.dumps(value, max_depth=MAX_JSON_DEPTH).encode()  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"field {field.name!r}: not JSON: {error}") from None
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


def describe_value(value: object) -> str:
    """Type and beginning of a value, for messages."""
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
