"""Resizing equals Pillow, OpenCV and the formula of nearest. Vector code equals portable code."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fastload._decode.backend import Filter
from tests.decoding import FALLBACK_SIMD, at_most, native, raw_pixels

Size = tuple[int, int, int, int]  # width, height, output width, output height
SIZES = [
    (500, 375, 256, 256),
    (500, 375, 224, 224),
    (100, 80, 224, 200),
    (97, 203, 50, 60),
    (500, 20, 250, 20),
    (31, 17, 7, 3),
    (3, 3, 1, 1),
    (1, 1, 5, 5),
    (2, 5, 3, 9),
    (50, 40, 50, 20),
    (50, 40, 20, 40),
    (900, 700, 9, 7),
    (16, 16, 1000, 3),
    (7, 1, 300, 1),
    (33, 65, 32, 64),
    (96, 9, 21, 9),
    (99, 9, 20, 9),
]
sides = st.integers(1, 90)
sizes = st.tuples(sides, sides, sides, sides)
wide_sizes = st.tuples(sides, sides, st.integers(1, 700), sides)  # columns are processed in blocks


def noise(width: int, height: int, channels: int) -> NDArray[np.uint8]:
    return np.random.default_rng((width, height, channels)).integers(
        0, 256, (height, width, channels), np.uint8
    )


def pillow(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.int_]:
    """Resizes columns, then rows. Pillow chooses the order, which may change a value by 1."""
    source = Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])
    across = source.resize((width, source.height), Image.Resampling.BILINEAR)
    return (
        np.asarray(across.resize((width, height), Image.Resampling.BILINEAR))
        .reshape(height, width, -1)
        .astype(int)
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_antialias_equals_pillow(size: Size, channels: int) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    found = raw_pixels(native(), image, (out_w, out_h)).astype(int)
    assert np.array_equal(found, pillow(image, out_w, out_h))
    direct = np.asarray(
        Image.fromarray(image if channels == 3 else image[:, :, 0]).resize(
            (out_w, out_h), Image.Resampling.BILINEAR
        )
    )
    assert abs(found - direct.reshape(found.shape)).max() <= 1


@settings(max_examples=150)
@given(
    st.one_of(sizes, wide_sizes),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from(list(Filter)),
    st.integers(0, 1),
    st.booleans(),
)
# Steps of 3 pixels, then of 3 and 4: the latter do not fit a window.
@example((84, 9, 28, 9), 3, Filter.ANTIALIAS, 0, False)
@example((90, 9, 28, 9), 3, Filter.ANTIALIAS, 0, False)
@example((90, 9, 28, 9), 3, Filter.BILINEAR, 1, False)
# Fewer pixels than may share a window, and too far apart for it.
@example((16, 4, 3, 4), 3, Filter.ANTIALIAS, 0, False)
def test_vector_code_equals_portable_code(
    size: Size, channels: int, how: Filter, flip: int, black_and_white: bool
) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    if black_and_white:
        image = image // 128 * 255
    found = raw_pixels(native(), image, (out_w, out_h), filter=how, flip=flip)
    for level in FALLBACK_SIMD:
        with at_most(level):
            expected = raw_pixels(native(), image, (out_w, out_h), filter=how, flip=flip)
        assert np.array_equal(found, expected), level


@settings(max_examples=150)
@given(sizes)
def test_antialias_equals_pillow_at_any_size(size: Size) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, 3)
    assert np.array_equal(
        raw_pixels(native(), image, (out_w, out_h)).astype(int), pillow(image, out_w, out_h)
    )


@settings(max_examples=100)
@given(sizes)
def test_bilinear_is_close_to_opencv(size: Size) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, 3)
    found = raw_pixels(native(), image, (out_w, out_h), filter=Filter.BILINEAR).astype(int)
    expected = cv2.resize(image, (out_w, out_h), interpolation=cv2.INTER_LINEAR).astype(int)
    assert abs(found - expected).max() <= 1


@settings(max_examples=100)
@given(sizes, st.sampled_from([np.uint8, np.uint16, np.uint32]), st.integers(0, 1))
def test_nearest_takes_the_center_pixel_unmodified(size: Size, dtype: type, flip: int) -> None:
    width, height, out_w, out_h = size
    image = np.random.default_rng(1).integers(
        0, np.iinfo(dtype).max, (height, width, 1), dtype, endpoint=True
    )
    found = raw_pixels(native(), image, (out_w, out_h), filter=Filter.NEAREST, flip=flip).view(
        dtype
    )
    rows = [(2 * i + 1) * height // (2 * out_h) for i in range(out_h)]
    columns = [(2 * i + 1) * width // (2 * out_w) for i in range(out_w)]
    expected = image[rows][:, columns]
    assert np.array_equal(found, expected[:, ::-1] if flip else expected)


def test_equal_size_copies_pixels() -> None:
    image = noise(123, 77, 3)
    for how in Filter:
        assert np.array_equal(raw_pixels(native(), image, (123, 77), filter=how), image)


@pytest.mark.parametrize("how", list(Filter))
def test_flip_mirrors_the_resized_image(how: Filter) -> None:
    image = noise(101, 57, 3)
    flipped = raw_pixels(native(), image, (40, 70), filter=how, flip=1)
    assert np.array_equal(flipped[:, ::-1], raw_pixels(native(), image, (40, 70), filter=how))


def test_a_region_is_resized_like_a_whole_image() -> None:
    image = noise(200, 150, 3)
    found = raw_pixels(native(), image, (64, 48), x=33, y=21, w=101, h=87)
    assert np.array_equal(
        found, raw_pixels(native(), np.ascontiguousarray(image[21:108, 33:134]), (64, 48))
    )


def test_copying_does_not_write_beyond_the_row() -> None:
    image = noise(20, 10, 3)
    canvas = raw_pixels(native(), image, (20, 10), canvas=(31, 10), pad_left=4)
    assert np.array_equal(canvas[:, 4:24], image)
    assert not canvas[:, :4].any()
    assert not canvas[:, 24:].any()
