"""Generates the small JPEG files that the self-test decodes: every kind that can cause trouble."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, replace

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from fastload._common.native import core
from fastload._tools.scenes.photo import photo

Pixels = NDArray[np.uint8]
_QUALITY = 90


@dataclass(frozen=True, slots=True)
class JpegFile:
    kind: str
    data: bytes
    width: int
    height: int


@functools.cache
def generated() -> tuple[JpegFile, ...]:
    """All subsamplings, odd sizes, sides of one pixel, restart markers, progressive, CMYK."""
    found = [_plain(kind, 231, 173) for kind in ("444", "422", "420", "440", "411", "gray")]
    found += [
        _plain(kind, width, height)
        for kind in ("420", "444")
        for width, height in ((1, 1), (1, 40), (41, 1), (17, 9))
    ]
    found += [
        _by_pillow("progressive", 200, 150, progressive=True),
        _by_pillow("restart markers", 200, 151, restart_marker_rows=1),
        _by_pillow("CMYK", 160, 120, mode="CMYK"),
    ]
    return (*found, *_packed(found[:6]))


@functools.cache
def photographs(count: int, width: int = 320, height: int = 240) -> tuple[JpegFile, ...]:
    """Ordinary images, alternating 4:2:0 and 4:4:4."""
    return tuple(
        _encoded(("420", "444")[i % 2], _pixels(width + 16 * (i % 5), height + 8 * (i % 3), i))
        for i in range(count)
    )


def _packed(images: list[JpegFile]) -> list[JpegFile]:
    """Rewritten like `fastload pack` does: restart markers and optimized Huffman tables."""
    module = core()
    if module is None:
        return []
    return [
        JpegFile(f"packed {each.kind}", module.rewrite(each.data).jpeg, each.width, each.height)
        for each in images
    ]


def _plain(kind: str, width: int, height: int) -> JpegFile:
    size = "" if min(width, height) > 100 else f" {width}x{height}"
    return replace(_encoded(kind, _pixels(width, height)), kind=kind + size)


def _encoded(kind: str, pixels: Pixels) -> JpegFile:
    height, width = pixels.shape[:2]
    gray = kind == "gray"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels[:, :, :1]) if gray else pixels,
        _QUALITY,
        "GRAY" if gray else "RGB",
        kind,
    )
    return JpegFile(kind, bytes(data), width, height)


def _by_pillow(
    kind: str, width: int, height: int, *, mode: str = "RGB", **options: object
) -> JpegFile:
    file = io.BytesIO()
    Image.fromarray(_pixels(width, height)).convert(mode).save(
        file, "JPEG", quality=_QUALITY, **options
    )
    return JpegFile(kind, file.getvalue(), width, height)


@functools.cache
def _large(seed: int) -> Pixels:
    return np.asarray(photo(np.random.default_rng([seed, 1]), 400, 300))


def _pixels(width: int, height: int, seed: int = 0) -> Pixels:
    return np.ascontiguousarray(_large(seed)[:height, :width])
