"""Renders a scene as a photo-like RGB image that takes as long to decode as a real photograph.

The time of a JPEG decode depends on its size in bits, so flat synthetic images would make every
decoder appear fast. The strength of the fine texture is therefore solved for each image, until
the JPEG has the size of a real photograph.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from fastload._tools.scenes import textures
from fastload._tools.scenes.scene import Canvas, random_scene
from fastload._tools.scenes.textures import Plane

QUALITY = 90
_HEADER_BYTES = 625  # what Pillow writes around the scan of a baseline color file
_BAND = 16  # rows of one MCU row at 4:2:0; the size is estimated from such bands
_PROBE_PIXELS = 200_000
_TEXTURE_LIMIT = 80.0
_GRAIN_FROM = 1.5
_GAIN_RANGE = (0.08, 9.0)

# Bits per pixel at quality 90 and 4:2:0. Real photographs (300 of ImageNet,
# ../shared/corpus/photos): p5 1.25, p25 1.90, p50 2.47, p75 3.16, p95 4.20; p50 of 4:4:4 3.05, of
# gray 2.19. Generated (200 of 500x375 and 375x500): 2.00, 2.14, 2.45, 2.93, 3.66; 4:4:4 2.97, gray
# 2.19. The range keeps gray files above 1.5 and 4:4:4 files below 5, from 128x128 upwards; the
# header alone takes 1.2 bits per pixel of a 64x64 image.
# Slope of the radial power spectrum (log-log, 4 to 63 waves per 256 pixels, Hann window), p5, p50,
# p95: luminance -3.29, -2.44, -1.59 in the 267 photographs that are in color and large enough,
# generated -3.20, -2.60, -1.91; Cb p50 -2.60, generated -3.03.
# tests/tools/test_makedata_like_photos.py measures a part of this again.
_MIDDLE_BPP, _BPP_RANGE = 2.45, (1.95, 3.8)


def jpeg_bytes(image: Image.Image, *, quality: int = QUALITY, subsampling: int = 2) -> bytes:
    """The image as a baseline JPEG; `subsampling` as in Pillow: 0 = 4:4:4, 1 = 4:2:2, 2 = 4:2:0."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=subsampling)
    return out.getvalue()


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A random photo-like RGB image."""
    return render(random_scene(rng, width, height), rng)


def draw_bpp(rng: np.random.Generator) -> float:
    """A target size in bits per pixel, distributed like real photographs without the tails."""
    return float(np.clip(_MIDDLE_BPP * np.exp(0.3 * rng.standard_normal()), *_BPP_RANGE))


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers whose sum is the luminance."""

    base: Plane  # light, color, shadows, sensor noise
    detail: Plane  # textures of the regions
    grain: Plane  # the same everywhere


def render(canvas: Canvas, rng: np.random.Generator, *, bpp: float | None = None) -> Image.Image:
    """Renders the scene as an RGB image of about `bpp` bits per pixel at quality 90, 4:2:0.

    None draws `bpp` at random.
    """
    target = draw_bpp(rng) if bpp is None else bpp
    layers = _Layers(
        base=_structure(canvas, rng, noise=float(rng.uniform(0.35, 0.9)) * target),
        detail=_detail(canvas, rng),
        grain=textures.crop("sand", rng, width=canvas.width, height=canvas.height),
    )
    cb, cr = _chroma(canvas, layers.detail, rng)
    gain = _solve_gain(_size_estimator(layers, (cb, cr)), target=target)
    return Image.merge("YCbCr", (_luma(layers, gain), cb, cr)).convert("RGB")


def _per_pixel(labels: Image.Image, values: Sequence[float]) -> NDArray[np.uint8]:
    """The 8-bit value of each pixel's region. Pillow's lookup is twice as fast as NumPy's."""
    table = np.zeros(256, np.uint8)
    table[: len(values)] = np.clip(np.rint(values), 0, 255)
    return np.asarray(labels.point(table.tolist()))


def _structure(canvas: Canvas, rng: np.random.Generator, *, noise: float) -> Plane:
    """Luminance without fine texture: region colors, light, shadows, lens blur, sensor noise."""
    width, height = canvas.width, canvas.height
    plane = textures.smooth(rng, width=width, height=height, cells=5)
    plane *= _per_pixel(canvas.labels, [r.shade for r in canvas.regions])
    plane += _per_pixel(canvas.labels, [r.y for r in canvas.regions])
    plane *= _shadow(canvas, rng)
    _lens(plane)
    plane += np.float32(noise) * textures.crop("white", rng, width=width, height=height)
    return plane


def _shadow(canvas: Canvas, rng: np.random.Generator) -> Plane:
    """Brightness factor per pixel: soft shadows next to nearer objects, and a light rim on them.

    One blur of the depth map, shifted by the direction of the light, covers all objects.
    """
    near = Image.fromarray(_per_pixel(canvas.labels, [255 * r.depth for r in canvas.regions]))
    step = 4
    unit = canvas.unit / step
    soft = near.reduce(step).filter(ImageFilter.GaussianBlur(0.03 * unit))
    shift = (
        1.0,
        0.0,
        float(rng.uniform(-0.03, 0.03)) * unit,
        0.0,
        1.0,
        -float(rng.uniform(0.0, 0.04)) * unit,
    )
    soft = soft.transform(soft.size, Image.Transform.AFFINE, shift).resize(
        near.size, Image.Resampling.BILINEAR
    )
    factor = np.asarray(soft).astype(np.float32)
    factor -= np.asarray(near)
    np.maximum(factor * np.float32(0.75 / 255), factor * np.float32(0.12 / 255), out=factor)
    np.subtract(1, factor, out=factor)
    return factor


