"""Where DCT scaling is used, how close it is to Pillow, and that ``exact`` disables it."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastload._decode.backend import Filter
from tests.corpus import photos
from tests.decoding import FALLBACK_SIMD, at_most, native, pixels_of
from tests.jpeg_samples import decode, encode, sample_image


def pillow(data: bytes, size: tuple[int, int]) -> NDArray[np.int_]:
    return np.asarray(
        Image.open(io.BytesIO(data)).convert("RGB").resize(size, Image.Resampling.BILINEAR)
    ).astype(int)


def psnr(found: NDArray[np.uint8], expected: NDArray[np.int_]) -> float:
    error = float(np.mean((found.astype(int) - expected) ** 2))
    return 10 * math.log10(255**2 / max(error, 1e-9))


# The scale changes at 2, 4 and 12, the hardest cases, because the least filtering remains.
@pytest.mark.parametrize("factor", [2.0, 2.2, 2.5, 3.3, 4.0, 4.5, 6.0, 8.0, 12.0, 16.0])
def test_scaled_photos_stay_close_to_pillow(factor: float) -> None:
    ratios = []
    for path in photos(30):
        data = path.read_bytes()
        width, height = Image.open(io.BytesIO(data)).size
        size = max(1, int(width / factor)), max(1, int(height / factor))
        ratios.append(psnr(pixels_of(native(), data, size), pillow(data, size)))
    assert np.mean(ratios) >= 38, f"mean {np.mean(ratios):.1f} dB, worst {min(ratios):.1f}"


def test_exact_equals_pillow_at_any_scale() -> None:
    for path in photos(6):
        data = path.read_bytes()
        for size in ((100, 80), (40, 40), (17, 9)):
            assert (
                abs(pixels_of(native(), data, size, exact=1).astype(int) - pillow(data, size)).max()
                <= 1
            )


def test_no_dct_scaling_below_a_factor_of_two() -> None:
    for path in photos(6):
        data = path.read_bytes()
        width, height = Image.open(io.BytesIO(data)).size
        size = width // 2 + 1, height // 3
        assert np.array_equal(
            pixels_of(native(), data, size), pixels_of(native(), data, size, exact=1)
        )


@pytest.mark.parametrize("how", [Filter.BILINEAR, Filter.NEAREST])
def test_other_filters_never_use_dct_scaling(how: Filter) -> None:
    data = encode(sample_image(400, 300), "420")
    assert np.array_equal(
        pixels_of(native(), data, (50, 40), filter=how),
        pixels_of(native(), data, (50, 40), filter=how, exact=1),
    )


@pytest.mark.parametrize(
    "part", [(0, 0, 400, 300), (1, 1, 398, 298), (37, 22, 301, 207), (5, 3, 160, 120)]
)
def test_a_scaled_region_keeps_its_position(part: tuple[int, int, int, int]) -> None:
    """On a ramp, a shift by a quarter of a pixel changes the mean value."""
    ramp = np.empty((300, 400, 3), np.uint8)
    ramp[:, :, 0] = np.arange(400) // 2
    ramp[:, :, 1] = (np.arange(300) * 0.8)[:, None]
    ramp[:, :, 2] = 128
    data = encode(ramp, "444", 100)
    x, y, w, h = part
    size = w // 3, h // 3
    box: dict[str, Any] = {"x": x, "y": y, "w": w, "h": h}
    scaled = pixels_of(native(), data, size, **box).astype(int)
    exact = pixels_of(native(), data, size, exact=1, **box).astype(int)
    inner = abs(scaled - exact)[2:-2, 2:-2]
    assert inner.mean() < 0.35
    assert abs((scaled - exact)[2:-2, 2:-2].mean(axis=(0, 1))).max() < 0.2


def black_and_white(width: int, height: int) -> NDArray[np.uint8]:
    """Squares that stay black and white at half the size give the largest sums."""
    squares = (
        np.random.default_rng(0).integers(0, 2, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        * 255
    )
    return squares.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]


@pytest.mark.parametrize("sampling", ["420", "444", "gray"])
@pytest.mark.parametrize(
    "image",
    [sample_image(401, 299), black_and_white(401, 299)],
    ids=["gradient and noise", "black and white"],
)
def test_vector_code_equals_portable_code_after_scaling(
    image: NDArray[np.uint8], sampling: str
) -> None:
    data = encode(image, sampling)
    for size in (
        (200, 149),
        (90, 70),
        (33, 20),
        (11, 9),
        (200, 45),
        (80, 149),
        (20, 149),
        (200, 3),
    ):  # the last ones have many taps
        for flip in (0, 1):
            found = pixels_of(native(), data, size, flip=flip)
            for level in FALLBACK_SIMD:
                with at_most(level):
                    assert np.array_equal(found, pixels_of(native(), data, size, flip=flip)), (
                        level,
                        size,
                    )


@pytest.mark.parametrize("size", [(1, 20), (2, 20), (5, 20), (40, 20)])
def test_a_very_long_image_stays_close_to_pillow(size: tuple[int, int]) -> None:
    """Thousands of taps on one axis, a factor of two on the other."""
    strip = black_and_white(16000, 40)
    data = encode(strip, "444")
    found = pixels_of(native(), data, size)
    assert psnr(found, pillow(data, size)) >= 38
    for level in FALLBACK_SIMD:
        with at_most(level):
            assert np.array_equal(found, pixels_of(native(), data, size)), level
    on_end = encode(np.ascontiguousarray(strip.transpose(1, 0, 2)), "444")
    assert psnr(pixels_of(native(), on_end, size[::-1]), pillow(on_end, size[::-1])) >= 38


def test_a_flat_image_stays_flat() -> None:
    data = encode(np.full((256, 320, 3), 131, np.uint8), "420", 95)
    value = decode(data)[0, 0]
    for size in ((160, 128), (100, 70), (50, 33), (20, 16), (320, 256), (640, 300)):
        assert (pixels_of(native(), data, size) == value).all()
