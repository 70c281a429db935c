"""The works that benchmarks/decode.py measures: how fastload and the recipe decode each sample."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from benchmarks.machine import photo_paths
from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, PixelFormat, new_requests

Pixels = NDArray[np.uint8]
Index = NDArray[np.uint32]
BYTES = PixelFormat()
Baseline = Callable[[int, NDArray[Any]], None]  # decodes sample i into its slot


@dataclass(frozen=True, slots=True)
class Work:
    """One line of the table."""

    name: str
    target: float  # promised speed relative to the recipe
    sources: list[bytes]
    requests: NDArray[np.void]
    shape: tuple[int, int, int]  # height, width, channels
    baseline: Baseline
    pixels: PixelFormat = BYTES
    dtype: type[np.generic] = np.uint8

    def memory(self) -> NDArray[Any]:
        """The shape of a batch with all samples."""
        height, width, channels = self.shape
        slot = (channels, height, width) if self.pixels.layout == "nchw" else self.shape
        return np.zeros((len(self.requests), *slot), self.dtype)

    def batch(self) -> DecodeBatch:
        """A batch of all samples with its own output memory."""
        return DecodeBatch(self.sources, self.requests, self.memory(), self.pixels)


def photos(count: int) -> list[bytes]:
    """Color photographs, evenly spread over the corpus."""
    files = [path.read_bytes() for path in photo_paths()]
    colored = [data for data in files if simplejpeg.decode_jpeg_header(data)[2] != "Gray"]
    return colored[:: max(1, len(colored) // count)][:count]


def all_works(count: int, *, seed: int = 0) -> list[Work]:
    """All works, with about `count` photographs."""
    stored = photos(count)
    indexed = [_indexed(data) for data in stored]
    crops = [_random_crop(data, np.random.default_rng((seed, i))) for i, data in enumerate(stored)]
    large = _mosaics(stored, max(4, count // 8))
    small = [
        _encoded(
            Image.open(io.BytesIO(data))
            .convert("RGB")
            .resize((128, 128), Image.Resampling.BILINEAR)
        )
        for data in stored
    ] * 6  # short samples: a smaller batch would end before the second thread wakes up
    return [
        _crops("RRC 224, indexed", 1.8, stored, indexed, crops),
        _normalized("RRC 224, float32", _crops("", 1.8, stored, indexed, crops)),
        _crops("RRC 224, no index", 1.3, stored, [(data, None, 0) for data in stored], crops),
        _whole("1920x1280 -> 960x640", 1.4, large, 960, 640),
        _whole("whole -> 256x256", 1.0, stored, 256, 256),
        _whole("128x128 as stored", 1.1, small, 128, 128),
        _raw("raw 128x128", 8.0, small),
    ]


def _crops(
    name: str,
    target: float,
    stored: list[bytes],
    packed: list[tuple[bytes, Index | None, int]],
    crops: list[tuple[int, int, int, int]],
) -> Work:
    requests = new_requests(len(stored))
    sources = []
    for row, (data, index, interval), (x, y, w, h) in zip(requests, packed, crops, strict=True):
        entries = b"" if index is None else index.tobytes()
        row["size"] = len(data)
        row["index_offset"] = len(data)
        row["index_count"] = len(entries) // 4
        row["interval"] = interval
        row["x"], row["y"], row["w"], row["h"] = x, y, w, h
        sources.append(data + entries)
    requests["out_w"] = requests["out_h"] = 224

    def baseline(i: int, slot: Pixels) -> None:
        x, y, w, h = crops[i]
        pixels = simplejpeg.decode_jpeg(stored[i])
        cv2.resize(
            pixels[y : y + h, x : x + w], (224, 224), dst=slot, interpolation=cv2.INTER_LINEAR
        )

    return Work(name, target, sources, requests, (224, 224, 3), baseline)


def _normalized(name: str, work: Work) -> Work:
    """The same work with normalized float32 planes as output. It uses the target of uint8."""
    mean, std = (
        np.array(values, np.float32) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )

    def baseline(i: int, slot: NDArray[Any]) -> None:
        pixels = np.empty(work.shape, np.uint8)
        work.baseline(i, pixels)
        np.divide(
            np.subtract(pixels, 255 * mean, dtype=np.float32),
            255 * std,
            out=slot.transpose(1, 2, 0),
        )

    pixels = PixelFormat("nchw", mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    return replace(work, name=name, baseline=baseline, pixels=pixels, dtype=np.float32)


def _whole(name: str, target: float, stored: list[bytes], width: int, height: int) -> Work:
    requests = new_requests(len(stored))
    requests["size"] = [len(data) for data in stored]
    requests["out_w"], requests["out_h"] = width, height

    def baseline(i: int, slot: Pixels) -> None:
        pixels = simplejpeg.decode_jpeg(stored[i])
        if pixels.shape == slot.shape:
            slot[:] = pixels
        else:
            cv2.resize(pixels, (width, height), dst=slot, interpolation=cv2.INTER_LINEAR)

    return Work(name, target, stored, requests, (height, width, 3), baseline)


def _raw(name: str, target: float, stored: list[bytes]) -> Work:
    """Raw pixels, compared with decoding a JPEG of the same image."""
    raw = [simplejpeg.decode_jpeg(data) for data in stored]
    requests = new_requests(len(raw))
    requests["codec"] = Codec.RAW
    requests["size"] = raw[0].nbytes
    requests["raw_channels"] = 3
    requests["raw_bits"] = 8
    requests["raw_w"] = requests["raw_h"] = requests["out_w"] = requests["out_h"] = 128
    recipe = _whole("", 0, stored, 128, 128).baseline
    return Work(name, target, [pixels.tobytes() for pixels in raw], requests, (128, 128, 3), recipe)


def _indexed(data: bytes) -> tuple[bytes, Index | None, int]:
    module = core()
    if module is None:
        raise SystemExit("the native core is not built, so there is nothing to measure")
    rewritten = module.rewrite(data)
    jpeg = rewritten.jpeg
    index = rewritten.index
    interval = rewritten.interval
    return jpeg, index, interval


def _random_crop(data: bytes, random: np.random.Generator) -> tuple[int, int, int, int]:
    """A crop like torchvision's RandomResizedCrop: 8 to 100 % of the area, ratio 3:4 to 4:3."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return (
                int(random.integers(0, width - w + 1)),
                int(random.integers(0, height - h + 1)),
                w,
                h,
            )
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _mosaics(stored: list[bytes], count: int) -> list[bytes]:
    """A 1920x1280 mosaic of 2x2 photographs, with about the bits per pixel of a dash camera."""
    result = []
    for i in range(count):
        canvas = Image.new("RGB", (1920, 1280))
        for k in range(4):
            image = Image.open(io.BytesIO(stored[(4 * i + k) % len(stored)])).convert("RGB")
            canvas.paste(
                image.resize((960, 640), Image.Resampling.BICUBIC), (k % 2 * 960, k // 2 * 640)
            )
        result.append(_encoded(canvas))
    return result


def _encoded(image: Image.Image) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.asarray(image), quality=90, colorsubsampling="420"))


def write_job(work: Work, path: Path, output: tuple[int, int, int, int] | None = None) -> None:
    """Writes a work to a file for the C++ driver (native/tests/driver.cpp), which needs no Python.

    The file holds requests and sources. ``output`` is channels, planar, dtype and color as numbers
    (native/pixels/output.h).
    """
    height, width, channels = work.shape
    head = np.array(
        [len(work.requests), len(work.sources), height, width, *(output or (channels, 0, 0, 0))],
        "<i8",
    )
    sizes = np.array([len(data) for data in work.sources], "<u8")
    with path.open("wb") as file:
        for part in (head.tobytes(), work.requests.tobytes(), sizes.tobytes(), *work.sources):
            file.write(part)
