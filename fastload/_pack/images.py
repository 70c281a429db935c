"""Converts an image to its stored form: the same pixels by default, after one strict check."""

from __future__ import annotations

import importlib
import io
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from fastload._common.native import core
from fastload._pack.options import PackOptions
from fastload._pack.pillow import check_png, is_animated, open_image, orientation_of, pixels_of
from fastload._pack.sources.base import Encoded, Pixels, Sample
from fastload._store.jpeg_header import JpegHeader, check_bomb, check_size, read_header
from fastload._store.pixels import upright
from fastload._store.record import JPEG, PNG, RAW
from fastload.errors import BadImage

if TYPE_CHECKING:
    from fastload import _core

Array = NDArray[np.uint8]

SMALL_RAW = 64 << 10  # bytes: arrays up to this are stored as pixels, larger ones as PNG
SAMPLINGS = ("gray", "444", "422", "420", "440", "411")  # supported by every JPEG decoder


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The bytes of one image and the values of its row in the part table."""

    codec: int
    data: bytes | memoryview
    width: int  # as stored; EXIF orientation 5..8 swaps width and height for display
    height: int
    channels: int
    orientation: int = 1
    interval: int = 0
    index: bytes = b""  # restart-segment offsets, uint32 little-endian
    # Why the stored image differs from the source. "" means same pixels and same format.
    converted: str = ""
    # Stored size / source size in x and y. Boxes and points are scaled by it.
    scale: tuple[float, float] = (1.0, 1.0)


def store_image(value: Pixels, options: PackOptions) -> StoredImage:
    """Encodes one image according to ``options``. Raises BadImage without a source name."""
    if isinstance(value, Encoded):
        store = _from_jpeg if value.data[:2] == b"\xff\xd8" else _from_file
        return store(value.data, options)
    pixels, converted = _from_array(value) if isinstance(value, np.ndarray) else pixels_of(value)
    return _from_pixels(pixels, options, converted=converted)


def _from_jpeg(data: bytes, options: PackOptions) -> StoredImage:
    module = core()
    if (
        module is not None
        and options.encode == "keep"
        and not options.scales
        and (found := module.rewrite_common(data, options.restart)) is not None
    ):
        return _from_rewrite(found)  # an ordinary, undamaged JPEG: one native call
    header = read_header(data)
    check_bomb(header, len(data))
    if not header.complete:
        raise BadImage("truncated JPEG: the end marker is missing")
    if not header.ordinary:
        return _from_unusual_jpeg(data, header, options)
    if not _has_known_sampling(header, data):
        if module is None:
            raise BadImage(
                f"JPEG with sampling {header.subsampling}: needs the native core. "
                "Check 'fastload --version'"
            )
        _rewritten(data, header, PackOptions())  # the check: no strict decoder supports the file
        return _from_pixels(
            pixels_of(open_image(data))[0],
            options,
            converted=f"JPEG with sampling {header.subsampling} → PNG",
        )
    size = (header.width, header.height)
    upright_size = size[::-1] if header.orientation >= 5 else size
    if options.encode in ("jpeg", "raw") or _scaled_size(*upright_size, options) is not None:
        pixels = upright(_decode(data, header), header.orientation)
        sampling = header.subsampling if header.subsampling in SAMPLINGS[1:] else "444"
        return _from_pixels(pixels, options, subsampling=sampling)
    return _rewritten(data, header, options)


def _from_rewrite(found: _core.RewrittenJpeg, converted: str = "") -> StoredImage:
    return StoredImage(
        JPEG,
        found.jpeg,
        found.width,
        found.height,
        found.n_components,
        found.orientation,
        found.interval,
        found.index_bytes,
        converted,
    )


def _from_unusual_jpeg(data: bytes, header: JpegHeader, options: PackOptions) -> StoredImage:
    """Converts a JPEG that libjpeg reads and GPUs do not: CMYK, arithmetic coding, 12 bits.

    Pillow converts the colors correctly but hides damage, so a strict decode runs first.
    """
    if header.precision != 8:
        kind = "12-bit"
        pixels = _from_twelve_bits(data, header)
    else:
        kind = "arithmetic-coded" if header.arithmetic else header.coding
        _decode(data, header)
        pixels, _ = pixels_of(open_image(data))
    if header.components == 4:
        kind = "CMYK"
    mode = "L" if pixels.shape[2] == 1 else "RGB"
    return _from_pixels(pixels, options, converted=f"{kind} JPEG → {mode}")


def _from_twelve_bits(data: bytes, header: JpegHeader) -> Array:
    """Returns upright pixels with the upper 8 of 12 bits.

    libjpeg-turbo 3 reads 12-bit files, but neither Pillow nor simplejpeg uses that.
    """
    kind = f"JPEG with {header.precision} bits per sample"
    if (
        header.precision != 12
        or header.sof not in (0xC0, 0xC1, 0xC2)
        or header.components not in (1, 3)
    ):
        raise BadImage(f"{kind}, {header.coding}: not supported. Convert it to 8 bits")
    try:
        codecs = importlib.import_module("imagecodecs")
        wide: NDArray[np.generic] = np.asarray(codecs.jpeg8_decode(data))
    except ImportError:
        raise BadImage(
            f"{kind}: needs imagecodecs. Run pip install imagecodecs, or convert it to 8 bits"
        ) from None
    except (RuntimeError, ValueError) as error:  # imagecodecs raises RuntimeError subclasses
        raise BadImage(f"damaged JPEG: {error}") from None
    shape = (header.height, header.width, header.components)
    if wide.dtype != np.uint16 or wide.size != math.prod(shape):
        raise BadImage(f"{kind}: decoded to {wide.dtype} {wide.shape}, expected uint16 {shape}")
    upper_bits = (wide.reshape(shape).astype(np.uint16) >> 4).astype(np.uint8)
    return np.ascontiguousarray(upright(upper_bits, header.orientation))


def _has_known_sampling(header: JpegHeader, data: bytes) -> bool:
    """Returns whether simplejpeg, the decoder without native core, reads the sampling factors."""
    try:
        if header.subsampling not in SAMPLINGS:
            simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # KeyError: unknown sampling factors
        return False
    return True


def _rewritten(
    data: bytes, header: JpegHeader, options: PackOptions, converted: str = ""
) -> StoredImage:
    """Rewrites a JPEG without loss: baseline, optimized tables, restart markers, no metadata."""
    module = core()
    if module is None:
        # The file is stored unmodified. The strict decode replaces the check of the rewrite.
        _decode(data, header)
        return StoredImage(
            JPEG,
            data,
            header.width,
            header.height,
            header.components,
            header.orientation,
            converted=converted,
        )
    try:
        found = module.rewrite(data, restart=options.restart)
    except module.BadJpeg as error:
        raise BadImage(str(error)) from None
    return _from_rewrite(found, converted)


def _from_file(data: bytes, options: PackOptions) -> StoredImage:
    """Stores a PNG unmodified if all readers agree on its pixels. Converts other formats."""
    image = open_image(data)
    if image.format == "PNG":
        check_png(data)
    pixels, converted = pixels_of(image)
    if image.format == "PNG":
        # IHDR has the bits per sample. Pillow returns 16-bit color as 8-bit RGB without a warning.
        depth = data[24]
        if depth != 8 and not converted:
            converted = f"{depth} → 8 bit"
        if (
            not (converted or orientation_of(image) > 1 or options.scales)
            and options.encode == "keep"
        ):
            return StoredImage(PNG, data, pixels.shape[1], pixels.shape[0], pixels.shape[2])
    else:
        target = "JPEG" if options.encode == "jpeg" else "PNG"
        frames = "first frame only" if is_animated(image) else ""
        converted = ", ".join(filter(None, [f"{image.format} → {target}", converted, frames]))
    return _from_pixels(pixels, options, converted=converted)


def _from_array(array: NDArray[np.generic]) -> tuple[Array, str]:
    shape = array.shape if array.ndim == 3 else (*array.shape, 1)
    if array.ndim not in (2, 3) or shape[2] not in (1, 3) or not array.size:
        raise BadImage(f"array of shape {array.shape}: expected (H, W), (H, W, 1) or (H, W, 3)")
    check_size(shape[1], shape[0])
    if array.dtype == np.uint16:
        return (array.astype(np.uint16) >> 8).astype(np.uint8).reshape(shape), "16 → 8 bit"
    if array.dtype != np.uint8:
        raise BadImage(f"array of {array.dtype}: expected uint8. Multiply floats by 255 first")
    return array.reshape(shape).astype(np.uint8, copy=False), ""


def _from_pixels(
    pixels: Array, options: PackOptions, *, converted: str = "", subsampling: str = ""
) -> StoredImage:
    """Scales and encodes pixels. ``subsampling``: the source is a JPEG and stays one."""
    height, width = pixels.shape[:2]
    size = _scaled_size(width, height, options)
    scale = (1.0, 1.0)
    if size is not None:
        scale = (size[0] / width, size[1] / height)
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).reshape(
            size[1], size[0], -1
        )
        width, height = size
    channels = pixels.shape[2]
    as_jpeg = options.encode == "jpeg" or (options.encode == "keep" and subsampling)
    if options.encode == "raw" or (not as_jpeg and pixels.nbytes <= SMALL_RAW):
        return StoredImage(
            RAW, pixels.tobytes(), width, height, channels, converted=converted, scale=scale
        )
    if as_jpeg:
        data = bytes(
            simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels),
                quality=options.quality,
                colorspace="GRAY" if channels == 1 else "RGB",
                colorsubsampling="Gray" if channels == 1 else subsampling or "444",
            )
        )
        stored = _rewritten(data, read_header(data), options, converted)
        return replace(
            stored, width=width, height=height, channels=channels, orientation=1, scale=scale
        )
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(file, "PNG", compress_level=4)
    return StoredImage(
        PNG, file.getvalue(), width, height, channels, converted=converted, scale=scale
    )


def _decode(data: bytes, header: JpegHeader) -> Array:
    try:
        pixels = simplejpeg.decode_jpeg(
            data, colorspace={1: "GRAY", 4: "CMYK"}.get(header.components, "RGB"), strict=True
        )
    except (ValueError, KeyError) as error:  # KeyError: unknown sampling factors
        raise BadImage(f"damaged JPEG: {error}") from None
    return np.asarray(pixels)


def _scaled_size(width: int, height: int, options: PackOptions) -> tuple[int, int] | None:
    """Returns the target size of an upright image, or None if it keeps its size."""
    if options.resize is not None:
        return options.resize if options.resize != (width, height) else None
    if not options.max_side or max(width, height) <= options.max_side:
        return None
    ratio = options.max_side / max(width, height)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


SAMPLES = 64
MAX_GROWTH = 3.0  # raw pixels may take at most this many times the bytes of the files
READ_BYTES_PER_S = 1e9  # assumed read rate: a good NVMe drive shared by a few processes


@dataclass(frozen=True, slots=True)
class EncodeChoice:
    """The encoding that ``auto`` chose, and why. Printed once and stored in the manifest."""

    encode: str
    reason: str


def choose_encode(images: Iterable[Pixels], options: PackOptions) -> EncodeChoice:
    """Compares the time to decode the files that `keep` stores with the time to read raw pixels."""
    keep = replace(options, encode="keep")
    kept_bytes = raw_bytes = n = 0
    decode_s = 0.0
    for value in images:
        try:
            stored = store_image(value, keep)
        except BadImage:
            continue  # the packer reports it later
        n += 1
        kept_bytes += len(stored.data) + len(stored.index)
        raw_bytes += stored.width * stored.height * stored.channels
        decode_s += _decode_seconds(stored)
    if not n:
        return EncodeChoice("keep", "no readable image among the first samples")
    growth = raw_bytes / kept_bytes
    sizes = (
        f"{n} images: {kept_bytes / n / 1024:.1f} KiB and {decode_s / n * 1e6:.0f} us to decode "
        f"as files, {raw_bytes / n / 1024:.1f} KiB ({growth:.1f}x) as pixels"
    )
    if growth > MAX_GROWTH:
        return EncodeChoice("keep", f"{sizes}. Pixels need more than {MAX_GROWTH:.0f}x the space")
    if (raw_bytes - kept_bytes) / READ_BYTES_PER_S < decode_s:
        return EncodeChoice("raw", f"{sizes}. Reading pixels is faster than decoding")
    return EncodeChoice("keep", f"{sizes}. Decoding is faster than reading pixels")


def images_of(sample: Sample, names: Sequence[str]) -> Iterator[Pixels]:
    """Yields all images of a sample, including the items of list fields."""
    for name in names:
        value = sample.values.get(name)
        items = value if isinstance(value, list | tuple) else [value]
        yield from (each for each in items if isinstance(each, Encoded | np.ndarray | Image.Image))


def _decode_seconds(stored: StoredImage) -> float:
    """Returns the CPU time of one decode. The first of two runs warms the caches."""
    best = float("inf")
    for _ in range(2):
        started = time.thread_time()
        if stored.codec == JPEG:
            simplejpeg.decode_jpeg(
                stored.data, colorspace="GRAY" if stored.channels == 1 else "RGB"
            )
        elif stored.codec == PNG:
            np.asarray(Image.open(io.BytesIO(stored.data)))
        best = min(best, time.thread_time() - started)
    return best
