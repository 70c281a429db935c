"""Reads image files with Pillow: checks them before decoding and reports damage as BadImage."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from fastload._pack.sources.base import Encoded, Value
from fastload._store.jpeg_header import check_size
from fastload._store.pixels import read_wide, upright, wide_mode
from fastload.errors import BadImage

# Pillow tries no other plugin: EPS would start Ghostscript, WMF would call the system.
READ_FORMATS = ("PNG", "WEBP", "BMP", "TIFF", "GIF", "JPEG", "PPM", "JPEG2000")

# Exceptions that Pillow raises for damaged files (tests/fault/test_pack_damaged_images.py). A bad
# file must not end a pack.
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


NARROWED = "16 → 8 bit"  # why a stored image differs from its source


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Ignores Pillow's warnings about sizes and metadata: the packer checks the files itself.

    Used once around the whole pack. Filters are global to the process, so two threads would restore
    each other's filters.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", module=rf"PIL\.|{re.escape(__name__.rpartition('.')[0])}\."
        )
        yield


def check_png(data: bytes) -> None:
    """Verifies the checksums of all chunks, which Pillow does not. Raises BadImage."""
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if (
            zlib.crc32(memoryview(data)[position + 4 : end]).to_bytes(4, "big")
            != data[end : end + 4]
        ):
            raise BadImage(
                f"damaged PNG: wrong checksum of chunk {kind.decode('latin-1')} at byte {position}"
            )
        if kind == b"IEND":
            return
        position = end + 4
    raise BadImage("truncated PNG: the end chunk is missing")


def open_image(data: bytes) -> ImageFile.ImageFile:
    """Opens an image file with Pillow and checks its size before decoding."""
    try:
        image = Image.open(io.BytesIO(data), formats=READ_FORMATS)
    except PILLOW_ERRORS:
        raise BadImage(f"not a supported image format (starts with {data[:8]!r})") from None
    check_size(*image.size)
    return image


def pixels_of(image: Image.Image) -> tuple[NDArray[Any], str]:
    """Returns upright pixels (H, W, 1 or 3) and a description of what the conversion lost.

    The pixels are uint8, or uint16 for 16-bit gray.
    """
    mode = image.mode
    is_wide = mode == "I" or mode.startswith("I;16")
    target = "L" if mode in ("1", "L", "LA", "F") else "RGB"
    converted = "transparency dropped" if "transparency" in image.info else ""
    if mode != target and not is_wide:
        converted = f"{mode} → {target}"
    if mode == "F":
        raise BadImage("pixel type F (float): expected 8 or 16 bits")
    try:
        image.load()
        pixels = np.asarray(image if is_wide else image.convert(target))
    except PILLOW_ERRORS as error:
        raise BadImage(f"damaged image: {error}") from None
    if is_wide:
        if pixels.min() < 0 or pixels.max() > 65_535:
            raise BadImage(
                f"pixel values from {pixels.min()} to {pixels.max()}: expected 8 or 16 bits"
            )
        pixels = pixels.astype(np.uint16)
    return _upright_pixels(pixels, image), converted


def file_pixels(image: ImageFile.ImageFile, data: bytes) -> tuple[NDArray[Any], str]:
    """Does the same for a file, and keeps the 16 bits of color that Pillow drops on loading."""
    mode = wide_mode(image).partition(";")[0]  # Pillow opens gray with alpha as RGBA
    if not mode:
        narrowed = NARROWED if _loses_bits(image, data) else ""
        pixels, converted = pixels_of(image)
        return pixels, ", ".join(filter(None, [converted, narrowed]))
    target = "L" if mode == "LA" else "RGB"
    converted = "transparency dropped" if "transparency" in image.info else ""
    if mode != target:
        converted = f"{mode} → {target}"
    try:
        pixels = read_wide(image, data)[:, :, : len(target)]
    except PILLOW_ERRORS as error:
        raise BadImage(f"damaged image: {error}") from None
    return _upright_pixels(pixels, image), converted


def _upright_pixels(pixels: NDArray[Any], image: Image.Image) -> NDArray[Any]:
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return np.ascontiguousarray(upright(pixels, orientation_of(image)))


def _loses_bits(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Returns whether Pillow reads color with 8 bits per channel although the file has more."""
    if image.mode.startswith("I"):
        return False
    if image.format == "JPEG2000":
        size_marker = data.find(b"\xff\x51")
        precision = data[size_marker + 40 : size_marker + 41]  # of the first component, minus 1
        return size_marker >= 0 and precision > b"\x07"
    args = image.tile[0].args if image.tile else ""
    if image.format == "PPM" and isinstance(args, tuple):
        return bool(args[-1] > 255)  # the largest value of a channel
    return re.search(";16[BLN]", str(args)) is not None


def is_animated(image: Image.Image) -> bool:
    """Returns whether the image has more than one frame. Only the first frame is packed."""
    try:
        return int(getattr(image, "n_frames", 1)) > 1
    except PILLOW_ERRORS:
        return False


def orientation_of(image: Image.Image) -> int:
    """Returns the EXIF orientation 1..8 of a loaded image; 1 if EXIF is missing or damaged."""
    try:
        value = image.getexif().get(0x0112)
    except PILLOW_ERRORS:
        return 1
    return value if type(value) is int and 1 <= value <= 8 else 1


def upright_size(data: bytes) -> tuple[int, int] | None:
    """Returns (width, height) after EXIF rotation, or None if the file cannot be opened."""
    try:
        image = open_image(data)
    except BadImage:
        return None
    return (image.height, image.width) if orientation_of(image) >= 5 else image.size


# One number per pixel. For "P", the palette index is the class number.
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")


def mask_array(value: Value) -> NDArray[np.generic]:
    """Returns a mask from a file, a Pillow image or an array as (H, W) integers."""
    if isinstance(value, Encoded):
        if value.data[:2] == b"\xff\xd8":
            raise BadImage(
                "mask is a JPEG, which blurs class numbers at edges: expected PNG or an array"
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
            raise BadImage(f"unreadable mask: {error}") from None
    if isinstance(value, Image.Image):
        if value.mode not in MASK_MODES:
            raise BadImage(f"mask with pixel type {value.mode}: expected one integer per pixel")
        value = np.asarray(value)
    array = cast("NDArray[np.generic]", np.asarray(value))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 or array.dtype.kind not in "biu" or not array.size:
        raise BadImage(f"mask of {array.dtype} {array.shape}: expected integers (H, W)")
    check_size(array.shape[1], array.shape[0])
    return array
