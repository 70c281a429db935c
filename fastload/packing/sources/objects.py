"""Python objects (PIL images, arrays, tensors, numbers, text) into field values, and the kinds they suggest."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload.errors import BadImage, ConfigError
from fastload.packing.files import read_bounded
from fastload.packing.sources.base import Encoded, Pixels, Value
from fastload.packing.sources.numbers import float_array, points_array
from fastload.store.fields import Field

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"BM", b"II*\0", b"MM\0*")
_IMAGE_NAMES = ("image", "img", "gray", "photo", "picture", "frame")
_FLOAT_HINT = ("images are packed as they are before training changes them: give the dataset without ToTensor and "
               "Normalize, or convert with (x * 255).round().clip(0, 255).astype('uint8')")


def infer_field(name: str, value: object) -> Field:
    """The field a value suggests; ConfigError where it cannot be packed."""
    if isinstance(value, (list, tuple)) and value and all(_image_like(name, _colour_last(each)) for each in value):
        return Field(name, "image", list=True)
    if _image_like(name, _colour_last(value)):
        return Field(name, "image")
    value = plain(value)
    if isinstance(value, np.ndarray):
        return Field(name, _array_kind(name, value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Field(name, "bytes")
    if isinstance(value, str):
        return Field(name, "str")
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return Field(name, "int")
    if isinstance(value, (float, np.floating)):
        return Field(name, "float")
    if isinstance(value, (list, tuple)) and value and all(isinstance(plain(each), np.ndarray) for each in value):
        return Field(name, _array_kind(name.removesuffix("s"), np.asarray(plain(value[0]))), list=True)
    if isinstance(value, (list, tuple, dict)):
        return Field(name, "json")
    raise ConfigError(f"field {name!r}: no kind for {type(value).__name__} in the first sample; name the kinds "
                      "(fields=), and leave out what cannot be packed")


def checked(value: object, field: Field, where: str) -> Value:
    """The value as the field's kind; BadImage where it does not fit. None stays None."""
    if value is None:
        return None
    if not field.list:
        return _one(value, field.kind, f"field {field.name!r}", where)
    if not isinstance(value, (list, tuple)) and not isinstance(plain(value), np.ndarray):
        raise BadImage(f"field {field.name!r}: expected a list, found {type(value).__name__}", source=where)
    items = value if isinstance(value, (list, tuple)) else list(np.asarray(plain(value)))
    made = [_one(each, field.kind, f"field {field.name!r}, item {i}", where) for i, each in enumerate(items)]
    return made      # type: ignore[return-value]   # a list of one kind; the type cannot say which


def plain(value: object) -> object:
    """Torch tensors as numpy, arrays of one number as that number."""
    if _is_tensor(value) and hasattr(value, "detach"):
        try:
            array = np.asarray(value.detach().cpu().numpy())
        except (TypeError, RuntimeError) as error:        # bfloat16, sparse
            raise BadImage(f"a torch tensor that numpy cannot hold: {error}") from None
        value = array
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    return value


