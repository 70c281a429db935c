"""Converts Python objects (PIL images, arrays, tensors, numbers, text) and infers their kinds."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.files import is_image_data, is_image_name, read_bounded
from fastload._pack.pillow import PILLOW_ERRORS, mask_array
from fastload._pack.sources.base import Encoded, Json, Pixels, Value
from fastload._pack.sources.numbers import TABLES
from fastload._store.fields import Field
from fastload._store.jpeg_header import check_size
from fastload._store.kinds import BYTES, FLOAT, INT, JSON, MASK, NUMBERS, STR, FieldKind
from fastload.errors import BadImage, ConfigError

_PYTHON_TYPES: dict[FieldKind, tuple[type, ...]] = {
    BYTES: (bytes, bytearray, memoryview),
    STR: (str,),
    INT: (bool, int, np.integer, np.bool_),
    FLOAT: (float, np.floating),
}
_IMAGE_NAMES = ("image", "img", "gray", "photo", "picture", "frame")
_MASKS = ("mask", "masks")
_BOXES = ("boxes", "bbox", "bboxes", "box")
_POINTS = ("points", "point")
_MATRICES = ("intrinsic", "intrinsics", "matrix")
_FLOAT_HINT = (
    "Images are packed before augmentation: pass the dataset without ToTensor and Normalize, or "
    "convert with (x * 255).round().clip(0, 255).astype('uint8')"
)


def infer_field(name: str, value: object) -> Field:
    """Returns the field that a value suggests. Raises ConfigError for an unsupported value."""
    items = _unstacked(value)
    if (
        isinstance(items, (list, tuple))
        and items
        and all(_image_like(name, _color_last(each)) for each in items)
    ):
        return Field(
            name, "mask" if all(_mask_like(name, each) for each in items) else "image", list=True
        )
    if _image_like(name, _color_last(value)):
        return Field(name, "mask" if _mask_like(name, value) else "image")
    value = _named_numbers(name, plain(value))
    if isinstance(value, np.ndarray):
        stack = _intrinsics(name, value)
        return Field(name, _array_kind(name, value[0] if stack else value), list=stack)
    if isinstance(value, str) and _named_image(name) and is_image_name(value):
        # Stored as text, it would fail in training.
        raise ConfigError(
            f"field {name!r}: the text {value!r:.60} names an image. Pass pathlib.Path(...) to "
            "pack the file, or pass fields= with kind 'str' to pack the text"
        )
    for kind, types in _PYTHON_TYPES.items():
        if isinstance(value, types):
            return Field(name, kind)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(plain(each), np.ndarray) for each in value)
    ):
        return Field(name, _array_kind(name, np.asarray(plain(value[0]))), list=True)
    if isinstance(value, dict) and any(
        _image_like(name, each) or isinstance(each, np.ndarray)
        for each in map(plain, value.values())
    ):
        raise ConfigError(
            f"field {name!r}: a dict of images or arrays has no kind. Use one field per entry "
            f"({', '.join(f'{name}_{key}' for key in list(value)[:2])}), or a list"
        )
    if isinstance(value, (list, tuple, dict)):
        return Field(name, "json")
    raise ConfigError(
        f"field {name!r}: unsupported type {type(value).__name__} in the first sample. "
        "Leave it out, or pass the kinds with fields="
    )


def checked(value: object, field: Field, where: str) -> Value:
    """Converts a value to the kind of its field. Raises BadImage if it does not fit. Keeps None."""
    if value is None:
        return None
    if not field.list:
        return _one(value, field.kind, f"field {field.name!r}", where)
    if not isinstance(value, (list, tuple)) and not isinstance(plain(value), np.ndarray):
        raise BadImage(
            f"field {field.name!r}: expected a list, found {type(value).__name__}", source=where
        )
    items = value if isinstance(value, (list, tuple)) else list(value)  # type: ignore[call-overload]   # an array, a tensor
    # A list of one kind. The type cannot say which.
    return [  # type: ignore[return-value]
        _one(each, field.kind, f"field {field.name!r}, item {i}", where)
        for i, each in enumerate(items)
    ]


def is_empty(value: object) -> bool:
    """Returns whether a value is an empty list or array, which does not reveal its item type."""
    value = plain(value)
    return (isinstance(value, (list, tuple)) and not value) or (
        isinstance(value, np.ndarray) and value.shape == (0,)
    )


def plain(value: object) -> object:
    """Converts torch tensors to NumPy arrays and arrays of one number to that number."""
    value = _numpy(value)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _numpy(value: object) -> object:
    """Converts a torch tensor to a NumPy array and returns other values unchanged."""
    if not _is_tensor(value) or not hasattr(value, "detach"):
        return value
    try:
        return np.asarray(value.detach().cpu().numpy())
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse
        raise BadImage(f"torch tensor cannot be converted to NumPy: {error}") from None


def _is_tensor(value: object) -> bool:
    """Detects a torch tensor without importing torch, which may not be installed."""
    return any(
        base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__
    )


def _color_last(value: object) -> object:
    """Moves the channels of a torch image last."""
    array = plain(value)
    if (
        _is_tensor(value)
        and isinstance(array, np.ndarray)
        and array.ndim == 3
        and array.shape[0] in (1, 3, 4)
    ):
        return array.transpose(1, 2, 0)
    return array


def _unstacked(value: object) -> object:
    """Splits a four-dimensional array, e.g. six cameras, into a list. Returns others unchanged."""
    array = plain(value)
    return list(value) if isinstance(array, np.ndarray) and array.ndim == 4 else value  # type: ignore[call-overload]


def _named_numbers(name: str, value: object) -> object:
    """Converts lists of numbers whose name suggests coordinates, e.g. ``points``, to an array."""
    if is_empty(value) and name.endswith(_BOXES + _POINTS):
        return np.empty((0, 4 if name.endswith(_BOXES) else 2))
    if not isinstance(value, (list, tuple)) or not name.endswith(_BOXES + _POINTS + _MATRICES):
        return value
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):  # ragged, or not numbers
        return value
    fits = _intrinsics(name, array) or _array_kind(name, array) != "array"
    return (
        array if fits and not any(isinstance(plain(each), np.ndarray) for each in value) else value
    )


def _intrinsics(name: str, array: NDArray[np.generic]) -> bool:
    """Returns whether an array has one camera matrix per camera."""
    return (
        name.endswith(("intrinsic", "intrinsics"))
        and array.ndim == 3
        and array.shape[1:] in ((3, 3), (3, 4))
    )


def _named_image(name: str) -> bool:
    return name.rstrip("s_0123456789").lower().endswith(_IMAGE_NAMES)


def _image_like(name: str, value: object) -> bool:
    if isinstance(value, (Image.Image, Encoded, Path)):
        return True
    if isinstance(value, (bytes, bytearray)):
        return is_image_data(bytes(value[:12]))
    if not isinstance(value, np.ndarray):
        return False
    color = value.ndim == 3 and value.shape[2] in (1, 3, 4) and value.dtype == np.uint8
    # A float image is accepted here so that packing rejects it instead of storing an array.
    return color or (_named_image(name) and value.ndim in (2, 3))


def _mask_like(name: str, value: object) -> bool:
    """Returns whether a file or PIL image called a mask has one number per pixel.

    As an image, the palette of such a file would replace the class numbers by colors.
    """
    if not name.endswith(_MASKS) or not isinstance(
        value, (Image.Image, Encoded, Path, bytes, bytearray)
    ):
        return False
    try:
        mask_array(_pixels(value, MASK, name, ""))
    except BadImage:
        return False
    return True


def _array_kind(name: str, array: NDArray[np.generic]) -> str:
    """Chooses the kind by name if the shape agrees: a (5, 4) array called "boxes" is boxes."""
    for names, kind, fits in (
        (_MASKS, "mask", array.dtype.kind in "biu"),
        (_BOXES, "boxes", array.shape[1:] == (4,)),
        (_POINTS, "points", array.shape[1:] in ((2,), (3,))),
        (_MATRICES, "matrix", array.dtype.kind == "f"),
    ):
        if name.endswith(names) and array.ndim == 2 and fits:
            return kind
    if array.dtype.kind in "biuf":
        return "array"
    raise ConfigError(f"field {name!r}: expected an array of numbers, found {array.dtype}")


def _one(value: object, kind: FieldKind, what: str, where: str) -> Value:
    if kind.is_image:
        return _pixels(_color_last(value), kind, what, where)
    if kind is NUMBERS:
        # A single number keeps its dtype, without an axis.
        return _array(_numpy(value), what, where)
    value = plain(value)
    if kind.is_mask:
        return _pixels(value, kind, what, where)
    if kind in TABLES:
        return TABLES[kind](value, what=what, source=where)
    return _scalar(value, kind, what, where)


def _scalar(value: object, kind: FieldKind, what: str, where: str) -> Value:
    types, converted = _SCALARS[kind]
    try:
        if isinstance(value, types):
            return converted(value)
    except OverflowError:
        pass
    except (TypeError, ValueError, RecursionError) as error:
        raise BadImage(
            f"{what}: {' '.join(repr(value).split()):.60} cannot be stored as {kind}: {error}",
            source=where,
        ) from None
    raise BadImage(
        f"{what}: expected {kind}, found {type(value).__name__} {value!r:.60}", source=where
    )


def _to_int(value: Any) -> int:
    if isinstance(value, np.bool_):
        return int(value)
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError
    return number


def _to_str(value: Any) -> str:
    value.encode()
    return str(value)


def _to_json(value: Any) -> Json:
    strict = json.dumps(value, allow_nan=False)
    strict.encode()
    parsed: Json = json.loads(strict)
    return parsed


# Accepted types and the conversion, per kind.
_SCALARS: dict[FieldKind, tuple[tuple[type, ...], Callable[[Any], Value]]] = {
    INT: ((SupportsIndex, np.bool_), _to_int),
    FLOAT: ((SupportsFloat,), float),
    STR: ((str,), _to_str),
    JSON: ((object,), _to_json),
    BYTES: ((bytes, bytearray, memoryview), bytes),
}


def _array(value: object, what: str, where: str) -> Value:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim > 8:
        raise BadImage(
            f"{what}: expected numbers in at most 8 dimensions, found {value!r:.60}", source=where
        )
    return np.asarray(array, order="C")


def _pixels(value: object, kind: FieldKind, what: str, where: str) -> Pixels:
    if isinstance(value, Path):
        return Encoded(read_bounded(value.resolve().parent, value.resolve().name), str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), where)
    if isinstance(value, Encoded):
        return value
    if isinstance(value, Image.Image):
        try:
            check_size(*value.size)
            value.load()
        except BadImage as error:
            raise BadImage(f"{what}: {error.why}", source=where) from None
        except PILLOW_ERRORS as error:
            raise BadImage(f"{what}: {error}", source=where) from None
        return np.asarray(value) if kind.is_mask else value
    if not isinstance(value, np.ndarray):
        hint = ". Pass pathlib.Path(...) for a file" if isinstance(value, str) else ""
        raise BadImage(
            f"{what}: expected an image, found {type(value).__name__} "
            f"{' '.join(repr(value).split()):.60}{hint}",
            source=where,
        )
    if kind.is_mask:
        if value.ndim != 2 or value.dtype.kind not in "biu":
            raise BadImage(
                f"{what}: expected integers (H, W), found {value.dtype} {value.shape}", source=where
            )
        return np.ascontiguousarray(value.astype(np.uint8) if value.dtype == np.bool_ else value)
    if value.dtype.kind == "f":
        raise BadImage(
            f"{what}: expected uint8 or uint16 pixels, found {value.dtype} {value.shape}. "
            f"{_FLOAT_HINT}",
            source=where,
        )
    if (
        value.dtype not in (np.uint8, np.uint16)
        or value.ndim not in (2, 3)
        or 0 in value.shape
        or (value.ndim == 3 and value.shape[2] not in (1, 3))
    ):
        raise BadImage(
            f"{what}: expected uint8 or uint16 (H, W) or (H, W, 1|3), "
            f"found {value.dtype} {value.shape}",
            source=where,
        )
    return np.ascontiguousarray(value)
