"""Reading image files with Pillow: checked before they are decoded, damage named, whatever Pillow raises."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.sources.base import Encoded, Value
from fastload._store.jpeg_header import check_size
from fastload._store.pixels import upright
from fastload.errors import BadImage

READ_FORMATS = ("PNG", "WEBP", "BMP", "TIFF", "GIF", "JPEG", "PPM")

# What Pillow raises for damaged files (fuzzed: tests/fault/test_pack_damaged_images.py); one bad file must not end a pack.
PILLOW_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Pillow warns of large sizes and odd metadata; we check ourselves, and a warning is no reason to end a pack.

    Once around all, not in each thread: filters belong to the process, and two threads would restore each other's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", module=rf"PIL\.|{re.escape(__name__.rpartition('.')[0])}\."
        )
        yield


def check_png(data: bytes) -> None:
    """Compares the checksums of all chunks, which Pillow does not; raises BadImage."""
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if (
            zlib.crc32(memoryview(data)[position + 4 : end]).to_bytes(4, "big")
            != data[end : end + 4]
        ):
            raise BadImage(
                f"damaged PNG: the checksum of chunk {kind.decode('latin-1')} at byte {position} is wrong"
            )
        if kind == b"IEND":
            return
        position = end + 4
    raise BadImage("damaged PNG: the end chunk is missing: the file is cut off")


def open_image(data: bytes) -> Image.Image:
    """Opens an image file with Pillow, checking its size before anything is decoded."""
    try:
        image = Image.open(io.BytesIO(data), formats=READ_FORMATS)
    except PILLOW_ERRORS:
        raise BadImage(f"not an image that can be read (starts with {data[:8]!r})") from None
    check_size(*image.size)
    return image


def pixels_of(image: Image.Image) -> tuple[NDArray[np.uint8], str]:
    """Pixels (H, W, 1 or 3) with the EXIF orientation applied, and what had to be given up for that."""
    mode = image.mode
    target = "L" if mode in ("1", "L", "LA", "I", "F") or mode.startswith("I;16") else "RGB"
    converted = "transparency left out" if "transparency" in image.info else ""
    if mode != target:
        converted = f"{mode} → {target}"
    try:
        image.load()
        if mode == "I" or mode.startswith("I;16"):
            wide = np.asarray(image)
            if wide.min() < 0 or wide.max() > 65_535:
                raise BadImage(
                    f"pixel values from {wide.min()} to {wide.max()}: expected 8 or 16 bit"
                )
            pixels = (wide.astype(np.uint32) >> 8).astype(np.uint8)
            converted = "16 → 8 bit"
        elif mode == "F":
            raise BadImage("pixel type F: expected 8 or 16 bit")
        else:
            pixels = np.asarray(image.convert(target), np.uint8)
    except BadImage:
        raise
    except PILLOW_ERRORS as error:
        raise BadImage(f"damaged image: {error}") from None
    pixels = upright(pixels.reshape(*pixels.shape[:2], -1), orientation_of(image))
    return np.ascontiguousarray(pixels), converted


def is_animated(image: Image.Image) -> bool:
    """It has more than one frame; the first is what is loaded."""
    try:
        return int(getattr(image, "n_frames", 1)) > 1
    except PILLOW_ERRORS:
        return False


def orientation_of(image: Image.Image) -> int:
    """EXIF 1..8 of a loaded image; 1 where there is none or the EXIF data are damaged: the pixels are not."""
    try:
        value = image.getexif().get(0x0112)
    except PILLOW_ERRORS:
        return 1
    return value if type(value) is int and 1 <= value <= 8 else 1


# One number per pixel. Of "P" the palette's index is the label.
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")


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
        if value.mode not in MASK_MODES:
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
