"""Converts image and mask parts to NumPy arrays and back, for ``Dataset``.

The loader decodes with its own backends. Every image is (height, width, channels) in RGB order; a
grayscale image keeps one channel. Size limits are checked before a decoder runs.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageFile

from fastload._common.checksum import Bytes
from fastload._store.jpeg_header import check_limits, check_size, read_header
from fastload._store.record import CODEC_NAMES, DEFLATED, JPEG, PNG, RAW, Part
from fastload.errors import BadImage, ConfigError, RecordError

Pixels = npt.NDArray[Any]
_BY_BITS: dict[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
_PNG_MODES = {(1, 8): "L", (2, 8): "LA", (3, 8): "RGB", (4, 8): "RGBA", (1, 16): "I;16"}
_WIDE_MODE = re.compile("(RGBA?|LA);16[BLN]")
# "N" is the order of this processor.
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_PILLOW_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def decode_image(part: Part) -> Pixels:
    """Returns upright uint8 or uint16 pixels, (height, width, channels); raises BadImage."""
    if part.codec == JPEG:
        pixels = _decode_jpeg(part)
    elif part.codec == PNG:
        pixels = _decode_png(part, mode=_PNG_MODES.get((part.channels, part.bits), ""))
    elif part.codec in (RAW, DEFLATED):
        pixels = _decode_raw(part)
    else:
        raise RecordError("codec of an image", part.codec, "jpeg, png, raw or deflated")
    return _upright_copy(pixels, part, part.channels)


def decode_mask(part: Part) -> Pixels:
    """Returns an upright mask of shape (height, width) as uint8, uint16 or uint32.

    A PNG with a palette decodes to its indices, which are the class numbers in segmentation
    datasets.
    """
    if part.codec == PNG:
        pixels = _decode_png(part, mode="")
    elif part.codec in (RAW, DEFLATED):
        pixels = _decode_raw(part)
    else:
        raise RecordError("codec of a mask", part.codec, "png, raw or deflated")
    return _upright_copy(pixels, part, 1)[:, :, 0]


def wide_mode(image: Image.Image) -> str:
    """Returns Pillow's raw mode for 16-bit color in a file that is not loaded; "" for other images.

    Pillow has no mode for such pixels and keeps the upper byte of each channel.
    """
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return ""
    args = image.tile[0].args
    mode = str(args[0] if isinstance(args, tuple) and args else args)
    return mode if _WIDE_MODE.fullmatch(mode) else ""


def read_wide(image: ImageFile.ImageFile, data: Bytes) -> Pixels:
    """Returns all bits of an image with a ``wide_mode``, as uint16 (height, width, channels).

    A second pass in the opposite byte order keeps the lower byte of each channel. Pillow has no
    such mode for gray with alpha, whose four bytes per pixel are read like those of RGBA.

    Args:
        image: The image, not loaded. It is loaded afterwards.
        data: The file of the image.

    Raises:
        OSError, ValueError, ...: Pillow's errors for a damaged file.
    """
    mode = wide_mode(image)
    if mode.startswith("LA"):
        image.tile = [tile._replace(args="RGBA") for tile in image.tile]
        return np.asarray(image).view(">u2").astype(np.uint16)
    low = Image.open(io.BytesIO(data), formats=[image.format or ""])
    other = mode[:-1] + _OTHER_ORDER[mode[-1]]
    low.tile = [
        tile._replace(args=(other, *tile.args[1:]) if isinstance(tile.args, tuple) else other)
        for tile in low.tile
    ]
    pixels: Pixels = np.asarray(image).astype(np.uint16) << 8 | np.asarray(low)
    return pixels


def encode_pixels(field: int, item: int, pixels: Pixels, *, what: str) -> Part:
    """Stores a uint8 or uint16 array, (height, width[, channels]), as a raw part."""
    if (
        pixels.dtype not in (np.uint8, np.uint16)
        or pixels.ndim not in (2, 3)
        or pixels.shape[2:] > (255,)
    ):
        raise ConfigError(
            f"{what}: expected uint8 or uint16 of (height, width, channels), found {pixels.dtype} "
            f"of {pixels.shape}"
        )
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return _pixel_part(field, item, pixels, codec=RAW, channels=channels, what=what)


def encode_mask(field: int, item: int, pixels: Pixels, *, what: str) -> Part:
    """Stores class or instance numbers from 0 to 2**32 - 1, (height, width), without loss."""
    if pixels.dtype.kind not in "bui" or pixels.ndim != 2:
        raise ConfigError(
            f"{what}: expected integers of (height, width), found {pixels.dtype} of {pixels.shape}"
        )
    # The dtype decides, not the largest value: all masks of a field then have one dtype and stack.
    bits = min(8 * pixels.dtype.itemsize, 32)
    if pixels.size and (pixels.min() < 0 or pixels.max() >= 1 << bits):
        raise ConfigError(
            f"{what}: values from {pixels.min()} to {pixels.max()}, expected 0 to "
            f"{(1 << bits) - 1}; store 255 instead of -1 for 'ignore'"
        )
    return _pixel_part(
        field, item, pixels.astype(_BY_BITS[bits]), codec=DEFLATED, channels=1, what=what
    )


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Returns a view with the EXIF orientation applied. 0 and 1 change nothing."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _upright_copy(pixels: Pixels, part: Part, channels: int) -> Pixels:
    """Applies the orientation.

    The result is writable, contiguous and not a view of the shard's map.
    """
    expected = (part.height, part.width, channels)
    if pixels.shape != expected:
        raise BadImage(f"decoded to {pixels.shape}, expected {expected}")
    pixels = upright(pixels, part.orientation)
    return (
        pixels if pixels.flags.writeable and pixels.flags.c_contiguous else pixels.copy(order="C")
    )


def _pixel_part(
    field: int, item: int, pixels: Pixels, *, codec: int, channels: int, what: str
) -> Part:
    height, width = pixels.shape[:2]
    try:
        check_size(width, height)
    except BadImage as error:
        raise ConfigError(f"{what}: {error.why}") from None
    data = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).tobytes()
    # Compression level 6: masks shrink 20 to 100 times at any level, and packing spends little
    # time here.
    return Part(
        field,
        zlib.compress(data, 6) if codec == DEFLATED else data,
        item,
        codec,
        channels=channels,
        bits=8 * pixels.dtype.itemsize,
        width=width,
        height=height,
        orientation=1,
    )


def _decode_jpeg(part: Part) -> Pixels:
    header = read_header(memoryview(part.data))
    check_limits(header, len(part.data))
    try:
        # Both default to True, but then the pixels differ from those of other decoders.
        pixels = simplejpeg.decode_jpeg(
            part.data,
            colorspace="GRAY" if header.components == 1 else "RGB",
            fastdct=False,
            fastupsample=False,
        )
    except ValueError as error:
        raise BadImage(str(error)) from None
    return cast(Pixels, pixels)


def _decode_png(part: Part, *, mode: str) -> Pixels:
    check_size(part.width, part.height)
    try:
        with Image.open(io.BytesIO(part.data), formats=["PNG"]) as image:
            # Before decoding, because the size decides how much memory that takes.
            if image.size != (part.width, part.height):
                raise BadImage(
                    f"a PNG of {image.size[0]}x{image.size[1]}, expected {part.width}x{part.height}"
                )
            if part.bits == 16 and wide_mode(image):
                pixels = read_wide(image, part.data)
            else:
                pixels = np.asarray(image.convert(mode) if mode and image.mode != mode else image)
    except BadImage:
        raise
    except _PILLOW_ERRORS as error:
        raise BadImage(f"PNG: {error}") from None
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _decode_raw(part: Part) -> Pixels:
    check_size(part.width, part.height)
    dtype = _BY_BITS.get(part.bits)
    if dtype is None or not part.channels:
        raise RecordError(
            "(bits, channels) of raw pixels", (part.bits, part.channels), "8, 16 or 32; 1 to 255"
        )
    expected = part.width * part.height * part.channels * dtype.itemsize
    data = _inflate(part.data, expected) if part.codec == DEFLATED else part.data
    if len(data) != expected:
        raise RecordError(f"size of {CODEC_NAMES[part.codec]} pixels", len(data), expected)
    return np.frombuffer(data, dtype).reshape(part.height, part.width, part.channels)


def _inflate(data: Any, expected: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # The limit stops a decompression bomb.
        found = stream.decompress(data, expected + 1)
    except zlib.error as error:
        raise RecordError("deflated pixels", str(error), f"{expected} bytes") from None
    if len(found) != expected or not stream.eof or stream.unused_data:
        raise RecordError(
            "deflated pixels",
            f"{len(found)} bytes or more, or truncated",
            f"exactly {expected} bytes",
        )
    return found
