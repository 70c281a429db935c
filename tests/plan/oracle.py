"""Slow reference implementations: plan rows executed with Pillow, and transforms one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fastload import PlanRow
from fastload import transforms as T

Pixels = NDArray[np.float32]


def execute(row: PlanRow, image: Pixels, *, fill: float = 0.0) -> Pixels:
    """Crops, resizes, mirrors and pads an image like a decoder."""
    roi = Image.fromarray(image[row.y : row.y + row.h, row.x : row.x + row.w])
    pixels = np.asarray(roi.resize((row.out_w, row.out_h), Image.Resampling.BILINEAR))
    canvas = np.full((row.canvas_h, row.canvas_w), fill, np.float32)
    canvas[row.pad_top : row.pad_top + row.out_h, row.pad_left : row.pad_left + row.out_w] = (
        pixels[:, ::-1] if row.flip else pixels
    )
    return canvas


def step_by_step(transforms: list[T.Transform], image: Pixels, *, smallest: int = 1) -> Pixels:
    """Applies transforms without randomness one after the other, like torchvision.

    Raises ValueError if an intermediate image is smaller than ``smallest``, where the spot is lost.
    """
    for each in transforms:
        height, width = image.shape
        if min(height, width) < smallest:
            raise ValueError(f"{height}x{width}")
        if isinstance(each, T.Resize):
            image = _resized(image, *_resize_target(each, height, width))
        elif isinstance(each, T.CenterCrop) and isinstance(each.size, int):
            top, left = (
                -((each.size - side) // 2) if side < each.size else round((side - each.size) / 2)
                for side in (height, width)
            )
            image = _window(image, top, left, each.size, each.size)
        elif isinstance(each, T.Crop):
            image = image[
                _pixels(each.top, height) : height - _pixels(each.bottom, height),
                _pixels(each.left, width) : width - _pixels(each.right, width),
            ]
        elif (
            isinstance(each, T.Letterbox)
            and isinstance(each.height, int)
            and isinstance(each.width, int)
        ):
            scale = min(each.height / height, each.width / width)
            inner = _resized(
                image, max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))
            )
            canvas = np.zeros((each.height, each.width), np.float32)
            top, left = (each.height - inner.shape[0]) // 2, (each.width - inner.shape[1]) // 2
            canvas[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
            image = canvas
        elif isinstance(each, T.HorizontalFlip) and each.p in (0.0, 1.0):
            image = image[:, ::-1] if each.p else image
        else:
            raise AssertionError(each)
    return image


def blob(width: int, height: int, x: float, y: float, sigma: float) -> Pixels:
    """Returns a black image with one bright spot at (x, y) in continuous coordinates."""
    across, down = np.arange(width) + 0.5 - x, np.arange(height) + 0.5 - y
    return np.exp(-(across**2 + down[:, None] ** 2) / (2 * sigma**2)).astype(np.float32) * 255


def centroid(image: Pixels) -> tuple[float, float]:
    """Returns the position of the bright spot in continuous coordinates."""
    total = float(image.sum(dtype=np.float64))
    x = (
        float((image.sum(axis=0, dtype=np.float64) * (np.arange(image.shape[1]) + 0.5)).sum())
        / total
    )
    y = (
        float((image.sum(axis=1, dtype=np.float64) * (np.arange(image.shape[0]) + 0.5)).sum())
        / total
    )
    return x, y


def _pixels(amount: float, side: int) -> int:
    return amount if isinstance(amount, int) else int(amount * side + 0.5)


def _resize_target(each: T.Resize, height: int, width: int) -> tuple[int, int]:
    if isinstance(each.height, int) and isinstance(each.width, int):
        return each.height, each.width
    if each.shorter:
        return max(1, each.shorter * height // min(height, width)), max(
            1, each.shorter * width // min(height, width)
        )
    assert each.longer
    return max(1, int(each.longer * height / max(height, width) + 0.5)), max(
        1, int(each.longer * width / max(height, width) + 0.5)
    )


def _resized(image: Pixels, height: int, width: int) -> Pixels:
    return np.asarray(
        Image.fromarray(np.ascontiguousarray(image)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
    )


def _window(image: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    """Crops a window; pixels outside of the image are black."""
    padded = np.pad(
        image,
        (
            (max(0, -top), max(0, top + height - image.shape[0])),
            (max(0, -left), max(0, left + width - image.shape[1])),
        ),
    )
    return padded[max(0, top) :, max(0, left) :][:height, :width]


# Hypothesis strategies for lists of transforms. Sides are small because tests execute the lists.
sides = st.integers(1, 90)
fixed_transforms: st.SearchStrategy[T.Transform] = st.one_of(
    st.builds(T.Resize, sides, sides),
    st.builds(T.Resize, shorter=sides),
    st.builds(T.Resize, longer=sides),
    st.builds(T.CenterCrop, sides),
    st.builds(T.Letterbox, sides, sides),
    st.builds(T.HorizontalFlip, st.sampled_from([0.0, 1.0])),
    st.builds(
        lambda top, right: T.Crop(top=top, right=right), st.floats(0.01, 0.6), st.floats(0, 0.6)
    ),
    st.builds(
        lambda bottom, left: T.Crop(bottom=bottom, left=left),
        st.integers(1, 20),
        st.integers(0, 20),
    ),
)
random_transforms: st.SearchStrategy[T.Transform] = st.one_of(
    st.builds(T.RandomResizedCrop, sides),
    st.builds(lambda h, w: T.RandomResizedCrop((h, w), scale=(0.3, 1.0)), sides, sides),
    st.builds(T.RandomCrop, sides),
    st.builds(lambda size: T.RandomCrop(size, pad=size // 2), sides),
    st.builds(T.HorizontalFlip),
)
transform_lists: st.SearchStrategy[list[T.Transform]] = st.lists(
    st.one_of(fixed_transforms, random_transforms), max_size=4
)
image_sizes = st.tuples(st.integers(1, 400), st.integers(1, 400))
