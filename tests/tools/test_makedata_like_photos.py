"""Generated photographs compared with real ones: JPEG size and slope of the power spectrum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._tools.scenes import photo
from tests import corpus
from tests.tools.test_makedata_photo import bits_per_pixel

SIDE = 256


def power_slope(gray: NDArray[np.uint8]) -> float:
    """Slope of log power over log frequency, 4 to 63 waves per 256 pixels, image center."""
    y, x = (gray.shape[0] - SIDE) // 2, (gray.shape[1] - SIDE) // 2
    window = np.hanning(SIDE)
    part = gray[y : y + SIDE, x : x + SIDE].astype(np.float64)
    power = np.abs(np.fft.fft2((part - part.mean()) * window[:, None] * window)) ** 2
    f = np.fft.fftfreq(SIDE) * SIDE
    ring = np.hypot(f[:, None], f).round().astype(np.intp).ravel()
    radial = np.bincount(ring, power.ravel()) / np.bincount(ring)
    k = np.arange(4, SIDE // 4)
    return float(np.polyfit(np.log(k), np.log(radial[k] + 1e-9), 1)[0])


def measure(images: list[Image.Image]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    bits = np.array([bits_per_pixel(image) for image in images])
    return bits, np.array([power_slope(np.asarray(image.convert("L"))) for image in images])


def test_generated_photographs_are_within_the_range_of_real_ones() -> None:
    real = [Image.open(path).convert("RGB") for path in corpus.photos(60)]
    real_bits, real_slope = measure([image for image in real if min(image.size) >= SIDE])
    made_bits, made_slope = measure(
        [photo.photo(np.random.default_rng([9, i]), 500, 375) for i in range(40)]
    )
    for name, made, real_values in (
        ("bits per pixel", made_bits, real_bits),
        ("slope", made_slope, real_slope),
    ):
        low, middle, high = np.percentile(real_values, [25, 50, 75])
        print(
            f"{name}: made {np.percentile(made, [5, 50, 95]).round(2)}, real {low:.2f} {middle:.2f} {high:.2f}"
        )
        assert low < np.median(made) < high, name