def _is_tensor(value: object) -> bool:
    """Without importing torch, which may not be there."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _colour_last(value: object) -> object:
    """A torch image has its colours first."""
    array = plain(value)
    if _is_tensor(value) and isinstance(array, np.ndarray) and array.ndim == 3 and array.shape[0] in (1, 3, 4):
        return array.transpose(1, 2, 0)
    return array


def _image_like(name: str, value: object) -> bool:
    if isinstance(value, (Image.Image, Encoded, Path)):
        return True
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:6]).startswith(_MAGIC) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP")
    if not isinstance(value, np.ndarray):
        return False
    named = name.rstrip("s_0123456789").lower().endswith(_IMAGE_NAMES)
    colour = value.ndim == 3 and value.shape[2] in (1, 3, 4) and value.dtype == np.uint8
    return colour or (named and value.ndim in (2, 3))       # a float image is caught as such, not stored as an array


def _array_kind(name: str, array: NDArray[np.generic]) -> str:
    """By name, where the shape agrees: a (5, 4) array called boxes is boxes, under another name it is an array."""
    two = array.ndim == 2
    if name.endswith(("mask", "masks")) and two and array.dtype.kind in "biu":
        return "mask"
    if name.endswith(("boxes", "bbox", "bboxes", "box")) and two and array.shape[1] == 4:
        return "boxes"
    if name.endswith(("points", "keypoints", "point")) and two and array.shape[1] in (2, 3):
        return "points"
    if name.endswith(("intrinsic", "intrinsics", "matrix")) and two and array.dtype.kind == "f":
        return "matrix"
    if array.dtype.kind in "biuf":
        return "array"
    raise ConfigError(f"field {name!r}: an array of {array.dtype}; expected numbers")


def _one(value: object, kind: str, what: str, where: str) -> Value:
    if kind == "image":
        return _pixels(_colour_last(value), kind, what, where)
    value = plain(value)
    if kind == "mask":
        return _pixels(value, kind, what, where)
    if kind == "boxes":
        return float_array(value, shape=(None, 4), what=what, source=where)
    if kind == "points":
        return points_array(value, what=what, source=where)
    if kind == "matrix":
        return float_array(value, shape=(None, None), what=what, source=where, dtype=np.float64)
    if kind == "array":
        return _array(value, what, where)
    return _scalar(value, kind, what, where)


def _scalar(value: object, kind: str, what: str, where: str) -> Value:
    try:
        if kind == "int" and isinstance(value, SupportsIndex):
            number = operator.index(value)
            if -2**63 <= number < 2**63:
                return number
        elif kind == "int" and isinstance(value, np.bool_):
            return int(value)
        elif kind == "float" and isinstance(value, SupportsFloat):
            return float(value)
        elif kind == "str" and isinstance(value, str):
            value.encode()
            return value
        elif kind == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        elif kind == "json":
            strict = json.dumps(value, allow_nan=False)
            strict.encode()
            return json.loads(strict)      # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise BadImage(f"{what}: {value!r:.60} cannot be stored as {kind}: {error}", source=where) from None
    raise BadImage(f"{what}: expected {kind}, found {type(value).__name__} {value!r:.60}", source=where)


def _array(value: object, what: str, where: str) -> Value:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim > 8:
        raise BadImage(f"{what}: expected numbers in at most 8 dimensions, found {value!r:.60}", source=where)
    return np.ascontiguousarray(array)


def _pixels(value: object, kind: str, what: str, where: str) -> Pixels:
    if isinstance(value, Path):
        return Encoded(read_bounded(value.resolve().parent, value.resolve().name), str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded(bytes(value), where)
    if isinstance(value, Encoded):
        return value
    if isinstance(value, Image.Image):
        try:
            value.load()
        except (OSError, ValueError, SyntaxError) as error:
            raise BadImage(f"{what}: {error}", source=where) from None
        return np.asarray(value) if kind == "mask" else value
    if not isinstance(value, np.ndarray):
        raise BadImage(f"{what}: expected an image, found {type(value).__name__}", source=where)
    if kind == "mask":
        if value.ndim != 2 or value.dtype.kind not in "biu":
            raise BadImage(f"{what}: expected integers (H, W), found {value.dtype} {value.shape}", source=where)
        return np.ascontiguousarray(value.astype(np.uint8) if value.dtype == np.bool_ else value)
    if value.dtype.kind == "f":
        raise BadImage(f"{what}: a {value.dtype} image {value.shape}; {_FLOAT_HINT}", source=where)
    if value.dtype not in (np.uint8, np.uint16) or value.ndim not in (2, 3) or 0 in value.shape \
            or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
        raise BadImage(f"{what}: expected uint8 or uint16 (H, W) or (H, W, 1|3|4), found {value.dtype} {value.shape}",
                       source=where)
    return np.ascontiguousarray(value)
