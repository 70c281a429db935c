"""Compares one crop and one resize with the transforms applied one by one."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fastload import transforms as T
from fastload.transforms import compile
from tests.corpus import photos
from tests.plan.oracle import execute, step_by_step


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Resize(40, 70)],
        [T.Crop(top=0.3), T.Resize(72, 96)],
        [T.Crop(left=7, bottom=0.2), T.CenterCrop(64), T.Resize(32, 48), T.HorizontalFlip(1.0)],
        [T.HorizontalFlip(1.0), T.Crop(left=7), T.Resize(shorter=50)],
        [T.Letterbox(100, 80), T.HorizontalFlip(1.0)],
        [T.CenterCrop(90), T.Letterbox(100, 80)],
        [T.CenterCrop(200)],
    ],
    ids=str,
)
def test_crops_before_one_resize_give_the_same_pixels(transforms: list[T.Transform]) -> None:
    image = np.random.default_rng(0).uniform(0, 255, (120, 161)).astype(np.float32)
    row = compile(transforms).rows([0], [image.shape], seed=0, epoch=0)[0]
    assert np.abs(execute(row, image) - step_by_step(transforms, image)).max() < 1e-3


def test_a_crop_after_a_resize_is_rounded_to_whole_source_pixels() -> None:
    """docs/transforms.md quotes this bound.

    The mean difference over photographs is below 2.5 of 255, and below the effect of a shift by
    half a source pixel.
    """
    plan = compile([T.Resize(shorter=256), T.CenterCrop(224)])
    found, shifted = [], []
    for path in photos(24):
        with Image.open(path) as file:
            image = file.convert("L")
        width, height = image.size
        if min(width, height) < 256:
            continue
        small = (256 * width // min(image.size), 256 * height // min(image.size))
        left, top = round((small[0] - 224) / 2), round((small[1] - 224) / 2)
        window = (left, top, left + 224, top + 224)
        expected = np.asarray(
            image.resize(small, Image.Resampling.BILINEAR).crop(window), np.float32
        )
        row = plan.rows([0], [[height, width]], seed=0, epoch=0)[0]
        found.append(np.abs(execute(row, np.asarray(image, np.float32)) - expected).mean())
        half = image.resize(small, Image.Resampling.BILINEAR, box=(0.5, 0.5, width, height)).crop(
            window
        )
        shifted.append(np.abs(np.asarray(half, np.float32) - expected).mean())
    assert len(found) >= 12
    assert 0 < np.mean(found) < 2.5
    assert np.mean(found) < np.mean(shifted)
