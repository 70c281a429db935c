"""Converts an image to its stored form: the same pixels by default, after one strict check."""

from __future__ import annotations

import importlib
import io
import math
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from fastload._common.checksum import Bytes
from fastload._common.files import crc32c_of
from fastload._common.native import core
from fastload._pack.options import PackOptions
from fastload._pack.pillow import (
    NARROWED,
    check_png,
    file_pixels,
    is_animated,
    open_image,
    orientation_of,
    pixels_of,
)
from fastload._pack.sources.base import Encoded, Pixels, Sample
from fastload._store.jpeg_header import (
    JpegHeader,
    check_bomb,
    check_scans,
    check_size,
    read_header,
)
from fastload._store.pixels import decode_image, upright
from fastload._store.record import JPEG, PNG, RAW, Part
from fastload._version import __version__
from fastload.errors import BadImage

if TYPE_CHECKING:
    from fastload import _core

Array = NDArray[Any]  # uint8 or uint16 (height, width, channels)

SMALL_RAW = 64 << 10  # bytes: arrays up to this are stored as pixels, larger ones as PNG
_PNG_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels → color type
SAMPLINGS = ("gray", "444", "422", "420", "440", "411")  # supported by every JPEG decoder


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The bytes of one image and the values of its row in the part table."""

    codec: int
    data: bytes | memoryview
    width: int  # as stored; EXIF orientation 5..8 swaps width and height for display
    height: int
    channels: int
    bits: int = field(default=8, kw_only=True)  # per channel
    orientation: int = 1
    interval: int = 0
    index: bytes = b""  # restart-segment offsets, uint32 little-endian
    # Why the stored image differs from the source. "" means same pixels and same format.
    converted: str = ""
    # Stored size / source size in x and y. Boxes and points are scaled by it.
    scale: tuple[float, float] = (1.0, 1.0)


def rewrite_all(values: Iterable[object], options: PackOptions) -> dict[int, StoredImage]:
    """Rewrites ordinary, undamaged JPEGs in one native call. Returns them by ``id`` of the value.

    ``store_image`` stores the others, one by one, or reports the error.
    """
    module = core()
    if module is None or options.encode != "keep" or options.scales:
        return {}
    jpegs = [each for each in values if isinstance(each, Encoded) and _is_jpeg(each)]
    found = module.rewrite_common([each.data for each in jpegs], options.restart)
    return {
        id(jpeg): _from_rewrite(each)
        for jpeg, each in zip(jpegs, found, strict=True)
        if each is not None
    }


def _is_jpeg(value: Encoded) -> bool:
    return value.data[:2] == b"\xff\xd8"


def store_image(value: Pixels, options: PackOptions) -> StoredImage:
    """Encodes one image according to ``options``. Raises BadImage without a source name."""
    if isinstance(value, Encoded):
        store = _from_jpeg if _is_jpeg(value) else _from_file
        return store(value.data, options)
    pixels, converted = _from_array(value) if isinstance(value, np.ndarray) else pixels_of(value)
    return _from_pixels(pixels, options, converted=converted)


def _from_jpeg(data: bytes, options: PackOptions) -> StoredImage:
    header = read_header(data)
    check_bomb(header, len(data))
    if not header.complete:
        raise BadImage("truncated JPEG: the end marker is missing")
    if not header.ordinary:
        return _from_unusual_jpeg(data, header, options)
    if options.encode == "copy" and _has_known_sampling(header, data):
        check_scans(data, header)  # decoders cannot notice it; free for one scan of all components
        return _unmodified(data, header)
    if not _has_known_sampling(header, data):
        if core() is None:
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


def _from_rewrite(found: _core.RewrittenJpeg) -> StoredImage:
    return StoredImage(
        JPEG,
        found.jpeg,
        found.width,
        found.height,
        found.n_components,
        found.orientation,
        found.interval,
        found.index_bytes,
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
        return replace(_unmodified(data, header), converted=converted)
    return replace(rewritten(data, module, restart=options.restart), converted=converted)


def rewritten(
    data: Bytes, module: ModuleType, *, restart: int = -1, orient: bool = True
) -> StoredImage:
    """Rewrites any JPEG with the native core. Raises BadImage without a source name.

    ``orient``: apply the EXIF orientation to the pixels where that is exact.
    """
    try:
        found: _core.RewrittenJpeg = module.rewrite(data, restart=restart, orient=orient)
    except module.BadJpeg as error:
        raise BadImage(str(error)) from None
    return _from_rewrite(found)


def _unmodified(data: bytes, header: JpegHeader) -> StoredImage:
    return StoredImage(
        JPEG, data, header.width, header.height, header.components, header.orientation
    )


def _from_file(data: bytes, options: PackOptions) -> StoredImage:
    """Stores a PNG unmodified if all readers agree on its pixels. Converts other formats."""
    image = open_image(data)
    if image.format == "PNG":
        check_png(data)
    pixels, converted = file_pixels(image, data)
    frames = "first frame only" if is_animated(image) else ""
    if image.format == "PNG":
        depth = data[24]  # bits per sample in IHDR
        bits = 8 * pixels.itemsize
        if depth != bits and not converted:
            converted = f"{depth} → {bits} bit"
        converted = ", ".join(filter(None, [converted, frames]))
        modified = converted or orientation_of(image) > 1 or options.scales
        if not modified and options.encode in {"keep", "copy"} and bits <= options.max_bits:
            height, width, channels = pixels.shape
            return StoredImage(PNG, data, width, height, channels, bits=bits)
    else:
        target = "JPEG" if options.encode == "jpeg" else "PNG"
        converted = ", ".join(filter(None, [f"{image.format} → {target}", converted, frames]))
    return _from_pixels(pixels, options, converted=converted)


def _from_array(array: NDArray[np.generic]) -> tuple[Array, str]:
    shape = array.shape if array.ndim == 3 else (*array.shape, 1)
    if array.ndim not in (2, 3) or shape[2] not in (1, 3) or not array.size:
        raise BadImage(f"array of shape {array.shape}: expected (H, W), (H, W, 1) or (H, W, 3)")
    check_size(shape[1], shape[0])
    if array.dtype not in (np.uint8, np.uint16):
        raise BadImage(
            f"array of {array.dtype}: expected uint8 or uint16. Multiply floats by 255 first"
        )
    return array.reshape(shape), ""


def _from_pixels(
    pixels: Array, options: PackOptions, *, converted: str = "", subsampling: str = ""
) -> StoredImage:
    """Scales and encodes pixels. ``subsampling``: the source is a JPEG and stays one."""
    height, width, channels = pixels.shape
    if pixels.dtype == np.uint16 and options.max_bits == 8:
        pixels = (pixels >> 8).astype(np.uint8)
        converted = ", ".join(filter(None, [converted, NARROWED]))
    size = _scaled_size(width, height, options)
    scale = (1.0, 1.0)
    if size is not None:
        scale = (size[0] / width, size[1] / height)
        planes = [pixels] if channels == 3 and pixels.itemsize == 1 else np.moveaxis(pixels, 2, 0)
        resized = [
            np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BILINEAR))
            for plane in map(np.ascontiguousarray, planes)
        ]
        pixels = np.dstack(resized)
        width, height = size
    bits = 8 * pixels.itemsize
    as_jpeg = options.encode == "jpeg" or (options.encode == "keep" and subsampling)
    if options.encode == "raw" or (not as_jpeg and pixels.nbytes <= SMALL_RAW):
        data = pixels.astype(f"<u{pixels.itemsize}", copy=False).tobytes()
        return StoredImage(
            RAW, data, width, height, channels, bits=bits, converted=converted, scale=scale
        )
    if as_jpeg:
        if bits == 16:
            raise BadImage(
                "16 bits per channel, but JPEG has 8. Pack with --max-bits 8 (max_bits=8), or "
                "without --encode jpeg"
            )
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
    data = png_file(pixels)
    return StoredImage(
        PNG, data, width, height, channels, bits=bits, converted=converted, scale=scale
    )


def png_file(pixels: Array) -> bytes:
    """Encodes 8 or 16 bits of gray, gray with alpha, RGB or RGBA, (height, width, channels)."""
    return _wide_png(pixels) if pixels.itemsize == 2 else _png(pixels)


def _png(pixels: Array) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(file, "PNG", compress_level=4)
    return file.getvalue()


def _wide_png(pixels: Array) -> bytes:
    """Encodes 16-bit pixels, which Pillow cannot write in color.

    Each row is stored as its difference from the row above. The size is within 3 % of a PNG that
    chooses the filter per row.
    """
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels, ">u2").view(np.uint8).reshape(height, -1)
    filtered = np.full((height, 1 + rows.shape[1]), 2, np.uint8)  # 2: the filter "up"
    filtered[:, 1:] = rows
    filtered[1:, 1:] -= rows[:-1]
    header = struct.pack(">IIBBBBB", width, height, 16, _PNG_COLORS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 4)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _decode(data: bytes, header: JpegHeader) -> Array:
    """Returns the pixels. Raises BadImage for every damage that a decoder can notice."""
    check_scans(data, header)
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


def encoder_versions() -> dict[str, str]:
    """Returns the versions of everything that decides the bytes of a stored image.

    Machines and runs with other versions must not pack parts of the same dataset.
    """
    module = core()
    build = "none"
    if module is not None:
        with Path(str(module.__file__)).open("rb") as file:
            build = crc32c_of(file.fileno())
    return {
        "fastload": __version__,
        "native core": build,
        "libjpeg-turbo": module.libjpeg_turbo_version if module is not None else "none",
        "simplejpeg": version("simplejpeg"),
        "Pillow": version("pillow"),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }


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
        raw_bytes += stored.width * stored.height * stored.channels * stored.bits // 8
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
            size = {"width": stored.width, "height": stored.height}
            decode_image(Part(0, stored.data, 0, PNG, 0, stored.channels, stored.bits, **size))
        best = min(best, time.thread_time() - started)
    return best