def _lens(plane: Plane) -> None:
    """Blurs with [1 2 1]/4 along both axes, in place, like the edges that a lens draws."""
    pair = (plane[:, :-1] + plane[:, 1:]) * np.float32(0.5)
    plane[:, 1:-1] = (pair[:, :-1] + pair[:, 1:]) * np.float32(0.5)
    pair = (plane[:-1] + plane[1:]) * np.float32(0.5)
    plane[1:-1] = (pair[:-1] + pair[1:]) * np.float32(0.5)


def _detail(canvas: Canvas, rng: np.random.Generator) -> Plane:
    """The fine texture of every region at its own strength."""
    out = np.zeros((canvas.height, canvas.width), np.float32)
    for kind in sorted({r.kind for r in canvas.regions}):
        gains = _per_pixel(
            canvas.labels, [6 * r.gain if r.kind == kind else 0 for r in canvas.regions]
        )
        box = Image.fromarray(gains).getbbox()
        if box is None:  # painted over
            continue
        window = np.s_[box[1] : box[3], box[0] : box[2]]
        out[window] += gains[window] * textures.crop(
            kind, rng, width=box[2] - box[0], height=box[3] - box[1]
        )
    out *= np.float32(1 / 6)
    return out


def _chroma(
    canvas: Canvas, detail: Plane, rng: np.random.Generator
) -> tuple[Image.Image, Image.Image]:
    """Cb and Cr at half the resolution, like a sensor's color filter, enlarged; weaker texture."""
    height, width = detail[::2, ::2].shape
    planes = []
    for name, share in (("cb", -0.16), ("cr", 0.12)):
        plane = np.float32(share) * detail[::2, ::2]
        plane += np.float32(1.3) * textures.crop("sand", rng, width=width, height=height)
        plane += textures.smooth(rng, width=width, height=height)
        color = _per_pixel(canvas.labels, [r.cb if name == "cb" else r.cr for r in canvas.regions])
        # reduce() averages 2x2; taking every other label would shift colors by half a pixel
        plane += np.asarray(Image.fromarray(color).reduce(2))
        small = Image.fromarray(np.clip(plane, 0, 255).astype(np.uint8))
        planes.append(small.resize(canvas.labels.size, Image.Resampling.BILINEAR))
    return planes[0], planes[1]


def _luma(layers: _Layers, gain: float) -> Image.Image:
    """The sum of the layers.

    Texture saturates softly at _TEXTURE_LIMIT, because strong texture would become black and
    white. If most of an image is smooth, texture alone cannot reach the size, so above
    _GRAIN_FROM grain is added everywhere.
    """
    plane = layers.detail * np.float32(min(gain, _GRAIN_FROM + 1))
    limit = np.abs(plane)
    limit *= np.float32(1 / _TEXTURE_LIMIT)
    limit += 1
    plane /= limit
    plane += layers.base
    if gain > _GRAIN_FROM:
        plane += layers.grain * np.float32(1.5 * (gain - _GRAIN_FROM))
    np.clip(plane, 0, 255, out=plane)
    return Image.fromarray(plane.astype(np.uint8))


def _size_estimator(
    layers: _Layers, chroma: tuple[Image.Image, Image.Image]
) -> Callable[[float], float]:
    """A function from the gain to bits per pixel, measured on MCU rows spread over the image."""
    height, width = layers.base.shape
    n_rows = max(1, height // _BAND)
    n_bands = min(n_rows, max(1, _PROBE_PIXELS // (width * _BAND)))
    first = np.linspace(0, n_rows - 1, n_bands).round().astype(np.intp) * _BAND
    rows = np.minimum((first[:, None] + np.arange(_BAND)).ravel(), height - 1)
    some = _Layers(layers.base[rows], layers.detail[rows], layers.grain[rows])
    some_chroma = [Image.fromarray(np.asarray(plane)[rows]) for plane in chroma]

    def bits(gain: float) -> float:
        scan = (
            len(jpeg_bytes(Image.merge("YCbCr", (_luma(some, gain), *some_chroma)))) - _HEADER_BYTES
        )
        return float(8 * (scan / (len(rows) * width) + _HEADER_BYTES / (height * width)))

    return bits


def _solve_gain(bits: Callable[[float], float], *, target: float) -> float:
    """The gain that gives `target` within about 5 %.

    Bits grow almost linearly with log(gain), so the secant method converges quickly.
    """
    gain, now = 1.0, bits(1.0)
    slope = 1.0  # bits per e-fold of gain, typical; measured after the first step
    for _ in range(4):
        if abs(now / target - 1) < 0.05:
            break
        after = float(np.clip(gain * np.exp((target - now) / slope), *_GAIN_RANGE))
        if after == gain:
            break
        then = bits(after)
        slope = float(np.clip((then - now) / np.log(after / gain), 0.3, 4.0))
        gain, now = after, then
    return gain
