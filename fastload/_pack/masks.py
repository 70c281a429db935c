"""Masks from files: label numbers exactly as they are stored, never colours."""

from __future__ import annotations

import io
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.pillow import PILLOW_ERRORS, check_png
from fastload._pack.sources.base import Encoded, Value
from fastload._store.jpeg_header import check_size
from fastload.errors import BadImage

_MODES = (
    "1",
    "L",
    "P",
    "I",
    "I;16",
    "I;16B",
    "I;16L",
)  # one number a pixel; P: the palette's index is the label


def mask_array(value: Value) -> NDArray[np.generic]:
    """(H, W) integers of a mask given as a file, a Pillow image or an array; raises BadImage."""
    if isinstance(value, Encoded):
        if value.data[:2] == b"\xff\xd8":
            raise BadImage(
                "a mask in a JPEG: its labels are mixed at every edge; expected PNG or an array"
            )
        data = value.data
        try:
            value = Image.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF", "GIF", "WEBP"))
            check_size(*value.size)
            if value.format == "PNG":
                check_png(data)
            value.load()
        except BadImage:
            raise
        except PILLOW_ERRORS as error:
            raise BadImage(f"not a mask that can be read: {error}") from None
    if isinstance(value, Image.Image):
        if value.mode not in _MODES:
            raise BadImage(
                f"a mask with pixels of type {value.mode}: expected one label number a pixel"
            )
        value = np.asarray(value)
    array = cast("NDArray[np.generic]", np.asarray(value))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 or array.dtype.kind not in "biu" or not array.size:
        raise BadImage(
            f"a mask of shape {array.shape} and type {array.dtype}: expected (H, W) integers"
        )
    check_size(array.shape[1], array.shape[0])
    return array
