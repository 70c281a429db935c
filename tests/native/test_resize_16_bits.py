"""16-bit images: resizing equals Pillow, OpenCV, torch and the formula of nearest."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fastload._decode.backend import Codec, Filter, PixelFormat
from tests.decoding import native, pixels_of, raw_pixels, reference
from tests.native.test_resize_matches_pillow import SIZES, Size, sizes


def noise(width: int, height: int, channels: int) -> NDArray[np.uint16]:
    random = np.random.default_rng((width, height, channels))
    return random.integers(0, 65536, (height, width, channels), np.uint16)


def decoded(
    image: NDArray[np.uint16], to: tuple[int, int], how: Filter, backend: Any = None, **request: Any
) -> NDArray[np.int64]:
    channels = image.shape[2]
    color: Any = "gray" if channels == 1 else "rgb"
    found = raw_pixels(
        backend or native(),
        image,
        to,
        filter=how,
        pixels=PixelFormat(color=color, bits=16),
        channels=channels,
        dtype=np.uint16,
        **request,
    )
    assert found.dtype == np.uint16
    return np.asarray(found, np.int64)


def pillow(image: NDArray[np.uint16], width: int, height: int) -> NDArray[np.int64]:
    """Resizes each channel as I;16, columns first."""
    planes = []
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
        assert plane.mode == "I;16"
        plane = plane.resize((width, plane.height), Image.Resampling.BILINEAR)
        planes.append(np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR)))
    return np.stack(planes, axis=2).astype(np.int64)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_antialias_equals_pillow(size: Size, channels: int) -> None:
    """Pillow adds doubles. A sum that is half a value may be rounded to either side."""
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    difference = abs(decoded(image, (out_w, out_h), Filter.ANTIALIAS) - pillow(image, out_w, out_h))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [size for size in SIZES if 1 not in size])
def test_antialias_equals_torch(size: Size, channels: int) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    planes = torch.from_numpy(image.astype(np.float64)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        planes, (out_h, out_w), mode="bilinear", antialias=True
    )
    wanted = resized[0].permute(1, 2, 0).round().numpy().astype(np.int64)
    assert abs(decoded(image, (out_w, out_h), Filter.ANTIALIAS) - wanted).max() <= 1


def blended(image: NDArray[Any], n: int, axis: int) -> NDArray[Any]:
    size = image.shape[axis]
    position = ((np.arange(n) + 0.5) * (size / n) - 0.5).clip(0, size - 1)
    low = np.floor(position).astype(np.intp)
    part = (position - low).reshape([-1 if each == axis else 1 for each in range(3)])
    high = np.minimum(low + 1, size - 1)
    return np.asarray(image.take(low, axis) * (1 - part) + image.take(high, axis) * part)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_bilinear_equals_opencv(size: Size, channels: int) -> None:
    """OpenCV computes positions in single precision on some processors, an error of up to 1.6."""
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    found = decoded(image, (out_w, out_h), Filter.BILINEAR)
    formula = blended(blended(image.astype(np.float64), out_w, 1), out_h, 0)
    assert abs(found - formula).max() <= 1.001
    opencv = cv2.resize(image, (out_w, out_h), interpolation=cv2.INTER_LINEAR)
    assert abs(found - opencv.reshape(found.shape).astype(np.int64)).max() <= 2


@settings(max_examples=150)
@given(sizes, st.sampled_from([1, 3]), st.sampled_from(list(Filter)), st.integers(1, 8))
def test_the_reference_gives_the_same_values(
    size: Size, channels: int, how: Filter, orientation: int
) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    options = {"flip": 1, "orientation": orientation}
    found, wanted = (
        decoded(image, (out_w, out_h), how, backend, **options)
        for backend in (native(), reference())
    )
    assert abs(found - wanted).max() <= (0 if how == Filter.NEAREST else 1)


@given(sizes, st.sampled_from([1, 3]))
def test_nearest_picks_the_center(size: Size, channels: int) -> None:
    width, height, out_w, out_h = size
    image = noise(width, height, channels)
    rows = (2 * np.arange(out_h) + 1) * height // (2 * out_h)
    columns = (2 * np.arange(out_w) + 1) * width // (2 * out_w)
    found = decoded(image, (out_w, out_h), Filter.NEAREST)
    assert np.array_equal(found, image[rows][:, columns])


@pytest.mark.parametrize("how", list(Filter))
def test_black_and_white_stay_black_and_white(how: Filter) -> None:
    for value in (0, 65535):
        image = np.full((333, 257, 3), value, np.uint16)
        assert (decoded(image, (13, 200), how) == value).all()


def test_a_crop_of_pixels_at_an_odd_address() -> None:
    image = noise(40, 30, 3)
    found = pixels_of(
        native(),
        b"x" + image.tobytes(),
        (21, 17),
        offset=1,
        codec=Codec.RAW,
        raw_w=40,
        raw_h=30,
        raw_channels=3,
        raw_bits=16,
        x=7,
        y=5,
        w=21,
        h=17,
        pixels=PixelFormat(bits=16),
        dtype=np.uint16,
    )
    assert np.array_equal(found, image[5:22, 7:28])
