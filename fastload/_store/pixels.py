"""Image and mask parts to numpy and back: what ``Dataset`` shows; the loader's backends have their own ways.

Gray stays one channel: every image is (height, width, channels), RGB in this order. Limits come before decoders.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from fastload._store.jpeg_header import MAX_PIXELS, MAX_SIDE, check_limits, read_header
from fastload._store.record import CODEC_NAMES, DEFLATED, JPEG, PNG, RAW, Part
from fastload.errors import BadImage, ConfigError, RecordError

Pixels = npt.NDArray[Any]
_BY_BITS: dict[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
_PNG_MODES = {(1, 8): "L", (2, 8): "LA", (3, 8): "RGB", (4, 8): "RGBA", (1, 16): "I;16"}
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
    """(height, width, channels), uint8 or uint16, upright; raises BadImage."""
    if part.codec == JPEG:
        pixels = _decode_jpeg(part)
    elif part.codec == PNG:
        pixels = _decode_png(part, mode=_PNG_MODES.get((part.channels, part.bits), ""))
    elif part.codec in (RAW, DEFLATED):
        pixels = _decode_raw(part)
    else:
        raise RecordError("codec of an image", part.codec, "jpeg, png, raw or deflated")
    if pixels.shape != (part.height, part.width, part.channels):
        raise BadImage(
            f"decoded to {pixels.shape}, expected {(part.height, part.width, part.channels)}"
        )
    return _owned(upright(pixels, part.orientation))


def decode_mask(part: Part) -> Pixels:
    """(height, width), uint8, uint16 or uint32; a palette PNG gives its indices, as segmentation datasets mean it."""
    if part.codec == PNG:
        pixels = _decode_png(part, mode="")
    elif part.codec in (RAW, DEFLATED):
        pixels = _decode_raw(part)
    else:
        raise RecordError("codec of a mask", part.codec, "png, raw or deflated")
    if pixels.shape != (part.height, part.width, 1):
        raise BadImage(f"mask decoded to {pixels.shape}, expected {(part.height, part.width, 1)}")
    return _owned(upright(pixels[:, :, 0], part.orientation))


def encode_pixels(field: int, item: int, pixels: Pixels, *, what: str) -> Part:
    """An image of numbers as a raw part: uint8 or uint16, (height, width) or (height, width, channels)."""
    if (
        pixels.dtype not in (np.uint8, np.uint16)
        or pixels.ndim not in (2, 3)
        or pixels.shape[2:] > (255,)
    ):
        raise ConfigError(
            f"{what}: expected uint8 or uint16 of (height, width, channels), found {pixels.dtype} of "
            f"{pixels.shape}"
        )
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    return _pixel_part(field, item, pixels, codec=RAW, channels=channels, what=what)


def encode_mask(field: int, item: int, pixels: Pixels, *, what: str) -> Part:
    """A mask of class or instance numbers, losslessly: (height, width), 0 to 2**32 - 1."""
    if pixels.dtype.kind not in "bui" or pixels.ndim != 2:
        raise ConfigError(
            f"{what}: expected integers of (height, width), found {pixels.dtype} of {pixels.shape}"
        )
    # By type, not by what is in it: all masks of a field then have one type, and stack.
    bits = min(8 * pixels.dtype.itemsize, 32)
    if pixels.size and (pixels.min() < 0 or pixels.max() >= 1 << bits):
        raise ConfigError(
            f"{what}: values from {pixels.min()} to {pixels.max()}, expected 0 to {(1 << bits) - 1}; "
            "where -1 means 'ignore', store 255 instead"
        )
    return _pixel_part(
        field, item, pixels.astype(_BY_BITS[bits]), codec=DEFLATED, channels=1, what=what
    )


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Applies an EXIF orientation by moving pixels, exactly; a view. 0 and 1 change nothing."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _owned(pixels: Pixels) -> Pixels:
    """Writable, in one piece, and not a window into the shard's map, which may be gone tomorrow."""
    return (
        pixels if pixels.flags.writeable and pixels.flags.c_contiguous else pixels.copy(order="C")
    )


def _pixel_part(
    field: int, item: int, pixels: Pixels, *, codec: int, channels: int, what: str
) -> Part:
    height, width = pixels.shape[:2]
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise ConfigError(
            f"{what}: {width}x{height} pixels, expected 1 to {MAX_SIDE} a side and at most {MAX_PIXELS}"
        )
    data = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).tobytes()
    # Level 6: masks shrink 20- to 100-fold at any level, and packing is not where their time goes.
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
        # Both default to True, at the cost of other pixels than everybody else's decoder gives.
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
    _check_size(part)
    try:
        with Image.open(io.BytesIO(part.data), formats=["PNG"]) as image:
            if image.size != (
                part.width,
                part.height,
            ):  # before it is decoded: the size is what costs memory
                raise BadImage(
                    f"a PNG of {image.size[0]}x{image.size[1]}, expected {part.width}x{part.height}"
                )
            pixels = np.asarray(image.convert(mode) if mode and image.mode != mode else image)
    except BadImage:
        raise
    except _PILLOW_ERRORS as error:
        raise BadImage(f"PNG: {error}") from None
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _decode_raw(part: Part) -> Pixels:
    _check_size(part)
    dtype = _BY_BITS.get(part.bits)
    if dtype is None or not part.channels:
        raise RecordError(
            "bits and channels of raw pixels", (part.bits, part.channels), "8, 16 or 32; 1 to 255"
        )
    expected = part.width * part.height * part.channels * dtype.itemsize
    data = _inflate(part.data, expected) if part.codec == DEFLATED else part.data
    if len(data) != expected:
        raise RecordError(f"size of {CODEC_NAMES[part.codec]} pixels", len(data), expected)
    return np.frombuffer(data, dtype).reshape(part.height, part.width, part.channels)


def _inflate(data: Any, expected: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(
            data, expected + 1
        )  # never more than announced, whatever is in there
    except zlib.error as error:
        raise RecordError("deflated pixels", str(error), f"{expected} bytes") from None
    if len(found) != expected or not stream.eof or stream.unused_data:
        raise RecordError(
            "deflated pixels", f"{len(found)} bytes or more, or cut off", f"{expected} bytes"
        )
    return found


def _check_size(part: Part) -> None:
    if not (
        0 < part.width <= MAX_SIDE
        and 0 < part.height <= MAX_SIDE
        and part.width * part.height <= MAX_PIXELS
    ):
        raise BadImage(
            f"{part.width}x{part.height} pixels: 1 to {MAX_SIDE} a side and at most {MAX_PIXELS}"
        )
